"""Diagnose a problem: measure its heterogeneity, predict, advise."""

from collections.abc import Generator
from dataclasses import replace
from math import inf

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.core.task import Progress, task
from trimtab.core.threads import one_thread
from trimtab.diagnosis import measure, stages
from trimtab.diagnosis.budget import Budget
from trimtab.diagnosis.case import begin
from trimtab.diagnosis.conclusion import composed
from trimtab.diagnosis.diagnosis import Diagnosis
from trimtab.diagnosis.first_facts import FirstFacts
from trimtab.diagnosis.panel import choose_panel
from trimtab.diagnosis.stages import Measured
from trimtab.problems.adapter import as_problem
from trimtab.problems.loading import load_problem
from trimtab.problems.problem import Problem
from trimtab.simulation import cohort_size
from trimtab.simulation.executors import choose


@task
def diagnose(
    problem: Problem | str,
    x: Vector | None = None,
    *,
    S: int | float | None = None,
    eps: float | None = None,
    cross_device: bool = False,
    seed: int = 0,
    minutes: float = 5,
) -> Generator[Progress | FirstFacts, None, Diagnosis]:
    """Measure how the clients differ, predict what follows from it, and advise.

    problem: one, or the name of one as for `trimtab diagnose`. x: where training starts (the
    problem's x0). S: clients a round. eps: the f(x) - f(x*) that is wanted, by default a hundredth
    of the start's. cross_device: clients come once and keep nothing. seed: of all that is drawn to
    measure (clients, samples, mini-batches, directions), so that two seeds measure the same thing.

    >>> import torch, trimtab
    >>> A = torch.tensor([[1.0, 0.1], [0.8, 0.05]])  # the diagonals of two Hessians
    >>> pair = trimtab.Quadratic(A, b=torch.tensor([[2.0, 0.3], [-1.0, 0.1]]))
    >>> found = trimtab.diagnose(pair)
    >>> print(found.advice)
    Use Scaffold with K = 8, eta_l = 1 and eta_g = 1.
    >>> [round(value, 2) for value in (found.zeta, found.delta, found.L, found.mu)]
    [1.44, 0.1, 1.0, 0.08]
    """
    name = problem if isinstance(problem, str) else "problem"
    if isinstance(problem, str):
        problem = load_problem(problem, seed=seed)
    problem = as_problem(problem)
    budget = Budget(60 * minutes if _positive(minutes) else 0.0)
    size = _checked_size(problem, S, eps, minutes)
    x0 = _start(problem, x)
    with one_thread(when=choose(problem, S=1).threads == "one"):
        diagnosis = yield from _stages(problem, x0, budget, size, seed, eps, cross_device)
    return replace(diagnosis, name=name)


def _stages(
    problem: Problem,
    x0: Vector,
    budget: Budget,
    S: int,
    seed: int,
    eps: float | None,
    cross_device: bool,
) -> Generator[Progress | FirstFacts, None, Diagnosis]:
    """Run the stages in order; each takes what was measured so far."""
    yield Progress("who is measured", 0.0)
    panel = choose_panel(problem, seed, budget)
    yield Progress("gradients at the start", 0.01)
    case = begin(problem, panel, budget, x0, S, seed, eps, cross_device)
    first = measure.at_point(panel, x0)
    yield Progress("curvature at the start", 0.02)
    steep = stages.curvature(case, first)
    early = yield from stages.first_facts(case, first, steep)
    look = yield from stages.first_look(case, steep)
    here = yield from stages.best_gradients(case, first)
    noise = yield from stages.batch_noise(case)
    seen = yield from stages.client_hessians(case, steep)
    points = stages.of_points(case, first, early, here, seen, stages.POINTS)
    measured = Measured(steep, here, noise, seen, points, early)
    modelled = yield from stages.model(case, measured)
    plan = yield from stages.trials(case, measured, modelled, look)
    yield Progress("bias and variance", stages.TRIALS)
    return composed(case, measured, modelled, plan)


# -- what was asked


def _checked_size(
    problem: Problem, S: int | float | None, eps: float | None, minutes: float
) -> int:
    """Return how many clients a round has; refuse what nobody can diagnose."""
    if problem.N < 2:
        raise ValueError(
            f"the problem has N={problem.N} client, and a diagnosis compares clients with each "
            "other; pass a problem with two or more, or train this one with trimtab.Sgd."
        )
    size = cohort_size(S, problem.N)
    if not _positive(minutes):
        raise ValueError(f"minutes={minutes}; pass a number of minutes that is positive.")
    if eps is not None and not _positive(eps):
        raise ValueError(f"eps={eps}; pass the f(x) - f(x*) that is wanted, a positive number.")
    return size


def _positive(value: float) -> bool:
    return isinstance(value, int | float) and 0 < value < inf


def _start(problem: Problem, x: Vector | None) -> Vector:
    """Return the problem's own start, so that two seeds measure at the same point; or x."""
    x0 = problem.x0(0) if x is None else x
    if not isinstance(x0, Tensor) or x0.shape != (problem.d,):
        raise ValueError(f"x is no vector of length d={problem.d}; pass one.")
    if not x0.is_floating_point() or not bool(torch.isfinite(x0).all()):
        raise ValueError("x must hold finite floating-point numbers.")
    return x0.detach().clone()
