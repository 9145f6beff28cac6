"""Long work in a notebook: what it is doing stands below the cell, in one line, until it is over.

Nothing is imported: where IPython runs a notebook it is there already.
"""

import sys
from collections.abc import Callable
from html import escape
from time import monotonic
from typing import Any

EVERY = 0.25  # seconds between two changes of the line


def line_below() -> Callable[[str], None] | None:
    """Return what shows a sentence below the cell that runs; None outside a notebook."""
    IPython = sys.modules.get("IPython")
    shell = None if IPython is None else IPython.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    display: Any = sys.modules["IPython.display"]
    shown: list[Any] = []

    def show(sentence: str) -> None:
        look = {"text/plain": sentence, "text/html": f"<small>{escape(sentence)}</small>"}
        if shown:
            shown[0].update(look, raw=True)
        else:
            shown.append(display.display(look, raw=True, display_id=True))

    return show


class Line:
    """Shows events as they come, not too often, and at the end how long it took."""

    def __init__(self, name: str, show: Callable[[str], None]) -> None:
        self._name, self._show = name, show
        self._started, self._next = monotonic(), 0.0

    def tell(self, event: object) -> None:
        """Show an event, unless another one has just been shown."""
        now = monotonic()
        if now >= self._next:
            self._show(f"{self._name}, {now - self._started:.0f} s: {' '.join(str(event).split())}")
            self._next = now + EVERY

    def end(self) -> None:
        """Say that it is over."""
        self._show(f"{self._name}: {monotonic() - self._started:.1f} s")
