"""One page for each algorithm: its page of docs/algorithms, then its code, its cost, its tests."""

import re
from functools import cache

from docs.generate.equations import blocks_as_mathml
from docs.generate.links import ROOT, is_algorithm, rewritten

FOLDER = ROOT / "docs" / "algorithms"


def pages() -> dict[str, str]:
    """Return the text of each page by its path on the site."""
    return {f"algorithms/{path.name}": _page(path.stem) for path in sorted(FOLDER.glob("*.md"))}


def _page(name: str) -> str:
    body = (FOLDER / f"{name}.md").read_text("utf-8")
    if is_algorithm(name):
        body = _with_code(name, body)
    return blocks_as_mathml(rewritten(body, f"docs/algorithms/{name}.md", f"algorithms/{name}.md"))


def _with_code(name: str, body: str) -> str:
    from trimtab.algorithms.registry import kind

    code = (ROOT / "src" / "trimtab" / "algorithms" / f"{name}.py").read_text("utf-8")
    public = kind(name).cls.__name__
    head, _, rest = body.partition("\n")
    parts = [
        head,
        f"`trimtab.{public}`, on the command line `{name}`. "
        "Symbols are those of [the notation](../notation.md).",
        rest.strip(),
        f"## The code\n\n`src/trimtab/algorithms/{name}.py`\n\n```python\n{code}```",
        f"## What a client keeps, sends and computes in a round\n\n{_costs(public)}",
        _tests(body),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _costs(name: str) -> str:
    """Return the rows of the table of costs that are about an algorithm, and what they count."""
    lines = (FOLDER / "index.md").read_text("utf-8").splitlines()
    rows = [line for line in lines if line.startswith("|")]
    chosen = [row for row in rows if row.startswith(f"| `{name}`")]
    said = "In multiples of d, the length of x; s is the size of the base optimiser's state."
    return "\n".join([*rows[:2], *chosen]) + f"\n\n{said}"


def _tests(body: str) -> str:
    """Return the list of the tests that a page names, each with its file."""
    named = dict.fromkeys(re.findall(r"`(test_\w+)`", body))
    found = [(name, _home(name)) for name in named]
    rows = [f"- `{name}` in `{home}`" for name, home in found if home]
    said = "Every change must pass them, and the contract of `trimtab.testing.check_algorithm`."
    return f"## Its tests\n\n{said}\n\n" + "\n".join(rows) if rows else ""


def _home(name: str) -> str:
    return next((path for path, text in _all_tests() if f"def {name}(" in text), "")


@cache
def _all_tests() -> tuple[tuple[str, str], ...]:
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return tuple((str(path.relative_to(ROOT)), path.read_text("utf-8")) for path in files)
