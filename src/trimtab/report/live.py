"""A federation at work: a live table on a terminal, plain lines elsewhere."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from trimtab.report.table import human_bytes

_ROUNDS, _LINES = 10, 6


class Watch:
    """Shows rounds, sites and lines of a server as they come."""

    def __init__(self, console: Console, title: str, R: int, sites: list[str]) -> None:
        self.console, self.title, self.R = console, title, R
        self.rounds: deque[Mapping[str, Any]] = deque(maxlen=_ROUNDS)
        self.lines: deque[str] = deque(maxlen=_LINES)
        self.sites: dict[str, Mapping[str, Any]] = {name: {} for name in sites}
        self.wire: Mapping[str, Any] = {}
        self._live = Live(console=console, refresh_per_second=4, transient=False)

    def __enter__(self) -> "Watch":
        if self.console.is_terminal:
            self._live.start()
            self._show()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def line(self, line: str) -> None:
        """Show a line of the log."""
        if self.console.is_terminal:
            self.lines.append(line)
            self._show()
        else:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def round(self, event: Mapping[str, Any]) -> None:
        """Show a round."""
        self.rounds.append(event)
        self.wire = event.get("wire", {})
        for name in list(self.sites):
            told, why = event["sites"].get(name), event["absent"].get(name)
            self.sites[name] = told or {"why": why or "not asked"}
        if self.console.is_terminal:
            self._show()
        else:
            self.console.print(round_line(event), markup=False, highlight=False, soft_wrap=True)

    def _show(self) -> None:
        rounds = Table(title=self.title, title_justify="left", pad_edge=False)
        for name in ("round", "sites", "up", "down", "drift", "metric", "seconds"):
            rounds.add_column(name, justify="right")
        for event in self.rounds:
            rounds.add_row(
                f"{event['r']} / {self.R}",
                f"{len(event['cohort'])} of {len(self.sites)}",
                human_bytes(event["bytes_up"]),
                human_bytes(event["bytes_down"]),
                number(event["drift"]),
                metrics_text(event["metrics"]),
                f"{event['seconds']:.1f}",
            )
        sites = Table(pad_edge=False)
        for name in ("site", "up", "down", "metric", "its own seconds"):
            sites.add_column(name, justify="left" if name == "site" else "right")
        for name, told in self.sites.items():
            up, down = (self.wire.get(way, {}).get(name, 0) for way in ("up", "down"))
            shown = (escape(told["why"]), "") if "why" in told else _told(told)
            sites.add_row(name, human_bytes(up), human_bytes(down), *shown)
        self._live.update(Group(rounds, sites, *(Text(line) for line in self.lines)))


def round_line(event: Mapping[str, Any]) -> str:
    """Return a round as one line."""
    asked = len(event["cohort"]) + len(event["absent"])
    return (
        f"round {event['r']}: {len(event['cohort'])} of {asked} sites, "
        f"{human_bytes(event['bytes_up'])} up, {human_bytes(event['bytes_down'])} down, "
        f"drift {number(event['drift'])}, {metrics_text(event['metrics'])}, "
        f"{event['seconds']:.1f} s"
    )


def metrics_text(metrics: Mapping[str, Any]) -> str:
    """Return accuracy and loss, and whatever else there is.

    >>> metrics_text({"loss": 0.43219, "accuracy": 0.8})
    'accuracy 0.8, loss 0.4322'
    """
    first = [name for name in ("accuracy", "loss") if name in metrics]
    names = first + [name for name in metrics if name not in first]
    return ", ".join(f"{name} {number(metrics[name])}" for name in names) or "no metric"


def number(value: float | None) -> str:
    """Return a number in four digits; a dash for none."""
    return "-" if value is None else f"{value:.4g}"


def _told(told: Mapping[str, Any]) -> tuple[str, str]:
    return metrics_text(told.get("metrics", {})), f"{told.get('seconds', 0.0):.2f}"
