"""What a study tells while it runs."""

from dataclasses import dataclass

from trimtab.core import Algorithm
from trimtab.core.hyper import step_size
from trimtab.studies.record import RoundLine


@dataclass(frozen=True)
class RoundDone:
    """A round is over: of which lane, by which algorithm, and its line in the record.

    run: which of the lane's runs it is, by the name of its folder; empty where nothing is written.
    """

    label: str
    algorithm: Algorithm
    line: RoundLine
    run: str = ""

    def __str__(self) -> str:
        """Return what there is to tell of it, in one line."""
        step, value = step_size(self.algorithm)
        metrics = [f"{name} {v:.4g}" for name, v in self.line.metrics.items() if v is not None]
        said = [f"{step} = {value:.3g}"] if step else []
        said += [f"round {self.line.r}", *metrics]
        said += [] if self.line.drift is None else [f"drift {self.line.drift:.3g}"]
        return f"{self.label}: {', '.join(said)}"


@dataclass(frozen=True)
class CellDone:
    """A cell of a reproduction has its record."""

    name: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.name}: {self.seconds:.1f} s"
