"""Confirm: `compare`'s search on f itself, for the algorithms in question, near their expected K.

Each is searched at the expected K, K/2 and 2K from the expected step size, then runs with three
seeds that had no part in the search. What is advised rests on these runs alone.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from math import ceil, inf, log2

from trimtab.algorithms.registry import kind
from trimtab.core import Vector
from trimtab.core.task import Progress
from trimtab.diagnosis.case import Case
from trimtab.diagnosis.rules import RULES, given_of
from trimtab.problems.metrics import LOSS
from trimtab.simulation import Rounds
from trimtab.studies.entry import Entry
from trimtab.studies.goal import Goal
from trimtab.studies.holdout import HeldOutProblem
from trimtab.studies.record import RoundDone
from trimtab.studies.space import EntrySpec, Expected, SearchRules, confirming_space
from trimtab.studies.study import Study
from trimtab.studies.tuner import Stage, Tuner

REFINED = ((1, 4), (1, 2))
"""Only the best K is refined, by factors of 1.41 and 1.19: half of the time for a few per cent."""

NO_GOAL = Goal(LOSS)
Events = Generator[Progress, None, None]


@dataclass(frozen=True)
class Confirmed:
    """What the runs on the problem showed."""

    entries: tuple[Entry, ...] = ()  # the model's choice first
    expected: tuple[Expected, ...] = ()  # what was to be confirmed, in the same order
    goal: Goal = NO_GOAL
    R: tuple[int, ...] = ()  # the highest number of rounds of each
    f_start: float = inf  # f where the runs started


def affordable(case: Case, until: float) -> int:
    """Return the largest K for which there is time to compare two algorithms; 0 for none.

    That is three step sizes for a first look each.
    """
    left = case.budget.seconds_until(until)
    steps = left / max(case.pass_seconds, 1e-12) / (2 * 3 * RULES.least)
    return 2 ** int(log2(min(steps, 1024))) if steps >= 2 else 0


def confirm(
    case: Case, expected: Sequence[Expected], share: float, until: float
) -> Generator[Progress, None, Confirmed]:
    """Search each algorithm on f, the first one first; the others stop where they are far behind.

    share: that of the work that is done, for the progress. until: the share of the time that is
    over when this has to end.
    """
    f_start = case.f0 if case.start is case.x0 else case.panel.loss(case.start)
    tuners = [_tuner(case, one) for one in expected]
    if case.best is case.x0:  # Without an optimum, the first runs tell how far f falls.
        for j, tuner in enumerate(tuners):
            seconds = case.budget.seconds_until(until) / (2 * (len(tuners) - j))
            yield from _run(tuner, Stage("pilot", seconds, R=2 * RULES.least), share)
        for score in (s for t in tuners for run in t.search.runs.values() for s in run.scores):
            case.saw(-score)
    goal, R = Goal(LOSS, case.least + case.eps), RULES.rounds
    limits = []
    for j, tuner in enumerate(tuners):
        limits.append(R)
        tuner.study.R = tuner.search.highest = R
        # The first one takes half of the time: how far the others are followed depends on it.
        ends = case.budget.spent + case.budget.seconds_until(until) / min(2, len(tuners) - j)
        search = RULES.search * (ends - case.budget.spent)
        yield from _run(tuner, Stage("search", search, target=goal.target), share)
        report = Stage("report", ends - case.budget.spent, target=goal.target, seeds=RULES.seeds)
        yield from _run(tuner, report, share)
        if not tuner.entry.failed:
            R = min(R, max(2 * RULES.least, ceil(RULES.behind * (tuner.entry.rounds or 0))))
    entries = tuple(tuner.entry for tuner in tuners)
    return Confirmed(entries, tuple(expected), goal, tuple(limits), f_start)


def _tuner(case: Case, one: Expected) -> Tuner:
    """Return the search of one algorithm; f on all that is measured is its metric."""
    known, panel = kind(one.algorithm), case.panel

    def f(x: Vector) -> dict[str, float]:
        return {LOSS.name: panel.loss(x)}

    space = confirming_space(known, one.K, one.eta, given_of(one.algorithm))
    spec = EntrySpec(known, known.name, space)
    rounds = Rounds(
        S=case.cohort, seed=case.seed, x=case.start, executor=panel.executor(case.cohort)
    )
    study = Study(
        measured=HeldOutProblem(panel.problem, f, "none", f),
        name="diagnosis",
        goal=Goal(LOSS),
        specs=[spec],
        R=RULES.rounds,
        rounds=rounds,
    )
    tuner = Tuner(study, spec)
    # After a few rounds of many, small steps look better than those that arrive first.
    first = min(RULES.rounds, max(RULES.least, one.rounds or 0))
    tuner.search.rules = SearchRules(first=first, refined=REFINED)
    return tuner


def _run(tuner: Tuner, stage: Stage, share: float) -> Events:
    """Run a stage of a search, and yield its rounds as progress."""
    for event in tuner.run(stage):
        if isinstance(event, RoundDone):
            yield Progress(f"{event.algorithm}, round {event.line.r}", share)
