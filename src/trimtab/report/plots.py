"""Figures of matplotlib, put into a page."""

from io import StringIO

from matplotlib import rc_context
from matplotlib.figure import Figure

from trimtab.report.style import PLOTS


def svg(figure: Figure) -> str:
    """Return a figure as an <svg> element to put into a page."""
    text = StringIO()
    with rc_context(PLOTS):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]
