"""One page for each algorithm: its section of docs/algorithms.md, its code, its cost, its tests."""

import re
from functools import cache

from docs.generate.equations import blocks_as_mathml
from docs.generate.links import ROOT, rewritten

SOURCE = "docs/algorithms.md"
# Sections about all algorithms: the page each goes to. Others stand on the page "In practice".
PAGES = {"Side by side": "index", "The bases": "bases", "Mistakes to know": "mistakes"}
TITLES = {"bases": "The base optimisers", "mistakes": "Mistakes to know"}


def pages() -> dict[str, str]:
    """Return the text of each page by its path on the site."""
    from trimtab.algorithms.registry import NAMES, kind

    names = {kind(name).cls.__name__: name for name in NAMES}
    head, sections = _sections()
    found: dict[str, list[str]] = {"index": [head]}
    for title, body in sections.items():
        if title in names:
            found[names[title]] = [_page(names[title], body)]
        else:
            found.setdefault(PAGES.get(title, "practice"), []).append(_part(title, body))
    finished = {name: _finished(name, "\n\n".join(parts)) for name, parts in found.items()}
    finished["index"] += _list(names)
    return {f"algorithms/{name}.md": text for name, text in finished.items()}


def _sections() -> tuple[str, dict[str, str]]:
    head, *rest = re.split(r"^## ", (ROOT / SOURCE).read_text("utf-8"), flags=re.M)
    parts = (part.partition("\n") for part in rest)
    return head.strip(), {title.strip(): body.strip() for title, _, body in parts}


def _finished(name: str, text: str) -> str:
    heads = {**TITLES, "practice": "In practice"}
    text = f"# {heads[name]}\n\n{text}" if name in heads else text
    return blocks_as_mathml(rewritten(text, SOURCE, f"algorithms/{name}.md") + "\n")


def _part(title: str, body: str) -> str:
    return body if title in ("The bases", "Mistakes to know") else f"## {title}\n\n{body}"


def _page(name: str, body: str) -> str:
    from trimtab.algorithms.registry import kind

    found = kind(name)
    code = (ROOT / "src" / "trimtab" / "algorithms" / f"{name}.py").read_text("utf-8")
    called = f"`trimtab.{found.cls.__name__}`, on the command line `{name}`."
    parts = [
        f"# {found.title}\n\n{called} Symbols are those of [the notation](notation.md).",
        body.replace("\n### ", "\n## "),
        f"## The code\n\n`src/trimtab/algorithms/{name}.py`\n\n```python\n{code}```",
        f"## What a client keeps, sends and computes in a round\n\n{_costs(found.cls.__name__)}",
        _tests(body),
    ]
    return "\n\n".join(part for part in parts if part)


def _costs(name: str) -> str:
    """Return the rows of the table of costs that are about an algorithm, and what they count."""
    table = _sections()[1]["Side by side"]
    rows = [line for line in table.splitlines() if line.startswith("|")]
    chosen = [row for row in rows[2:] if row.startswith(f"| `{name}`")]
    said = "In multiples of d, the length of x; s is the size of the base optimiser's state."
    return "\n".join([*rows[:2], *chosen]) + f"\n\n{said}"


def _tests(body: str) -> str:
    """Return the list of the tests that a section names, each with its file."""
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


def _list(names: dict[str, str]) -> str:
    from trimtab.algorithms.registry import kind

    rows = [f"- [{kind(name).title}]({name}.md)" for name in names.values()]
    more = "- [The base optimisers](bases.md)\n- [In practice](practice.md)\n"
    return "\n## The pages\n\n" + "\n".join(rows) + f"\n{more}- [Mistakes to know](mistakes.md)\n"
