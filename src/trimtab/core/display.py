"""Format numbers for people, and show the progress of long work in a notebook.

IPython is never imported: in a notebook it already is.
"""

import sys
from collections.abc import Callable, Mapping
from html import escape
from time import monotonic
from typing import Any

# Seconds between two updates of the status line. If it changes more often, it flickers.
EVERY = 0.25


def format_number(n: float) -> str:
    """Return a number with three digits and a metric prefix.

    >>> format_number(5200), format_number(3.4e6), format_number(12)
    ('5.2 k', '3.4 M', '12 ')
    """
    for letter in ("", "k", "M", "G"):
        # 999.5 and more would be shown as 1e+03.
        shown = f"{n:.3g}" if letter and n < 999.5 else f"{n:.0f}"
        if float(shown) < 1000:
            return f"{shown} {letter}"
        n /= 1000
    return f"{n:.3g} T" if n < 999.5 else f"{n:.0f} T"


def format_bytes(n: float) -> str:
    """Return a number of bytes with three digits and its unit.

    >>> format_bytes(5200), format_bytes(3.4e6)
    ('5.2 kB', '3.4 MB')
    """
    return f"{format_number(n)}B"


def format_seconds(seconds: float) -> str:
    """Return a duration in its two largest units.

    >>> format_seconds(0.4), format_seconds(75), format_seconds(5400)
    ('0 s', '1 min 15 s', '1 h 30 min')
    """
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60} min"


def html_facts(title: str, facts: Mapping[str, str]) -> str:
    """Return facts as an HTML table for a notebook; all text is escaped.

    >>> html_facts("Round 3", {"drift": "< 0.1"}).partition("<table>")[2]
    '<tbody><tr><th>drift</th><td>&lt; 0.1</td></tr></tbody></table></div>'
    """
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts.items()
    )
    return f"<div><p><b>{escape(title)}</b></p><table><tbody>{rows}</tbody></table></div>"


def status_line() -> Callable[[str], None] | None:
    """Return a function that shows a sentence below the running cell; None outside a notebook.

    A second sentence replaces the first.
    """
    IPython = sys.modules.get("IPython")
    # A terminal IPython has a shell as well, but only a notebook has a kernel.
    shell = None if IPython is None else IPython.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    display: Any = sys.modules["IPython.display"]
    shown: list[Any] = []

    def show(sentence: str) -> None:
        content = {"text/plain": sentence, "text/html": f"<small>{escape(sentence)}</small>"}
        if shown:
            shown[0].update(content, raw=True)
        else:
            shown.append(display.display(content, raw=True, display_id=True))

    return show


class StatusLine:
    """Shows the events of a task as they arrive, and its duration at the end."""

    def __init__(self, name: str, show: Callable[[str], None]) -> None:
        self._name, self._show = name, show
        self._started, self._next = monotonic(), 0.0

    def show_event(self, event: object) -> None:
        """Show an event, unless another one was shown less than `EVERY` seconds ago."""
        now = monotonic()
        if now >= self._next:
            self._show(f"{self._name}, {now - self._started:.0f} s: {' '.join(str(event).split())}")
            self._next = now + EVERY

    def end(self) -> None:
        """Show the duration."""
        self._show(f"{self._name}: {monotonic() - self._started:.1f} s")
