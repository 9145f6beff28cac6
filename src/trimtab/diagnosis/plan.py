"""What to do: algorithms and K tried on the quadratic model, then the step size on the problem."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.diagnosis import surrogate, theory
from trimtab.diagnosis.advice import Choice, choose, make
from trimtab.diagnosis.case import SHARE, Case
from trimtab.diagnosis.measure import Hessians
from trimtab.diagnosis.surrogate import BETA, KS, Predicted, Surrogate
from trimtab.simulation import Diverged, simulate
from trimtab.streams import NOISE, stream

ROUNDS = 1000  # on the model, at most
TRIES = 6  # halvings of a step that makes f rise


def build(
    case: Case, hessians: Hessians, moved: Tensor, pull: Vector, sigma: float
) -> tuple[Surrogate | None, Vector]:
    """Return the quadratic model, and the error of the start, x0 - x*."""
    panel, clock, x0, best = case.panel, case.clock, case.x0, case.best
    error = x0 - best
    if not case.f0 - case.least > 1e-12 * (abs(case.f0) + 1e-30):
        away = torch.randn(len(x0), generator=stream(case.seed, NOISE, 3), dtype=torch.float64)
        size = float(moved.norm(dim=1).max()) / hessians.L or 1.0
        error = (away / away.norm() * size).to(x0)
        case.eps = SHARE * hessians.L * size**2 / 2
        case.doubts.append("Training starts at the optimum, so rounds are counted from elsewhere.")
    model = None
    if not clock.until(0.72)():
        Q = surrogate.basis(panel, best, error, moved, pull, clock.until(0.72))
        on_the_way = [best] if case.quadratic else [best, x0, (x0 + best) / 2]
        model = surrogate.build(
            panel, on_the_way, error, best, moved, Q, sigma > 0, case.seed, clock.until(0.78)
        )
    if model is None:
        clock.note("There was no time for the quadratic model; the advice rests on theory alone.")
    return model, error


def predictions(case: Case, model: Surrogate, cross_device: bool) -> Iterator[Predicted]:
    """Yield the rounds of every algorithm and K on the model, until the time is over."""
    enough = case.clock.until(0.85)
    gap = float(model.start @ model.H @ model.start) / 2
    true = case.f0 - case.least
    share = case.eps / (true if true > 0 else gap)
    names = ("mimelite", "fedavg") if cross_device else ("scaffold", "fedavg")
    best = ROUNDS
    options: dict[str, Any] = {"S": case.S, "N": case.problem.N, "share": share, "seed": case.seed}
    for K in sorted(KS, reverse=True):
        for name in (*names, *(("sgd",) if K == 1 else ())):
            one = surrogate.predict(model, name, K, R=min(ROUNDS, max(100, 20 * best)), **options)
            best = min(best, one.rounds or best)
            yield one
        if enough() and K > 1:
            case.clock.note(f"Fewer local steps than K = {K} were not looked at.")
            return


def decide(
    predicted: list[Predicted],
    hessians: Hessians,
    *,
    cross_device: bool,
    alike: bool,
    trusted: bool,
) -> Choice:
    """Choose by the model; without one, by the knee of theory."""
    if predicted:
        return choose(predicted, cross_device=cross_device, alike=alike, trusted=trusted)
    K = min(max(KS), round(theory.knee(hessians.L, hessians.delta, hessians.mu)))
    return Choice("mimelite" if cross_device else "scaffold", K, None, None)


def try_out(case: Case, choice: Choice, steepest: float) -> float:
    """Return a step size for the problem itself: tried for three rounds, halved while f rises."""
    whole = 1 - BETA if choice.algorithm == "mimelite" else 1.0  # momentum adds up to 1/(1 - beta)
    eta = choice.eta if choice.eta is not None else whole * theory.stable_step(steepest, choice.K)
    eta = min(eta, 1.8 * whole / steepest)
    enough, problem = case.clock.until(0.9), case.panel.problem
    S = max(1, round(case.S * problem.N / case.problem.N))
    for _ in range(TRIES):
        if enough():
            case.clock.note("The step size was not tried out.")
            return eta
        x = case.x0
        try:
            for done in simulate(
                make(choice.algorithm, choice.K, eta), problem, S=S, x=x, seed=case.seed
            ):
                x = done.x
                if done.r == 3 or enough():
                    break
            if problem.loss(x) <= case.f0 + case.eps:
                return eta
        except Diverged:
            pass
        eta /= 2
    case.doubts.append("Even small steps made f rise in the first rounds.")
    return eta
