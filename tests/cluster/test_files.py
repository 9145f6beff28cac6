"""What docs/cluster.md says, and the files that it hands out."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.cli import main
from trimtab.cluster import engine

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cluster.md").read_text("utf-8")
SLURM = ROOT / "docs" / "cluster" / "slurm.sh"
KUBERAY = ROOT / "docs" / "cluster" / "kuberay.yaml"


@pytest.fixture
def trimtab(capsys):
    """Return what runs the program, and returns what it prints."""

    def run(*words):
        code = 0
        try:
            main(list(words))
        except SystemExit as end:
            code = end.code
        out, err = capsys.readouterr()
        return code, out + err

    return run


@pytest.fixture
def check(trimtab):
    """Return what checks that a command exists and knows its options."""

    def checked(line):
        _, command, *words = shlex.split(line)
        code, told = trimtab(command, "--help")
        assert not code
        known = set(re.findall(r"(?<![\w-])(--?[\w-]+)", told))
        _check(command, words, known)

    return checked


def _check(command, words, known):
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            assert word in known, f"{command} has no {word}"


def commands(text):
    """Return the commands of trimtab in a text, each on one line."""
    text = re.sub(r"\\\n\s*", "", text)
    return [line.split("  #")[0] for line in text.splitlines() if line.startswith("trimtab ")]


def test_the_commands_of_the_page_have_these_options(check):
    found = commands(PAGE)
    assert len(found) >= 4
    for line in found:
        check(line)


def test_the_slurm_file_is_a_script_whose_commands_exist(check):
    subprocess.run(["bash", "-n", SLURM], check=True)
    (line,) = commands(SLURM.read_text())
    check(line)


def test_the_kuberay_file_is_a_job_of_the_pinned_ray(check):
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load(KUBERAY.read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec = job["spec"]
    check(spec["entrypoint"])
    pinned = re.search(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), re.M)[1]
    assert spec["rayClusterSpec"]["rayVersion"] == pinned
    groups = [spec["rayClusterSpec"]["headGroupSpec"], *spec["rayClusterSpec"]["workerGroupSpecs"]]
    for group in groups:
        pod = group["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            assert container["resources"]["limits"] == container["resources"]["requests"]


def test_without_ray_one_is_told_what_to_install(trimtab, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        ValueError, match=r"^a cluster needs Ray, .* `pip install 'trimtab\[cluster\]'`"
    ):
        engine.import_ray()
    monkeypatch.chdir(tmp_path)
    words = ["run", "scaffold", "digits", "--eta-l", "0.1", "--K", "2", "-R", "1", "--cluster"]
    cells = ["reproduce", "theorem2", "--quick", "--cluster"]
    for command in (words, ["compare", "digits", "-R", "1", "--cluster"], cells):
        code, told = trimtab(*command)
        assert code == 2
        assert "pip install 'trimtab[cluster]'" in told
        assert "Traceback" not in told


def test_shards_and_snapshots_are_for_a_cluster(trimtab):
    for option, value in (("--shards", "8"), ("--snapshots", "there")):
        code, told = trimtab("run", "sgd", "digits", "--eta", "1", option, value)
        assert code == 2
        assert f"{option} is for a cluster; pass --cluster too, or drop it." in told
