"""Why, and how sure: in sentences with the numbers that decided."""

from trimtab.diagnosis.advice import CHANGES, Choice, named
from trimtab.diagnosis.case import Case
from trimtab.diagnosis.laws import Law
from trimtab.diagnosis.measure import Hessians
from trimtab.diagnosis.surrogate import KS, Predicted
from trimtab.diagnosis.theory import Constants


def reasons(
    choice: Choice,
    at: Constants,
    zeta: float,
    bias: Law,
    predicted: list[Predicted],
    where: str,
) -> list[str]:
    """Say why this algorithm and this K."""
    apart = f"The clients' gradients at the {where} differ by zeta = {zeta:.2g}"
    limit = bias["limit"] if bias["limit"] is not None else bias["heterogeneity"]
    stop = "" if limit is None else f", and FedAvg would stop {limit:.2g} away"
    why = {
        "mimelite": "Clients come once and keep nothing, so SCAFFOLD's c_i would never be used "
        f"again; MimeLite needs no state. {apart}",
        "fedavg": f"{apart}{stop}, which is little for what is wanted (f - f* = {at.eps:.2g}): "
        "FedAvg suffices, and keeps no state",
        "scaffold": f"{apart}{stop}",
        "sgd": f"{apart}, and local steps do not pay",
    }[choice.algorithm]
    told = [f"{why}; {_hessians(choice, at)}."]
    race = _race(predicted, choice.algorithm)
    return [*told, race] if race else told


def _hessians(choice: Choice, at: Constants) -> str:
    ratio = at.delta / at.L if at.L else 0.0
    close = ratio < 0.2
    what = f"their Hessians {'are close' if close else 'differ'} (delta/L = {ratio:.2g})"
    if choice.K == 1:
        return f"{what}, so one step a round is enough"
    most = max(KS) == choice.K
    pay = f"local steps pay {'at least ' if most else ''}up to K = {choice.K}"
    return f"{what}, {'so' if close else 'and yet'} {pay}"


def _race(predicted: list[Predicted], first: str) -> str:
    """Return the rounds on the model, those of the one advised first."""
    told = []
    names = dict.fromkeys(one.algorithm for one in predicted)
    for name in sorted(names, key=lambda name: name != first):
        mine = [one for one in predicted if one.algorithm == name]
        there = [one.rounds for one in mine if one.rounds is not None]
        told.append(f"{named(name)} {min(there) if there else f'{mine[-1].ran}+'}")
    return f"Rounds on the quadratic model: {', '.join(told)}." if told else ""


def how_sure(
    case: Case,
    choice: Choice,
    change: float,
    hessians: Hessians,
    predicted: list[Predicted],
) -> tuple[str, list[str]]:
    """Say how sure the advice is, and what speaks against it."""
    doubts = list(case.doubts)
    if change > CHANGES:
        doubts.append(
            f"Curvature changes by a factor of {change:.2g} between start and end, so rounds "
            "counted on one quadratic model are rough."
        )
    if hessians.mu < -1e-6 * hessians.L:
        doubts.append("f is not convex here; the model is shifted until it has a minimum.")
    if not predicted:
        doubts.append("The advice rests on the knee of theory alone.")
    elif choice.rounds is None:
        doubts.append("Nobody reached eps on the model; the one that came nearest is advised.")
    if not predicted or choice.rounds is None:
        return "not sure; run `trimtab compare`.", doubts
    if case.quadratic and not doubts:
        return "sure; the losses are quadratic, so rounds on the model are rounds.", doubts
    if case.optimum and change <= CHANGES:
        return "fairly sure; the quadratic model holds on the way to the optimum.", doubts
    return "not very sure; let `trimtab compare` decide between the best.", doubts
