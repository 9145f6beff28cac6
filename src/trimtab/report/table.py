"""The table of a comparison: the same cells for the terminal and for the page."""

from typing import Any

from rich.markup import escape
from rich.table import Table

from trimtab.report.style import human_bytes
from trimtab.studies.comparison import Comparison, Entry

COLUMNS = ("algorithm", "K", "step size", "rounds", "bytes", "seconds", "best")
FRAGILE = (
    "* fragile: run again from a start moved by a millionth, it needs other rounds or ends "
    "elsewhere; so it may on another processor."
)


def cells(entry: Entry, result: Comparison) -> list[str]:
    """Return an entry's cells; the settings that name the algorithm come first."""
    s = entry.settings
    step = s.get(entry.step)
    best = "-" if entry.best is None else f"{entry.best:.4g}"
    shown = _number(step) + (" *" if entry.fragile else "")
    if entry.diverged:
        at = f"diverged at round {entry.diverged_at}"
        return [_name(entry), str(s.get("K", 1)), shown, at, "-", "-", best]
    ran = f"{len(entry.curve)}" + ("" if result.target is None else "+")
    return [
        _name(entry),
        str(s.get("K", 1)),
        shown,
        ran if entry.rounds is None else str(entry.rounds),
        "-" if entry.bytes is None else human_bytes(entry.bytes),
        "-" if entry.seconds is None else f"{entry.seconds:.2f}",
        best,
    ]


def winners(result: Comparison) -> dict[int, set[int]]:
    """Return which rows hold the best of each column that has one."""
    higher = result.goal.metric.higher
    values: dict[int, list[float | None]] = {
        3: [e.rounds for e in result.entries],
        4: [e.bytes for e in result.entries],
        5: [e.seconds for e in result.entries],
        6: [None if e.best is None else (-e.best if higher else e.best) for e in result.entries],
    }
    best: dict[int, set[int]] = {}
    for column, numbers in values.items():
        known = [n for n in numbers if n is not None]
        if len(numbers) > 1 and known:
            best[column] = {row for row, n in enumerate(numbers) if n == min(known)}
    return best


def terminal_table(result: Comparison) -> Table:
    """Return the table for a terminal, the best of each column in bold."""
    title = escape(f"{result.problem}: rounds to {wanted(result)}")
    note = FRAGILE if any(entry.fragile for entry in result.entries) else None
    table = Table(title=title, title_justify="left", caption=note, caption_justify="left")
    for column in COLUMNS:
        right = "right" if column not in ("algorithm",) else "left"
        title = f"best {result.metric}" if column == "best" else column
        table.add_column(title, justify=right, no_wrap=True)  # type: ignore[arg-type]
    best = winners(result)
    for row, entry in enumerate(result.entries):
        shown = cells(entry, result)
        table.add_row(
            *(f"[bold]{c}[/bold]" if row in best.get(j, ()) else c for j, c in enumerate(shown))
        )
    return table


def bench_table(rows: list[dict[str, Any]]) -> Table:
    """Return the table of a benchmark: milliseconds a round, and the ratios with their goals."""
    table = Table(title="milliseconds a round, the best of several", title_justify="left")
    times = ("bare", "fedavg", "scaffold", "plain")
    for column in ("workload", "executor", *times):
        table.add_column(column, justify="left" if column == "workload" else "right")
    table.add_column("ratios (goal)")
    for row in rows:
        shown = [f"{row['milliseconds'][name]:.1f}" for name in times]
        ratios = [
            f"{name} {value:.2f} ({row['goals'][name]:.3g}{'' if row['met'][name] else ', missed'})"
            for name, value in row["ratios"].items()
        ]
        table.add_row(row["workload"], row["executor"], *shown, "\n".join(ratios))
    return table


def reproduction_table(reproductions: list[dict[str, Any]]) -> Table:
    """Return the list of the reproductions."""
    table = Table("name", "shows", "minutes", "record", "claims", title_justify="left")
    for row in reproductions:
        verdicts = list(row["claims"].values())
        counts = [f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts)]
        minutes = f"{row['minutes']:g}"
        table.add_row(row["name"], row["shows"], minutes, row["record"] or "", ", ".join(counts))
    return table


def wanted(result: Comparison) -> str:
    """Return the target in words."""
    if result.target is None:
        return f"the best {result.metric}"
    return f"{result.metric} {result.target:g}" + ("" if result.goal.metric.higher else " or less")


def _name(entry: Entry) -> str:
    base = entry.settings.get("base", "")
    return entry.shown + (f" ({base.split('(')[0]})" if base else "")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
