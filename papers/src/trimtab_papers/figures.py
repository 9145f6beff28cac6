"""Figures of matplotlib in the house style, and tables of the numbers that they show.

matplotlib is imported when a figure is drawn.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import StringIO
from typing import TYPE_CHECKING, Any

from trimtab.core.sections import Section, Table
from trimtab_papers.verdicts import Records

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


PLOTS: dict[Any, Any] = {  # matplotlib's settings
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e8e8e8",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "trimtab",
}


def label_of(name: str, in_legend: bool = False) -> str:
    """Return the label of a line: the table behind a figure has all of them, the legend some."""
    return name if in_legend else f"_{name}"


def add_legend(panels: Iterable[Any], **look: Any) -> None:
    """Give the first panel that has lines with names a legend; there may be few records yet."""
    for axes in panels:
        if axes.get_legend_handles_labels()[0]:
            axes.legend(**look)
            return


def log_log_sizes(axes: Any) -> None:
    """Give both axes a log scale, the horizontal one for numbers of clients, and add a legend."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.legend(fontsize=9)


@contextmanager
def new_figure(width: float, height: float) -> Iterator["Figure"]:
    """Give a figure of so many inches; the style holds while it is drawn."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(PLOTS):
        yield Figure(figsize=(width, height), layout="constrained")


def drawn(
    width: float, height: float
) -> Callable[[Callable[[Any, Records], None]], Callable[[Records], "Figure"]]:
    """Make a function of the records that returns a figure, of one that draws them into it."""

    def figure_of(draw: Callable[[Any, Records], None]) -> Callable[[Records], "Figure"]:
        def figure(records: Records) -> "Figure":
            with new_figure(width, height) as fig:
                draw(fig, records)
            return fig

        return figure

    return figure_of


# -- the numbers behind a figure


POINTS = 12  # a line has <= 12 points in the table, its ends among them
EVERYWHERE = "everywhere"


def svg(figure: "Figure") -> str:
    from matplotlib import rc_context

    text = StringIO()
    with rc_context(PLOTS):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def tables_behind(figure: "Figure") -> list[Section]:
    """Return a table of the numbers of each panel, folded until a reader opens it."""
    panels = (_panel(axes) for axes in figure.axes)
    return [Section(table=panel.table()) for panel in panels if panel.lines]


@dataclass
class Panel:
    """What a panel shows: the values of each line by their place on the horizontal axis.

    Lines of one name, such as those of several seeds, are one: they have several values at a place.
    """

    title: str
    x_name: str
    lines: dict[str, dict[float, list[float]]] = field(default_factory=dict)
    levels: dict[str, list[float]] = field(default_factory=dict)  # lines from side to side
    words: dict[float, str] = field(default_factory=dict)  # where the axis has no numbers

    def table(self) -> Table:
        places = sorted({x for line in self.lines.values() for x in thinned(sorted(line))})
        names = list(dict.fromkeys((*self.lines, *self.levels)))
        rows = [
            [self._word(x), *(_joined(self.lines.get(n, {}).get(x, [])) for n in names)]
            for x in places
        ]
        if self.levels:
            rows.append([EVERYWHERE, *(_joined(self.levels.get(name, [])) for name in names)])
        return Table([self.x_name, *names], rows, folded=self.title)

    def _word(self, x: float) -> str:
        if not self.words:
            return f"{x:.6g}"
        return self.words[min(self.words, key=lambda place: abs(place - x))]

    def add(self, name: str, xs: Any, ys: Any) -> None:
        """Add a line's points to those of its name."""
        line = self.lines.setdefault(name, {})
        for x, y in zip(xs, ys, strict=True):
            line.setdefault(float(x), []).append(float(y))


def thinned(places: list[float]) -> list[float]:
    """Return some of the places, evenly, with the first and the last.

    >>> thinned([float(r) for r in range(1000)])[:3]
    [0.0, 91.0, 182.0]
    """
    if len(places) <= POINTS:
        return places
    last = len(places) - 1
    return [places[round(j * last / (POINTS - 1))] for j in range(POINTS)]


def _joined(values: list[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values) or "-"


def _panel(axes: "Axes") -> Panel:
    words, y_name, title = _words(axes), _axis_name(axes, "y"), _title(axes)
    x_name = "" if words else _axis_name(axes, "x")
    what = f"{y_name} against {x_name}" if x_name else y_name
    panel = Panel(f"{title}: {what}" if title else what, x_name, words=words)
    _read_lines(axes, panel)
    _read_bars(axes, panel)
    _read_bands(axes, panel)
    if panel.words:  # Bars and points that stand side by side belong to one word.
        panel.lines = {n: _at_words(line, panel.words) for n, line in panel.lines.items()}
    return panel


def _read_lines(axes: "Axes", panel: Panel) -> None:
    """Add the lines that have points; those of error bars have the name of the whole."""
    from matplotlib.container import ErrorbarContainer

    named: dict[Line2D, str] = {}
    caps: set[Line2D] = set()
    for whole in axes.containers:
        if isinstance(whole, ErrorbarContainer):
            points, capped, (bars, *_) = whole.lines
            named[points], caps = _name(whole), caps | set(capped)
            for (x, low), (_, high) in bars.get_segments():
                panel.add(f"{_name(whole)}, ±", [x], [(high - low) / 2])
    for line in axes.lines:
        drawn: Any = line.get_xydata()
        name = named.get(line) or _name(line)
        if not len(drawn) or line in caps:
            continue
        if line.get_transform() == axes.get_yaxis_transform():  # a level, from side to side
            panel.levels.setdefault(name, []).append(float(drawn[0][1]))
        elif line.get_transform() == axes.get_xaxis_transform():  # a place, from top to bottom
            panel.levels.setdefault(f"{name} ({panel.x_name})", []).append(float(drawn[0][0]))
        else:
            panel.add(name, *zip(*drawn, strict=True))


def _read_bars(axes: "Axes", panel: Panel) -> None:
    from matplotlib.container import BarContainer

    for bars in axes.containers:
        if isinstance(bars, BarContainer):
            places = [bar.get_x() + bar.get_width() / 2 for bar in bars]
            panel.add(_name(bars), places, [bar.get_height() for bar in bars])


def _read_bands(axes: "Axes", panel: Panel) -> None:
    """Add the least and the greatest values of bands, such as those over seeds."""
    from matplotlib.collections import PolyCollection

    for band in axes.collections:
        if isinstance(band, PolyCollection):
            corners: Any = band.get_paths()[0].vertices
            edge: dict[float, list[float]] = {}
            for x, y in corners:
                edge.setdefault(float(x), []).append(float(y))
            panel.add(f"{_name(band)}, least", edge, map(min, edge.values()))
            panel.add(f"{_name(band)}, greatest", edge, map(max, edge.values()))


def _name(artist: Any) -> str:
    """Return what a line is called; the legend leaves out what begins with a _ ."""
    return str(artist.get_label()).removeprefix("_")


def _words(axes: "Axes") -> dict[float, str]:
    """Return what stands at the ticks if that is words."""
    from matplotlib.ticker import FixedLocator

    if not isinstance(axes.xaxis.get_major_locator(), FixedLocator):
        return {}
    words = [label.get_text() for label in axes.get_xticklabels()]
    if all(_is_number(word) for word in words):
        return {}
    return dict(zip(map(float, axes.get_xticks()), words, strict=True))


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _at_words(line: dict[float, list[float]], words: dict[float, str]) -> dict[float, list[float]]:
    """Gather values at the nearest words, each once: a short line has two ends at one word."""
    gathered: dict[float, dict[float, None]] = {}
    for x, values in line.items():
        nearest = min(words, key=lambda place: abs(place - x))
        gathered.setdefault(nearest, {}).update(dict.fromkeys(values))
    return {x: list(values) for x, values in gathered.items()}


def _axis_name(axes: "Axes", which: str) -> str:
    """Return an axis's name; panels side by side, or above each other, have one for all."""
    own: str = getattr(axes, f"get_{which}label")()
    if own:
        return own
    others = [one for one in _grid(axes) if _place(one, which) == _place(axes, which)]
    return next((name for one in others if (name := getattr(one, f"get_{which}label")())), "")


def _title(axes: "Axes") -> str:
    """Return a panel's title; one below another may have that of the upper one."""
    column = [one for one in _grid(axes) if _place(one, "x") == _place(axes, "x")]
    return axes.get_title() or next((one.get_title() for one in column if one.get_title()), "")


def _grid(axes: "Axes") -> "list[Axes]":
    assert axes.figure is not None
    return list(axes.figure.axes)


def _place(axes: "Axes", which: str) -> int:
    """Return the column of a panel for the horizontal axis, its row for the vertical one."""
    spec = axes.get_subplotspec()
    if spec is None:
        return 0
    return int(spec.colspan.start if which == "x" else spec.rowspan.start)
