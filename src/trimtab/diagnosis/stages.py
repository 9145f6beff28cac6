"""The stages of a diagnosis, each in its share of the time: what is cheap comes first."""

from collections.abc import Generator
from dataclasses import dataclass, replace
from math import nan

from trimtab.core import Vector
from trimtab.core.task import Progress
from trimtab.diagnosis import measure, optimum, prediction, stationary
from trimtab.diagnosis.candidates import named
from trimtab.diagnosis.case import SHORT, Case, explore, leave_the_optimum
from trimtab.diagnosis.choice import ALIKE, CHANGES
from trimtab.diagnosis.differences import probe
from trimtab.diagnosis.first_facts import Early, FirstFacts
from trimtab.diagnosis.hessian_products import WORST, by_products
from trimtab.diagnosis.hessians import (
    FLAT,
    SMALL,
    Hessians,
    HessiansSeen,
    by_asymmetric_matrices,
    by_matrices,
    by_mean_alone,
    full_hessian,
    full_hessians,
)
from trimtab.diagnosis.intervals import Left, at_point
from trimtab.diagnosis.lanczos import Spectrum
from trimtab.diagnosis.measure import BatchNoise, Gradients
from trimtab.diagnosis.model_rounds import Predicted
from trimtab.diagnosis.prediction import Plan
from trimtab.diagnosis.quadratic_model import QuadraticModel
from trimtab.diagnosis.resampling import drawn
from trimtab.diagnosis.tables import Points

SOON = 10.0  # the first facts are told after about 10 seconds
TIMINGS = 5  # <= 5 gradients are timed
WORST_AT_START = 2  # the Hessians of <= 2 clients are followed at the start
NEAR_BY = 0.01  # numbers are those of the optimum if <= 0.01 of the way there is left
AMPLE = 10_000  # there is ample time if it allows >= 10,000 gradients of all data

# Each is the share of the time that is over when a stage has to end.
CURVATURE = 0.05
LOOK = 0.12
OPTIMUM = 0.22
NOISE = 0.26
HESSIANS = 0.36
HESSIANS_AT_START = 0.4
POINTS = 0.43
BASIS, MODEL, PREDICTIONS = 0.46, 0.51, 0.57
TRIALS = 0.93
BIAS = 0.96
GAIN = 1.0


@dataclass(frozen=True)
class Measured:
    """All that was measured."""

    steep: Spectrum  # what a few products say of Hess at the start
    here: Gradients
    noise: BatchNoise
    seen: HessiansSeen
    points: Points
    early: Early

    @property
    def hessians(self) -> Hessians:
        """The Hessians at the point where all is measured."""
        return self.seen.here

    @property
    def L(self) -> float:
        """The largest curvature that was seen anywhere."""
        at_start = self.steep.norm if self.seen.start is None else self.seen.start.L
        return max(self.hessians.L, at_start, 1e-30)

    @property
    def change(self) -> float:
        """The factor by which curvature changes between start and end; NaN if not measured."""
        start = self.seen.start
        if start is None or start.rough or self.hessians.rough:
            return nan
        low, high = sorted((start.L, self.hessians.L))
        return high / max(low, 1e-30)

    def left(self, case: Case) -> Left | None:
        """Return what is left of the way to the optimum; None if the point is not about there.

        Along the flattest direction x is |grad f|/mu away.
        """
        L, mu = self.hessians.L, self.hessians.mu
        way = float((case.x0 - case.best).norm())
        if not case.optimum or not mu > FLAT * L or case.panel.problem.x_star is not None:
            return Left() if case.optimum and mu > FLAT * L else None
        distance = float(self.here.mean.norm()) / mu
        share = distance / max(way, distance, 1e-300)
        return Left(distance, 0.0 if case.quadratic else share) if share <= NEAR_BY else None

    @property
    def alike(self) -> bool:
        """Whether the clients' gradients agree on the way."""
        on_the_way = self.points.rows[:-1] or self.points.rows
        return all(row.zeta <= ALIKE * row.gradient for row in on_the_way)


@dataclass(frozen=True)
class Modelled:
    """The quadratic model, if there was time for it, and the rounds on it."""

    model: QuadraticModel | None = None
    pull: Vector | None = None  # sum p_i (Hess_i - Hess) grad f_i, from which FedAvg's bias comes
    predicted: tuple[Predicted, ...] = ()


def curvature(case: Case, first: Gradients) -> Spectrum:
    """Return what a few gradients or products say of Hess at the start; time them."""
    budget, seconds = case.budget, []
    for _ in range(TIMINGS):  # Others use the machine too, so the shortest time counts.
        started = budget.spent
        steep = optimum.along_gradient(case.panel, case.x0, first.mean)
        seconds.append(budget.spent - started)
        if sum(seconds) * SHORT > budget.seconds:
            break
    case.pass_seconds = case.step_seconds = min(seconds)
    if case.short:
        budget.note("The time sufficed for little more than a few rounds.")
    elif case.panel.problem.symmetric and not budget.out_of_time(CURVATURE):
        until = budget.until(CURVATURE)
        # The seed is not the case's: rounds that begin with this step lead all seeds to one point.
        steep = optimum.steepest(case.panel, case.x0, 0, until, first.mean)
    return steep


def first_facts(
    case: Case, first: Gradients, steep: Spectrum
) -> Generator[FirstFacts, None, Early]:
    """Tell what is cheap to know: sizes, how the data differ, gradients after a few rounds."""
    panel, problem, budget = case.panel, case.problem, case.budget
    samples = problem.samples
    sizes = () if samples is None else tuple(samples(i)[0] for i in panel.clients)
    found = probe(panel, sizes or None, case.seed)
    soon = budget.until(min(LOOK, SOON / budget.seconds))
    x = None
    if not case.short:
        x = optimum.after_rounds(panel, case.x0, max(steep.norm, 1e-30), soon)
    on_the_way = None if x is None else measure.at_point(panel, x)
    early = Early(found, drawn(panel, problem.N, case.seed), x, on_the_way)
    points = [("start", case.x0, first)]
    if x is not None and on_the_way is not None:
        points.append((optimum.ON_THE_WAY, x, on_the_way))
    yield FirstFacts(
        N=problem.N,
        d=problem.d,
        S=case.S,
        sizes=sizes,
        differences=found,
        points=tuple(
            (
                at_point(where, at, early.draws, panel.p, gradients).estimates()["zeta"],
                float(gradients.mean.norm()),
            )
            for where, at, gradients in points
        ),
        seconds=budget.spent,
    )
    return early


def first_look(case: Case, steep: Spectrum) -> Generator[Progress, None, Plan]:
    """Run the first rounds on the problem; if the time is short, all of them.

    Where there is ample time for all that comes later, they would tell nothing.
    """
    if case.pass_seconds * AMPLE < case.budget.seconds:
        return prediction.nothing_tried(case)
    until = TRIALS if case.short else LOOK
    L = max(steep.norm, 1e-30)
    return (yield from prediction.first_look(case, L, CURVATURE, until))


def best_gradients(case: Case, first: Gradients) -> Generator[Progress, None, Gradients]:
    """Look for the optimum, and measure the gradients there, or at the start if it is late."""
    budget = case.budget
    if case.short or budget.out_of_time((LOOK + OPTIMUM) / 2):
        budget.note("There was no time to look for the optimum; all is measured at the start.")
        return first
    yield Progress("the optimum", LOOK)
    explore(case, budget.until(OPTIMUM))
    yield Progress("gradients", OPTIMUM)
    return measure.at_point(case.panel, case.best)


def batch_noise(case: Case) -> Generator[Progress, None, BatchNoise]:
    """Measure the noise of mini-batches."""
    if case.short or case.budget.out_of_time(NOISE):
        return BatchNoise()
    yield Progress("mini-batches", OPTIMUM)
    return measure.batch_noise(case.panel, case.best, case.seed, case.budget.until(NOISE))


def client_hessians(case: Case, steep: Spectrum) -> Generator[Progress, None, HessiansSeen]:
    """Measure the Hessians at the best point and at the start."""
    if case.short or case.budget.out_of_time(HESSIANS):
        case.budget.note("There was no time for the Hessians of single clients.")
        return HessiansSeen(by_mean_alone(case.panel, steep), None)
    if not case.panel.problem.symmetric:
        return _not_symmetric(case, steep)
    here = yield from _hessians_at(case, case.best, NOISE, HESSIANS, WORST)
    if case.quadratic or case.best is case.x0:
        return HessiansSeen(here, here)
    if case.budget.out_of_time(HESSIANS_AT_START):
        case.budget.note("The Hessians at the start were not looked at.")
        return HessiansSeen(here, None)
    start = yield from _hessians_at(case, case.x0, HESSIANS, HESSIANS_AT_START, WORST_AT_START)
    return HessiansSeen(here, start)


def _not_symmetric(case: Case, steep: Spectrum) -> HessiansSeen:
    """Measure derivatives that are not symmetric, as whole matrices: Lanczos needs symmetry."""
    seen: list[Hessians] = []
    for x in [case.best] if case.quadratic or case.best is case.x0 else [case.best, case.x0]:
        matrices = full_hessians(case.panel, x, case.budget.until(HESSIANS_AT_START))
        if matrices is None:
            break
        seen.append(by_asymmetric_matrices(case.panel, matrices.each))
    if not seen:
        case.budget.note(f"d is above {SMALL}, or there was no time for matrices of all clients.")
        return HessiansSeen(by_mean_alone(case.panel, steep), None)
    return HessiansSeen(seen[0], seen[-1] if case.quadratic or len(seen) > 1 else None)


def _hessians_at(
    case: Case, x: Vector, begin: float, end: float, worst: int
) -> Generator[Progress, None, Hessians]:
    """Measure the Hessians at x: all eigenvalues if d is small, else the extreme ones."""
    yield Progress("Hessians", begin)
    panel, budget, d = case.panel, case.budget, case.problem.d
    out_of_time, half = budget.until(end), budget.until((begin + end) / 2)
    matrices = full_hessians(panel, x, half)
    found = None if matrices is None else by_matrices(panel, matrices, out_of_time)
    if found is not None:
        return found
    hessians = yield from by_products(panel, x, case.seed, budget, out_of_time, worst, begin)
    # The whole matrix is for the law of the noise at an optimum, and makes mu exact on the way.
    if not (case.optimum and x is case.best and budget.decomposes(d, end)):
        return hessians
    yield Progress("the mean Hessian", (begin + end) / 2)
    hessians = replace(hessians, matrix=full_hessian(panel, x, out_of_time))
    if hessians.matrix is None or not budget.decomposes(d, 1.0):
        return hessians
    return hessians.with_exact_mu()


def model(case: Case, measured: Measured) -> Generator[Progress, None, Modelled]:
    """Build the quadratic model and count rounds on it."""
    if case.budget.out_of_time(BASIS):
        case.budget.note("There was no time for the quadratic model.")
        return Modelled()
    if case.best is case.x0:
        case.budget.note("Without a better point than the start there is no quadratic model.")
        return Modelled()
    yield Progress("the quadratic model", POINTS)
    moved, L = measured.here.moved, measured.hessians.L
    leave_the_optimum(case, float(moved.norm(dim=1).max()) / L or 1.0, L)
    pull = stationary.pull_of(case.panel, case.best, moved)
    if not case.panel.problem.symmetric:
        return Modelled(pull=pull)
    noisy = measured.noise.sigma > 0
    quadratic = prediction.build(case, moved, pull, noisy, (BASIS, MODEL))
    predicted: list[Predicted] = []
    if quadratic is not None:
        for rounds in prediction.predictions(case, quadratic, PREDICTIONS):
            predicted.append(rounds)
            what = f"{named(rounds.algorithm)} with K = {rounds.K} on the model"
            yield Progress(what, MODEL)
    return Modelled(quadratic, pull, tuple(predicted))


def trials(
    case: Case, measured: Measured, modelled: Modelled, look: Plan
) -> Generator[Progress, None, Plan]:
    """Let rounds on the problem decide; if the time is short, the first look did."""
    if case.short:
        return look
    L = measured.L if modelled.predicted else max(measured.steep.norm, 1e-30)
    return (
        yield from prediction.trials(
            case,
            modelled.predicted,
            look,
            L,
            alike=measured.alike,
            trusted=measured.change <= CHANGES,
            share=PREDICTIONS,
            until=TRIALS,
        )
    )
