"""What is searched for an algorithm: its step size, K, eta_g and the base's momentum.

What the user gives is not searched.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from trimtab.algorithms.registry import Kind, build
from trimtab.core import Algorithm, Epochs
from trimtab.problems.problem import Problem
from trimtab.studies.prior import Prior

FACTOR = 10**0.5  # the next step size of the grid = 3.16 x the last
STEPS = tuple(FACTOR**e for e in (-1, -2, 0, -3, 1, -4, 2))  # 0.01 … 10, from the middle outwards
EPOCHS = (1.0, 0.25, 4.0)
FEW_STEPS = (4, 1, 16)  # where an epoch is one step, or there are no samples
ETA_G = (1.0, 2.0, 4.0)
BETA = (0.9, 0.0)


@dataclass(frozen=True)
class Point:
    """One choice of all that is searched; None: the algorithm has no such thing, or it is given."""

    eta: float
    K: int | None = None
    eta_g: float | None = None
    beta: float | None = None

    def shown(self) -> str:
        """Return it as a folder is called."""
        parts = [] if self.K is None else [f"K={self.K}"]
        parts += [] if self.eta_g is None else [f"eta_g={self.eta_g:g}"]
        parts += [] if self.beta is None else [f"beta={self.beta:g}"]
        return "-".join([*parts, f"step={self.eta:.4g}"])


@dataclass(frozen=True)
class Space:
    """The points of one algorithm, and how to build it at one of them."""

    kind: Kind
    Ks: tuple[int, ...]  # Empty: K is given, or there is none
    given: Mapping[str, Any]  # hyper-parameters that the user gave
    prior: Prior = field(default=Prior())  # what is tried first

    @property
    def points(self) -> list[Point]:
        """All points, those first that one would try first."""
        Ks: Sequence[int | None] = self.Ks or [None]
        etas_g: Sequence[float | None] = ETA_G if self._searches("eta_g") else [None]
        betas: Sequence[float | None] = BETA if self._searches("base") else [None]
        every = product(enumerate(STEPS), enumerate(Ks), enumerate(etas_g), enumerate(betas))
        ranked = sorted(every, key=lambda chosen: sum(rank for rank, _ in chosen))
        points = [Point(eta, K, eta_g, beta) for (_, eta), (_, K), (_, eta_g), (_, beta) in ranked]
        return self.prior.ordered(self.kind.name, points)

    def build(self, point: Point) -> Algorithm:
        """Return the algorithm at a point."""
        words = {self.kind.step: point.eta} | dict(self.given)
        words |= {} if point.K is None else {"K": point.K}
        words |= {} if point.eta_g is None else {"eta_g": point.eta_g}
        words |= {} if point.beta is None else {"base": "momentum", "beta": point.beta}
        made: Algorithm = build(self.kind, **words)
        return made

    def _searches(self, name: str) -> bool:
        has = any(parameter.name == name for parameter in self.kind.parameters)
        return has and name not in self.given


def local_steps(problem: Problem) -> tuple[int, ...]:
    """Return the K that are tried where none is given: 1, 1/4 and 4 epochs, or 4, 1 and 16 steps.

    >>> from trimtab import Quadratic
    >>> local_steps(Quadratic(A=[1.0, 2.0], b=[0.0, 1.0]))
    (4, 1, 16)
    """
    steps = problem.steps
    if steps is None or steps(1) == 1:
        return FEW_STEPS
    return tuple(dict.fromkeys(steps(epochs) for epochs in EPOCHS))


def space_of(
    kind: Kind,
    problem: Problem,
    K: int | Epochs | None,
    given: dict[str, Any],
    prior: Prior | None = None,
) -> Space:
    """Return what is searched for an algorithm on a problem."""
    prior = prior or Prior()
    taken = {word: value for word, value in given.items() if value is not None}
    taken = {w: v for w, v in taken.items() if any(p.name == w for p in kind.parameters)}
    if not kind.has_K or K is not None:
        return Space(kind, (), taken | ({"K": K} if kind.has_K else {}), prior)
    return Space(kind, prior.local_steps(kind.name, local_steps(problem)), taken, prior)
