"""The parts of a comparison's page, in order. A panel is a function; PANELS is where it is named.

A panel returns HTML, escaped, or "" where it has nothing to show.
"""

from collections.abc import Callable
from html import escape

from trimtab.report.style import html_table
from trimtab.report.table import COLUMNS, FRAGILE, cells, winners
from trimtab.studies.comparison import Candidate, Comparison, Entry

Panel = Callable[[Comparison], str]


def advice(result: Comparison) -> str:
    """Show what to use, in one sentence."""
    return f'<p class="advice">{escape(result.advice)}</p>'


def table(result: Comparison) -> str:
    """Show each algorithm's best run, and how to read the numbers."""
    best = winners(result)
    heads = [f"best {result.metric}" if column == "best" else column for column in COLUMNS]
    rows = [
        [
            f"<b>{escape(text)}</b>" if row in best.get(column, ()) else escape(text)
            for column, text in enumerate(cells(entry, result))
        ]
        for row, entry in enumerate(result.entries)
    ]
    note = f"<br>{FRAGILE}" if any(entry.fragile for entry in result.entries) else ""
    return f"""{html_table(heads, rows)}
<p class="small">Rounds, bytes (both directions, all clients) and seconds of simulation until the
target was first met; 'n+' means not met in n rounds. The best of each column is bold.{note}</p>"""


def curves(result: Comparison) -> str:
    """Show the metrics against rounds and bytes."""
    if not any(entry.curve for entry in result.entries):
        return ""
    from trimtab.report import plots  # It imports matplotlib, which is slow.

    return f'<div class="plot">{plots.svg(plots.curves(result))}</div>'


def tried(result: Comparison) -> str:
    """Show the step sizes that were tried."""
    sections = [_tried_by(entry) for entry in result.entries if len(entry.tried) > 1]
    return "<h2>Step sizes tried</h2>" + "".join(sections) if sections else ""


def _tried_by(entry: Entry) -> str:
    order = sorted(entry.tried, key=lambda candidate: candidate.step or 0.0)
    rows = [
        [f"{c.step:.3g}", _outcome(c), "-" if c.best is None else f"{c.best:.4g}"] for c in order
    ]
    K = f", K = {entry.settings['K']}" if "K" in entry.settings else ""
    return (
        f"<details><summary>{escape(entry.shown)}{K}</summary>"
        f"{html_table(['step size', 'outcome', 'best'], rows)}</details>"
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _outcome(candidate: Candidate) -> str:
    if candidate.diverged_at:
        return f"diverged at round {candidate.diverged_at}"
    if candidate.rounds:
        return f"target met at round {candidate.rounds}"
    return f"stopped after {candidate.ran} rounds"


PANELS: tuple[Panel, ...] = (advice, table, curves, tried)
