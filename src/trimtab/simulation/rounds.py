"""The settings of a simulation, and the result of one of its rounds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import nan

from trimtab.core import State, Vector, plain_number
from trimtab.core.display import format_bytes, html_facts
from trimtab.errors import BadArgument
from trimtab.simulation.arrivals import Speeds, check_settings
from trimtab.simulation.executors import Executor
from trimtab.simulation.sampling import Available


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """The keyword arguments of `simulate`, as the caller gave them.

    Everything that runs simulations passes this object on and never its fields, so a new setting is
    added here and in `simulate`. `Simulation` checks the values that depend on the problem.
    """

    S: int | float | None = None
    seed: int = 0
    x: Vector | None = None
    cohorts: Iterable[Sequence[int]] | None = None
    lost: float = 0.0
    slow: float = 0.0
    executor: str | Executor = "auto"
    memory: int | None = None
    available: Available = None
    arrivals: Speeds | None = None

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if self.arrivals is not None:
            check_settings(self.arrivals, vars(self))
        lost, slow = plain_number(self.lost), plain_number(self.slow)
        if not isinstance(lost, int | float) or not 0 <= lost < 1:
            sentence = "{lost:{_given}}; pass a share of replies that is at least 0, below 1."
            raise BadArgument("lost", sentence, _given=lost)
        if isinstance(slow, bool) or not isinstance(slow, int | float) or not 0 <= slow <= 1:
            sentence = "{slow:{_given}}; pass a share of clients, a number from 0 to 1."
            raise BadArgument("slow", sentence, _given=repr(slow))
        if self.cohorts is not None and self.available is not None:
            raise ValueError("cohorts and available both select clients; pass one of them.")
        if self.cohorts is not None and not hasattr(self.cohorts, "__iter__"):
            raise ValueError(f"cohorts={self.cohorts!r}; pass a list of clients for each round.")


@dataclass(frozen=True)
class Round:
    """The result of one round."""

    r: int
    """The number of the round; the first one is 1."""
    x: Vector
    server: State
    cohort: tuple[int, ...]
    """The clients whose replies arrived."""
    bytes_down: int
    """Bytes sent to all sampled clients."""
    bytes_up: int
    """Bytes received from the clients whose replies arrived."""
    seconds: float
    drift: float
    """The mean of |dx_i|."""
    spread: float
    """The spread of the client states; NaN for algorithms without client states."""
    cosine: float
    """The agreement of the clients' updates."""
    exchanges: int
    """How often the server reached clients."""
    work: int
    """Sample gradients computed by the clients."""
    time: float = nan
    """The simulated clock in seconds, with `arrivals`; else NaN."""

    def __repr__(self) -> str:
        facts = ", ".join(f"{name} {value}" for name, value in self._facts().items())
        return f"<Round {self.r}: {facts}>"

    def _repr_html_(self) -> str:
        return html_facts(f"Round {self.r}", self._facts())

    def _facts(self) -> dict[str, str]:
        facts = {"d": f"{self.x.numel():,}", "clients": str(len(self.cohort))}
        facts |= {"up": format_bytes(self.bytes_up), "down": format_bytes(self.bytes_down)}
        facts |= {name: f"{getattr(self, name):.4g}" for name in ("drift", "spread", "cosine")}
        return facts | {"seconds": f"{self.seconds:.3g}"}


def check_seed(seed: int) -> None:
    """Raise BadArgument unless a seed is a whole number."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise BadArgument("seed", "{seed:{_given}}; pass a whole number.", _given=repr(seed))
