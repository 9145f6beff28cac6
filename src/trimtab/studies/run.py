"""One algorithm on one problem, recorded: what `trimtab run` does."""

from collections.abc import Generator
from pathlib import Path

from trimtab._files import Lock
from trimtab.core import Algorithm
from trimtab.problems.problem import Problem
from trimtab.simulation import cohort_size
from trimtab.studies.comparison import Comparison, Entry, describe, entry_of, outcome_of
from trimtab.studies.goal import Goal, goal_of, round_count
from trimtab.studies.record import Record, how_computed
from trimtab.studies.trial import Trial


def running(
    algorithm: Algorithm,
    problem: Problem,
    *,
    S: int | float | None = None,
    R: int = 200,
    target: float | None = None,
    seed: int = 0,
    name: str,
    out: Path,
    resume: bool = False,
) -> Generator[tuple[str, Trial], None, Comparison]:
    """Run until the target or R rounds; yield after each round; leave record, model, checkpoint."""
    R = round_count(R)
    goal = goal_of(problem, target)
    settings = {"problem": name, "seed": seed}
    settings |= {"S": cohort_size(S, problem.N), "algorithm": repr(algorithm)}
    with Lock(out):
        record = Record(out, settings, problem=problem, resume=resume)
        trial = Trial(algorithm, problem, record, keep_best=True, S=S, seed=seed)
        label = type(algorithm).__name__.lower()
        for moved in trial.advance(R, goal):
            yield label, moved
        trial.save()
        if trial.diverged:
            raise trial.diverged
        trial.write_last(out / "model.safetensors")
        trial.write_best(record.best, goal)
        entry = entry_of(label, label, [trial], goal)
        result = Comparison(name, goal.metric, goal.target, [entry], _sentence(entry, goal), out)
        executor = trial.sim.executor
        record.note(executor=executor, **how_computed([executor]), outcome=outcome_of(result))
        return result


def _sentence(entry: Entry, goal: Goal) -> str:
    """Say what came of a run."""
    ran = len(entry.curve)
    line = goal.best_round(entry.curve)
    best = "unknown" if line is None else f"{line[goal.metric]:.4g}, after round {line['r']}"
    if goal.target is None:
        return f"{describe(entry)} ran {ran} rounds; its best {goal.metric} is {best}."
    if entry.rounds is None:
        return (
            f"{describe(entry)} did not reach {goal.metric} {goal.target:g} in {ran} rounds (best "
            f"{best}); allow more rounds and resume it, or let `trimtab compare` tune it."
        )
    return f"{describe(entry)} reached {goal.metric} {goal.target:g} in {entry.rounds} rounds."
