"""The pages of docs/papers with their figures, and the README's numbers.

python -m trimtab_papers.docs, in the folder of the project
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trimtab._files import write_file
from trimtab_papers.engine import TITLES, Reproduction
from trimtab_papers.items import REPRODUCTIONS
from trimtab_papers.page import apart
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


def pages(known: Mapping[str, Records]) -> dict[str, str]:
    """Return the pages of docs/papers by name; known holds the records of each reproduction."""
    found = {name: _item(r, known.get(name, {})) for name, r in REPRODUCTIONS.items()}
    index = [_INTRODUCTION.format(summary=_summary(known), totals=_totals(known))]
    return {"index": "\n\n".join([*index, _identities(), _unjudged()]) + "\n", **found}


_INTRODUCTION = """# The papers, reproduced

Written by `python -m trimtab_papers.docs`: all tables, figures and verdicts are computed from the
records in `results`; the discussion of each is typed in beside its code. Each page is one command,
`trimtab reproduce NAME`; `make reproduce` runs them all, goes on where it was interrupted, and
writes these pages. The same command in two terminals shares the cells. A cell of a table is one
record (settings, seed, all step sizes tried, the accuracy of every round, bytes, seconds).
`--quick` is a small version of under two minutes, `--seeds 3` adds two seeds, `--cells
'scaffold-*-0'` picks some. Runs are tuned and stopped on the test set, as the papers' are (`trimtab
compare` holds other rows out).

Agreement is judged by the papers' own sentences, by code, over the records. Each seed is judged by
itself: *held* if all say yes, *not held* if none does, *mixed* if they disagree, *open* while cells
are missing; *not judged* says why nothing here can tell. A verdict of 'one seed' is one that
another seed might turn round; runs that differ in more than the seed, such as those on small
clients, are named; where no seed is named, nothing is random. A sentence that states the same fact
as another one of its page says so, and is counted as a repetition. A sentence that does not hold
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
        papers, ours = apart(r.claims(records))
        rows.append(
            f"| [{r.name}]({r.name}.md) | {r.shows} | {r.source} | {_minutes(records)} "
            f"| {weighed(papers)} | {weighed(ours)} |"
        )
    return "\n".join(rows)


def _minutes(records: Records) -> str:
    minutes = sum(r["seconds"] for r in records.values()) / 60
    return "" if not records else f"{minutes:.0f}" if minutes >= 10 else f"{minutes:.2g}"


def _item(r: Reproduction, records: Records) -> str:
    """Return the page of one reproduction: the verdict first, long tables folded."""
    head = f"# {r.name}: {r.source}\n\n{r.shows[0].upper()}{r.shows[1:]}."
    command = f"```\ntrimtab reproduce {r.name}\n```"
    if not records:
        return f"{head}\n\n{command}\n\nNo record yet.\n"
    papers, ours = apart(r.claims(records))
    data = dict.fromkeys(record["data"] for record in records.values() if "data" in record)
    parts = [
        head,
        _verdict(papers, ours),
        f"![{r.shows}]({r.name}.svg)",
        *([_judgements("Sentences of the paper", papers)] if papers else []),
        *([_judgements("Checks of our own", ours)] if ours else []),
        *([f"## Discussion\n\n{r.discussion}"] if r.discussion else []),
        f"## Numbers\n\n{folded(r.table(records))}",
        f"## Run it\n\n{command}",
        *([f"Data: {', '.join(data)} (training / test images)."] if data else []),
        f"{len(records)} records in `results/{r.name}`, {_minutes(records)} minutes of one core.",
    ]
    return "\n\n".join(parts) + "\n"


def _verdict(papers: list[Claim], ours: list[Claim]) -> str:
    """Return the verdict in one paragraph: how many sentences hold, and which do not."""
    said = [f"Sentences of the paper: {weighed(papers)}."] if papers else []
    said += [f"Checks of our own: {weighed(ours)}."] if ours else []
    failed = [c.sentence for c in papers if c.verdict == "not held"]
    said += [f"What does not hold here: {' '.join(failed)}"] if failed else []
    return f"**Verdict.** {' '.join(said)}"


def _judgements(title: str, claims: list[Claim]) -> str:
    verdicts = [["verdict", "sentence"], *([f"**{c.verdict}**", c.sentence] for c in claims)]
    numbers = [["sentence", "numbers"], *([c.sentence, c.numbers] for c in claims if c.numbers)]
    behind = _details("The numbers of each verdict", lines(_cells(numbers)))
    return f"## {title}\n\n{lines(_cells(verdicts))}\n\n{behind}"


def _cells(rows: list[list[str]]) -> list[list[str]]:
    return [[cell.replace("|", "\\|") for cell in row] for row in rows]


_LONG = 20  # lines of a table; a longer one is folded, so that the next heading stays in sight


def folded(text: str) -> str:
    """Return Markdown with its long tables folded.

    >>> folded("| a |\\n|---|\\n| 1 |")
    '| a |\\n|---|\\n| 1 |'
    """
    blocks = text.split("\n\n")
    return "\n\n".join(
        _details(_title_of(block), block)
        if block.startswith("|") and block.count("\n") > _LONG
        else block
        for block in blocks
    )


def _title_of(table: str) -> str:
    first = table.split("|")[1].strip()
    return f"Table{f', {first}' if first else ''}: {table.count(chr(10)) - 1} rows"


def _details(title: str, content: str) -> str:
    # The attribute is for the site's Markdown; other readers pass over it.
    return f'<details markdown="1">\n<summary>{title}</summary>\n\n{content}\n\n</details>'


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
    papers, ours = apart(claims)
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
    """Write the pages, a figure for each reproduction with records, and the README's numbers."""
    known, docs = {name: read(root / "results" / name) for name in REPRODUCTIONS}, root / "docs"
    folder = docs / "papers"
    folder.mkdir(parents=True, exist_ok=True)
    for name, records in known.items():
        if records:
            _write_figure(REPRODUCTIONS[name], records, folder / f"{name}.svg")
    for name, text in pages(known).items():
        write_file(folder / f"{name}.md", text)
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
