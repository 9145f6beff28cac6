"""Why, and how sure: in sentences with the numbers that decided."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

from trimtab.diagnosis.advise import Choice, Reach
from trimtab.diagnosis.candidates import FEDAVG, MIMELITE, SGD, has_K, named
from trimtab.diagnosis.case import Case
from trimtab.diagnosis.hessians import Hessians
from trimtab.diagnosis.model_rounds import Predicted
from trimtab.diagnosis.prediction import Plan
from trimtab.diagnosis.race import LONG, Lane
from trimtab.diagnosis.rows import Bias
from trimtab.diagnosis.rules import RULES
from trimtab.diagnosis.theory import Constants, knee

SHORTER = 4.0  # a step is much smaller than the model's if that is >= 4 times as large


def why(
    case: Case,
    plan: Plan,
    zeta: float,
    bias: Bias,
    hessians: Hessians,
    predicted: Sequence[Predicted],
    drawn: str = "",
) -> list[str]:
    """Say why this algorithm and this K; without advice, what was seen.

    drawn: what was drawn at random for the rounds on the model, if anything was.
    """
    apart = f"The clients' gradients at the {case.where} differ by zeta = {zeta:.2g}"
    if plan.choice is None:
        return [f"{apart}.", *_rounds(case, plan)]
    because = _because(case, plan, plan.choice, apart, bias)
    race = _race(predicted, plan.choice.algorithm, drawn)
    return [f"{because}; {_hessians(hessians)}.", *([race] if race else []), *_rounds(case, plan)]


def _because(case: Case, plan: Plan, choice: Choice, apart: str, bias: Bias) -> str:
    """Say what of the gradients speaks for this algorithm."""
    limit = bias.limit if bias.limit is not None else bias.heterogeneity
    stop = "" if limit is None else f", and FedAvg would stop {limit:.2g} away"
    if choice.algorithm == MIMELITE:
        return (
            "Clients come once and keep nothing, so SCAFFOLD's c_i would never be used again; "
            f"MimeLite needs no state. {apart}"
        )
    if plan.favourite is None:
        return f"{apart}; of what was tried, this got f down best in as many rounds"
    if choice.algorithm == FEDAVG and plan.reached is None:
        return f"{apart}{stop}; in the rounds that were tried no other got f further down"
    if choice.algorithm == FEDAVG:
        little = f", which is little for what is wanted (f - f* = {case.eps:.2g})" if stop else ""
        return f"{apart}{stop}{little}: FedAvg suffices, and keeps no state"
    if choice.algorithm == SGD:
        return f"{apart}, and local steps do not pay"
    return f"{apart}{stop}"


def _hessians(hessians: Hessians) -> str:
    if not isfinite(hessians.delta):
        return "how far their Hessians differ was not measured"
    if hessians.rough:
        return (
            f"how far their Hessians differ is known in part only (delta >= {hessians.delta:.2g})"
        )
    ratio = hessians.delta / hessians.L if hessians.L else 0.0
    return (
        f"their Hessians {'are close' if ratio < RULES.close else 'differ'} (delta/L = {ratio:.2g})"
    )


def _race(predicted: Sequence[Predicted], first: str, drawn: str) -> str:
    """Return the rounds on the model, those of the one advised first."""
    entries = []
    names = dict.fromkeys(p.algorithm for p in predicted)
    for name in sorted(names, key=lambda name: name != first):
        mine = [p for p in predicted if p.algorithm == name]
        there = [p for p in mine if p.rounds is not None]
        best = min(there, key=lambda p: (p.rounds or 0, p.K), default=None)
        rounds = f"{mine[-1].ran}+" if best is None else f"{best.rounds} (K = {best.K})"
        entries.append(f"{named(name)} {rounds}")
    once = f", with one draw of {drawn}" if drawn else ""
    return f"Fewest rounds on the quadratic model{once}: {', '.join(entries)}." if entries else ""


def _rounds(case: Case, plan: Plan) -> list[str]:
    """Say what the rounds on the problem itself showed."""
    lanes = [lane for lane in plan.lanes if lane.compared]
    if not lanes:
        return []
    shown = ", ".join(
        f"{lane_name(lane)} to {lane.losses[-1]:.4g} in {len(lane.losses)} rounds"
        for lane in sorted(lanes, key=lambda lane: lane is not plan.best)
    )
    where = "" if case.panel.thinned is None else " on the samples that were measured"
    return [f"Tried{where}: f went from {plan.f_start:.4g} with {shown}."]


def lane_name(lane: Lane) -> str:
    """Return what was tried, in words.

    >>> lane_name(Lane("fedavg", 8, 0.5))
    'FedAvg (K = 8, step 0.5)'
    """
    K = f"K = {lane.K}, " if has_K(lane.algorithm) else ""
    return f"{named(lane.algorithm)} ({K}step {lane.eta:.2g})"


def accuracy(choice: Choice | None, reach: Reach | None) -> str:
    """Say for which accuracy the advice holds, and what changes beyond it."""
    if choice is None or reach is None:
        return ""
    if reach.beyond is None or reach.better is None:
        return f"It holds down to f - f* = {reach.eps:.2g}, as far as the model was asked."
    mine = "does not arrive" if reach.rounds is None else f"needs {reach.rounds} rounds"
    better = reach.better
    K = f" with K = {better.K}" if has_K(better.algorithm) else ""
    return (
        f"It holds for f - f* = {reach.eps:.2g}; for {reach.beyond:.2g} {named(choice.algorithm)} "
        f"{f'with K = {choice.K} ' if has_K(choice.algorithm) else ''}{mine} on the model, and "
        f"{named(better.algorithm)}{K} (with a step size of its own) needs {better.rounds}."
    )


def about_K(choice: Choice | None, at: Constants | None, eps: float) -> str:
    """Say why the K that is advised is not theory's knee, where the two differ."""
    if choice is None or at is None:
        return ""
    long_run = knee(at.L, at.delta, at.mu)
    if max(choice.K, 1) < RULES.outlier * long_run and long_run < RULES.outlier * max(choice.K, 1):
        return ""
    most = ", the most that were looked at," if max(RULES.local_steps) == choice.K else ""
    shown = "no bound" if long_run == inf else f"K of about {long_run:.0f}"
    return (
        f"K = {choice.K}{most} is for f - f* = {eps:.2g} from this start; theory's {shown} is for "
        "SCAFFOLD's rate in the long run, and constants are dropped from it."
    )


@dataclass(frozen=True)
class Confidence:
    """How sure the advice is, and what speaks against it."""

    sure: str
    doubts: list[str]


def confidence(
    case: Case, plan: Plan, change: float, hessians: Hessians, reach: Reach | None
) -> Confidence:
    """Say how sure the advice is; `change` is the factor by which curvature changes on the way."""
    doubts = _doubts_about_numbers(case, change, hessians)
    if plan.choice is None:
        return Confidence("there is no advice.", doubts)
    agrees = _agrees(plan.favourite, plan.choice)
    doubts += _doubts_about_choice(plan, agrees, reach, modelled=case.panel.problem.symmetric)
    if plan.favourite is None:
        return Confidence("not sure; run `trimtab compare`.", doubts)
    only = ""
    if reach is not None and reach.beyond is not None:
        only = f" for f - f* = {reach.eps:.2g}, not beyond"
    if case.quadratic and not doubts:
        exact = "the losses are quadratic, so rounds on the model are rounds."
        return Confidence(f"sure{only}; {exact}", doubts)
    if case.optimum and case.panel.problem is case.problem:
        if plan.reached is not None:
            return Confidence(f"fairly sure{only}; tried on the problem, it got there.", doubts)
        held = agrees and not _is_shorter(plan)
        if held and reach is not None and change <= RULES.change:
            return Confidence(f"fairly sure{only}; the quadratic model holds on the way.", doubts)
    return Confidence("not very sure; let `trimtab compare` decide between the best.", doubts)


def _agrees(favourite: Choice | None, choice: Choice) -> bool:
    """Tell whether the model's favourite is what the rounds on the problem chose."""
    if favourite is None:
        return False
    return (favourite.algorithm, favourite.K) == (choice.algorithm, choice.K)


def _is_shorter(plan: Plan) -> bool:
    """Tell whether the step is much smaller than the model's, and did not get to eps when tried."""
    steps = [None if each is None else each.eta for each in (plan.choice, plan.favourite)]
    own, models = (step or inf for step in steps)
    return plan.reached is None and models < inf and SHORTER * own <= models


def _doubts_about_numbers(case: Case, change: float, hessians: Hessians) -> list[str]:
    doubts = list(case.doubts)
    if case.panel.thinned is not None:
        doubts.append("Only some of the data were measured, and rounds were tried on those alone.")
    elif case.some_clients:
        doubts.append("Only some of the clients were measured, and rounds were tried on those.")
    if isfinite(change) and change > RULES.change:
        doubts.append(
            f"Curvature changes by a factor of {change:.2g} between start and end, so rounds "
            "counted on one quadratic model are rough."
        )
    elif not isfinite(change):
        doubts.append("Whether curvature changes on the way was not measured.")
    if hessians.mu < -RULES.flat * hessians.L:
        doubts.append("f is not convex here; the model is shifted until it has a minimum.")
    return doubts


def _doubts_about_choice(
    plan: Plan, agrees: bool, reach: Reach | None, *, modelled: bool
) -> list[str]:
    """Doubt what rests on few rounds; modelled: there would be a model, had there been time."""
    doubts, favourite = [], plan.favourite
    rounds = 0 if plan.best is None else len(plan.best.losses)
    if plan.reached is None and rounds < LONG:
        doubts.append(
            f"The step size was tried for {rounds} rounds only; it may be too large later."
        )
    if favourite is None:
        why = "there was no time for the model" if modelled else "there is no model"
        doubts.append(f"The advice rests on a few rounds alone; {why}.")
    elif not agrees:
        preferred = f"{named(favourite.algorithm)} with K = {favourite.K}"
        doubts.append(f"The model preferred {preferred}; the rounds on the problem decided.")
    if favourite is not None and reach is None:
        doubts.append("On the model it does not reach eps.")
    if agrees and _is_shorter(plan):
        doubts.append(
            "With the step size of the model f rose on the problem; with the one advised, which is "
            f"much smaller, {rounds} rounds did not reach eps."
        )
    return doubts
