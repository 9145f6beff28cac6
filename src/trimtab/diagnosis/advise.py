"""Advise: what is tried on the problem, what to do by the runs there, and how sure that is.

1. The model decides what is tried: of each algorithm the smallest K near its fewest rounds, then
   the algorithms within twice the rounds of the best, two at least and three at most.
2. If two algorithms did not run for a few rounds each, there is no advice.
3. If some algorithm reached the wanted f - f*, the rules of `compare` choose: among those within
   1.2 times the fewest rounds, one without client states, then the simplest.
4. If none did, the one that came nearest is named without an imperative; if none came a tenth of
   the way, there is no advice.

Only the runs decide what is advised, so the headline never contradicts the rounds beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from trimtab.algorithms.registry import kind
from trimtab.diagnosis.confirm import Confirmed
from trimtab.diagnosis.intervals import Estimate
from trimtab.diagnosis.rules import RULES, has_K
from trimtab.problems.metrics import LOSS
from trimtab.studies.advice import simplicity, verdict
from trimtab.studies.entry import Entry
from trimtab.studies.space import Expected
from trimtab.studies.statistics import ratio, rounding_error

CHOICE, NO_DIFFERENCE, NEAREST, NO_ADVICE = "choice", "no difference", "nearest", "no advice"


# -- what is tried


def in_question(
    predicted: Sequence[Expected], names: Sequence[str], L: float, *, trusted: bool
) -> list[Expected]:
    """Return the two or three algorithms whose order the problem decides, the best expected first.

    predicted: in rounds on the model, several K of each algorithm; without any, every name is in
    question. L: the curvature, for the step sizes of algorithms without a prediction. trusted:
    whether the model's curvature holds on the way.
    """
    best = [best_K(predicted, name) or _unexpected(name, L) for name in names]
    if not predicted:
        return best[: RULES.compared]
    best.sort(key=lambda one: (one.rounds or inf, simplicity_of(one.algorithm)))
    best = best[: RULES.compared]
    fewest = best[0].rounds
    if fewest is None or not trusted:
        return best
    near = [one for one in best if (one.rounds or inf) <= RULES.behind * fewest]
    return best[: max(2, len(near))]


def best_K(predicted: Sequence[Expected], name: str) -> Expected | None:
    """Return the smallest K of an algorithm whose rounds are near its fewest.

    K = 1 is left out where there are others: it is SGD, at the price of more.
    """
    mine = [one for one in predicted if one.algorithm == name]
    mine = [one for one in mine if one.K > 1] or mine
    there = [one for one in mine if one.rounds is not None]
    if not there:
        return mine[len(mine) // 2] if mine else None
    fewest = min(one.rounds or 0 for one in there)
    near = [one for one in there if (one.rounds or 0) <= RULES.near * fewest]
    return min(near, key=lambda one: one.K)


def simplicity_of(name: str) -> tuple[bool, int]:
    """Return what puts simpler algorithms first: those without client states."""
    return kind(name).stateful, simplicity(Entry(name, name, {}))


def _unexpected(name: str, L: float) -> Expected:
    return Expected(name, RULES.local_steps[2] if has_K(name) else 1, 1 / L)


# -- what is advised


@dataclass(frozen=True)
class Choice:
    """An algorithm with K and step size, and its rounds on the problem."""

    algorithm: str
    K: int
    eta: float
    rounds: int | None = None  # the median of the seeds; None if it did not reach the target


@dataclass(frozen=True)
class Gain:
    """How many times the rounds of the advice the best other algorithm needed on the problem."""

    over: str  # the other algorithm
    K: int
    factor: Estimate
    eps: float
    at_least: bool  # whether the other did not get there at all in the rounds it had


@dataclass(frozen=True)
class Advice:
    """The decision: what to use or name, and against what."""

    verdict: str
    choice: Choice | None = None
    why_not: str = ""  # why there is no advice
    gain: Gain | None = None
    alike: tuple[str, ...] = ()  # algorithms to which no difference was found
    doubts: tuple[str, ...] = ()  # about the runs


def decide(confirmed: Confirmed, least: float, eps: float) -> Advice:
    """Return the decision that the runs support; least: the least f known."""
    entries = confirmed.entries
    ran = [entry for entry in entries if entry.rounds or len(entry.curve) >= RULES.least]
    if len(ran) < min(2, max(1, len(entries))):
        return Advice(
            NO_ADVICE, why_not=f"there was no time for {RULES.least} rounds of two algorithms"
        )
    found = verdict(entries, confirmed.goal)
    if found.chosen is None:
        return _nearest(ran, confirmed, least)
    entry = found.chosen
    others = [*found.worse, *found.unknown, *found.unsure]
    return Advice(
        NO_DIFFERENCE if found.alike and not others else CHOICE,
        _choice(entry),
        gain=_gain(entry, confirmed, eps),
        alike=tuple(other.name for other in found.alike),
        doubts=_doubts(entry, confirmed),
    )


def _nearest(ran: Sequence[Entry], confirmed: Confirmed, least: float) -> Advice:
    """Name the algorithm whose f is the least after the same number of rounds."""
    r = min(len(entry.curve) for entry in ran)
    if r == 0:
        return Advice(NO_ADVICE, why_not="f rose without bound with every step size")

    def f(entry: Entry) -> float:
        value = entry.curve[r - 1].metrics[LOSS.name]
        return float("inf") if value is None or value != value else value

    nearest = min(ran, key=f)
    way = confirmed.f_start - least
    if not confirmed.f_start - f(nearest) >= RULES.trifle * way > 0:
        return Advice(NO_ADVICE, why_not="no algorithm came a tenth of the way to the least f")
    return Advice(NEAREST, _choice(nearest), doubts=_doubts(nearest, confirmed))


def _choice(entry: Entry) -> Choice:
    return Choice(entry.name, entry.settings.get("K", 1), entry.settings[entry.step], entry.rounds)


def _gain(mine: Entry, confirmed: Confirmed, eps: float) -> Gain | None:
    """Return what the advice saves over the best other algorithm that ran."""
    pairs = list(zip(confirmed.entries, confirmed.R, strict=True))
    others = [(entry, R) for entry, R in pairs if entry is not mine and entry.runs]
    there = [entry for entry, _ in others if not entry.failed]
    if not others or not mine.rounds:
        return None
    if not there:
        rival, R = others[0]
        value = max(1.0, R / mine.rounds)
        factor = Estimate(value, value, value, "problem")
        return Gain(rival.name, rival.settings.get("K", 1), factor, eps, at_least=True)
    rival = min(there, key=lambda entry: entry.rounds or 0)
    ours, theirs = ([run.cost.rounds for run in e.runs if run.cost] for e in (mine, rival))
    value = (rival.rounds or 0) / mine.rounds
    error = rounding_error(ours) + rounding_error(theirs)
    found = ratio(ours, theirs, error) if len(ours) == len(theirs) else None
    low, high = (value, value) if found is None else (found.low, found.high)
    factor = Estimate(value, min(low, value), max(high, value), "problem")
    return Gain(rival.name, rival.settings.get("K", 1), factor, eps, at_least=False)


def _doubts(entry: Entry, confirmed: Confirmed) -> tuple[str, ...]:
    """Say what of the runs leaves the settings open."""
    doubts = []
    expected = next(one for one in confirmed.expected if one.algorithm == entry.name)
    K = entry.settings.get("K", 1)
    if any(not each.complete for each in confirmed.entries):
        doubts.append("The time ended before every step size was tried.")
    if has_K(entry.name) and K > expected.K:
        doubts.append(f"K = {K} is the largest that was tried, and a larger one may be better.")
    elif has_K(entry.name) and 1 < K < expected.K:
        doubts.append(f"K = {K} is the smallest that was tried, and a smaller one may be better.")
    if "step" in entry.at_edge:
        doubts.append("The step size is the last one tried; one beyond it may be better.")
    if entry.fragile:
        doubts.append(
            "The step size is fragile: from a start moved by a millionth the run needs other "
            "rounds, so a smaller step is safer."
        )
    return tuple(doubts)


def confidence(advice: Advice, *, exact: bool, measured: bool, several: str = "") -> str:
    """Say how sure the advice is.

    exact: whether f is quadratic and nothing is drawn at random. measured: whether all data of all
    clients were measured and an optimum was found.
    """
    if advice.choice is None:
        return "there is no advice."
    if advice.verdict == NEAREST:
        return "not sure; no run reached the target, so let `trimtab compare` decide."
    at_edge = [doubt for doubt in advice.doubts if doubt.startswith("K = ")]
    if len(advice.doubts) > len(at_edge) or not measured:
        return "not very sure; let `trimtab compare` decide between the best."
    if exact and not at_edge:
        return "sure; f is quadratic, nothing is drawn at random, and the runs got there."
    return f"fairly sure; on the problem it got there with {RULES.seeds} seeds of {RULES.seeds}."
