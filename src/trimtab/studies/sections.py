"""The report of a comparison or a run as sections, for the terminal, a notebook and a page."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trimtab.core.display import format_number
from trimtab.core.sections import Section, Table
from trimtab.studies.entry import listed
from trimtab.studies.goal import UNIT_TITLES
from trimtab.studies.table import bold, columns, legend

if TYPE_CHECKING:
    from trimtab.studies.comparison import Comparison

MOST_SEEDS = 10  # A note lists no more.


def target_text(result: "Comparison") -> str:
    """Return the target in words."""
    if result.target is None:
        return f"the best {result.metric}"
    return f"{result.metric} {result.target:g}" + ("" if result.goal.metric.higher else " or less")


# -- the answer


def answer(result: "Comparison") -> Section:
    """Return the question, the advice, and how sure it is."""
    return Section(
        _question(result), [result.advice, f"How sure: {_certainty(result)}"], kind="answer"
    )


def _question(result: "Comparison") -> str:
    names = [entry.shown for entry in result.entries if not entry.baseline]
    if not names:
        return f"Which algorithm is best on {result.problem}?"
    if len(names) == 1:
        return f"How does {names[0]} do on {result.problem}?"
    unit, aim = UNIT_TITLES[result.goal.unit], target_text(result)
    return f"Which of {listed(names)} gets to {aim} on {result.problem} with the fewest {unit}?"


def _certainty(result: "Comparison") -> str:
    about, entries = result.about, result.entries
    if not about.finished:
        return "not yet, because the command has not finished."
    seeds = max((len(entry.runs) for entry in entries), default=0)
    found = [
        f"{seeds} seeds that the search did not use"
        if seeds > 1
        else "one seed, so that chance is not measured"
    ]
    if about.split == "none":
        found.append("nothing was held out to choose by")
    elif about.split == "given":
        found.append(f"chosen on validation data, scored on {about.tested_on} data")
    else:
        share = f"{100 * float(about.split):g} % of the rows"
        found.append(f"chosen on {share}, which were held out")
    cut = [entry.shown for entry in entries if not entry.complete]
    if cut:
        found.append(f"the search of {listed(cut)} is not complete")
    elif not about.complete:
        found.append("the time of the search ran out")
    for setting, words in (("step", "step size"), ("K", "K")):
        at_edge = [entry.shown for entry in entries if setting in entry.at_edge]
        if at_edge:
            found.append(f"the best {words} of {listed(at_edge)} is at the edge of the search")
    fragile, firm = ([e.shown for e in entries if e.fragile is is_] for is_ in (True, False))
    if fragile:
        found.append(f"fragile where the start moves by a millionth: {listed(fragile)}")
    if firm:
        found.append(f"the same where the start moves by a millionth: {listed(firm)}")
    return "; ".join(found) + "."


# -- the table


def table(result: "Comparison") -> Section:
    """Return the table of the algorithms, the best of each column in bold."""
    shown = columns(result)
    heads = [column.title for column in shown]
    rows = [[column.text(entry) for column in shown] for entry in result.entries]
    if result.about.budget and any(entry.spent is not None for entry in result.entries):
        heads.append("budget spent")
        for row, entry in zip(rows, result.entries, strict=True):
            row.append("-" if entry.spent is None else f"{entry.spent / result.about.budget:.0%}")
    cells = frozenset((row, column) for column, best in bold(result).items() for row in best)
    return Section(
        f"{result.problem}: rounds to {target_text(result)}",
        table=Table(heads, rows, cells, _important(heads)),
        notes=[*_reading(result), *legend(result)],
    )


def _important(heads: list[str]) -> list[str]:
    """Return the heads of the columns, the most important first; others can be spared."""
    settings = heads[heads.index("K") + 1 : heads.index("step size")]
    best = [head for head in heads if head == "validation" or head.startswith("best ")]
    costs = ("test", "training", "bytes", "gradients", "budget spent")
    return ["algorithm", "rounds", "step size", "K", *settings, "90 %", "range", *best, *costs]


def _reading(result: "Comparison") -> list[str]:
    """Return how the numbers are to be read."""
    notes = []
    if result.target is not None:
        median = "medians over the seeds " if any(len(e.runs) > 1 for e in result.entries) else ""
        notes.append(f"Costs are {median}until the target holds; n+: not in n rounds.")
    twice = [e.shown for e in result.entries if e.rounds and e.exchanges == 2 * e.rounds]
    return notes + ([f"{listed(twice)}: two exchanges a round."] if twice else [])


# -- its origin


def origin(result: "Comparison") -> Section:
    """Return what a reader must know of the numbers: target, data, seeds, budget, omissions."""
    about, notes = result.about, []
    if about.target_from:
        notes.append(about.target_from)
    if about.split == "given":
        notes.append("Tuned, stopped and compared on the validation data that were given.")
    elif about.split != "none":
        notes.append(
            f"Tuned, stopped and compared on {100 * float(about.split):g} % of each client's "
            f"samples, which were held out; the {about.tested_on} data are used once, at the "
            "chosen round."
        )
    if len(about.seeds) > 1:
        notes.append(f"Report seeds: {seeds_text(about.seeds)}; the search has others.")
    if about.budget is not None:
        notes.append(_budget(result, about.budget))
    notes += about.notes
    for entry in result.entries:
        if entry.not_run:
            notes.append(f"{entry.shown} is not complete: {'; '.join(entry.not_run)}")
    return Section("How it was made", notes=[_sentence(note) for note in notes])


def seeds_text(seeds: Sequence[int]) -> str:
    """Return the seeds; of many, the first, the last and their number.

    >>> seeds_text((17, 18, 19)), seeds_text(range(40))
    ('17, 18, 19', '0 to 39, 40 in all')
    """
    if len(seeds) <= MOST_SEEDS:
        return ", ".join(map(str, seeds))
    return f"{seeds[0]} to {seeds[-1]}, {len(seeds)} in all"


def _budget(result: "Comparison", budget: float) -> str:
    round_cost = result.about.round_cost
    besides = f", a round counting {round_cost:g} besides its own" if round_cost else ""
    return (
        f"Each algorithm had a budget of {format_number(budget).strip()} sample gradients"
        f"{besides}; with the budget {budget:.15g} the comparison can be repeated anywhere."
    )


def _sentence(note: str) -> str:
    """Return a note with a capital letter and a full stop."""
    note = f"{note[:1].upper()}{note[1:]}"
    return note if note.endswith((".", "!", "?")) else f"{note}."


def sections(result: "Comparison") -> list[Section]:
    """Return the report of a result: its table, how it was made, and the answer."""
    return [table(result), origin(result), answer(result)]
