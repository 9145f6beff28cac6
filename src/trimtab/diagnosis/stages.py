"""What is measured, stage by stage, each in its share of the time."""

from collections.abc import Generator
from dataclasses import dataclass
from math import isfinite, nan, sqrt
from typing import Any

import torch

from trimtab.core import Vector
from trimtab.diagnosis import measure, tables
from trimtab.diagnosis.case import Case, explore
from trimtab.diagnosis.choice import ALIKE
from trimtab.diagnosis.lanczos import Spectrum
from trimtab.diagnosis.measure import Gradients, Hessians

Stage = tuple[str, float]
"""What is being done, and about how much of it all is over."""

TIMINGS = 5  # gradients that are timed

# The share of the time that is over when each stage has to end: what is cheap comes first.
CURVATURE = 0.05  # a few products with the Hessian of f at the start
LOOK = 0.12  # the first rounds on the problem
OPTIMUM = 0.22
NOISE = 0.26
HESSIANS = 0.36
HESSIANS_AT_START = 0.4
POINTS = 0.43
BASIS, MODEL, PREDICTIONS = 0.46, 0.51, 0.57
TRIALS = 0.93
BIAS = 0.96


@dataclass
class Measured:
    """The numbers at the point where all is measured, and at the start."""

    steep: Spectrum  # what a few products say of Hess at the start
    here: Gradients
    sigma: float
    sigma_error: float
    hessians: Hessians
    start: Hessians | None  # None: there was no time
    rows: list[dict[str, Any]]
    B: float

    @property
    def L(self) -> float:
        """The largest curvature that was seen anywhere."""
        at_start = self.steep.norm if self.start is None else self.start.L
        return max(self.hessians.L, at_start, 1e-30)

    @property
    def change(self) -> float:
        """The factor by which curvature changes between start and end; NaN if not measured."""
        if self.start is None or self.start.rough or self.hessians.rough:
            return nan
        low, high = sorted((self.start.L, self.hessians.L))
        return high / max(low, 1e-30)

    @property
    def alike(self) -> bool:
        """Whether the clients' gradients agree on the way."""
        on_the_way = self.rows[:-1] or self.rows
        return all(row["zeta"] <= ALIKE * row["gradient"] for row in on_the_way)


def measure_all(case: Case, first: Gradients, steep: Spectrum) -> Generator[Stage, None, Measured]:
    """Measure at the optimum, or as near to it as the time allows."""
    budget, panel = case.budget, case.panel
    here, hessians, start = first, measure.by_mean_alone(panel, steep), None
    square, error = nan, 0.0
    if case.short or budget.out_of_time(LOOK + 0.5 * (OPTIMUM - LOOK)):
        budget.note("There was no time to look for the optimum; all is measured at the start.")
    else:
        yield "the optimum", LOOK
        explore(case, budget.until(OPTIMUM))
        yield "gradients", OPTIMUM
        here = measure.at_point(panel, case.best, panel.problem.N < case.problem.N)
    if not case.short and not budget.out_of_time(NOISE):
        yield "mini-batches", OPTIMUM
        square, error = measure.noise(
            panel.problem, panel.p, case.best, case.seed, budget.until(NOISE)
        )
    if case.short or budget.out_of_time(HESSIANS):
        budget.note("There was no time for the Hessians of single clients.")
    else:
        hessians = yield from hessians_at(case, case.best, NOISE, HESSIANS)
        if case.quadratic or case.best is case.x0:
            start = hessians
        elif budget.out_of_time(HESSIANS_AT_START):
            budget.note("The Hessians at the start were not looked at.")
        else:
            start = yield from hessians_at(case, case.x0, HESSIANS, HESSIANS_AT_START, worst=3)
    table, B = tables.of_points(case, first, here, hessians, start, POINTS)
    sigma = sqrt(max(0.0, square)) if isfinite(square) else nan
    return Measured(
        steep=steep,
        here=here,
        sigma=sigma,
        sigma_error=error / (2 * sigma) if sigma > 0 else 0.0,
        hessians=hessians,
        start=start,
        rows=table,
        B=B,
    )


def hessians_at(
    case: Case, x: Vector, begin: float, end: float, worst: int = measure.WORST
) -> Generator[Stage, None, Hessians]:
    """Measure the Hessians at x: all eigenvalues if d is small, else the extreme ones."""
    yield "Hessians", begin
    out_of_time, half = case.budget.until(end), case.budget.until((begin + end) / 2)
    matrices = measure.full_hessians(case.panel, x, half)
    whole = None if matrices is None else measure.by_matrices(case.panel, matrices, out_of_time)
    if whole is not None:
        return whole
    found: Hessians | None = None
    for item in measure.by_products(case.panel, x, case.seed, case.budget, out_of_time, worst):
        if isinstance(item, Hessians):
            found = item
        else:
            yield item, begin
    assert found is not None
    if x is case.best and case.budget.decomposes(case.problem.d, end):
        yield "the mean Hessian", (begin + end) / 2
        found.matrix = measure.full_hessian(case.panel, x, out_of_time)
        if found.matrix is not None and case.budget.decomposes(case.problem.d, 1.0):
            found.mu = float(torch.linalg.eigvalsh(found.matrix)[0])
            found.mu_exact = True
    return found
