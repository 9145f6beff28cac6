"""What a problem offers beyond the protocol; the only place in this room that asks it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from trimtab.core import Vector
from trimtab.problems.problem import Problem
from trimtab.problems.quadratic import Quadratic
from trimtab.problems.supervised.problem import Supervised


@dataclass(frozen=True)
class Abilities:
    """What this problem can do; None: it cannot.

    Each is asked when it is read, since a closed form may take long.
    """

    problem: Problem

    @property
    def hessian_products(self) -> Callable[[int, Vector, Tensor], Tensor] | None:
        """Its own (i, x, V) -> Hess_i at x times each row of V (or times V)."""
        return getattr(self.problem, "client_hvp", None)

    @property
    def client_loss(self) -> Callable[[int, Vector], float] | None:
        """Its own (i, x) -> f_i(x)."""
        return getattr(self.problem, "client_loss", None)

    @property
    def optimum(self) -> Vector | None:
        """The x* that it knows."""
        return getattr(self.problem, "x_star", None)

    @property
    def closed_forms(self) -> Quadratic | None:
        """The problem itself if its losses are quadratic, so that B and the noise are known."""
        return self.problem if isinstance(self.problem, Quadratic) else None

    @property
    def constant_hessians(self) -> bool:
        """Whether the Hessians are the same everywhere."""
        return self.closed_forms is not None

    @property
    def samples(self) -> Supervised | None:
        """The problem itself if its clients hold samples, of which some can be taken."""
        return self.problem if isinstance(self.problem, Supervised) else None

    @property
    def steps_in_a_pass(self) -> int | None:
        """The number of mini-batches in a pass when they are reshuffled; None when i.i.d."""
        if getattr(self.problem, "sampling", "iid") != "reshuffle":
            return None
        problem: Any = self.problem
        steps: int = problem.steps(epochs=1)
        return steps

    @property
    def uses_all_cores(self) -> bool:
        """Whether one gradient keeps all cores busy."""
        return getattr(self.problem, "executor", "loop") == "wide"
