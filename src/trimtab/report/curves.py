"""The curves of a page: a line per algorithm, and the same numbers packed for the browser.

The line of the metric that decides is the median over the report seeds, its band their range. The
lines of other metrics are those of the first report seed.
"""

import gzip
import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import accumulate
from math import inf, isfinite
from statistics import median_low
from typing import Any

from trimtab.algorithms.registry import NAMES, kind
from trimtab.core.sections import Section, Table
from trimtab.report.charts.lines import Better, Line, followed_values, line_chart
from trimtab.report.charts.scales import short
from trimtab.report.charts.svg import DASHES, css_colours, legend
from trimtab.studies.comparison import Comparison
from trimtab.studies.entry import Entry, SeedRun
from trimtab.studies.record import RoundLine

AXES = {
    "rounds": "rounds",
    "exchanges": "exchanges",
    "bytes": "bytes, both directions",
    "work": "sample gradients at clients",
    "seconds": "seconds of simulation",
}
TELEMETRY = {
    "drift": "How far clients move in a round, the mean of |dx_i|.",
    "spread": "How far the clients' states (their controls) lie apart.",
    "cosine": "How far the clients' moves agree; 1 if all are alike.",
}
# Digits of clocks and telemetry, which are not compared to the last bit; metrics keep all.
DIGITS = 6
HINT = (
    "Hover for numbers, drag to zoom, double-click for everything; with the keyboard: arrows, +, - "
    "and 0."
)
LONG = 30  # More rounds start with a logarithmic axis, because most changes happen early.
ROWS = 12  # rounds in the table below a chart

Numbers = list[float | None]


@dataclass(frozen=True)
class Curve:
    """One algorithm, round by round.

    key: its name in the data of the page.
    note: what the legend adds to its label, such as the round at which it diverged.
    x: the costs so far, by axis.
    y: the metrics and the telemetry, by name.
    low, high: the bands, by name.
    diverged: whether most of its seeds diverged.
    """

    key: str
    label: str
    note: str
    folder: str
    colour: str
    dash: str
    x: dict[str, list[float]]
    y: dict[str, Numbers]
    low: dict[str, Numbers] = field(default_factory=dict)
    high: dict[str, Numbers] = field(default_factory=dict)
    diverged: bool = False

    def line(self, x: str, y: str) -> Line | None:
        """Return one of its lines; None if it has no such numbers."""
        if x not in self.x or y not in self.y:
            return None
        band = self.low.get(y, []), self.high.get(y, [])
        look = self.key, self.label, self.colour, self.dash
        return Line(*look, self.x[x], self.y[y], *band, diverged=self.diverged)


def colour_of(entry: Entry) -> str:
    """Return an algorithm's colour: that of the registry, even if an older record has another."""
    name = entry.name.partition("#")[0]
    return kind(name).colour if name in NAMES else entry.colour or "#444444"


def curves_of(result: Comparison, number: int = 0, folder: str = "") -> list[Curve]:
    """Return the curves of a result.

    number: that of the result on the page.
    folder: its name if there are others on the page.
    """
    names = [entry.shown for entry in result.entries]
    made = []
    for j, entry in enumerate(result.entries):
        if not entry.curve:
            continue
        label = entry.shown
        if names.count(entry.shown) > 1 and "K" in entry.settings:
            label += f", K = {entry.settings['K']}"
        if folder and folder.lower() != entry.shown.lower():
            label += f" ({folder})"
        y, low, high = _measured(entry.curve), dict[str, Numbers](), dict[str, Numbers]()
        if any(run.scores for run in entry.runs):
            middle, least, most = over_seeds(entry.runs, result.goal.metric.higher)
            y[result.metric] = middle
            if len(entry.runs) > 1:
                low[result.metric], high[result.metric] = least, most
        length = max(map(len, y.values()), default=0)
        note, diverged = _divergence(entry)
        made.append(
            Curve(
                key=f"s{number}-{j}",
                label=label,
                note=note,
                folder=folder or result.problem,
                colour=colour_of(entry),
                dash=DASHES[(number if folder else j) % len(DASHES)],
                x=_costs(entry, length),
                y=y,
                low=low,
                high=high,
                diverged=diverged,
            )
        )
    return made


def over_seeds(runs: Sequence[SeedRun], higher: bool) -> tuple[Numbers, Numbers, Numbers]:
    """Return the median, the least and the greatest score of each round over the seeds.

    Seeds end at different rounds: at their targets. One that ended keeps its last score, so that
    the line does not jump to those that are slower. One that diverged counts as worse than all
    others after its last round and has no part in the band; the median is None where it is such a
    one.
    """
    length = max(len(run.scores) for run in runs)
    worst = -inf if higher else inf
    rows: list[Numbers] = [[], [], []]
    for r in range(length):
        scores, calm = [], []
        for run in runs:
            score = run.scores[r] if r < len(run.scores) else None
            if score is None and run.scores and run.diverged_at is None:
                score = run.scores[-1] if r >= len(run.scores) else None
            scores.append(worst if score is None or not isfinite(score) else score)
            if run.diverged_at is None and isfinite(scores[-1]):
                calm.append(scores[-1])
        # The median of an even number is the worse one, as an algorithm's rounds are.
        middle = median_low(scores) if higher else -median_low([-score for score in scores])
        rows[0].append(middle if isfinite(middle) else None)
        rows[1].append(min(calm, default=None))
        rows[2].append(max(calm, default=None))
    return rows[0], rows[1], rows[2]


def _divergence(entry: Entry) -> tuple[str, bool]:
    """Return the note on an algorithm's divergence, and whether most of its seeds diverged."""
    ended = [run.diverged_at for run in entry.runs if run.diverged_at is not None]
    if len(ended) < len(entry.runs):
        if not ended:
            return "", False
        return f"{len(ended)} of {len(entry.runs)} seeds diverged", 2 * len(ended) > len(entry.runs)
    if not entry.diverged:
        return "", False
    return f"diverged at round {min(ended, default=entry.diverged_at)}", True


def _costs(entry: Entry, length: int) -> dict[str, list[float]]:
    """Return the costs so far, of those that are counted and not always zero.

    The line of a median may be longer than the first seed, whose costs these are. They then grow
    by its mean cost of a round.
    """
    lines = entry.curve
    each: dict[str, list[float]] = {
        "exchanges": [line.exchanges for line in lines],
        "bytes": [line.bytes_down + line.bytes_up for line in lines],
        "work": [line.work for line in lines],
        "seconds": [line.seconds for line in lines],
    }
    if entry.baseline:  # A baseline sends nothing.
        del each["exchanges"], each["bytes"]
    for values in each.values():
        mean = sum(values) / len(values)
        values += [mean] * (length - len(values))
    sums = {name: _summed(values) for name, values in each.items() if any(values)}
    return {"rounds": [float(r + 1) for r in range(length)]} | sums


def _summed(values: list[float]) -> list[float]:
    return [
        total if isinstance(total, int) else float(f"{total:.{DIGITS}g}")
        for total in accumulate(values)
    ]


def _measured(lines: Sequence[RoundLine]) -> dict[str, Numbers]:
    """Return the metrics, and the telemetry where it is known."""
    names = dict.fromkeys(name for line in lines for name in line.metrics)
    found: dict[str, Numbers] = {n: [line.metrics.get(n) for line in lines] for n in names}
    for name in TELEMETRY:
        values: Numbers = [getattr(line, name) for line in lines]
        if any(values):
            found[name] = [None if v is None else float(f"{v:.{DIGITS}g}") for v in values]
    return found


# -- the sections


def curve_sections(results: Sequence[Comparison], curves: Sequence[Curve]) -> list[Section]:
    """Return the metrics against rounds, exchanges, bytes, client work and seconds."""
    if not curves:
        return []
    figures = [_chart(results, curves, name) for name in _metrics(results, curves)]
    notes = []
    if any(result.target is not None for result in results):
        notes.append("A dashed grey line is the target.")
    if any(curve.low for curve in curves):
        decisive = " and ".join(dict.fromkeys(result.metric for result in results))
        notes.append(
            f"{decisive}: the line is the median over the report seeds, the band their range; a "
            "seed that reached the target keeps its last value. Other metrics are those of the "
            "first report seed."
        )
    if any(curve.note for curve in curves):
        notes.append(
            "The axis does not follow runs that diverged or are far worse than the others: an "
            "arrow is where a line leaves it, a cross where a run diverged."
        )
    return [
        Section("Curves", figure=_controls(curves) + _legend(curves), parts=figures, notes=notes)
    ]


def telemetry_sections(results: Sequence[Comparison], curves: Sequence[Curve]) -> list[Section]:
    """Return how far clients move, and how far their controls lie apart."""
    names = [name for name in TELEMETRY if any(name in curve.y for curve in curves)]
    if not names:
        return []
    figures = [_chart(results, curves, name) for name in names]
    return [Section("Drift and controls", figure=_legend(curves), parts=figures)]


def starts_logarithmic(curves: Sequence[Curve]) -> bool:
    """Return whether the horizontal axis is logarithmic when the page opens."""
    return max((len(curve.x["rounds"]) for curve in curves), default=0) > LONG


def _metrics(results: Sequence[Comparison], curves: Sequence[Curve]) -> list[str]:
    """Return the names of the metrics, the decisive ones first."""
    goals = [result.metric for result in results]
    measured = [name for curve in curves for name in curve.y if name not in TELEMETRY]
    return [name for name in dict.fromkeys((*goals, *measured)) if name in measured]


def _chart(results: Sequence[Comparison], curves: Sequence[Curve], y: str) -> Section:
    lines = [line for curve in curves if (line := curve.line("rounds", y)) is not None]
    if not any(v is not None and isfinite(v) for line in lines for v in line.y):
        return Section(y, ["It was never a finite number."])
    better = _better(results, y)
    targets = {r.target for r in results if r.metric == y and r.target is not None}
    target = targets.pop() if len(targets) == 1 else None
    known = followed_values(lines, False, better)
    y_log = bool(known) and min([*known, target or 1.0]) > 0 and max(known) > 10 * min(known)
    chart = line_chart(
        lines,
        AXES["rounds"],
        y,
        x_log=starts_logarithmic(curves),
        y_log=y_log,
        target=target,
        better=better,
    )
    facts = f'data-y="{escape(y)}" data-log="{"yes" if y_log else "no"}" data-better="{better}"'
    facts += "" if target is None else f' data-target="{target!r}"'
    key = "".join(c if c.isalnum() else "-" for c in y)
    caption = f"<figcaption>{escape(TELEMETRY[y])}</figcaption>" if y in TELEMETRY else ""
    return Section(
        f"{y} (logarithmic)" if y_log else y,
        figure=f'<figure id="chart-{key}" {facts}>{caption}{chart}</figure>',
        parts=[Section(table=_numbers(curves, y))],
    )


def _better(results: Sequence[Comparison], y: str) -> Better:
    """Return the better end of an axis, if that is known."""
    for result in results:
        if result.metric == y:
            return "high" if result.goal.metric.higher else "low"
    return "low" if y in ("loss", "drift", "spread") else ""


def _controls(curves: Sequence[Curve]) -> str:
    there = [x for x in AXES if any(x in curve.x for curve in curves)]
    options = "".join(f'<option value="{x}">{escape(AXES[x])}</option>' for x in there)
    checked = " checked" if starts_logarithmic(curves) else ""
    # Browsers restore the state of forms after a reload, which the axes would not follow.
    return (
        '<div class="controls" hidden><label>Horizontal axis '
        f'<select autocomplete="off">{options}</select></label>'
        f'<label><input type="checkbox" autocomplete="off"{checked}> logarithmic</label></div>'
        f'<p class="small hint">{HINT}</p>'
    )


def _legend(curves: Sequence[Curve]) -> str:
    """Return the names of the curves, which page.js makes buttons."""
    if len(curves) < 2 and not any(curve.note for curve in curves):
        return ""
    return legend(
        [(c.key, f"{c.label}: {c.note}" if c.note else c.label, c.colour, c.dash) for c in curves]
    )


def _numbers(curves: Sequence[Curve], y: str) -> Table:
    """Return some rounds of the curves, early ones closer together."""
    shown = [curve for curve in curves if y in curve.y]
    last = max((len(curve.y[y]) for curve in shown), default=1)
    rounds = sorted({round(last ** (j / (ROWS - 1))) for j in range(ROWS)})
    rows = [[str(r), *(_at(curve.y[y], r) for curve in shown)] for r in rounds]
    heads = ["round", *(curve.label for curve in shown)]
    return Table(heads, rows, folded=f"The numbers of {y}")


def _at(values: Numbers, r: int) -> str:
    value = values[r - 1] if r <= len(values) else None
    return "-" if value is None else short(value)


# -- the data in the page


def packed(curves: Sequence[Curve], name: str) -> str:
    """Return all curves as compressed text, which page.js opens.

    name: that of the files which a reader downloads.
    """
    parts = ("key", "label", "note", "folder", "dash", "x", "y", "low", "high", "diverged")
    content: dict[str, Any] = {
        "name": name,
        "first": "rounds",
        "log": starts_logarithmic(curves),
        "axes": AXES,
        "series": [
            {part: getattr(curve, part) for part in parts} | {"ink": css_colours(curve.colour)}
            for curve in curves
        ],
    }
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
