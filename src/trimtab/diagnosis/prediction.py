"""What to do: algorithms and K tried on the quadratic model, the best of them on the problem."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from torch import Tensor

from trimtab.core import Vector
from trimtab.core.task import Progress
from trimtab.diagnosis import quadratic_model
from trimtab.diagnosis.advise import Choice, choose, pick
from trimtab.diagnosis.candidates import BETA, FEDAVG, MIMELITE, SCAFFOLD, SGD, has_K, named
from trimtab.diagnosis.case import Case
from trimtab.diagnosis.model_rounds import Goal, Predicted, least_rounds, predict
from trimtab.diagnosis.quadratic_model import QuadraticModel
from trimtab.diagnosis.race import LEAST, MOST, Lane, Trial, better_step, winner
from trimtab.diagnosis.rules import RULES

LOOK = 10  # the first look takes <= 10 rounds
FEW, MANY = 4, 16  # 4 and 16 local steps are tried where the model says nothing
STABLE = 1.8  # a candidate's step is <= 1.8/L, or that times 1 - beta with momentum


@dataclass(frozen=True)
class Plan:
    """What was tried, and what is advised of it."""

    choice: Choice | None  # what is advised, if anything is
    why_not: str  # why nothing is advised
    favourite: Choice | None  # the model's choice
    lanes: list[Lane]
    best: Lane | None  # the lane of the choice
    reached: int | None  # the round in which it got to eps
    f_start: float  # f where the lanes started


def build(
    case: Case, moved: Tensor, pull: Vector, noisy: bool, until: tuple[float, float]
) -> QuadraticModel | None:
    """Return the quadratic model; None if there is no time for it.

    moved: grad f_i - grad f of each client. pull: the direction of FedAvg's bias. until: the shares
    of the time at which the directions and the Hessians have to be there.
    """
    panel, budget, best = case.panel, case.budget, case.best
    error = case.start - best
    model = None
    if not budget.out_of_time(until[0]):
        Q = quadratic_model.basis(panel, best, error, moved, pull, budget.until(until[0]))
        on_the_way = [best] if case.quadratic else [best, case.x0, (case.x0 + best) / 2]
        model = quadratic_model.build(panel, on_the_way, error, moved, Q, budget.until(until[1]))
        if model is not None and noisy:
            model = replace(model, sigma=quadratic_model.noise_in(panel, best, Q, case.seed))
    if model is None:
        budget.note("There was no time for the quadratic model.")
    return model


def share_of(case: Case, model: QuadraticModel) -> float:
    """Return eps as a share of the start's f - f*."""
    gap = float(model.start @ model.H @ model.start) / 2
    true = case.f0 - case.least
    return case.eps / (true if true > 0 else gap)


def predictions(case: Case, model: QuadraticModel, until: float) -> Iterator[Predicted]:
    """Yield the rounds of every algorithm and K on the model, until the time is over."""
    out_of_time = case.budget.until(until)
    names = (MIMELITE, FEDAVG) if case.cross_device else (SCAFFOLD, FEDAVG)
    goal = Goal(share_of(case, model), case.S, case.problem.N, RULES.rounds)
    for name in (*names, SGD):
        Ks = sorted(RULES.local_steps, reverse=True) if has_K(name) else [1]
        found = predict(model, name, Ks, goal, case.seed, out_of_time)
        if out_of_time():
            case.budget.note(f"{named(name)} was not looked at on the model.")
            return
        goal = replace(goal, fewest=least_rounds(found, goal.fewest))
        yield from found


def nothing_tried(case: Case) -> Plan:
    """Return the plan before anything was tried."""
    return _settled(Trial(case, 1.0, careful=True), [], None, None)


def first_look(case: Case, L: float, share: float, until: float) -> Generator[Progress, None, Plan]:
    """Try one and several local steps on the problem, for all that is known so early."""
    trial = Trial(case, until, careful=True, share=share)
    lanes = _affordable(trial, _unadvised(L, case.cross_device))
    most = MOST if case.short else LOOK
    return (yield from _raced(trial, lanes, None, most, alike=False))


def trials(
    case: Case,
    predicted: Sequence[Predicted],
    look: Plan,
    L: float,
    *,
    alike: bool,
    trusted: bool,
    share: float,
    until: float,
) -> Generator[Progress, None, Plan]:
    """Run the best of the model, and what could prove it wrong, on the problem; choose.

    look: the plan of the first look, which stands if there is no time for another. alike: whether
    the clients' gradients agree on the way. trusted: whether the model's curvature holds there.
    """
    careful = case.panel.thinned is not None or not trusted or not predicted
    trial = Trial(case, until, careful, share)
    affordable = [p for p in predicted if trial.affords(p.K + 1)]
    if len(affordable) < len(predicted):
        case.budget.note("There was no time to try more local steps than were tried.")
    favourite = None
    if affordable:
        favourite = choose(affordable, cross_device=case.cross_device, alike=alike, trusted=trusted)
        candidates = _advised(favourite, affordable, L, case.cross_device)
    else:
        candidates = _unadvised(L, case.cross_device)
    lanes = _affordable(trial, candidates)
    plan = yield from _raced(trial, lanes, favourite, MOST, alike=alike)
    return plan if _compared(plan.lanes) else look


def _raced(
    trial: Trial, lanes: list[Lane], favourite: Choice | None, most: int, *, alike: bool
) -> Generator[Progress, None, Plan]:
    """Run the lanes, choose one, and look for its best step size."""
    yield from trial.race(lanes, most, trial.race_until)
    first = lanes[0] if favourite is not None else None
    best = winner(trial, lanes, first, alike=alike)
    if best is not None and _compared(lanes):
        best, tried = yield from better_step(trial, best)
        lanes = lanes + trial.slower + tried
    return _settled(trial, lanes, favourite, best)


def _affordable(trial: Trial, lanes: Sequence[Lane]) -> list[Lane]:
    """Return the first lanes, as many as can be tried in the time."""
    affordable: list[Lane] = []
    for lane in lanes:
        if trial.affords(sum(earlier.K for earlier in affordable) + lane.K):
            affordable.append(lane)
    return affordable


def _compared(lanes: Sequence[Lane]) -> bool:
    """Tell whether one local step and several were both tried."""
    return {lane.K > 1 for lane in lanes if lane.compared or lane.failed} == {False, True}


def _settled(trial: Trial, lanes: list[Lane], favourite: Choice | None, best: Lane | None) -> Plan:
    """Return the plan that follows from what was tried, with advice or why there is none."""
    why_not = ""
    if not _compared(lanes):
        best = None
        why_not = f"there was no time for {LEAST} rounds with one local step and with several"
    elif best is None and any(lane.compared for lane in lanes):
        lowered = any(lane.losses[-1] < trial.f_start for lane in lanes if lane.compared)
        did = "came a tenth of the way to the least f" if lowered else "lowered f"
        why_not = f"no candidate {did} in the rounds that were tried"
    elif best is None:
        why_not = "f rose in the first rounds with every step size that was tried"
    choice = None if best is None else Choice(best.algorithm, best.K, best.eta, None)
    there = inf if best is None else best.reached(trial.goal)
    reached = int(there) if there < inf else None
    return Plan(choice, why_not, favourite, lanes, best, reached, trial.f_start)


def _unadvised(L: float, cross_device: bool) -> list[Lane]:
    """Return what is tried where the model says nothing: one local step, and several."""
    name = MIMELITE if cross_device else SCAFFOLD
    lanes = [_one_step(cross_device), (name, FEW), (name, MANY)]
    lanes += [] if cross_device else [(FEDAVG, MANY)]
    return [_lane(*lane, None, L) for lane in lanes]


def _advised(
    favourite: Choice, predicted: Sequence[Predicted], L: float, cross_device: bool
) -> list[Lane]:
    """Return the favourite, one local step, other algorithms, more local steps: in this order."""
    many_steps = MIMELITE if cross_device else SCAFFOLD
    own = favourite.algorithm if has_K(favourite.algorithm) else many_steps
    etas = {(p.algorithm, p.K): p.eta for p in predicted}
    lanes = [(favourite.algorithm, favourite.K), _one_step(cross_device)]
    for other in () if cross_device else (SCAFFOLD, FEDAVG):
        rivals = [p for p in predicted if p.algorithm == other]
        lanes += [(other, pick(rivals).K)] if rivals else []
    lanes += [(own, 2 * favourite.K), (own, max(MANY, favourite.K))]
    lanes = [lane for lane in lanes if lane in etas or lane == _one_step(cross_device)]
    return [_lane(*lane, etas.get(lane), L) for lane in dict.fromkeys(lanes)]


def _one_step(cross_device: bool) -> tuple[str, int]:
    return (MIMELITE if cross_device else SGD, 1)


def _lane(name: str, K: int, eta: float | None, L: float) -> Lane:
    """Return a candidate whose step does not exceed what a gradient step could bear."""
    whole = 1 - BETA if name == MIMELITE else 1.0  # Momentum adds up to 1/(1 - beta).
    return Lane(name, K, whole / L if eta is None else min(eta, STABLE * whole / L))
