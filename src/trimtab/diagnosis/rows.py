"""The rows of a diagnosis, as a user reads them and as its JSON holds them."""

from dataclasses import dataclass, field

from trimtab.diagnosis.intervals import Estimate


@dataclass(frozen=True)
class PointRow:
    """What was measured at one point; None stands for what was not."""

    where: str
    loss: float
    zeta: float
    G: float
    B: float | None
    gradient: float  # |grad f|
    L: float | None
    delta: float | None
    intervals: dict[str, Estimate] = field(default_factory=dict)  # of these numbers, by name


@dataclass(frozen=True)
class ClientRow:
    """How far one client is off."""

    client: int
    weight: float
    gradient: float  # |grad f_i - grad f|
    hessian: float  # |Hess_i - Hess|; NaN if nothing is known of it
    measured: bool  # False: `hessian` is an estimate from random vectors
    outlier: str  # by what it is an outlier, in words


@dataclass(frozen=True)
class Bias:
    """|x - x*| where runs stop; None where theory does not hold, or there was no time."""

    heterogeneity: float | None = None  # FedAvg's part by heterogeneity, to first order
    stochastic: float | None = None  # FedAvg's part by noise: 0, or None if Hessians vary with x
    scaffold: float | None = None  # Scaffold's, which is by noise only
    limit: float | None = None  # where FedAvg stops on the quadratic model
    richardson_romberg: float | None = None  # what Richardson-Romberg leaves there


@dataclass(frozen=True)
class BiasAtK:
    """FedAvg's bias for one K, at the step size that is advised."""

    K: int
    heterogeneity: float
    limit: float | None


@dataclass(frozen=True)
class Variance:
    """The traces of stationary covariances; None where theory does not hold, or no time."""

    fedavg: float | None = None
    scaffold: float | None = None


@dataclass(frozen=True)
class ConfirmedRow:
    """What an algorithm did on the problem, with the best settings found near the expected ones."""

    algorithm: str
    K: int
    eta: float
    rounds: int | None  # the median of the seeds; None if it did not reach the target
    range: tuple[int, int] | None  # the fewest and the most of the seeds
    limit: int  # the rounds that it had at most
    expected: int | None  # the rounds that the model expected
    complete: bool  # whether its search was not cut short
    tried: int  # how many step sizes ran


@dataclass(frozen=True)
class TrialCurve:
    """What was tried on the problem: f after each round."""

    algorithm: str
    K: int
    eta: float
    losses: tuple[float, ...]
