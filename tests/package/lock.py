"""Write the second part of constraints.txt: what our dependencies bring, at their versions.

The first part is by hand: what we chose, and why. Everything else that is installed with all extras
is pinned below the line, as it was found in an environment with all of them (`make lock`).
"""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "constraints.txt"
LINE = "# -- What these bring with them: written by `make lock`, not by hand.\n"
OURS = {"trimtab", "trimtab-papers", "pip"}  # not pinned: both distributions, and the installer
FOR_GPUS = ("nvidia-", "cuda-", "triton")  # not pinned: what torch's own builds for GPUs bring


def extras() -> list[str]:
    """Return all extras of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return sorted(project["optional-dependencies"])


def pins(text: str) -> dict[str, str]:
    """Return the version of each package that a text pins.

    >>> pins("# one\\nSQLAlchemy==2.1.8\\nhf-xet==1.8.0")
    {'sqlalchemy': '2.1.8', 'hf-xet': '1.8.0'}
    """
    found = re.findall(r"^([\w.-]+)==([\w.!]+)$", text, re.M)
    return {normal(name): version for name, version in found}


def normal(name: str) -> str:
    """Return the name by which an index knows a package."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pip(*words: str, python: Path | None = None) -> str:
    """Run pip for another environment; return what it says."""
    there = ("--python", str(python)) if python else ()
    command = [sys.executable, "-m", "pip", *there, "--disable-pip-version-check", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def new_environment(folder: Path) -> Path:
    """Make an empty environment; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


def install(python: Path, *what: str) -> None:
    """Install by the constraints; bytecode is written at the first import only, to save time."""
    pip("install", "--no-compile", "--constraint", str(LOCK), *what, python=python)


def installed(python: Path) -> dict[str, str]:
    """Return what is installed, each without the local part of its version, as in 2.13.0+cpu."""
    rows = json.loads(pip("list", "--format=json", python=python))
    versions = {normal(row["name"]): row["version"].partition("+")[0] for row in rows}
    return {
        name: version
        for name, version in versions.items()
        if name not in OURS and not name.startswith(FOR_GPUS)
    }


def written(text: str, found: Mapping[str, str]) -> str:
    """Return the constraints with what was found below the line.

    >>> print(written("# ours\\nb==1\\n", {"a": "2", "b": "1"}))
    # ours
    b==1
    <BLANKLINE>
    # -- What these bring with them: written by `make lock`, not by hand.
    a==2
    <BLANKLINE>
    """
    ours = text.partition(LINE)[0].rstrip("\n")
    chosen = pins(ours)
    lines = [
        f"{name}=={version}\n" for name, version in sorted(found.items()) if name not in chosen
    ]
    return f"{ours}\n\n{LINE}{''.join(lines)}"


def main() -> None:
    """Install everything anew by the part that is by hand, and write what came."""
    with TemporaryDirectory() as folder:
        python = new_environment(Path(folder) / "all")
        by_hand = Path(folder) / "by-hand.txt"
        by_hand.write_text(LOCK.read_text().partition(LINE)[0])
        everything = f"{ROOT}[{','.join(extras())}]"
        both = (everything, str(ROOT / "papers"))
        pip("install", "--no-compile", "--constraint", str(by_hand), *both, python=python)
        LOCK.write_text(written(LOCK.read_text(), installed(python)))


if __name__ == "__main__":
    main()
