"""The page of a reproduction, and docs/reproduction.md with its figures and the README's numbers.

python -m trimtab_papers.page, in the folder of the project
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from trimtab._files import write_file
from trimtab.core.display import format_seconds
from trimtab.core.sections import Section, Table
from trimtab.report.page import document
from trimtab_papers.engine import TITLES, Reproduction
from trimtab_papers.items import REPRODUCTIONS
from trimtab_papers.raced import read_raced
from trimtab_papers.rounds_to_target import PUBLISHED, lines, published_rounds, rounds_cell, select
from trimtab_papers.verdicts import (
    Claim,
    Records,
    Sentences,
    by_seeds,
    counted,
    read,
    repeated,
    weighed,
)

_BOUND = (
    "an upper bound whose constants the paper hides; runs can only fail to contradict it. What "
    "follows from its terms is judged in theorem2, local-steps and tables 3 and 4"
)
_LITERATURE = "it compares with other papers' proofs, not with what a run does"

UNJUDGED = Sentences()
UNJUDGED.not_judged(
    "The rates of FedAvg in Theorem I, for strongly convex, convex and non-convex functions.",
    "Karimireddy et al. 2020, section 3.1",
    _BOUND,
)
UNJUDGED.not_judged(
    "These rates are tighter than those known before, and nearly optimal.",
    "Karimireddy et al. 2020, sections 1 and 3",
    _LITERATURE,
)
UNJUDGED.not_judged(
    "The first result to quantify the usefulness of local steps in distributed optimisation.",
    "Karimireddy et al. 2020, abstract",
    _LITERATURE,
)
UNJUDGED.not_judged(
    "Option I can be more stable than II depending on the application; II usually suffices.",
    "Karimireddy et al. 2020, section 4",
    "it says neither when nor how much; local-steps shows where the two options part",
)
UNJUDGED.not_judged(
    "Tuning FedProx's regularisation may improve it.",
    "Karimireddy et al. 2020, sections 7.1 and 7.3",
    "the paper keeps it at 1 to be fair, and so do we",
)
UNJUDGED.not_judged(
    "FedAvg degrades with heterogeneous clients (a figure of Zhao et al.).",
    "Karimireddy, slides, When does FedAvg fail?",
    "another paper's figure, without its setting; table3 has our own at three similarities",
)
UNJUDGED.not_judged(
    "If you use FedAvg, use separate server and client step sizes.",
    "Karimireddy, slides, summary of SCAFFOLD",
    "advice; all experiments of the paper keep the step at the server at 1",
)
UNJUDGED.not_judged(
    "The lower bounds of the table of Mime's rates.",
    "Karimireddy, slides, Convergence rates",
    "a statement about every algorithm, which runs of a few cannot judge",
)
UNJUDGED.not_judged(
    "SCAFFOLD on CIFAR-10 with ResNet-18, a server and several clients, until the target.",
    "report, section 4.2",
    "it describes a procedure and reports no number; examples/cifar10_federation follows it",
)


class Identity(NamedTuple):
    """A sentence that is exact, so that a test holds it and no record can."""

    text: str
    where: str
    test: str


_RELATIONS, _BIAS = "tests/algorithms/test_relations.py", "tests/algorithms/test_bias.py"
_CONVERGENCE = "tests/algorithms/test_convergence.py"

IDENTITIES = (
    Identity(
        "If c_i is always 0, SCAFFOLD becomes FedAvg.",
        "Karimireddy et al. 2020, section 4",
        f"{_RELATIONS}::test_scaffold_whose_controls_stay_zero_is_fedavg",
    ),
    Identity(
        "With full batches, K = 1 and S = 1, SCAFFOLD with option I is SAGA.",
        "Karimireddy et al. 2020, section 5",
        f"{_RELATIONS}::test_scaffold_with_one_client_and_one_step_is_saga",
    ),
    Identity(
        "For identical functions SCAFFOLD, and even FedAvg, improve linearly with local steps.",
        "Karimireddy et al. 2020, section 6",
        f"{_RELATIONS}::test_with_equal_hessians_a_round_is_K_steps_of_gradient_descent",
    ),
    Identity(
        "SCAFFOLD converges at a linear rate with client sampling.",
        "Karimireddy et al. 2020, section 5",
        f"{_CONVERGENCE}::test_scaffold_converges_linearly_with_sampling",
    ),
    Identity(
        "FedAvg does not converge to the optimum.",
        "Karimireddy, slides, Client updates: FedAvg",
        f"{_CONVERGENCE}::test_fedavg_with_the_same_steps_stays_away",
    ),
    Identity(
        "FedAvg's heterogeneity bias vanishes when Hessians or gradients at x* are equal.",
        "Mangold, slides, Heterogeneity bias",
        f"{_BIAS}::test_fedavg_has_no_bias_with",
    ),
)


# -- the page of one reproduction


def page_of_folder(folder: Path) -> Callable[[], str] | None:
    """Return what makes the page of a folder with records; None for other folders.

    `trimtab report` finds this function through the entry-point group `trimtab.pages`.
    """
    if not any(folder.glob("*.json.gz")):
        return None
    return partial(_page_of_records, folder)


def write_reproduction(folder: Path, path: Path) -> Path:
    """Write the page of the records in a folder, which is called as its reproduction is."""
    write_file(path, _page_of_records(folder))
    return path


def _page_of_records(folder: Path) -> str:
    found = REPRODUCTIONS.get(folder.resolve().name)
    if found is None:
        known = ", ".join(REPRODUCTIONS)
        raise ValueError(f"{folder} is called as no reproduction is; rename it to one of {known}.")
    return reproduction_page(found, read(folder))


def reproduction_page(found: Reproduction, records: Records) -> str:
    return document(f"{found.name}: {found.shows}", _sections(found, records))


def _sections(reproduction: Reproduction, records: Records) -> list[Section]:
    claims = reproduction.claims(records)
    papers, ours = _apart(claims)
    summary = f"Of the paper's sentences {weighed(papers) or 'none'}"
    if _quick(records):
        summary = f"A small version, not the paper's size. {summary}"
    if ours:
        summary += f"; of our own checks {weighed(ours)}"
    question = f"{reproduction.source}: {reproduction.shows}."
    return [
        Section(question, [f"{summary}."], kind="answer"),
        Section("Sentences of the paper", table=_judged(papers)),
        Section("Checks of our own", table=_judged(ours)),
        *_figure_and_table(reproduction, records),
        Section("Discussion", figure=markdown(reproduction.discussion)),
        _settings(reproduction, records),
    ]


def _figure_and_table(reproduction: Reproduction, records: Records) -> list[Section]:
    """Return the figure and the table, once there is a record."""
    from trimtab_papers.figures import svg, tables_behind  # They import matplotlib, which is slow.

    if not records:
        return []
    drawn = reproduction.figure(records)
    named = f'<svg role="img" aria-label="{escape(reproduction.shows)}" '
    drawing = svg(drawn).replace("<svg ", named, 1)
    figure = f'<figure class="paper" tabindex="0">{drawing}</figure>'
    table = markdown(reproduction.table(records))
    return [
        Section("Figure", figure=figure, parts=tables_behind(drawn)),
        Section("Table", figure=table),
    ]


def _settings(reproduction: Reproduction, records: Records) -> Section:
    """Return the time of the records, the versions that wrote them, and the command."""
    versions = dict.fromkeys(r.get("versions", {}).get("trimtab", "?") for r in records.values())
    took = format_seconds(sum(record.get("seconds", 0.0) for record in records.values()))
    made = f"{len(records)} records, {took} of one core, written by trimtab {', '.join(versions)}."
    if not records:
        made = "No record yet."
    command = f"trimtab reproduce {reproduction.name}{' --quick' if _quick(records) else ''}"
    return Section("Settings", [made], figure=f"<pre>{escape(command)}</pre>")


def _quick(records: Records) -> bool:
    return any(record.get("quick") for record in records.values())


def _judged(claims: list[Claim]) -> Table:
    rows = [[claim.verdict, claim.sentence, claim.numbers] for claim in claims]
    return Table(["verdict", "sentence", "numbers"], rows, kind="facts stacked")


def markdown(text: str) -> str:
    """Return Markdown as HTML, its tables in boxes of their own; HTML in it is shown as it is.

    >>> markdown("| a |\\n|---|\\n| <b> |").count("&lt;b&gt;")
    1
    """
    from markdown_it import MarkdownIt

    made: str = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    box = '<div class="scroll" role="region" tabindex="0" aria-label="Table"><table>'
    return made.replace("<table>", box).replace("</table>", "</table></div>")


# -- docs/reproduction.md and the README


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
another winner were raced again. Each winner of tables 3 and 4, clients and emnist400 then ran again
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
    rows = [f"- {i.where}: {i.text} `{i.test}`" for i in IDENTITIES]
    return "\n\n".join(["## Held by tests", _IDENTITIES, "\n".join(rows)])


_IDENTITIES = """Sentences that are exact, so that a test holds them at every change and no record
is needed. They are not in the counts."""


def _unjudged() -> str:
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
            seeds = select(raced, algorithm=name, epochs=e, similarity=0)
            theirs = published_rounds(name, e, 0) or "1k+"
            row.append(f"{rounds_cell(seeds, PUBLISHED)} ({theirs})" if seeds else "")
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
    write_file(docs / "reproduction.md", page(known))
    readme = root / "README.md"
    write_file(readme, with_excerpt(readme.read_text("utf-8"), excerpt(known)))


def _write_figure(reproduction: Reproduction, records: Records, path: Path) -> None:
    """Write an SVG that is the same file for the same records."""
    from matplotlib import rc_context

    same: Any = {"svg.hashsalt": "trimtab", "svg.fonttype": "none"}
    with rc_context(same):
        reproduction.figure(records).savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    write(Path())
