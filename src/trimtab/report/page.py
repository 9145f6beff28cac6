"""One self-contained HTML page for a comparison or a run."""

from html import escape
from pathlib import Path

from trimtab._files import write_whole
from trimtab._version import environment
from trimtab.report.table import COLUMNS, FRAGILE, cells, wanted, winners
from trimtab.studies.comparison import Comparison, Entry

CSS = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2.5rem auto;
       padding: 0 1.2rem; }
h1 { font-size: 1.5rem; margin-bottom: .3rem } h2 { font-size: 1.1rem; margin-top: 2rem }
.advice { background: #e9f4f5; border-left: 4px solid #00798c; padding: .7rem 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .3rem .8rem; border-bottom: 1px solid #e5e5e5 }
th:first-child, td:first-child { text-align: left } th { font-weight: 600; color: #555 }
.plot svg { width: 100%; height: auto } .small { color: #666; font-size: .85rem }
details { margin: .3rem 0 } summary { cursor: pointer }
"""


def write_page(result: Comparison, path: Path) -> Path:
    """Write the page, and return where it is."""
    title = f"{result.problem}: {len(result.entries)} algorithms to {wanted(result)}"
    if len(result.entries) == 1:
        title = f"{result.problem}: {result.entries[0].shown} to {wanted(result)}"
    from trimtab.report.plots import curves, svg  # matplotlib is slow to import

    note = f"<br>{FRAGILE}" if any(entry.fragile for entry in result.entries) else ""
    drawn = any(entry.curve for entry in result.entries)
    plot = f'<div class="plot">{svg(curves(result))}</div>' if drawn else ""
    facts = ", ".join(f"{name} {version}" for name, version in environment().items())
    text = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{CSS}</style></head><body>
<h1>{escape(title)}</h1>
<p class="advice">{escape(result.advice)}</p>
{_table(result)}
<p class="small">Rounds, bytes (both directions, all clients) and seconds of simulation until the
target was first met; 'n+' means not met in n rounds. The best of each column is bold.{note}</p>
{plot}
{_tried(result)}
<p class="small">{escape(facts)}</p>
</body></html>
"""
    write_whole(path, text)
    return path


def _table(result: Comparison) -> str:
    best = winners(result)
    heads = [f"best {result.metric}" if c == "best" else c for c in COLUMNS]
    head = "".join(f"<th>{escape(c)}</th>" for c in heads)
    rows = [
        "".join(
            f"<td><b>{escape(c)}</b></td>" if row in best.get(j, ()) else f"<td>{escape(c)}</td>"
            for j, c in enumerate(cells(entry, result))
        )
        for row, entry in enumerate(result.entries)
    ]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _tried(result: Comparison) -> str:
    sections = [_candidates(entry) for entry in result.entries if len(entry.tried) > 1]
    return "<h2>Step sizes tried</h2>" + "".join(sections) if sections else ""


def _candidates(entry: Entry) -> str:
    rows = []
    for one in sorted(entry.tried, key=lambda candidate: candidate.step or 0.0):
        outcome = (
            f"diverged at round {one.diverged_at}"
            if one.diverged_at
            else f"target met at round {one.rounds}"
            if one.rounds
            else f"stopped after {one.ran} rounds"
        )
        best = "-" if one.best is None else f"{one.best:.4g}"
        rows.append(f"<tr><td>{one.step:.3g}</td><td>{outcome}</td><td>{best}</td></tr>")
    K = f", K = {entry.settings['K']}" if "K" in entry.settings else ""
    return (
        f"<details><summary>{escape(entry.shown)}{K}</summary><table>"
        "<tr><th>step size</th><th>outcome</th><th>best</th></tr>"
        f"{''.join(rows)}</table></details>"
    )
