"""The page about the tests: the suites of the Makefile, and what coverage and mutants found."""

import json
import re

from docs.generate.links import ROOT

COVERAGE = ROOT / "results" / "coverage.json"
MUTANTS = ROOT / "results" / "mutants"
EQUIVALENT = ROOT / "tests" / "mutants" / "equivalent.json"
# A target of the Makefile, the comment above it, and the variables between them.
TARGET = re.compile(r"^# (.+)\n(?:\w+ [?:]= .+\n)*(test[\w-]*|soak|coverage|mutants):", re.M)


def pages() -> dict[str, str]:
    """Return the text of the page by its path on the site."""
    said = (
        "A test asserts an end state, never seconds or the last digits of a sum: machines differ. "
        "Nothing needs the network; real data are used where `TRIMTAB_DATA` has them."
    )
    parts = [f"# The tests\n\n{said}", _suites(), _coverage(), _mutants()]
    return {"tests.md": "\n\n".join(parts) + "\n"}


def _suites() -> str:
    """Return the suites of the Makefile with the comment above each."""
    text = (ROOT / "Makefile").read_text("utf-8")
    ran = set(re.findall(r"^make ([\w-]+)", (ROOT / ".ci" / "run").read_text("utf-8"), re.M))
    rows = [
        f"| `make {name}` | {said} | {'yes' if name in ran else 'no'} |"
        for said, name in TARGET.findall(text)
    ]
    return "\n".join(["| command | what it runs | in CI |", "|---|---|---|", *rows])


def _coverage() -> str:
    found = json.loads(COVERAGE.read_text("utf-8"))
    branches = found["branches"][0] / found["branches"][1]
    folders = {f"`{name}`": pair for name, pair in found["folders"].items() if pair[1]}
    rows = [
        f"| {name} | {a} of {b} | {100 * a / b:.1f} % |"
        for name, (a, b) in {**folders, "all": found["lines"]}.items()
    ]
    said = (
        "Measured by `make coverage`, processes that tests start included; "
        f"{100 * branches:.1f} % of the branches. What a process had seen when it was killed is "
        "lost, and whole federations are not measured. A line that runs is not a line that is "
        "tested, which is what mutants are for."
    )
    return "\n".join(["## Coverage\n", f"{said}\n", "| folder | lines | |", "|---|---|---|", *rows])


def _mutants() -> str:
    known = json.loads(EQUIVALENT.read_text("utf-8"))
    explained = {(entry["file"], entry["key"]) for entry in known}
    rows, sums = [], [0, 0, 0, 0]
    for path in sorted(MUTANTS.glob("*.json")):
        record = json.loads(path.read_text("utf-8"))
        alive = [entry["key"] for entry in record["mutants"] if entry["by"] is None]
        equal = sum((record["file"], key) in explained for key in alive)
        tried = len(record["mutants"])
        numbers = [record["total"], tried, tried - len(alive), equal]
        sums = [a + b for a, b in zip(sums, numbers, strict=True)]
        rows.append(_row(f"`{record['file'].removeprefix('src/trimtab/')}`", numbers))
    said = (
        "`make mutants` changes every sign, comparison, number, condition, return and refusal of "
        "the algorithms and the commit protocol, one at a time, and the tests that reach the line "
        "must notice. A mutant counts as equivalent if `tests/mutants/equivalent.json` says why no "
        "test can distinguish it. Mistakes found in other systems are mutants written by hand."
    )
    head = "| file | mutants | tried | rejected | equivalent | survive |\n|---|---|---|---|---|---|"
    return "\n".join(["## Mutants\n", f"{said}\n", head, *rows, _row("all", sums)])


def _row(name: str, numbers: list[int]) -> str:
    """Return a line of the table; what is left of those tried survives."""
    _, tried, rejected, equal = numbers
    cells = [*numbers, tried - rejected - equal]
    return f"| {name} | {' | '.join(map(str, cells))} |"
