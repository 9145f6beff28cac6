"""An empty figure in the house style; the plotting library is imported when one is asked for."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@contextmanager
def new_figure(width: float, height: float) -> Iterator["Figure"]:
    """Give a figure of so many inches; the style holds while it is drawn."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from trimtab.report.style import PLOTS

    with rc_context(PLOTS):
        yield Figure(figsize=(width, height), layout="constrained")
