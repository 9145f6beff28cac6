"""The report of a comparison or a run as sections, for the terminal, a notebook and a page.

Its table has CSV, LaTeX and pandas as further forms. A column that would be the same for every
algorithm is left out.
"""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from io import StringIO
from typing import TYPE_CHECKING, Any, Literal

from trimtab.core.display import format_bytes, format_number
from trimtab.core.sections import Section, Table
from trimtab.studies.entry import (
    Entry,
    all_settings,
    display_name,
    listed,
    setting,
    stated_settings,
    two_ends,
)
from trimtab.studies.goal import UNIT_TITLES

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
    for name, words in (("step", "step size"), ("K", "K")):
        at_edge = [entry.shown for entry in entries if name in entry.at_edge]
        if at_edge:
            found.append(f"the best {words} of {listed(at_edge)} is at the edge of the search")
    fragile, firm = ([e.shown for e in entries if e.fragile is is_] for is_ in (True, False))
    if fragile:
        found.append(f"fragile where the start moves by a millionth: {listed(fragile)}")
    if firm:
        found.append(f"the same where the start moves by a millionth: {listed(firm)}")
    return "; ".join(found) + "."


# -- the table

Better = Literal["low", "high", ""]


@dataclass(frozen=True)
class Column:
    """A title, each entry's number, its text, and which end of the numbers is the better one."""

    title: str
    value: Callable[[Entry], Any]
    text: Callable[[Entry], str]
    better: Better = ""


def columns(result: "Comparison") -> list[Column]:
    """Return the columns that a result needs."""
    entries, data = result.entries, result.about.tested_on
    end: Better = "high" if result.goal.metric.higher else "low"
    split = result.about.split != "none"
    # The best value is of the test data already where nothing was split off to tune on. A run
    # without target has a column all the same: its row is about one model.
    tested = split or (result.target is None and any(e.test is not None for e in entries))
    exchanges = any(e.exchanges is not None and e.exchanges != e.rounds for e in entries)
    work, names = any(e.work for e in entries), _setting_names(entries)
    best = "validation" if split else f"best {result.metric}"
    others = dict.fromkeys(name for e in entries for name in e.tests if name != result.metric)
    made = [
        Column("algorithm", lambda entry: entry.shown, display_name),
        Column("K", lambda entry: entry.settings.get("K"), _local_steps),
        *(_column(n, partial(_setting_named, n), setting) for n in names),
        Column("step size", lambda entry: entry.settings.get(entry.step), _step_size),
        Column("rounds", lambda entry: entry.rounds, partial(_rounds, result), "low"),
        _column("90 %", lambda e: e.interval, _ends) if any(e.interval for e in entries) else None,
        _column("range", lambda e: e.range, _ends) if any(e.range for e in entries) else None,
        _column("exchanges", lambda e: e.exchanges, str, "low") if exchanges else None,
        _column("bytes", lambda e: e.bytes, format_bytes, "low"),
        _column("gradients", lambda e: e.work, _work, "low") if work else None,
        _column("seconds", lambda e: e.seconds, "{:.2f}".format, "low"),
        _column(best, lambda e: e.best, _score, end),
        _column(data, lambda e: e.test, _score, end) if tested else None,
        # The other metrics are measured at the end and do not decide.
        *(_column(f"{n} ({data})", partial(_test_of, n), _score) for n in others),
    ]
    return [column for column in made if column is not None]


def _setting_names(entries: Sequence[Entry]) -> list[str]:
    """Return the settings beside K and the step size without which some entry is not repeated."""
    stated = dict.fromkeys(n for e in entries for n in stated_settings(e) if n not in ("K", e.step))
    return list(stated)


def _setting_named(name: str, entry: Entry) -> Any:
    return all_settings(entry).get(name)


def _test_of(name: str, entry: Entry) -> float | None:
    return entry.tests.get(name)


def _column(
    title: str, value: Callable[[Entry], Any], text: Callable[[Any], str], better: Better = ""
) -> Column:
    """Return a column that shows "-" where there is no value."""
    return Column(title, value, lambda e: "-" if value(e) is None else text(value(e)), better)


def _local_steps(entry: Entry) -> str:
    return setting(entry.settings.get("K", 1)) + (" ^" if "K" in entry.at_edge else "")


def _step_size(entry: Entry) -> str:
    value = entry.settings.get(entry.step)
    marks = " ^" * ("step" in entry.at_edge) + " *" * bool(entry.fragile)
    return ("-" if value is None else setting(value)) + marks


def _rounds(result: "Comparison", entry: Entry) -> str:
    if entry.diverged:
        text = f"diverged at round {entry.diverged_at}"
    elif entry.rounds is not None:
        text = str(entry.rounds)
    elif not entry.complete and not entry.runs:
        text = "-"  # The curve is of the search, which may have reached the target.
    elif entry.reached:
        text = f"reached by {entry.reached} of {len(entry.runs)}"
    else:
        text = f"{len(entry.curve)}" + ("" if result.target is None else "+")
    return text if entry.complete else f"{text} ~"


def _ends(ends: tuple[float, float]) -> str:
    return two_ends(ends, " … ")


def _work(work: int) -> str:
    return format_number(work).strip()


def _score(value: float | None) -> str:
    return f"{value:.4g}"


def legend(result: "Comparison") -> list[str]:
    """Return a sentence for each mark that the table has."""
    entries, said = result.entries, []
    if any(entry.fragile for entry in entries):
        said.append(
            "* fragile: run again from a start moved by a millionth, it needs other rounds or ends "
            "elsewhere; so it may on another processor."
        )
    if any(entry.at_edge for entry in entries):
        said.append("^ at the edge of what was searched: better values may lie beyond.")
    cut = [entry.shown for entry in entries if not entry.complete]
    if cut:
        said.append(f"~ not complete: the search of {listed(cut)} was cut short.")
    return said


def bold(result: "Comparison") -> dict[int, set[int]]:
    """Return which rows hold the best of each column that has one."""
    best: dict[int, set[int]] = {}
    for place, column in enumerate(columns(result)):
        numbers = [None if e.baseline else column.value(e) for e in result.entries]
        known = [number for number in numbers if number is not None]
        if column.better and len(numbers) > 1 and known:
            most = max(known) if column.better == "high" else min(known)
            best[place] = {row for row, number in enumerate(numbers) if number == most}
    return best


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
        once = "; the test data are used once, at the chosen round" * (about.tested_on == "test")
        notes.append(
            f"Tuned, stopped and compared on {100 * float(about.split):g} % of each client's "
            f"samples, which were held out{once}."
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
    both = f" and the round cost {round_cost:.15g}" if round_cost else ""
    return (
        f"Each algorithm had a budget of {format_number(budget).strip()} sample gradients"
        f"{besides}; with the budget {budget:.15g}{both} the comparison can be repeated anywhere."
    )


def _sentence(note: str) -> str:
    """Return a note with a capital letter and a full stop."""
    note = f"{note[:1].upper()}{note[1:]}"
    return note if note.endswith((".", "!", "?")) else f"{note}."


def sections(result: "Comparison") -> list[Section]:
    """Return the report of a result: its table, how it was made, and the answer."""
    return [table(result), origin(result), answer(result)]


# -- the table in other formats

_SPECIAL = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}"}
_SPECIAL |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}


def rows(result: "Comparison") -> list[dict[str, Any]]:
    """Return a row for each algorithm: whole numbers and labels, nothing shortened."""
    names = _setting_names(result.entries)
    made = []
    for entry in result.entries:
        settings = all_settings(entry)
        low, high = entry.interval or (None, None)
        fewest, most = entry.range or (None, None)
        made.append(
            {
                "algorithm": entry.name,
                "label": entry.label,
                **{name: settings.get(name) for name in ("K", "eta_g")},
                "step": settings.get(entry.step),
                **{n: getattr(entry, n) for n in ("rounds", "exchanges", "bytes", "work")},
                **{"rounds_low": low, "rounds_high": high, "seconds": entry.seconds},
                **{"reached": entry.reached, "seeds": len(entry.runs), "best": entry.best},
                **{"test": entry.test, "diverged_at": entry.diverged_at, "fragile": entry.fragile},
                **{"rounds_fewest": fewest, "rounds_most": most, "complete": entry.complete},
                **{"at_edge": " ".join(entry.at_edge), "spent": entry.spent},
                **{name: settings.get(name) for name in names if name != "eta_g"},
            }
        )
    return made


def to_csv(result: "Comparison") -> str:
    """Return the rows as CSV, with a head."""
    text = StringIO()
    made = rows(result)
    writer = csv.DictWriter(text, list(made[0]) if made else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(made)
    return text.getvalue()


def to_pandas(result: "Comparison") -> Any:
    """Return the rows as a DataFrame."""
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise ValueError(
            "to_pandas needs pandas, which is not installed; run pip install pandas, or use to_csv."
        ) from None
    return pandas.DataFrame(rows(result))


def to_latex(result: "Comparison") -> str:
    """Return the table for a paper: booktabs, the best of each column bold."""
    heads, best = columns(result), bold(result)
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}", r"\toprule"]
    lines += [" & ".join(escaped(column.title) for column in heads) + r" \\", r"\midrule"]
    for row, entry in enumerate(result.entries):
        cells = [escaped(column.text(entry).strip()) for column in heads]
        marked = [
            rf"\textbf{{{cell}}}" if row in best.get(place, ()) else cell
            for place, cell in enumerate(cells)
        ]
        lines.append(" & ".join(marked) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def escaped(text: str) -> str:
    r"""Return text that LaTeX shows as it is.

    >>> escaped("90 % of a_b")
    '90 \\% of a\\_b'
    """
    return "".join(_SPECIAL.get(letter, letter) for letter in text).replace("…", r"\ldots{}")
