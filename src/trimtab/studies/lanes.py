"""The lanes of a comparison: an algorithm each, with what is searched for it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.algorithms.registry import Kind, build, kind
from trimtab.core import Epochs
from trimtab.core.hyper import settings_of
from trimtab.problems.problem import Problem
from trimtab.studies.baselines import BASELINES
from trimtab.studies.holdout import HeldOutProblem
from trimtab.studies.prior import Prior
from trimtab.studies.space import Space, space_of

LocalSteps = int | Epochs | Sequence[int] | None
"""K as it may be given: one number, several, or epochs; None: it is searched."""


@dataclass(frozen=True)
class Lane:
    """One algorithm with what is searched for it; or one whose settings are all given."""

    kind: Kind
    name: str
    K: int | Epochs | None = None  # as it was given
    space: Space | None = None
    fixed: Any = None
    measured: HeldOutProblem | None = None  # of a baseline

    @property
    def label(self) -> str:
        """Tell lanes apart: the algorithm, and its K where that is given."""
        if isinstance(self.K, Epochs):
            return f"{self.name}-{self.K.count:g}epochs"
        return self.name if self.K is None else f"{self.name}-K{self.K}"


def lanes_of(
    algorithms: Sequence[Any],
    problem: Problem,
    K: LocalSteps,
    given: dict[str, Any],
    prior: Prior | None = None,
) -> list[Lane]:
    """Return a lane for each algorithm, and for each K that is given."""
    Ks: list[Any] = list(K) if isinstance(K, Sequence) else [K]
    lanes: list[Lane] = []
    for algorithm in algorithms:
        chosen = kind(algorithm)
        if not isinstance(algorithm, str | type):
            same = sum(lane.kind.name == chosen.name for lane in lanes)
            name = f"{chosen.name}#{same + 1}" if same else chosen.name
            own = settings_of(algorithm).get("K")
            lanes.append(Lane(chosen, name, own, fixed=algorithm))
        elif not chosen.step:
            lanes.append(Lane(chosen, chosen.name, fixed=build(chosen)))
        else:
            for each in Ks if chosen.has_K else [None]:
                space = space_of(chosen, problem, each, given, prior)
                space.build(space.points[0])  # It refuses what was given before a folder is made.
                lanes.append(Lane(chosen, chosen.name, each, space))
    labels = [lane.label for lane in lanes]
    return [lane for i, lane in enumerate(lanes) if lane.label not in labels[:i]]


def baseline_lanes(measured: HeldOutProblem, K: LocalSteps) -> Iterator[Lane]:
    """Go through the baselines that a problem has."""
    steps = K[0] if isinstance(K, Sequence) else K
    for name, made in BASELINES.items():
        own = made(measured)
        if own is not None:
            space = space_of(kind("fedavg"), own.problem, steps, {"eta_g": 1.0})
            yield Lane(kind("fedavg"), name, steps, space, measured=own)
