"""The columns of a comparison's table: the same for the terminal, the page and every export.

A column that would say the same of every algorithm is left out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from trimtab.core.display import format_bytes, format_number
from trimtab.studies.entry import Entry

if TYPE_CHECKING:
    from trimtab.studies.comparison import Comparison


@dataclass(frozen=True)
class Column:
    """A title, each entry's number, its text, and which end of the numbers is the better one."""

    title: str
    value: Callable[[Entry], Any]
    text: Callable[[Entry], str]
    better: Literal["low", "high", ""] = ""


def columns(result: "Comparison") -> list[Column]:
    """Return the columns that a result needs."""
    entries, higher = result.entries, result.goal.metric.higher
    end: Literal["low", "high"] = "high" if higher else "low"

    def setting(name: str) -> Callable[[Entry], Any]:
        return lambda entry: entry.settings.get(name)

    def rounds(entry: Entry) -> str:
        if entry.diverged:
            return f"diverged at round {entry.diverged_at}"
        if entry.rounds is not None:
            return str(entry.rounds)
        if entry.reached:
            return f"reached by {entry.reached} of {len(entry.runs)}"
        return f"{len(entry.curve)}" + ("" if result.target is None else "+")

    several_seeds = any(len(entry.runs) > 1 for entry in entries)
    searched = any(entry.settings.get("eta_g", 1.0) != 1.0 for entry in entries)
    exchanges = any(e.exchanges is not None and e.exchanges != e.rounds for e in entries)
    split, data = result.about.split != "none", result.about.tested_on
    work = any(entry.work for entry in entries)
    made = [
        Column("algorithm", lambda entry: entry.shown, _name),
        Column("K", setting("K"), lambda entry: str(entry.settings.get("K", 1))),
        Column("eta_g", setting("eta_g"), lambda entry: _short(entry.settings.get("eta_g")))
        if searched
        else None,
        Column("step size", lambda entry: entry.settings.get(entry.step), _step),
        Column("rounds", lambda entry: entry.rounds, rounds, "low"),
        Column("90 %", lambda entry: entry.interval, _interval) if several_seeds else None,
        Column("exchanges", lambda e: e.exchanges, lambda e: _count(e.exchanges), "low")
        if exchanges
        else None,
        Column("bytes", lambda entry: entry.bytes, _bytes, "low"),
        Column("gradients", lambda entry: entry.work, _work, "low") if work else None,
        Column("seconds", lambda entry: entry.seconds, _seconds, "low"),
        Column(
            "validation" if split else f"best {result.metric}",
            lambda entry: entry.best,
            lambda entry: _short(entry.best, 4),
            end,
        ),
        Column(data, lambda e: e.test, lambda e: _short(e.test, 4), end) if split else None,
    ]
    others = dict.fromkeys(name for e in entries for name in e.tests if name != result.metric)
    return [
        *(column for column in made if column is not None),
        *(_besides(n, data) for n in others),
    ]


def _besides(name: str, data: str) -> Column:
    """Return the column of a metric that is measured at the end and does not decide."""
    return Column(
        f"{name} ({data})",
        lambda entry: entry.tests.get(name),
        lambda entry: _short(entry.tests.get(name), 4),
    )


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


def _name(entry: Entry) -> str:
    base = entry.settings.get("base", "")
    return entry.shown + (f" ({base.split('(')[0]})" if base else "")


def _step(entry: Entry) -> str:
    return _short(entry.settings.get(entry.step)) + (" *" if entry.fragile else "")


def _interval(entry: Entry) -> str:
    if entry.interval is None:
        return "-"
    low, high = (f"{end:.2g}" if end < 99.5 else f"{end:.0f}" for end in entry.interval)
    return f"{low} … {high}"


def _bytes(entry: Entry) -> str:
    return "-" if entry.bytes is None else format_bytes(entry.bytes)


def _work(entry: Entry) -> str:
    return "-" if entry.work is None else format_number(entry.work).strip()


def _seconds(entry: Entry) -> str:
    return "-" if entry.seconds is None else f"{entry.seconds:.2f}"


def _count(n: int | None) -> str:
    return "-" if n is None else str(n)


def _short(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}g}"
