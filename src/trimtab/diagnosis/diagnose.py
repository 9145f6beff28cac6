"""Diagnose a problem in four parts: measure, predict, confirm, explain."""

from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import inf, isfinite
from pathlib import Path

import torch
from torch import Tensor

from trimtab._files import Lock
from trimtab.algorithms.registry import kind
from trimtab.core import Vector
from trimtab.core.task import Progress, task
from trimtab.core.threads import one_thread
from trimtab.diagnosis import intervals, measure, stages, theory
from trimtab.diagnosis import panel as panels
from trimtab.diagnosis.advise import Advice, confidence, decide, headline, rounds_of
from trimtab.diagnosis.budget import Budget
from trimtab.diagnosis.case import Case, begin
from trimtab.diagnosis.confirm import Confirmed
from trimtab.diagnosis.diagnosis import (
    Diagnosis,
    Evidence,
    Forecast,
    Recommendation,
    Scalars,
    Sentences,
    Setting,
    Tables,
)
from trimtab.diagnosis.differences import FirstFacts
from trimtab.diagnosis.hessians import Hessians
from trimtab.diagnosis.intervals import Estimate
from trimtab.diagnosis.rows import ConfirmedRow, TrialCurve
from trimtab.diagnosis.rules import CROSS_DEVICE, RULES, USUAL
from trimtab.diagnosis.sections import gradients_sentence, hessians_sentence
from trimtab.diagnosis.stages import Measured, Modelled
from trimtab.diagnosis.store import Store
from trimtab.diagnosis.theory import Law
from trimtab.errors import BadArgument
from trimtab.problems.adapter import as_problem
from trimtab.problems.identity import hashed_tensors
from trimtab.problems.loading import load_problem
from trimtab.problems.metrics import LOSS
from trimtab.problems.problem import Problem
from trimtab.simulation import cohort_size
from trimtab.simulation.executors import choose
from trimtab.studies.entry import Entry

Events = Generator[Progress | FirstFacts, None, Diagnosis]


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
    algorithms: Sequence[str] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
) -> Generator[Progress | FirstFacts, None, Diagnosis]:
    """Measure how the clients differ, predict what follows from it, try that, and advise.

    problem: one, or the name of one as for `trimtab diagnose`.
    x: where training starts; by default the problem's x0.
    S: clients a round.
    eps: the f(x) - f(x*) that is wanted, by default a hundredth of the start's.
    cross_device: clients come once and keep nothing.
    seed: of all that is drawn to measure (clients, samples, mini-batches, directions), so that two
        seeds measure the same thing.
    minutes: the time for everything.
    algorithms: names of those to compare; by default sgd, fedavg and scaffold, and with
        cross_device sgd, fedavg and mimelite.
    out: a folder for what each stage found; `resume` continues after the last finished one.

    >>> import torch, trimtab
    >>> A = torch.tensor([[1.0, 0.1], [0.8, 0.05]])  # the diagonals of two Hessians
    >>> pair = trimtab.Quadratic(A, b=torch.tensor([[2.0, 0.3], [-1.0, 0.1]]))
    >>> found = trimtab.diagnose(pair)
    >>> print(found.advice)
    Use Scaffold with K = 8, eta_l = 0.841 and eta_g = 1.
    >>> [round(value, 2) for value in (found.zeta, found.delta, found.L, found.mu)]
    [1.44, 0.1, 1.0, 0.08]
    """
    name = problem if isinstance(problem, str) else "problem"
    if isinstance(problem, str):
        problem = load_problem(problem, seed=seed)
    problem = as_problem(problem)
    budget = Budget(60 * minutes if _positive(minutes) else 0.0)
    size = _checked_size(problem, S, eps, minutes)
    names = _names(algorithms, cross_device)
    x0 = _start(problem, x)
    if resume and out is None:
        raise BadArgument("resume", "{resume:True} continues what is in {out}; pass {out} too.")
    asked = {"problem": name, "S": size, "eps": eps, "cross_device": cross_device, "seed": seed}
    asked |= {"minutes": minutes, "algorithms": names}
    asked |= {} if x is None else {"x": hashed_tensors([x0])}
    with ExitStack() as at_end:
        at_end.enter_context(one_thread(when=choose(problem, S=1).threads == "one"))
        folder = None if out is None else Path(out)
        if folder is not None:
            at_end.enter_context(Lock(folder))
        store = Store(folder, asked, problem, resume)
        chosen = store.keep("panel", lambda: panels.choose(problem, seed, budget))
        panel = panels.panel_with(problem, *chosen, seed, budget)
        case = begin(problem, panel, budget, x0, size, seed, eps, cross_device)
        diagnosis = yield from _stages(case, names, store)
    return replace(diagnosis, name=name)


def _stages(case: Case, names: Sequence[str], store: Store) -> Events:
    """Run the stages in order; each takes what was measured so far."""
    yield Progress("gradients at the start", 0.01)
    first = measure.at_point(case.panel, case.x0)
    steep = yield from store.run("curvature", case, stages.curvature(case, first))
    early = yield from store.run("facts", case, stages.first_facts(case, first, steep))
    here = yield from store.run("optimum", case, stages.best_gradients(case, first))
    noise = yield from store.run("noise", case, stages.batch_noise(case))
    seen = yield from store.run("hessians", case, stages.client_hessians(case, steep))
    points = stages.of_points(case, first, early, here, seen, stages.POINTS)
    measured = Measured(steep, here, noise, seen, points, early)
    predictions = stages.predictions(case, measured, names)
    modelled = yield from store.run("model", case, predictions)
    runs = stages.runs(case, measured, modelled, names)
    confirmed = yield from store.run("runs", case, runs)
    yield Progress("bias and variance", stages.TRIALS)
    return composed(case, measured, modelled, confirmed)


# -- put together


def composed(case: Case, measured: Measured, modelled: Modelled, confirmed: Confirmed) -> Diagnosis:
    """Put together what was measured, what follows from it, and what is advised."""
    advice = decide(confirmed, case.least, case.eps)
    here, hessians, choice = measured.here, measured.hessians, advice.choice
    at = _constants(case, measured)
    eta, K = (None, 1) if choice is None else (choice.eta, choice.K)
    law = theory.stationary(
        case, here, hessians, modelled.model, modelled.pull, eta, K, at, stages.BIAS
    )
    drift = theory.drift(case, eta, K, modelled.pull)
    errors, found = _intervals(case, measured, modelled, law, drift, eta, K, at)
    clients = case.panel.clients
    symmetric = case.panel.problem.symmetric
    return Diagnosis(
        setting=Setting(case.problem.N, case.problem.d, case.S, case.eps, case.cross_device),
        scalars=Scalars(
            G=here.G,
            B=measured.points.B,
            delta=hessians.delta,
            L=hessians.L,
            mu=hessians.mu,
            sigma=measured.noise.sigma,
            zeta=here.zeta,
            second=hessians.second,
            weak=hessians.weak,
            drift=drift,
            norm=hessians.norm,
            least=case.least,
        ),
        evidence=Evidence(
            where=case.where,
            optimum=case.optimum,
            errors=errors,
            bounds=_bounds(hessians, all_clients=not case.some_clients),
            rough=hessians.rough,
            measured_on=sum(hessians.measured),
            intervals=found,
        ),
        tables=Tables(
            points=measured.points.rows,
            clients=stages.of_clients(case.panel, here, hessians),
            differences=measured.early.differences,
            spectra={clients[i]: values for i, values in hessians.spectra.items()},
        ),
        forecast=Forecast(
            rates=theory.rates(at, K) if at is not None and symmetric else {},
            convexity=_convexity(at, symmetric=symmetric),
            knee=theory.knees(at) if at is not None and symmetric else None,
            bias=law.bias,
            bias_by_K=theory.by_K(law.bias, modelled.model, eta, K),
            variance=law.variance,
            predicted=modelled.predicted,
        ),
        recommendation=_recommendation(case, advice, confirmed),
        sentences=_sentences(case, measured, law, confirmed, advice),
        cut=case.budget.cut,
        seconds=case.budget.spent,
    )


def _convexity(at: theory.Constants | None, *, symmetric: bool) -> str:
    if not symmetric:
        return theory.NO_GRADIENTS
    return "not known" if at is None else at.convexity


def _intervals(
    case: Case,
    measured: Measured,
    modelled: Modelled,
    law: Law,
    drift: float,
    eta: float | None,
    K: int,
    at: theory.Constants | None,
) -> tuple[dict[str, float], dict[str, Estimate]]:
    """Return standard errors, and the interval of every number, measured or derived."""
    points, left = measured.points, measured.left(case)
    there = left is not None or case.panel.problem.x_star is not None
    point = case.where if there else f"{case.where}, f = {case.panel.loss(case.best):.4g}"
    draws = measured.early.draws
    sample = intervals.at_point(
        point,
        case.best,
        draws,
        case.panel.p,
        measured.here,
        measured.hessians,
        measured.noise,
        points.differences,
        points.B,
        left,
    )
    numbers = sample.estimates()
    rates_hold = at if case.panel.problem.symmetric else None
    numbers |= theory.of_theory(sample, rates_hold, K)
    if eta is not None:
        numbers |= theory.of_bias(sample, draws, law.bias, drift, modelled.model, eta, K)
    finite = {name: one for name, one in numbers.items() if isfinite(one.value)}
    return sample.errors, finite


def _bounds(hessians: Hessians, *, all_clients: bool) -> dict[str, str]:
    """Return which numbers are bounds only: those of some clients, or of a process cut short."""
    bounds: dict[str, str] = {}
    if not (hessians.exact and all_clients):
        bounds |= {"L": "at least", "delta": "at least"}
    if not hessians.mu_exact:
        bounds["mu"] = "at most"
    values = {"L": hessians.L, "delta": hessians.delta, "mu": hessians.mu}
    return {name: bound for name, bound in bounds.items() if isfinite(values[name])}


def _recommendation(case: Case, advice: Advice, confirmed: Confirmed) -> Recommendation:
    choice = advice.choice
    each = list(zip(confirmed.entries, confirmed.expected, confirmed.R, strict=True))
    rows = [
        ConfirmedRow(
            algorithm=entry.name,
            K=entry.settings.get("K", 1),
            eta=entry.settings[entry.step],
            rounds=None if entry.failed else entry.rounds,
            range=entry.range,
            limit=limit,
            expected=one.rounds,
            complete=entry.complete,
            tried=len(entry.searched),
        )
        for entry, one, limit in each
    ]
    trials = [
        TrialCurve(row.algorithm, row.K, row.eta, tuple(_losses(entry)))
        for row, (entry, _, _) in zip(rows, each, strict=True)
    ]
    return Recommendation(
        advice=headline(advice, case.eps),
        saving=rounds_of(confirmed),
        verdict=advice.verdict,
        algorithm=None if choice is None else choice.algorithm,
        K=None if choice is None else choice.K,
        eta_l=None if choice is None else choice.eta,
        eta_g=None if choice is None else 1.0,
        why_not=advice.why_not,
        confirmed=tuple(rows),
        trials=tuple(trial for trial in trials if trial.losses),
        f_start=confirmed.f_start,
        gain=advice.gain,
    )


def _losses(entry: Entry) -> list[float]:
    losses = [line.metrics[LOSS.name] for line in entry.curve]
    return [inf if loss is None else loss for loss in losses]


def _sentences(
    case: Case, measured: Measured, law: Law, confirmed: Confirmed, advice: Advice
) -> Sentences:
    """Return why, in three sentences, and how sure that is."""
    here, hessians = measured.here, measured.hessians
    start = measured.points.rows[0]
    K = None if advice.choice is None else advice.choice.K
    reasons = [
        gradients_sentence(start.zeta, start.gradient, here.zeta, case.where, law.bias.limit, K),
        hessians_sentence(hessians.delta, hessians.L, K, rough=hessians.rough),
        rounds_of(confirmed),
    ]
    whole = case.panel.problem is case.problem
    exact = case.quadratic and case.S == case.problem.N and measured.noise.sigma == 0
    return Sentences(
        reasons=[sentence for sentence in reasons if sentence],
        sure=confidence(advice, exact=exact, measured=case.optimum and whole),
        doubts=[*case.doubts, *_doubts(case, measured), *advice.doubts],
    )


def _doubts(case: Case, measured: Measured) -> list[str]:
    """Return what of the measured numbers leaves the advice open."""
    doubts, hessians, change = [], measured.hessians, measured.change
    if case.panel.thinned is not None:
        doubts.append("Only some of the data were measured, and the runs used those alone.")
    elif case.some_clients:
        doubts.append("Only some of the clients were measured, and the runs used those alone.")
    if isfinite(change) and change > RULES.change:
        doubts.append(
            f"Curvature changes by a factor of {change:.2g} between start and end, so rounds on "
            "one quadratic model are rough."
        )
    if hessians.mu < -RULES.flat * hessians.L:
        doubts.append("f is not convex here; the model is shifted until it has a minimum.")
    return doubts


def _constants(case: Case, measured: Measured) -> theory.Constants | None:
    """Return what the rates of theory depend on; None if not all of it was measured."""
    hessians, B, sigma = measured.hessians, measured.points.B, measured.noise.sigma
    needed = (hessians.delta, hessians.mu, B, sigma)
    if hessians.rough or not all(map(isfinite, needed)) or not hessians.L > 0:
        return None
    constants = theory.Constants(
        L=hessians.L,
        mu=0.0 if hessians.mu_may_be_zero else hessians.mu,
        delta=hessians.delta,
        G=measured.here.G,
        B=B,
        sigma=sigma,
        N=case.problem.N,
        S=case.S,
        eps=case.eps,
        D=float((case.start - case.best).norm()),
        F=max(case.f0 - case.least, case.eps),
    )
    return constants if constants.usable else None


# -- what was asked


def _names(algorithms: Sequence[str] | None, cross_device: bool) -> list[str]:
    """Return the algorithms to compare by name; each needs a step size."""
    if algorithms is None:
        return list(CROSS_DEVICE if cross_device else USUAL)
    given = [algorithms] if isinstance(algorithms, str) else algorithms
    names = [kind(name).name for name in given]
    for name in names:
        if not kind(name).step:
            raise ValueError(f"{name} has no step size to choose; leave it out of algorithms.")
    if not names:
        raise ValueError("algorithms is empty; pass one name or more.")
    return list(dict.fromkeys(names))


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
