"""The stages of a diagnosis, each in its share of the time: what is cheap comes first."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite, nan
from statistics import median

from trimtab.core import Vector
from trimtab.core.task import Progress
from trimtab.diagnosis import measure, optimum, theory
from trimtab.diagnosis.advise import in_question
from trimtab.diagnosis.case import Case, explore, leave_the_optimum
from trimtab.diagnosis.confirm import Confirmed, affordable, confirm
from trimtab.diagnosis.differences import Early, FirstFacts, probe
from trimtab.diagnosis.hessians import (
    Hessians,
    Seen,
    by_matrices,
    by_mean_alone,
    by_products,
    full_hessian,
    full_hessians,
)
from trimtab.diagnosis.intervals import Estimate, Left, Sample, at_point, drawn
from trimtab.diagnosis.measure import BatchNoise, Gradients, Sampled
from trimtab.diagnosis.panel import Panel
from trimtab.diagnosis.predict import Aim, Predicted, QuadraticModel, build, predict
from trimtab.diagnosis.rules import RULES, has_K, named
from trimtab.studies.space import Expected


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
class Points:
    """What was measured at each point, the best last."""

    rows: tuple[PointRow, ...]
    B: float  # the largest B seen; NaN if none was
    best: Sample  # the numbers of the best point, with joint replicates


def of_points(
    case: Case,
    first: Gradients,
    early: Early,
    here: Gradients,
    noise: BatchNoise,
    seen: Seen,
) -> Points:
    """Return a row for the start, for a point on the way, and for the best point."""
    (at_best, at_start), panel = seen, case.panel
    way: list[tuple[str, Vector, Gradients, Hessians | None]] = []
    if case.best is not case.x0:
        way.append(("start", case.x0, first, at_start))
        if early.x is not None and early.gradients is not None:
            way.append((optimum.ON_THE_WAY, early.x, early.gradients, None))

    def row(
        where: str, x: Vector, at: Gradients, hessians: Hessians | None, sample: Sample
    ) -> PointRow:
        found = {n: one for n, one in sample.estimates().items() if isfinite(one.value)}
        return PointRow(
            where=where,
            loss=panel.loss(x),
            zeta=at.zeta,
            G=at.G,
            B=sample.values.get("B"),
            gradient=float(at.mean.norm()),
            L=None if hessians is None else hessians.L,
            delta=None if hessians is None else hessians.delta,
            intervals=found,
        )

    rows, apart = list[PointRow](), list[Sampled]()
    for where, x, at, hessians in way:
        apart.append(measure.difference(at, here))
        B = measure.B_of(panel.p, apart[-1])
        sample = at_point(where, x, early.draws, panel.p, at, hessians, None, (apart[-1],), B)
        rows.append(row(where, x, at, hessians, sample))
    closed = panel.closed_forms if way and case.budget.decomposes(panel.problem.d, POINTS) else None
    B = measure.B_of(panel.p, *apart) if way else nan
    B, apart = (B, apart) if closed is None else (closed.B, [])
    left = _left(case, here, at_best)
    known = left is not None or panel.problem.x_star is not None
    point = case.where if known else f"{case.where}, f = {panel.loss(case.best):.4g}"
    measured = panel.p, here, at_best, noise, tuple(apart), B, left
    best = at_point(point, case.best, early.draws, *measured)
    # B is that of several points, and sigma is shown once.
    shown = {name: value for name, value in best.values.items() if name not in ("B", "sigma")}
    rows.append(row(case.where, case.best, here, at_best, replace(best, values=shown)))
    return Points(tuple(rows), B, best)


def _left(case: Case, here: Gradients, hessians: Hessians) -> Left | None:
    """Return what is left of the way to the optimum; None if the point is not about there.

    Along the flattest direction x is |grad f|/mu away.
    """
    mu, way = hessians.mu, float((case.x0 - case.best).norm())
    if not (case.optimum and mu > RULES.flat * hessians.L):
        return None
    known = case.panel.problem.x_star is not None
    distance = 0.0 if known else float(here.mean.norm()) / mu
    if distance > RULES.near_optimum * way:
        return None
    return Left(distance, inf if case.quadratic or way == 0 else way)


def of_clients(panel: Panel, here: Gradients, hessians: Hessians) -> tuple[ClientRow, ...]:
    """Return a row for each client, those that differ most first; outliers are named."""
    known = [[v for v in sizes if isfinite(v)] for sizes in (here.apart, hessians.apart)]
    usual = [median(values or [0.0]) for values in known]
    top = [max(values, default=0.0) or 1.0 for values in known]
    rows = []
    for j, client in enumerate(panel.clients):
        sizes = here.apart[j], hessians.apart[j]
        far = [
            word
            for word, size, middle in zip(("gradient", "Hessian"), sizes, usual, strict=True)
            if size > RULES.outlier * middle > 0 and len(panel.clients) > 2
        ]
        rows.append(
            ClientRow(
                client=client,
                weight=float(panel.p[j]),
                gradient=sizes[0],
                hessian=sizes[1],
                measured=hessians.measured[j],
                outlier=f"outlier by {' and '.join(far)}" if far else "",
            )
        )

    def how_far(row: ClientRow) -> float:
        second = row.hessian / top[1] if isfinite(row.hessian) else 0.0
        return row.gradient / top[0] + second

    return tuple(sorted(rows, key=how_far, reverse=True))


def _between(start: float, end: float, part: float) -> float:
    return start + part * (end - start)


# Each is the share of the time that is over when a stage has to end.
OPTIMUM, HESSIANS_AT_START, PREDICTIONS, TRIALS = RULES.until
CURVATURE, LOOK = OPTIMUM / 4, OPTIMUM / 2
NOISE, HESSIANS = (_between(OPTIMUM, HESSIANS_AT_START, part) for part in (0.25, 0.75))
POINTS, MODEL = (_between(HESSIANS_AT_START, PREDICTIONS, part) for part in (1 / 3, 2 / 3))
BIAS = _between(TRIALS, 1.0, 0.5)


@dataclass(frozen=True)
class Measured:
    """All that was measured."""

    steep: float  # what a few products say of Hess at the start
    here: Gradients
    noise: BatchNoise
    hessians: Hessians  # at the point where all is measured
    at_start: Hessians | None
    points: Points
    early: Early

    @property
    def L(self) -> float:
        """The largest curvature that was seen anywhere."""
        start = self.steep if self.at_start is None else self.at_start.L
        return max(self.hessians.L, start, 1e-30)

    @property
    def change(self) -> float:
        """The factor by which curvature changes between start and end; NaN if not measured."""
        start = self.at_start
        if start is None or start.rough or self.hessians.rough:
            return nan
        low, high = sorted((start.L, self.hessians.L))
        return high / max(low, 1e-30)


@dataclass(frozen=True)
class Modelled:
    """The quadratic model, if there was time for it, and the rounds on it."""

    model: QuadraticModel | None = None
    pull: Vector | None = None  # sum p_i (Hess_i - Hess) grad f_i, from which FedAvg's bias comes
    predicted: tuple[Predicted, ...] = ()


def curvature(case: Case, first: Gradients) -> Generator[Progress, None, float]:
    """Return what a few gradients or products say of Hess at the start; time them."""
    yield Progress("curvature at the start", 0.02)
    budget, seconds = case.budget, []
    for _ in range(5):  # Others use the machine too, so the shortest time counts.
        started = budget.spent
        steep = optimum.along_gradient(case.panel, case.x0, first.mean)
        seconds.append(budget.spent - started)
        if sum(seconds) * RULES.short > budget.seconds:
            break
    case.pass_seconds = min(seconds)
    if case.short:
        budget.note("The time sufficed for little more than a few rounds.")
    elif case.panel.problem.symmetric and not budget.out_of_time(CURVATURE):
        until = budget.until(CURVATURE)
        # The seed is not the case's: rounds that begin with this step lead all seeds to one point.
        steep = optimum.steepest(case.panel, case.x0, 0, until, first.mean)
    return steep


def first_facts(case: Case, first: Gradients, steep: float) -> Generator[FirstFacts, None, Early]:
    """Tell what is cheap to know: sizes, how the data differ, gradients after a few rounds."""
    panel, problem, budget = case.panel, case.problem, case.budget
    samples = problem.samples
    sizes = () if samples is None else tuple(samples(i)[0] for i in panel.clients)
    found = probe(panel, sizes or None, case.seed)
    soon = budget.until(min(LOOK, RULES.first_facts / budget.seconds))
    x = None
    if not case.short:
        x = optimum.after_rounds(panel, case.x0, max(steep, 1e-30), soon)
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


def client_hessians(case: Case, steep: float) -> Generator[Progress, None, Seen]:
    """Measure the Hessians at the best point and at the start."""
    if case.short or case.budget.out_of_time(HESSIANS):
        case.budget.note("There was no time for the Hessians of single clients.")
        return by_mean_alone(case.panel, steep), None
    if not case.panel.problem.symmetric:
        return _not_symmetric(case, steep)
    here = yield from _hessians_at(case, case.best, NOISE, HESSIANS, RULES.followed)
    if case.quadratic or case.best is case.x0:
        return here, here
    if case.budget.out_of_time(HESSIANS_AT_START):
        case.budget.note("The Hessians at the start were not looked at.")
        return here, None
    start = yield from _hessians_at(case, case.x0, HESSIANS, HESSIANS_AT_START, RULES.followed // 3)
    return here, start


def _not_symmetric(case: Case, steep: float) -> Seen:
    """Measure derivatives that are not symmetric, as whole matrices: Lanczos needs symmetry."""
    seen: list[Hessians] = []
    for x in [case.best] if case.quadratic or case.best is case.x0 else [case.best, case.x0]:
        matrices = full_hessians(case.panel, x, case.budget.until(HESSIANS_AT_START))
        found = (
            None if matrices is None else by_matrices(case.panel, matrices, case.budget.until(1.0))
        )
        if found is None:
            break
        seen.append(found)
    if not seen:
        case.budget.note(
            f"d is above {RULES.small}, or there was no time for matrices of all clients."
        )
        return by_mean_alone(case.panel, steep), None
    return seen[0], seen[-1] if case.quadratic or len(seen) > 1 else None


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


def predictions(
    case: Case, measured: Measured, names: Sequence[str]
) -> Generator[Progress, None, Modelled]:
    """Build the quadratic model, and run the algorithms on it, many local steps first."""
    if case.short or case.budget.out_of_time(POINTS):
        case.budget.note("There was no time for the quadratic model.")
        return Modelled()
    if case.best is case.x0:
        case.budget.note("Without a better point than the start there is no quadratic model.")
        return Modelled()
    yield Progress("the quadratic model", POINTS)
    moved, L = measured.here.moved, measured.hessians.L
    leave_the_optimum(case, float(moved.norm(dim=1).max()) / L or 1.0, L)
    pull = theory.pull_of(case.panel, case.best, moved)
    if not case.panel.problem.symmetric:
        return Modelled(pull=pull)
    noisy = measured.noise.sigma > 0
    model = build(case, moved, pull, noisy, (POINTS, MODEL))
    if model is None:
        return Modelled(pull=pull)
    gap, true = float(model.start @ model.H @ model.start) / 2, case.f0 - case.least
    aim = Aim(
        case.eps / (true if true > 0 else gap),
        case.S,
        case.problem.N,
        seed=case.seed,
        by_chance=noisy or case.S < case.problem.N,
    )
    predicted: list[Predicted] = []
    fewest, out_of_time = None, case.budget.until(PREDICTIONS)
    many = sorted(RULES.local_steps, reverse=True)
    pairs = [(name, K) for name in names for K in (many if has_K(name) else [1])]
    for name, K in pairs:
        if out_of_time():
            some = f"{len(predicted)} of {len(pairs)} pairs of algorithm and K"
            case.budget.note(f"There was time to run {some} on the model.")
            break
        yield Progress(f"{named(name)} with K = {K} on the model", MODEL)
        one = predict(model, name, K, aim, fewest, out_of_time)
        predicted.append(one)
        fewest = min(one.rounds, fewest or one.rounds) if one.rounds else fewest
    return Modelled(model, pull, tuple(predicted))


def runs(
    case: Case, measured: Measured, modelled: Modelled, names: Sequence[str]
) -> Generator[Progress, None, Confirmed]:
    """Run the algorithms in question on the problem."""
    expected = [
        Expected(one.algorithm, one.K, one.eta, one.rounds)
        for one in modelled.predicted
        if one.eta is not None
    ]
    most = affordable(case, TRIALS)
    if most == 0:
        return Confirmed(f_start=case.f0)
    if any(most < one.K for one in expected):
        case.budget.note("There was no time to try more local steps than were tried.")
    expected = [one for one in expected if most >= one.K]
    L = measured.L if modelled.predicted else max(measured.steep, 1e-30)
    chosen = in_question(expected, names, L, trusted=measured.change <= RULES.change)
    few = [replace(one, K=min(one.K, most)) for one in chosen]
    return (yield from confirm(case, few, PREDICTIONS, TRIALS))
