"""The parts of a comparison's page, in order. A panel is a function; PANELS is where it is named.

A panel returns HTML, escaped, or "" where it has nothing to show.
"""

from collections.abc import Callable
from html import escape

from trimtab.core.human import human
from trimtab.report.style import html_table
from trimtab.report.table import FRAGILE
from trimtab.studies.columns import bold, columns
from trimtab.studies.comparison import Comparison
from trimtab.studies.entry import Candidate, Entry

Panel = Callable[[Comparison], str]


def advice(result: Comparison) -> str:
    """Show what to use, in one sentence."""
    return f'<p class="advice">{escape(result.advice)}</p>'


def table(result: Comparison) -> str:
    """Show each algorithm's best run, and how to read the numbers."""
    best, shown = bold(result), columns(result)
    rows = [
        [
            f"<b>{escape(column.text(entry))}</b>"
            if row in best.get(place, ())
            else escape(column.text(entry))
            for place, column in enumerate(shown)
        ]
        for row, entry in enumerate(result.entries)
    ]
    note = f"<br>{FRAGILE}" if any(entry.fragile for entry in result.entries) else ""
    return f"""{html_table([column.title for column in shown], rows)}
<p class="small">Rounds, exchanges, bytes (both directions, all clients), sample gradients at the
clients and seconds of simulation until the target was first met, the median over the seeds;
'n+' means not met in n rounds. The best of each column is bold.{note}</p>"""


def about(result: Comparison) -> str:
    """Show how the comparison was made, and what a reader must know of its numbers."""
    made = result.about
    facts = []
    if made.split not in ("none", "given"):
        facts.append(
            f"Tuned, stopped and compared on {100 * float(made.split):g} % of each client's "
            "samples, which were held out; the last column is the test data at the chosen round."
        )
    if made.split == "given":
        facts.append("Tuned, stopped and compared on the validation data that were given.")
    if len(made.seeds) > 1:
        seeds = ", ".join(map(str, made.seeds))
        facts.append(f"Seeds {seeds}; the search had one of its own.")
    if made.budget is not None:
        facts.append(
            f"Each algorithm's search had {human(made.budget).strip()} sample gradients; with the "
            f"budget {made.budget:g} it can be repeated anywhere."
        )
    facts += [f"{note[:1].upper()}{note[1:]}" for note in made.notes]
    for entry in result.entries:
        facts += [f"{entry.shown}: not run: {what}." for what in entry.not_run]
    return "".join(f'<p class="small">{escape(fact)}</p>' for fact in facts)


def clients(result: Comparison) -> str:
    """Show how the chosen models serve the clients: on average, and those served worst."""
    served = [(entry, entry.per_client) for entry in result.entries if entry.per_client]
    if not served:
        return ""
    heads = ["algorithm", "mean", "worst tenth", "worst", "client", "spread"]
    numbers = ("mean", "worst_tenth", "worst", "worst_client", "spread")
    rows = [
        [escape(entry.shown), *(_number(found.get(name)) for name in numbers)]
        for entry, found in served
    ]
    on = escape(str(served[0][1].get("on", "")))
    return f"<h2>{escape(result.metric)} by client, on their {on}</h2>{html_table(heads, rows)}"


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


PANELS: tuple[Panel, ...] = (advice, table, about, curves, clients, tried)
