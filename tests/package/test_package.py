"""What users install: wheel and sdist, all extras together, exactly the versions of the lock."""

import json
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from tests.package.lock import (
    LINE,
    LOCK,
    ROOT,
    extras,
    install,
    installed,
    new_environment,
    pins,
    written,
)

pytestmark = pytest.mark.package

SOURCES = ROOT / "src" / "trimtab"
FILES = {
    path.relative_to(SOURCES.parent).as_posix()
    for path in SOURCES.rglob("*")
    if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
}
FOR_THE_COMPILER = {name for name in FILES if name.endswith((".c", ".h"))}
KERNEL = "from trimtab.compute.kernel import library; print(library.why_not())"


def built(project, folder):
    """Build an sdist, and of that a wheel, as `python -m build` does for a release."""
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(project)]
    constrained = {**os.environ, "PIP_CONSTRAINT": str(LOCK)}
    done = subprocess.run(command, env=constrained, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="session")
def packages(tmp_path_factory):
    """The sdist and the wheel of trimtab."""
    return built(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def papers(tmp_path_factory):
    """The sdist and the wheel of trimtab-papers."""
    return built(ROOT / "papers", tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="session")
def everything(packages, papers, tmp_path_factory):
    """An environment with both wheels and all extras in one installation; its Python."""
    python = new_environment(tmp_path_factory.mktemp("everything"))
    install(python, f"{packages[1]}[{','.join(extras())}]", str(papers[1]))
    return python


@pytest.fixture(scope="session")
def uncompiled(packages, everything, tmp_path_factory):
    """An environment with the sdist, installed where no compiler works; its Python."""
    folder = tmp_path_factory.mktemp("uncompiled")
    python = new_environment(folder)
    site = next(folder.glob("lib/python*/site-packages"))
    others = next(everything.parents[1].glob("lib/python*/site-packages"))
    (site / "others.pth").write_text(f"{others}\n")  # torch and so on need not be there twice
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", "/bin/false")
        install(python, "--no-deps", "--ignore-installed", str(packages[0]))
    return python


def run(python, *words, cwd, **environment):
    done = subprocess.run(
        [str(python), *words],
        cwd=cwd,
        env={**os.environ, "TRIMTAB_OFFLINE": "1", **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def compared(python, folder, *words):
    """Run `trimtab compare` in an empty folder; return the paths that its problem took."""
    assert not any(folder.iterdir())
    program = python.with_name("trimtab")
    result = json.loads(run(program, "compare", "--json", *words, cwd=folder))
    assert result["advice"]
    (page,) = folder.glob("runs/*/report.html")
    for name in ("page.css", "page.js"):
        first, *_ = (SOURCES / "report" / name).read_text().splitlines()
        assert first in page.read_text(), name
    (record,) = folder.glob("runs/*/compare.json")
    return set(json.loads(record.read_text())["paths"].values())


def test_the_wheel_holds_everything_but_what_a_compiler_reads(packages):
    with zipfile.ZipFile(packages[1]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        (metadata,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
        said = message_from_bytes(wheel.read(metadata))
        (licence,) = [name for name in wheel.namelist() if name.endswith("/LICENSE")]
        assert wheel.read(licence) == (ROOT / "LICENSE").read_bytes()
    kernel = {name for name in names if name.endswith(".so")}
    assert len(kernel) == 1
    assert names - kernel == FILES - FOR_THE_COMPILER
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert said["Requires-Python"] == project["requires-python"]
    assert said["License-Expression"] == project["license"]
    assert set(said.get_all("Provides-Extra")) == set(extras())


def test_the_sdist_holds_what_a_compiler_reads_and_nothing_of_the_workshop(packages):
    with tarfile.open(packages[0]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {f"src/{name}" for name in FILES} <= names
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE"} <= names
    assert not [name for name in names if name.endswith(".so") or name.startswith("results/")]


def test_the_wheel_of_pure_python_fits_everywhere_and_computes(everything, tmp_path):
    """As on Windows: without a compiled library, and without the locks of POSIX."""
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(ROOT)]
    pure = {**os.environ, "PIP_CONSTRAINT": str(LOCK), "TRIMTAB_NATIVE": "0"}
    subprocess.run(command, env=pure, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("trimtab-*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as file:
        assert {n for n in file.namelist() if ".dist-info/" not in n} == FILES - FOR_THE_COMPILER
        file.extractall(tmp_path / "pure")
    code = (
        "import sys; sys.modules['fcntl'] = None\n"
        "import trimtab; assert 'pure' in trimtab.__file__\n"
        "from trimtab.cli import main\n"
        "main('compare digits --algorithms fedavg,scaffold --K 5 --seeds 1 --json'.split())"
    )
    where = str(tmp_path / "pure")
    result = json.loads(run(everything, "-c", code, cwd=tmp_path, PYTHONPATH=where))
    assert result["advice"]


def test_the_wheel_needs_no_library_for_plots(packages):
    needed = {r for r in requirements(packages[1]) if "extra ==" not in r}
    assert needed
    assert not [r for r in needed if r.startswith(("matplotlib", "markdown-it"))]


def test_the_papers_are_in_wheel_and_sdist_of_their_own(packages, papers):
    sources = ROOT / "papers" / "src"
    files = {
        path.relative_to(sources).as_posix()
        for path in (sources / "trimtab_papers").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(papers[1]) as wheel:
        assert {name for name in wheel.namelist() if ".dist-info/" not in name} == files
        assert any(name.endswith("/LICENSE") for name in wheel.namelist())
    with tarfile.open(papers[0]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {f"src/{name}" for name in files} <= names
    assert {"pyproject.toml", "README.md", "LICENSE"} <= names
    (own,) = [r for r in requirements(papers[1]) if r.startswith("trimtab")]
    (extra,) = [r for r in requirements(packages[1]) if r.startswith("trimtab-papers")]
    assert extra.replace("trimtab-papers", "trimtab").startswith(own)


def requirements(wheel):
    with zipfile.ZipFile(wheel) as file:
        (metadata,) = [name for name in file.namelist() if name.endswith("/METADATA")]
        return message_from_bytes(file.read(metadata)).get_all("Requires-Dist")


def test_all_extras_are_installed_together_and_agree(everything):
    run(sys.executable, "-m", "pip", "--python", str(everything), "check", cwd=ROOT)


def test_every_installed_package_is_pinned_at_its_version(everything):
    found, pinned = installed(everything), pins(LOCK.read_text())
    assert {name: pinned.get(name) for name in found} == found, "run `make lock`"


def test_nothing_is_pinned_below_the_line_that_nobody_needs(everything):
    below = pins(LOCK.read_text().partition(LINE)[2])
    assert set(below) <= set(installed(everything)), "run `make lock`"
    assert LOCK.read_text() == written(LOCK.read_text(), below)


def test_the_wheel_compares_in_an_empty_folder_with_its_kernel(everything, tmp_path):
    assert run(everything, "-c", KERNEL, cwd=tmp_path) == "None\n"
    assert compared(everything, tmp_path) == {"kernel"}


def test_the_sdist_installs_and_compares_without_a_compiler(uncompiled, tmp_path):
    where = run(uncompiled, "-c", "import trimtab; print(trimtab.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(uncompiled.parents[1])
    assert "make kernel" in run(uncompiled, "-c", KERNEL, cwd=tmp_path)
    few = ("--algorithms", "fedavg,scaffold", "--K", "5", "--seeds", "1")
    assert "kernel" not in compared(uncompiled, tmp_path, *few)


def test_the_papers_are_found_and_run_in_an_empty_folder(everything, tmp_path):
    program = everything.with_name("trimtab")
    words = ("reproduce", "figure3", "--quick", "--cells", "G1-K2", "--json")
    (row,) = json.loads(run(program, *words, cwd=tmp_path))
    assert row["name"] == "figure3"
    assert (tmp_path / "runs/quick/figure3/report.html").exists()
    run(program, "report", "runs/quick/figure3", cwd=tmp_path)
    assert "WORKLOADS" in run(program, "bench", "--help", cwd=tmp_path)


def test_every_extra_can_be_used(everything, tmp_path):
    """What the extras list is there in a version that they admit, and can be imported."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [name for name in extras() if name != "dev"]
    listed = [one for name in named for one in project["optional-dependencies"][name]]
    code = (
        "import sys\n"
        "from importlib import import_module\n"
        "from importlib.metadata import packages_distributions, version\n"
        "from packaging.requirements import Requirement\n"
        "for wanted in map(Requirement, sys.argv[1:]):\n"
        "    assert wanted.specifier.contains(version(wanted.name)), wanted\n"
        "    for module, owners in packages_distributions().items():\n"
        "        if wanted.name in owners and not module.startswith('_'):\n"
        "            import_module(module)\n"
    )
    run(everything, "-c", code, *listed, cwd=tmp_path)
    run(everything.with_name("trimtab"), "federate", "--help", cwd=tmp_path)
