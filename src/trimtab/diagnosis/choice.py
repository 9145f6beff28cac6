"""Which algorithm and which K: by the rounds that the quadratic model predicts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from trimtab.diagnosis.candidates import FEDAVG, MIMELITE, SCAFFOLD, SGD
from trimtab.diagnosis.model_rounds import FINER, NEAR, Predicted

LIKE = 1.1  # a simpler algorithm is advised if it needs <= 1.1 x the fewest rounds
ALIKE = 1.0  # clients count as alike on the way if zeta <= 1.0 x |grad f|
CHANGES = 3.0  # the model is trusted if curvature changes on the way by a factor <= 3
STILL_GOOD = 1.3  # the advice holds for an accuracy if it needs <= 1.3 x the fewest rounds to it


@dataclass(frozen=True)
class Choice:
    """An algorithm with K and step size, and its rounds on the model."""

    algorithm: str
    K: int
    eta: float | None
    rounds: int | None


def choose(
    predicted: Sequence[Predicted], *, cross_device: bool, alike: bool, trusted: bool
) -> Choice:
    """Choose by the rounds predicted on the model; ties go to what is simpler, and to fewer steps.

    alike: whether the clients' gradients agree on the way. trusted: whether the model's curvature
    holds on the way. FedAvg counts as good as Scaffold only if one of them is so.

    >>> tried = [Predicted("fedavg", 4, 20, 0.3, 0), Predicted("scaffold", 4, 10, 0.3, 0)]
    >>> choose(tried, cross_device=False, alike=False, trusted=True).algorithm
    'scaffold'
    """
    if cross_device:
        return pick([one for one in predicted if one.algorithm == MIMELITE])
    usual = [one for one in predicted if one.algorithm != MIMELITE]
    least = {name: _least(usual, name) for name in (SGD, FEDAVG, SCAFFOLD)}
    best = min(least.values())
    if best == inf:  # Nobody gets there, so it is the one that comes nearest.
        near = min(usual, key=lambda one: one.gap)
        return Choice(near.algorithm, near.K, near.eta, None)
    if least[SGD] <= LIKE * best:
        return pick([one for one in usual if one.algorithm == SGD])
    if least[FEDAVG] <= LIKE * best and (alike or trusted):
        return pick([one for one in usual if one.algorithm == FEDAVG])
    name = SCAFFOLD if least[SCAFFOLD] < inf else FEDAVG
    return pick([one for one in usual if one.algorithm == name])


def pick(tried: Sequence[Predicted]) -> Choice:
    """Return the smallest K whose rounds are near the fewest."""
    there = [one for one in tried if one.rounds is not None]
    if not there:
        near = min(tried, key=lambda one: one.gap)
        return Choice(near.algorithm, near.K, near.eta, None)
    fewest = min(one.rounds for one in there if one.rounds is not None)
    good = [one for one in there if one.rounds is not None and one.rounds <= NEAR * fewest]
    best = min(good, key=lambda one: one.K)
    return Choice(best.algorithm, best.K, best.eta, best.rounds)


def _least(tried: Sequence[Predicted], name: str) -> float:
    return min((one.rounds for one in tried if one.algorithm == name and one.rounds), default=inf)


@dataclass(frozen=True)
class Reach:
    """Down to which accuracy a choice holds on the model, and what is better beyond."""

    eps: float  # the least f - f* to which it needs about the fewest rounds
    beyond: float | None = None  # the f - f* at which it no longer does; None: none was found
    rounds: int | None = None  # the choice's rounds to there; None if it does not arrive
    better: Choice | None = None  # what needs the fewest rounds to there


def reach(choice: Choice, predicted: Sequence[Predicted], eps: float) -> Reach | None:
    """Tell how far beyond eps a choice holds; None if the model says nothing of it.

    >>> tried = [Predicted("fedavg", 4, 2, 0.3, 0, 9, (None, None))]
    >>> tried += [Predicted("scaffold", K, 2, 0.3, 0, 9, (3, 4)) for K in (8, 4)]
    >>> limit = reach(Choice("fedavg", 4, 0.3, 2), tried, eps=1.0)
    >>> limit.eps, limit.beyond, limit.rounds, limit.better.algorithm, limit.better.K
    (1.0, 0.1, None, 'scaffold', 4)
    """
    mine = next((o for o in predicted if (o.algorithm, o.K) == (choice.algorithm, choice.K)), None)
    if mine is None or mine.rounds is None:
        return None
    holds = eps
    for j, factor in enumerate(FINER):
        there = [replace(one, rounds=one.finer[j]) for one in predicted]
        arrived = [one for one in there if one.rounds is not None]
        if not arrived:
            break
        fewest = min(one.rounds or 0 for one in arrived)
        rounds = mine.finer[j]
        if rounds is None or rounds > STILL_GOOD * fewest:
            best = min(arrived, key=lambda one: one.rounds or 0)
            better = pick([one for one in there if one.algorithm == best.algorithm])
            return Reach(holds, factor * eps, rounds, better)
        holds = factor * eps
    return Reach(holds)
