"""The table of a comparison: its columns, for terminal and page, and its form in other formats.

A column that would be the same for every algorithm is left out.
"""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from io import StringIO
from typing import TYPE_CHECKING, Any, Literal

from trimtab.core.display import format_bytes, format_number
from trimtab.studies.entry import (
    Entry,
    all_settings,
    display_name,
    listed,
    setting,
    stated_settings,
    two_ends,
)

if TYPE_CHECKING:
    from trimtab.studies.comparison import Comparison

Better = Literal["low", "high", ""]

_SPECIAL = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}"}
_SPECIAL |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}


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
    made = [
        Column("algorithm", lambda entry: entry.shown, display_name),
        Column("K", lambda entry: entry.settings.get("K"), _local_steps),
        *(_setting_column(name) for name in _setting_names(entries)),
        Column("step size", lambda entry: entry.settings.get(entry.step), _step_size),
        Column("rounds", lambda entry: entry.rounds, partial(_rounds, result), "low"),
        _field("90 %", "interval", _ends) if any(e.interval for e in entries) else None,
        _field("range", "range", _ends) if any(e.range for e in entries) else None,
        _field("exchanges", "exchanges", str, "low") if exchanges else None,
        _field("bytes", "bytes", format_bytes, "low"),
        _field("gradients", "work", _work, "low") if any(e.work for e in entries) else None,
        _field("seconds", "seconds", lambda seconds: f"{seconds:.2f}", "low"),
        _field("validation" if split else f"best {result.metric}", "best", _score, end),
        _field(data, "test", _score, end) if tested else None,
    ]
    others = dict.fromkeys(name for e in entries for name in e.tests if name != result.metric)
    return [column for column in made if column is not None] + [_metric(n, data) for n in others]


def _setting_names(entries: Sequence[Entry]) -> list[str]:
    """Return the settings beside K and the step size without which some entry is not repeated."""
    stated = dict.fromkeys(n for e in entries for n in stated_settings(e) if n not in ("K", e.step))
    return list(stated)


def _field(title: str, name: str, text: Callable[[Any], str], better: Better = "") -> Column:
    """Return the column of a field of the entries."""

    def shown(entry: Entry) -> str:
        value = getattr(entry, name)
        return "-" if value is None else text(value)

    return Column(title, lambda entry: getattr(entry, name), shown, better)


def _setting_column(name: str) -> Column:
    def value(entry: Entry) -> Any:
        return all_settings(entry).get(name)

    return Column(name, value, lambda e: "-" if value(e) is None else setting(value(e)))


def _metric(name: str, data: str) -> Column:
    """Return the column of a metric that is measured at the end and does not decide."""

    def value(entry: Entry) -> float | None:
        return entry.tests.get(name)

    return Column(
        f"{name} ({data})", value, lambda e: "-" if value(e) is None else _score(value(e))
    )


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


# -- in other formats


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
