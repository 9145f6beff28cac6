"""Write docs/reproduction.md, its figures and the README's numbers from the records in results.

python -m trimtab_papers.page, in the folder of the project
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trimtab._files import write_whole
from trimtab_papers import published
from trimtab_papers.items import REPRODUCTIONS
from trimtab_papers.names import TITLES
from trimtab_papers.raced_record import read_raced
from trimtab_papers.records import Records, read
from trimtab_papers.reproduction import Reproduction
from trimtab_papers.rounds_to_target import PUBLISHED, chosen, lines, shown
from trimtab_papers.unjudged import IDENTITIES, UNJUDGED
from trimtab_papers.verdicts import Claim, by_seeds, counted, repeated, weighed


def page(known: Mapping[str, Records]) -> str:
    """Return docs/reproduction.md; known holds the records of each reproduction by its name."""
    parts = [_INTRODUCTION.format(summary=_summary(known), totals=_totals(known))]
    parts += [_section(r, known.get(r.name, {})) for r in REPRODUCTIONS.values()]
    parts += [_identities(), _unjudged()]
    return "\n\n".join(parts) + "\n"


_INTRODUCTION = """# The papers, reproduced

Written by `python -m trimtab_papers.page`: all tables, figures and verdicts are computed from
the records in `results`; the discussion at the end of a section is typed in beside its code. Each
section is one command, `trimtab reproduce NAME`; `make reproduce` runs them all, goes on where it
was interrupted, and writes this page. The same command in two terminals shares the cells. A cell of
a table is one record (settings, seed, all step sizes tried, the accuracy of every round, bytes,
seconds). `--quick` is a small version of under two minutes, `--seeds 3` adds two seeds,
`--cells 'scaffold-*-0'` picks some. Runs are tuned and stopped on the test set, as the papers' are
(`trimtab compare` holds other rows out).

Agreement is judged by the papers' own sentences, by code, over the records. Each seed is judged by
itself: *held* if all say yes, *not held* if none does, *mixed* if they disagree, *open* while cells
are missing; *not judged* says why nothing here can tell. A verdict of 'one seed' is one that
another seed might turn round; runs that differ in more than the seed, such as those on small
clients, are named; where no seed is named, nothing is random. A sentence that states the same fact
as another one of its section says so, and is counted as a repetition. A sentence that does not hold
here is not hidden. Checks of our own, which no paper states but which the rest stands on, follow
them and are counted apart.

{summary}

{totals}

Minutes are the seconds of the records added up, one core each, on two shared cores; a cell that was
interrupted counts from where it went on. Since most records of tables 3 to 5, clients, emnist400
and mime were made, races have learnt two things: small step sizes run as far as the best, and on a
tie, or within 5 % of the fewest rounds, the smaller step wins. Stored candidates were judged again
by both rules, step sizes that this asks for were run and added to the record, and cells with
another winner were raced anew. Each winner of tables 3 and 4, clients and emnist400 then ran again
from a start moved by a millionth, on another processor than the record's; † marks those that come
out otherwise. Cells that a table counts as not tried were only judged again by what they hold."""


def _summary(known: Mapping[str, Records]) -> str:
    head = "| | shows | source | minutes | sentences of the papers | checks of our own |"
    rows = [head, "|---|---|---|---|---|---|"]
    for r in REPRODUCTIONS.values():
        records = known.get(r.name, {})
        papers, ours = _apart(r.claims(records))
        rows.append(
            f"| [{r.name}](#{r.name}) | {r.shows} | {r.source} | {_minutes(records)} "
            f"| {weighed(papers)} | {weighed(ours)} |"
        )
    return "\n".join(rows)


def _minutes(records: Records) -> str:
    minutes = sum(r["seconds"] for r in records.values()) / 60
    return "" if not records else f"{minutes:.0f}" if minutes >= 10 else f"{minutes:.2g}"


def _apart(claims: Sequence[Claim]) -> tuple[list[Claim], list[Claim]]:
    """Return the sentences of the papers, and our own checks."""
    return [c for c in claims if not c.own], [c for c in claims if c.own]


def _section(r: Reproduction, records: Records) -> str:
    head = f"## {r.name}\n\n{r.source}: {r.shows}.\n\n```\ntrimtab reproduce {r.name}\n```"
    if not records:
        return f"{head}\n\nNo record yet."
    papers, ours = _apart(r.claims(records))
    data = dict.fromkeys(record["data"] for record in records.values() if "data" in record)
    parts = [
        head,
        *([f"Data: {', '.join(data)} (training / test images)."] if data else []),
        f"![{r.shows}](reproduction/{r.name}.svg)",
        r.table(records),
        *(["\n".join(map(_claim, papers))] if papers else []),
        *(["Checks of our own:", "\n".join(map(_claim, ours))] if ours else []),
        *([r.discussion] if r.discussion else []),
    ]
    return "\n\n".join(parts)


def _identities() -> str:
    """Return the sentences that tests hold, each with its source and its test."""
    rows = [f"- {i.where}: {i.text} `{i.test}`" for i in IDENTITIES]
    return "\n\n".join(["## Held by tests", _IDENTITIES, "\n".join(rows)])


_IDENTITIES = """Sentences that are exact, so that a test holds them at every change and no record
is needed. They are not in the counts."""


def _unjudged() -> str:
    """Return the sentences that belong to no reproduction, each with its source and the reason."""
    rows = [f"- {s.where}: {s.text} Reason: {s.reason}." for s in UNJUDGED]
    return "\n\n".join(["## Not judged", _UNJUDGED, "\n".join(rows)])


_UNJUDGED = """Sentences of the sources that belong to none of the above and that nothing here can
judge. They are not in the counts."""


def _claim(claim: Claim) -> str:
    numbers = f" ({claim.numbers})" if claim.numbers else ""
    return f"- **{claim.verdict}**: {claim.sentence}{numbers}"


def excerpt(known: Mapping[str, Records]) -> str:
    """Return what the README shows: Table 3 where clients are most different, and the verdicts."""
    raced, epochs = read_raced(known["table3"]), (1, 5, 10, 20)
    rows = [["rounds to 0.5", *(f"{e} epochs" if e > 1 else "1 epoch" for e in epochs)]]
    for name in ("sgd", "fedavg", "scaffold"):
        row = [TITLES[name]]
        for e in epochs:
            seeds = chosen(raced, algorithm=name, epochs=e, similarity=0)
            theirs = published.table3(name, e, 0) or "1k+"
            row.append(f"{shown(seeds, PUBLISHED)} ({theirs})" if seeds else "")
        rows.append(row)
    return (
        f"{lines(rows)}\n\n"
        "*EMNIST sorted by label over 100 clients, 20 a round, step sizes tuned in every cell; in "
        f"brackets the published rounds. {_totals(known)}*"
    )


def _totals(known: Mapping[str, Records]) -> str:
    """Say how many sentences of the papers hold, and how many of our own checks."""
    claims = [c for r in REPRODUCTIONS.values() for c in r.claims(known.get(r.name, {}))]
    papers, ours = _apart(claims)
    held, ours_held = ([c for c in some if c.held] for some in (papers, ours))
    rest = counted(claim.verdict for claim in papers if not claim.held)
    how = f": {by_seeds(held)}; {repeated(held)} of them repeat another" if held else ""
    return (
        f"In all, {len(held)} of {len(papers)} sentences of the papers hold{how}. The others: "
        f"{rest}. Of {len(ours)} checks of our own {len(ours_held)} hold."
    )


_MARKS = ("<!-- from the records: reproduction -->", "<!-- end -->")


def with_excerpt(readme: str, excerpt: str) -> str:
    """Return the README with its numbers replaced."""
    before, _, rest = readme.partition(_MARKS[0])
    _, _, after = rest.partition(_MARKS[1])
    return f"{before}{_MARKS[0]}\n{excerpt}\n{_MARKS[1]}{after}"


def write(root: Path) -> None:
    """Write the page, a figure for each reproduction that has records, and the README's numbers."""
    known, docs = {name: read(root / "results" / name) for name in REPRODUCTIONS}, root / "docs"
    (docs / "reproduction").mkdir(parents=True, exist_ok=True)
    for name, records in known.items():
        if records:
            _write_figure(REPRODUCTIONS[name], records, docs / "reproduction" / f"{name}.svg")
    write_whole(docs / "reproduction.md", page(known))
    readme = root / "README.md"
    write_whole(readme, with_excerpt(readme.read_text("utf-8"), excerpt(known)))


def _write_figure(reproduction: Reproduction, records: Records, path: Path) -> None:
    """Write an SVG that is the same file for the same records."""
    from matplotlib import rc_context

    same: Any = {"svg.hashsalt": "trimtab", "svg.fonttype": "none"}
    with rc_context(same):
        reproduction.figure(records).savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    write(Path())
