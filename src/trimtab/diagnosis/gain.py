"""What the advice saves: its rounds against those of the best other algorithm, with an interval."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from trimtab.diagnosis.budget import OutOfTime
from trimtab.diagnosis.candidates import has_K, named
from trimtab.diagnosis.case import Case
from trimtab.diagnosis.choice import LIKE, Choice
from trimtab.diagnosis.estimate import Estimate
from trimtab.diagnosis.model_rounds import Goal, Predicted, predict
from trimtab.diagnosis.quadratic_model import QuadraticModel
from trimtab.diagnosis.resampling import Draws, student
from trimtab.diagnosis.trial import Lane

REPEATS = 5  # rounds on the model are counted for 5 other draws of cohorts, noise and clients
HALF = 0.5  # a count of rounds is right up to half a round


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
        return self.factor.low <= LIKE and not self.at_least

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
    low, high = min(low, (b - HALF) / (a + HALF)), max(high, (b + HALF) / (a - HALF))
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
    for repeat in range(REPEATS):
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
