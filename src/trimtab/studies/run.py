"""One algorithm on one problem, recorded: what `trimtab run` does."""

from collections.abc import Generator
from pathlib import Path

from trimtab._files import Lock
from trimtab.algorithms.registry import kind
from trimtab.core import Algorithm
from trimtab.core.task import task
from trimtab.problems.problem import Problem
from trimtab.simulation import cohort_size
from trimtab.studies.comparison import Comparison, Entry, describe, entry_of
from trimtab.studies.events import RoundDone
from trimtab.studies.goal import Goal, goal_of, round_count
from trimtab.studies.record import Record, how_computed
from trimtab.studies.trial import Trial


@task
def run(
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
) -> Generator[RoundDone, None, Comparison]:
    """Run until the target or R rounds; leave record, models and checkpoint in `out`."""
    R = round_count(R)
    goal = goal_of(problem, target)
    settings = {"problem": name, "seed": seed}
    settings |= {"S": cohort_size(S, problem.N), "algorithm": repr(algorithm)}
    with Lock(out):
        record = Record(out, settings, problem=problem, resume=resume)
        label = kind(algorithm).name
        trial = Trial(algorithm, problem, record, label=label, keep_best=True, S=S, seed=seed)
        yield from trial.advance(R, goal)
        trial.save()
        if trial.diverged:
            raise trial.diverged
        trial.write_last(out / "model.safetensors")
        trial.write_best(record.best, goal)
        entry = entry_of(label, label, [trial], goal)
        result = Comparison(name, goal, [entry], _sentence(entry, goal), out)
        executor = trial.sim.runs_on
        record.note(executor=executor.name, **how_computed([executor]), outcome=result.to_record())
        return result


def _sentence(entry: Entry, goal: Goal) -> str:
    """Say what came of a run."""
    ran = len(entry.curve)
    line = goal.best_round(entry.curve)
    best = "unknown" if line is None else f"{line.metrics[goal.name]:.4g}, after round {line.r}"
    if goal.target is None:
        return f"{describe(entry)} ran {ran} rounds; its best {goal.name} is {best}."
    if entry.rounds is None:
        return (
            f"{describe(entry)} did not reach {goal.name} {goal.target:g} in {ran} rounds (best "
            f"{best}); allow more rounds and resume it, or let `trimtab compare` tune it."
        )
    return f"{describe(entry)} reached {goal.name} {goal.target:g} in {entry.rounds} rounds."
