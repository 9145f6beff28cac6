"""Which algorithm and which K, by the rounds that the model predicts, and what that saves."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any

import torch

from trimtab.diagnosis.budget import OutOfTime
from trimtab.diagnosis.candidates import FEDAVG, MIMELITE, SCAFFOLD, SGD, has_K, named
from trimtab.diagnosis.case import Case
from trimtab.diagnosis.intervals import Draws, Estimate, student
from trimtab.diagnosis.model_rounds import Goal, Predicted, predict
from trimtab.diagnosis.quadratic_model import QuadraticModel
from trimtab.diagnosis.race import Lane
from trimtab.diagnosis.rules import RULES


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
    if least[SGD] <= RULES.simpler * best:
        return pick([one for one in usual if one.algorithm == SGD])
    if least[FEDAVG] <= RULES.simpler * best and (alike or trusted):
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
    good = [one for one in there if one.rounds is not None and one.rounds <= RULES.near * fewest]
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
    for j, factor in enumerate(RULES.finer):
        there = [replace(one, rounds=one.finer[j]) for one in predicted]
        arrived = [one for one in there if one.rounds is not None]
        if not arrived:
            break
        fewest = min(one.rounds or 0 for one in arrived)
        rounds = mine.finer[j]
        if rounds is None or rounds > RULES.holds * fewest:
            best = min(arrived, key=lambda one: one.rounds or 0)
            better = pick([one for one in there if one.algorithm == best.algorithm])
            return Reach(holds, factor * eps, rounds, better)
        holds = factor * eps
    return Reach(holds)


@dataclass(frozen=True)
class Gain:
    """How many times fewer rounds the advice needs to eps than the best other algorithm."""

    over: str  # the other algorithm
    K: int
    factor: Estimate  # rounds of the other over those of the advice
    eps: float
    at_least: bool  # whether the other did not get there at all in the rounds it had

    @property
    def none_to_expect(self) -> bool:
        """Whether the two may well need about as many rounds."""
        return self.factor.low <= RULES.simpler and not self.at_least

    def sentence(self, algorithm: str) -> str:
        """Say what is gained, and for which accuracy."""
        other = named(self.over) + (f" with K = {self.K}" if has_K(self.over) else "")
        if self.at_least:
            return (
                f"To f - f* = {self.eps:.2g} it is expected to need at least "
                f"{self.factor.value:.2g} times fewer rounds than {other}."
            )
        return (
            f"To f - f* = {self.eps:.2g} {other} is expected to need {self.factor} times the "
            f"rounds of {named(algorithm)}."
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


def gain(
    case: Case,
    choice: Choice | None,
    predicted: tuple[Predicted, ...],
    model: QuadraticModel | None,
    share: float,
    lanes: list[Lane],
    draws: Draws,
    out_of_time: OutOfTime,
) -> Gain | None:
    """Return what the choice saves on the model, with what the rounds on the problem say of it."""
    if choice is None or model is None or case.cross_device:  # Clients that come once leave none.
        return None
    mine = next((p for p in predicted if (p.algorithm, p.K) == (choice.algorithm, choice.K)), None)
    others = [p for p in predicted if p.algorithm != choice.algorithm]
    if mine is None or mine.rounds is None or not others:
        return None
    there = [p for p in others if p.rounds is not None]
    if not there:
        far = max(others, key=lambda p: p.ran)
        value = max(1.0, far.ran / max(1, mine.rounds))
        return Gain(far.algorithm, far.K, Estimate(value, value, value, "model"), case.eps, True)
    rival = min(there, key=lambda p: (p.rounds or 0, p.K))
    ratios = [_ratio(mine, rival)]
    if case.S < case.problem.N or model.sigma or draws.clients_vary:
        ratios += _repeated(case, mine, rival, model, share, draws, out_of_time)
    ratios += _on_the_problem(case, mine, rival, lanes)
    return Gain(rival.algorithm, rival.K, _interval(mine, rival, ratios), case.eps, False)


def _ratio(mine: Predicted, rival: Predicted) -> float:
    return (rival.rounds or 0) / max(1, mine.rounds or 0)


def _interval(mine: Predicted, rival: Predicted, ratios: list[float]) -> Estimate:
    """Return the ratio with all that was seen of it, and what counting in whole rounds leaves."""
    a, b = max(1, mine.rounds or 0), rival.rounds or 0
    low, high = min(ratios), max(ratios)
    if len(ratios) > 2:
        each = torch.tensor(ratios, dtype=torch.float64)
        half = student(len(ratios) - 1) * 1.96 * float(each.std())
        low, high = min(low, ratios[0] - half), max(high, ratios[0] + half)
    # A round more or less is no difference that a count can tell.
    low, high = min(low, (b - 0.5) / (a + 0.5)), max(high, (b + 0.5) / (a - 0.5))
    return Estimate(ratios[0], max(0.0, low), high, "model")


def _repeated(
    case: Case,
    mine: Predicted,
    rival: Predicted,
    model: QuadraticModel,
    share: float,
    draws: Draws,
    out_of_time: OutOfTime,
) -> list[float]:
    """Return the ratio on the model for other cohorts, noise and clients."""
    ratios: list[float] = []
    for repeat in range(RULES.repeats):
        other = model.reweighted(draws.weights[repeat]) if draws.clients_vary else model
        runs: list[Predicted] = []
        for one in (mine, rival):
            if out_of_time():
                return ratios
            R = max(20, 4 * (one.rounds or 1))
            goal = Goal(share, case.S, case.problem.N, R, finer=())
            seed = case.seed + 1 + repeat
            runs += predict(other, one.algorithm, [one.K], goal, seed, out_of_time)
        if all(run.rounds is not None for run in runs):
            ratios.append(_ratio(*runs))
    return ratios


def _on_the_problem(
    case: Case, mine: Predicted, rival: Predicted, lanes: list[Lane]
) -> list[float]:
    """Return the ratio that the rounds on the problem showed, if both got to eps."""
    goal = case.least + case.eps
    counted = []
    for one in (mine, rival):
        same = [lane for lane in lanes if (lane.algorithm, lane.K) == (one.algorithm, one.K)]
        first = [r for lane in same if (r := lane.reached(goal)) < float("inf")]
        if not first:
            return []
        counted.append(replace(one, rounds=int(min(first))))
    return [_ratio(*counted)]
