"""A federation at work: a live table on a terminal, plain lines elsewhere."""

from collections import deque

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from trimtab.core.display import format_bytes
from trimtab.federation.events import (
    RoundCommitted,
    SiteReport,
    Traffic,
    metrics_text,
    number_text,
    round_text,
)

_ROUNDS, _LINES = 10, 6  # the last <= 10 rounds and <= 6 lines are shown


class FederationBoard:
    """Shows rounds, sites and lines of a server as they come."""

    def __init__(self, console: Console, title: str, R: int, sites: list[str]) -> None:
        self.console, self.title, self.R = console, title, R
        self.rounds: deque[RoundCommitted] = deque(maxlen=_ROUNDS)
        self.lines: deque[str] = deque(maxlen=_LINES)
        nothing = SiteReport({}, 0, 0.0, 0)
        self.sites: dict[str, SiteReport | str] = dict.fromkeys(sites, nothing)  # or why it sat out
        self.wire = Traffic()
        self._live = Live(console=console, refresh_per_second=4, transient=False)

    def __enter__(self) -> "FederationBoard":
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

    def round(self, event: RoundCommitted) -> None:
        """Show a round."""
        self.rounds.append(event)
        self.wire = event.wire
        for name in self.sites:
            self.sites[name] = event.sites.get(name) or event.absent.get(name) or "not asked"
        if self.console.is_terminal:
            self._show()
        else:
            self.console.print(round_text(event), markup=False, highlight=False, soft_wrap=True)

    def _show(self) -> None:
        rounds = Table(title=self.title, title_justify="left", pad_edge=False)
        for name in ("round", "sites", "up", "down", "drift", "metric", "seconds"):
            rounds.add_column(name, justify="right")
        for event in self.rounds:
            rounds.add_row(
                f"{event.r} / {self.R}",
                f"{len(event.cohort)} of {len(self.sites)}",
                format_bytes(event.bytes_up),
                format_bytes(event.bytes_down),
                number_text(event.drift),
                metrics_text(event.metrics),
                f"{event.seconds:.1f}",
            )
        sites = Table(pad_edge=False)
        for name in ("site", "up", "down", "metric", "its own seconds"):
            sites.add_column(name, justify="left" if name == "site" else "right")
        for name, report in self.sites.items():
            up, down = (format_bytes(way.get(name, 0)) for way in (self.wire.up, self.wire.down))
            sites.add_row(name, up, down, *_last(report))
        self._live.update(Group(rounds, sites, *(Text(line) for line in self.lines)))


def _last(report: SiteReport | str) -> tuple[str, str]:
    """Return a site's metrics and seconds in the last round, or why it sat out."""
    if isinstance(report, SiteReport):
        return metrics_text(report.metrics), f"{report.seconds:.2f}"
    return escape(report), ""
