"""What to do: algorithms and K tried on the quadratic model, the best of them on the problem."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from torch import Tensor

from trimtab.core import Vector
from trimtab.diagnosis import quadratic_model
from trimtab.diagnosis.candidates import BETA, FEDAVG, MIMELITE, SCAFFOLD, SGD
from trimtab.diagnosis.case import Case
from trimtab.diagnosis.choice import Choice, choose, pick
from trimtab.diagnosis.quadratic_model import KS, Predicted, QuadraticModel
from trimtab.diagnosis.trial import LEAST, MOST, Lane, Trial, better_step, winner

ROUNDS = 1000  # on the model, at most
LOOK = 10  # rounds of the first look, at most
FEW, MANY = 4, 16  # local steps that are tried where the model says nothing


@dataclass(frozen=True)
class Plan:
    """What was tried, and what is advised of it."""

    choice: Choice | None  # None: no advice,
    why_not: str  # for this reason
    favourite: Choice | None  # the model's choice
    lanes: list[Lane]
    best: Lane | None  # the lane of the choice
    reached: int | None  # the round in which it got to eps
    f_start: float  # where the lanes started


def build(
    case: Case, moved: Tensor, pull: Vector, noisy: bool, until: tuple[float, float]
) -> QuadraticModel | None:
    """Return the quadratic model; None if there is no time for it."""
    panel, budget, best = case.panel, case.budget, case.best
    error = case.start - best
    model = None
    if not budget.out_of_time(until[0]):
        Q = quadratic_model.basis(panel, best, error, moved, pull, budget.until(until[0]))
        on_the_way = [best] if case.quadratic else [best, case.x0, (case.x0 + best) / 2]
        model = quadratic_model.build(
            panel, on_the_way, error, best, moved, Q, noisy, case.seed, budget.until(until[1])
        )
    if model is None:
        budget.note("There was no time for the quadratic model.")
    return model


def predictions(
    case: Case, model: QuadraticModel, cross_device: bool, until: float
) -> Iterator[Predicted]:
    """Yield the rounds of every algorithm and K on the model, until the time is over."""
    out_of_time = case.budget.until(until)
    gap = float(model.start @ model.H @ model.start) / 2
    true = case.f0 - case.least
    share = case.eps / (true if true > 0 else gap)
    names = (MIMELITE, FEDAVG) if cross_device else (SCAFFOLD, FEDAVG)
    best = ROUNDS
    options: dict[str, Any] = {"S": case.S, "N": case.problem.N, "share": share, "seed": case.seed}
    for K in sorted(KS, reverse=True):
        for name in (*names, *((SGD,) if K == 1 else ())):
            R = min(ROUNDS, max(100, 20 * best))
            one = quadratic_model.predict(model, name, K, R=R, **options, out_of_time=out_of_time)
            if out_of_time():
                case.budget.note(f"Fewer local steps than K = {K} were not looked at on the model.")
                return
            best = min(best, one.rounds or best)
            yield one


def first_look(
    case: Case, L: float, cross_device: bool, until: float
) -> Generator[str, None, Plan]:
    """Try one and several local steps on the problem, for all that is known so early."""
    trial = Trial(case, until, careful=True)
    lanes = _affordable(trial, _candidates(None, (), L, cross_device))
    most = MOST if case.short else LOOK
    return (yield from _raced(trial, lanes, None, most, alike=False))


def trials(
    case: Case,
    predicted: Sequence[Predicted],
    L: float,
    look: Plan,
    *,
    cross_device: bool,
    alike: bool,
    trusted: bool,
    until: float,
) -> Generator[str, None, Plan]:
    """Run the best of the model, and what could prove it wrong, on the problem; choose."""
    thinned = case.panel.halves is not None
    trial = Trial(case, until, careful=thinned or not trusted or not predicted)
    some = [one for one in predicted if trial.affords(one.K + 1)]
    if len(some) < len(predicted):
        case.budget.note("There was no time to try more local steps than were tried.")
    favourite = None
    if some:
        favourite = choose(some, cross_device=cross_device, alike=alike, trusted=trusted)
    lanes = _affordable(trial, _candidates(favourite, some, L, cross_device))
    plan = yield from _raced(trial, lanes, favourite, MOST, alike=alike)
    return plan if _compared(plan.lanes) else look


def _raced(
    trial: Trial, lanes: list[Lane], favourite: Choice | None, most: int, *, alike: bool
) -> Generator[str, None, Plan]:
    """Run the lanes, choose one, and look for its best step size."""
    yield from trial.race(lanes, most, trial.race_until)
    first = lanes[0] if favourite is not None else None
    best = winner(trial, lanes, first, alike=alike)
    if best is not None and _compared(lanes):
        best, tried = yield from better_step(trial, best)
        lanes = lanes + tried
    return _settled(trial, lanes, favourite, best)


def _affordable(trial: Trial, lanes: Sequence[Lane]) -> list[Lane]:
    """Return the first lanes, as many as can be tried in the time."""
    found: list[Lane] = []
    for lane in lanes:
        if trial.affords(sum(one.K for one in found) + lane.K):
            found.append(lane)
    return found


def _compared(lanes: Sequence[Lane]) -> bool:
    """Tell whether one local step and several were both tried."""
    return {lane.K > 1 for lane in lanes if lane.compared or lane.failed} == {False, True}


def _settled(trial: Trial, lanes: list[Lane], favourite: Choice | None, best: Lane | None) -> Plan:
    why_not = ""
    if not _compared(lanes):
        best = None
        why_not = f"there was no time for {LEAST} rounds with one local step and with several"
    elif best is None and any(lane.compared for lane in lanes):
        why_not = "no candidate lowered f in the rounds there was time for"
    elif best is None:
        why_not = "f rose in the first rounds with every step size that was tried"
    choice = None if best is None else Choice(best.algorithm, best.K, best.eta, None)
    there = inf if best is None else best.reached(trial.goal)
    reached = int(there) if there < inf else None
    return Plan(choice, why_not, favourite, lanes, best, reached, trial.f_start)


def _candidates(
    favourite: Choice | None, predicted: Sequence[Predicted], L: float, cross_device: bool
) -> list[Lane]:
    """Return the favourite, one local step, other algorithms, more local steps: in this order."""
    name = MIMELITE if cross_device else SCAFFOLD
    one_step = (MIMELITE if cross_device else SGD, 1)
    etas = {(one.algorithm, one.K): one.eta for one in predicted}
    wanted = [one_step, (name, FEW), (name, MANY)]
    if favourite is None:
        wanted += [] if cross_device else [(FEDAVG, MANY)]
    else:
        own = favourite.algorithm if favourite.algorithm != SGD else name
        wanted = [(favourite.algorithm, favourite.K), one_step]
        for other in () if cross_device else (SCAFFOLD, FEDAVG):
            mine = [one for one in predicted if one.algorithm == other]
            wanted += [(other, pick(mine).K)] if mine else []
        wanted += [(own, 2 * favourite.K), (own, max(MANY, favourite.K))]
        wanted = [lane for lane in wanted if lane in etas or lane == one_step]
    return [_lane(*lane, etas.get(lane), L) for lane in dict.fromkeys(wanted)]


def _lane(name: str, K: int, eta: float | None, L: float) -> Lane:
    """Return a candidate whose step does not exceed what a gradient step could bear."""
    whole = 1 - BETA if name == MIMELITE else 1.0  # momentum adds up to 1/(1 - beta)
    return Lane(name, K, whole / L if eta is None else min(eta, 1.8 * whole / L))
