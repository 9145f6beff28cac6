"""The curves of a page: every round of every result, in columns, and packed for the browser."""

import gzip
import json
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from trimtab.algorithms.registry import NAMES, kind
from trimtab.report.charts.colours import DASHES
from trimtab.report.charts.lines import Line
from trimtab.report.charts.svg import ink
from trimtab.studies.comparison import Comparison
from trimtab.studies.entry import Entry
from trimtab.studies.record import RoundLine

AXES = {
    "rounds": "rounds",
    "exchanges": "exchanges",
    "bytes": "bytes, both directions",
    "work": "sample gradients at clients",
    "seconds": "seconds of simulation",
}
TELEMETRY = ("drift", "spread", "cosine")
DIGITS = 6  # of what is measured by a clock, or shows how clients move; metrics are kept whole

Numbers = list[float | None]


@dataclass(frozen=True)
class Curve:
    """One run by rounds: what they cost so far, what was measured, and the band over its seeds."""

    key: str
    label: str
    folder: str
    colour: str
    dash: str
    x: dict[str, list[float]]
    y: dict[str, Numbers]
    low: dict[str, Numbers] = field(default_factory=dict)
    high: dict[str, Numbers] = field(default_factory=dict)

    def line(self, x: str, y: str) -> Line | None:
        """Return one of its lines; None where it has no such numbers."""
        if x not in self.x or y not in self.y:
            return None
        band = self.low.get(y, []), self.high.get(y, [])
        return Line(self.key, self.label, self.colour, self.dash, self.x[x], self.y[y], *band)


def colour_of(entry: Entry) -> str:
    """Return an algorithm's colour: that of the registry, whatever an older record says."""
    name = entry.name.partition("#")[0]
    return kind(name).colour if name in NAMES else entry.colour or "#444444"


def curves_of(
    result: Comparison,
    seeds: Callable[[Entry], Mapping[int, list[RoundLine]]],
    number: int = 0,
    folder: str = "",
) -> list[Curve]:
    """Return the curves of a result; folder: its name, where others are beside it."""
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
        y = _measured(entry.curve)
        low, high = _band(entry, list(seeds(entry).values()), y)
        made.append(
            Curve(
                key=f"s{number}-{j}",
                label=label,
                folder=folder or result.problem,
                colour=colour_of(entry),
                dash=DASHES[(number if folder else j) % len(DASHES)],
                x=_costs(entry),
                y=y,
                low=low,
                high=high,
            )
        )
    return made


def _costs(entry: Entry) -> dict[str, list[float]]:
    """Return what the rounds cost so far; what is not counted, or is never paid, is left out."""
    lines = entry.curve
    each: dict[str, list[float]] = {
        "exchanges": [line.exchanges for line in lines],
        "bytes": [line.bytes_down + line.bytes_up for line in lines],
        "work": [line.work for line in lines],
        "seconds": [line.seconds for line in lines],
    }
    if entry.baseline:  # Nothing is sent in it.
        del each["exchanges"], each["bytes"]
    sums = {name: _summed(values) for name, values in each.items() if any(values)}
    rounds: list[float] = [line.r for line in lines]
    return {"rounds": rounds} | sums


def _summed(values: list[float]) -> list[float]:
    return [
        total if isinstance(total, int) else float(f"{total:.{DIGITS}g}")
        for total in accumulate(values)
    ]


def _measured(lines: Sequence[RoundLine]) -> dict[str, Numbers]:
    """Return the metrics, and how clients moved where that is known."""
    names = dict.fromkeys(name for line in lines for name in line.metrics)
    found: dict[str, Numbers] = {n: [line.metrics.get(n) for line in lines] for n in names}
    for name in TELEMETRY:
        values: Numbers = [getattr(line, name) for line in lines]
        if any(values):
            found[name] = [None if v is None else float(f"{v:.{DIGITS}g}") for v in values]
    return found


def _band(
    entry: Entry, seeds: list[list[RoundLine]], y: dict[str, Numbers]
) -> tuple[dict[str, Numbers], dict[str, Numbers]]:
    """Return the least and the greatest of each metric over the seeds, as far as all ran."""
    low: dict[str, Numbers] = {}
    high: dict[str, Numbers] = {}
    length = min((len(lines) for lines in seeds), default=0)
    if len(seeds) < 2 or not length:
        return low, high
    for name in entry.curve[0].metrics:
        rows = [[lines[r].metrics.get(name) for lines in seeds] for r in range(length)]
        known = [[v for v in row if v is not None] for row in rows]
        low[name] = [min(row, default=None) for row in known]
        high[name] = [max(row, default=None) for row in known]
    return low, high


# -- the data in the page


def packed(curves: Sequence[Curve], name: str, x_log: bool) -> str:
    """Return the whole curves compressed, as letters; page.js opens them.

    first, log: the axis that charts begin with.
    """
    content: dict[str, Any] = {
        "name": name,
        "first": "rounds",
        "log": x_log,
        "axes": AXES,
        "series": [
            {
                "key": curve.key,
                "label": curve.label,
                "folder": curve.folder,
                "ink": ink(curve.colour),
                "dash": curve.dash,
                **{part: getattr(curve, part) for part in ("x", "y", "low", "high")},
            }
            for curve in curves
        ],
    }
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
