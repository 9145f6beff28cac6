"""What a problem offers beyond the protocol; the only place in this room that asks it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from trimtab.core import Gradient, Vector
from trimtab.problems.capabilities import OnePass, capabilities
from trimtab.problems.problem import Problem
from trimtab.problems.quadratic import Quadratic
from trimtab.problems.supervised.problem import Supervised
from trimtab.simulation.executors import choose

AT_ONCE = 64  # <= 64 clients are computed between two looks at the clock
WORTH_A_GRAPH = 4  # a cohort of S >= 4 clients is worth a captured graph


@dataclass(frozen=True)
class Abilities:
    """What this problem can do; None: it cannot.

    Each is asked when it is read, since a closed form may take long.
    """

    problem: Problem

    @property
    def hessian_products(self) -> Callable[[int, Vector, Tensor], Tensor] | None:
        """Its own (i, x, V) -> Hess_i at x times each row of V (or times V)."""
        return capabilities(self.problem).hessian_products

    @cached_property
    def products_at_once(self) -> Callable[[Sequence[int], Vector, Tensor], Tensor] | None:
        """(clients, x, V) -> the same of several clients, where that is faster than in turn."""
        return capabilities(self.problem).chunk_hessian_products

    @property
    def hessian(self) -> Callable[[int, Vector], Tensor] | None:
        """(i, x) -> Hess_i at x, where that is cheaper than products with unit vectors."""
        return capabilities(self.problem).hessian

    @cached_property
    def loss(self) -> Callable[[Vector], float]:
        """x -> f(x): its own, the mean of its clients', or else the loss that it evaluates."""
        if self._one_pass is not None:
            return self._one_pass.loss
        return capabilities(self.problem).loss or (lambda x: self._evaluated(x, None))

    @cached_property
    def loss_and_gradient(self) -> Callable[[Vector], tuple[float, Vector]]:
        """x -> f(x) and its gradient, in one pass where that can be."""
        if self._one_pass is not None:
            return self._one_pass.loss_and_gradient
        return lambda x: (self.loss(x), self.gradient(x).detach())

    @cached_property
    def _one_pass(self) -> OnePass | None:
        return capabilities(self.problem).one_pass

    @cached_property
    def client_loss(self) -> Callable[[int, Vector], float]:
        """(i, x) -> f_i(x): its own, or else the loss that it evaluates for a client."""
        return capabilities(self.problem).client_loss or (lambda i, x: self._evaluated(x, i))

    def _evaluated(self, x: Vector, client: int | None) -> float:
        """Return the loss among the metrics at x, and refuse a problem that has none."""
        evaluate = self.problem.evaluate
        metrics = evaluate(x) if client is None else evaluate(x, client=client)
        if "loss" not in metrics:
            raise ValueError(
                f"a diagnosis needs f itself, and {type(self.problem).__name__} has no loss; give "
                "it loss(x) or client_loss(i, x), or let evaluate(x) return a 'loss'."
            )
        return float(metrics["loss"])

    @cached_property
    def gradient(self) -> Callable[[Vector], Vector]:
        """x -> grad f(x), on all data."""
        one_pass = self._one_pass
        if one_pass is not None:
            return lambda x: one_pass.loss_and_gradient(x)[1]
        at_once, weights = self.gradients_at_once, self.problem.weights
        if at_once is None:
            return capabilities(self.problem).gradient

        def gradient(x: Vector) -> Vector:
            total = torch.zeros_like(x)
            for some in torch.split(torch.arange(self.problem.N), AT_ONCE):
                rows = at_once(some.tolist(), 0, 1)(x)
                total += weights[some].to(rows) @ rows
            return total

        return gradient

    @cached_property
    def client_gradient(self) -> Callable[[int, Vector], Vector]:
        """(i, x) -> grad f_i(x), on all data."""
        return capabilities(self.problem).client_gradient

    @cached_property
    def gradients_at_once(self) -> Callable[[Sequence[int], int, int], Gradient] | None:
        """(clients, seed, r) -> the oracle of several clients, where a kernel computes them."""
        can = capabilities(self.problem)
        return can.chunk_oracle if can.play is not None else None

    @cached_property
    def batches_at_once(self) -> Callable[[Sequence[int], int, int], Gradient] | None:
        """(clients, seed, r) -> the same for mini-batches, by a kernel or a captured graph."""
        return (
            capabilities(self.problem).chunk_oracle if self._vectorised else self.gradients_at_once
        )

    def executor(self, S: int) -> str:
        """Return what runs many rounds of S clients fastest: a graph pays sooner than in a few."""
        return "batched" if self._vectorised and S >= WORTH_A_GRAPH else "auto"

    @cached_property
    def _vectorised(self) -> bool:
        """Whether a captured graph computes several clients at once, since no kernel does."""
        can = capabilities(self.problem)
        return (
            can.play is None and can.why_not_vectorised is not None and not can.why_not_vectorised()
        )

    @property
    def optimum(self) -> Vector | None:
        """The x* that it knows."""
        known = capabilities(self.problem).optimum
        return None if known is None else known()

    @property
    def closed_forms(self) -> Quadratic | None:
        """The problem itself if its losses are quadratic, so that B and the noise are known."""
        return self.problem if isinstance(self.problem, Quadratic) else None

    @property
    def constant_hessians(self) -> bool:
        """Whether the Hessians are the same everywhere."""
        return capabilities(self.problem).constant_hessians

    @property
    def symmetric(self) -> bool:
        """Whether its oracles are gradients, so that the Hessians are symmetric."""
        return capabilities(self.problem).symmetric

    @property
    def samples(self) -> Supervised | None:
        """The problem itself if its clients hold samples, of which some can be taken."""
        return self.problem if isinstance(self.problem, Supervised) else None

    @property
    def sample_count(self) -> Callable[[int], int] | None:
        """i -> how many samples client i has."""
        samples = capabilities(self.problem).samples
        return None if samples is None else lambda i: samples(i)[0]

    @property
    def steps_in_a_pass(self) -> int | None:
        """The number of mini-batches in a pass when they are reshuffled; None when i.i.d."""
        can = capabilities(self.problem)
        return can.steps(1) if can.reshuffles and can.steps is not None else None

    @property
    def uses_all_cores(self) -> bool:
        """Whether one gradient keeps all cores busy."""
        return choose(self.problem, S=1).threads == "all"
