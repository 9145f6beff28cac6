"""How far a study is, by what its rounds tell: the best so far, bytes, and the time left."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from trimtab.core.display import format_seconds

if TYPE_CHECKING:
    from trimtab.studies.events import RoundDone
    from trimtab.studies.goal import Goal

SURE = 5.0  # nothing is said of the time left before 5 seconds are over


@dataclass
class Standing:
    """One algorithm: its last round, the best value so far, and the bytes of all its rounds."""

    last: "RoundDone"
    best: float | None = None
    bytes: int = 0
    rounds: int = 0


class Standings:
    """All algorithms of a comparison, or the one of a run, in the order in which they came."""

    def __init__(self, folder: Path, clock: Callable[[], float] = monotonic) -> None:
        self.folder, self.clock = folder, clock
        self.started = clock()
        self.lanes: dict[str, Standing] = {}
        self.goal: Goal | None = None
        self._about: dict[str, Any] = {}
        self._work = 0.0  # sample gradients of this process
        self._before: float | None = None  # sample gradients, or rounds, of the process before it

    def add(self, event: "RoundDone") -> None:
        """Take note of a round; those that are run to see how long they take have no name."""
        if not event.label:
            return
        self._read()
        one = self.lanes.setdefault(event.label, Standing(event))
        if self._before is None:
            self._before = self._earlier(event)
        line, one.last = event.line, event
        one.bytes += line.bytes_down + line.bytes_up
        one.rounds += 1
        self._work += line.work
        assert self.goal is not None
        value = line.metrics.get(self.goal.name)
        if value is not None and (
            one.best is None or (value > one.best if self.goal.metric.higher else value < one.best)
        ):
            one.best = value

    @property
    def elapsed(self) -> float:
        """The seconds since the start."""
        return self.clock() - self.started

    @property
    def left(self) -> float | None:
        """The seconds that are left at most; None if nobody can tell."""
        before = self._before or 0.0
        done, total = self._done_and_total()
        if not total or self.elapsed < SURE or done <= before:
            return None
        return self.elapsed * max(0.0, total - done) / (done - before)

    @property
    def sentence(self) -> str:
        """How many rounds, and how long it took and will take."""
        rounds = sum(one.rounds for one in self.lanes.values())
        said = f"{rounds:,} rounds in {format_seconds(self.elapsed)}"
        return said if self.left is None else f"{said}, at most {format_seconds(self.left)} left"

    def _done_and_total(self) -> tuple[float, float]:
        """Return how much is done and how much there is: rounds of a run, else gradients."""
        if self._about.get("R"):
            return float(max(one.last.line.r for one in self.lanes.values())), self._about["R"]
        budget = self._about.get("budget") or 0.0
        lanes = len(self._about.get("settings", {}).get("algorithms", ()))
        return (self._before or 0.0) + self._work, budget * lanes

    def _earlier(self, first: "RoundDone") -> float:
        """Return what an earlier process has done of it, once a first round is over here."""
        if self._about.get("R"):
            return first.line.r - 1.0
        from trimtab.studies.underway import Underway

        there = Underway(self.folder)
        there.look()
        return max(0.0, there.work - first.line.work)

    def _read(self) -> None:
        """Read once what the folder says of the goal; and of the budget, when it is known."""
        if self.goal is not None:
            return
        from trimtab._files import read_json
        from trimtab.studies.goal import Goal

        alone = (self.folder / "run.json").exists()
        self._about = read_json(self.folder / ("run.json" if alone else "compare.json"))
        self.goal = Goal.from_json(self._about["goal"])
