"""An empty figure in the house style; the plotting library is imported when one is asked for."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


@contextmanager
def new_figure(width: float, height: float) -> Iterator["Figure"]:
    """Give a figure of so many inches; the style holds while it is drawn."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(PLOTS):
        yield Figure(figsize=(width, height), layout="constrained")
