"""Measure how much of both distributions the tests run: `make coverage`, or some tests by name.

Processes that the tests start count as well: coverage.py follows every child, forked or spawned
([tool.coverage.run] in pyproject.toml). What a process had seen when it was killed is lost, so that
tests which kill servers and sites count for less than they run. The suite of whole federations
is not part of it.
"""

import json
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from trimtab._version import __version__

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "results" / "coverage.json"  # which the site shows
FOUND = ROOT / "build" / "coverage" / "coverage.json"


def measure(tests: list[str]) -> int:
    """Run the tests under coverage; return what pytest returned."""
    shutil.rmtree(FOUND.parent, ignore_errors=True)  # what an interrupted run has left
    FOUND.parent.mkdir(parents=True)
    command = [sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider"]
    command += ["-m", "not (federation or cluster or package)"]
    command += ["--cov", "--cov-report=", *tests]
    code = subprocess.run(command, cwd=ROOT).returncode
    words = [sys.executable, "-m", "coverage", "json", "--quiet", "-o", str(FOUND)]
    subprocess.run(words, cwd=ROOT, check=True)
    return code


def record(found: dict, tests: list[str], passed: bool) -> dict:
    """Return the shares of lines and branches, in all and by folder."""
    folders: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, file in found["files"].items():
        folder = folder_of(Path(name).parts)
        folders[folder][0] += file["summary"]["covered_lines"]
        folders[folder][1] += file["summary"]["num_statements"]
    totals = found["totals"]
    return {
        "trimtab": __version__,
        "tests": tests,
        "passed": passed,
        "lines": [totals["covered_lines"], totals["num_statements"]],
        "branches": [totals["covered_branches"], totals["num_branches"]],
        "folders": dict(sorted(folders.items())),
    }


def folder_of(parts: tuple[str, ...]) -> str:
    """Return the folder that a file counts for; all of trimtab-papers is one.

    >>> folder_of(("src", "trimtab", "core", "tree.py")), folder_of(("src", "trimtab", "errors.py"))
    ('core', 'trimtab')
    >>> folder_of(("papers", "src", "trimtab_papers", "bench", "record.py"))
    'trimtab_papers'
    """
    if "trimtab_papers" in parts:
        return "trimtab_papers"
    place = parts[parts.index("trimtab") + 1 :]
    return place[0] if len(place) > 1 else "trimtab"


def main() -> None:
    """Measure, and write the record of a whole suite."""
    tests = sys.argv[1:]
    code = measure(tests)
    found = record(json.loads(FOUND.read_text()), tests, code == 0)
    for what in ("lines", "branches"):
        print(f"{found[what][0]} of {found[what][1]} {what}")
    if not tests:
        RECORD.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
