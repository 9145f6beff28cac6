"""Put the numbers of the records into docs/tests.md: coverage, and the mutants."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tests.md"
COVERAGE = ROOT / "results" / "coverage.json"
MUTANTS = ROOT / "results" / "mutants"
EQUIVALENT = ROOT / "tests" / "mutants" / "equivalent.json"
BEGIN, END = "<!-- from the records: {} -->\n", "<!-- end -->\n"


def coverage_line(found: dict[str, Any]) -> str:
    """Return one sentence on a record of coverage."""
    lines, branches = (100 * a / b if b else 100.0 for a, b in (found["lines"], found["branches"]))
    everything = "the fast suite, the reproductions and the tests of `make soak`"
    what = " ".join(found["tests"]) or everything
    failed = "" if found["passed"] else ", of which some failed under the measurement"
    return f"{lines:.1f} % of the lines and {branches:.1f} % of the branches by {what}{failed}."


def coverage_part() -> str:
    """Return the sentence, and a table of folders."""
    if not COVERAGE.exists():
        return "Not measured over the whole suite yet: `make coverage` does.\n"
    found = json.loads(COVERAGE.read_text())
    rows = [f"| `{name}` | {a} of {b} | {100 * a / b:.1f} % |" for name, (a, b) in folders(found)]
    table = "\n".join(["| folder | lines | |", "|---|---|---|", *rows])
    return f"{coverage_line(found)}\n\n{table}\n"


def folders(found: dict[str, Any]) -> list[tuple[str, tuple[int, int]]]:
    """Return the folders that have lines at all."""
    return [(name, (a, b)) for name, (a, b) in found["folders"].items() if b]


def mutants_part() -> str:
    """Return a table of what became of the mutants, file by file."""
    explained = {(entry["file"], entry["key"]) for entry in json.loads(EQUIVALENT.read_text())}
    rows, sums = [], [0, 0, 0, 0]
    for path in sorted(MUTANTS.glob("*.json")):
        record = json.loads(path.read_text())
        alive = [entry["key"] for entry in record["mutants"] if entry["by"] is None]
        equal = sum((record["file"], key) in explained for key in alive)
        tried = len(record["mutants"])
        numbers = [record["total"], tried, tried - len(alive), equal]
        sums = [a + b for a, b in zip(sums, numbers, strict=True)]
        rows.append(row(f"`{record['file'].removeprefix('src/trimtab/')}`", numbers))
    if not rows:
        return "None were tried yet: `make mutants` does.\n"
    head = "| file | mutants | tried | rejected | equivalent | survive |\n|---|---|---|---|---|---|"
    return "\n".join([head, *rows, row("all", sums)]) + "\n"


def row(name: str, numbers: list[int]) -> str:
    """Return a line of the table; what is left of those tried survives."""
    _, tried, rejected, equal = numbers
    cells = [*numbers, tried - rejected - equal]
    return f"| {name} | {' | '.join(map(str, cells))} |"


def filled(text: str) -> str:
    """Return the page with the parts of the records in their places."""
    for name, part in (("coverage", coverage_part()), ("mutants", mutants_part())):
        before, begin, rest = text.partition(BEGIN.format(name))
        _, end, after = rest.partition(END)
        text = f"{before}{begin}{part}{end}{after}"
    return text


def main() -> None:
    """Write the page."""
    PAGE.write_text(filled(PAGE.read_text()))


if __name__ == "__main__":
    main()
