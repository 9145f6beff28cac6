"""One algorithm on one problem, recorded: what `trimtab run` does."""

from collections.abc import Generator
from operator import index
from pathlib import Path
from typing import Any, Literal

from trimtab._files import Lock
from trimtab.algorithms.registry import kind
from trimtab.core import Algorithm, Vector
from trimtab.core.task import task
from trimtab.errors import BadArgument
from trimtab.problems.adapter import as_problem
from trimtab.problems.clients import per_client, problem_notes, summarise_clients
from trimtab.problems.problem import Problem, with_target_metric
from trimtab.simulation import Executor, Rounds, Simulation
from trimtab.simulation.sampling import Available
from trimtab.studies.comparison import About, Comparison
from trimtab.studies.entry import Entry, describe, entry_of, rounds_in_words
from trimtab.studies.goal import Goal, goal_of, round_count
from trimtab.studies.holdout import model_digest, read_model, recorded_settings
from trimtab.studies.record import (
    Record,
    RoundDone,
    SelectedModel,
    Split,
    Stopped,
    execution_facts,
    move_aside,
)
from trimtab.studies.trial import Trial

SPLIT = 0.1  # the share of each client's rows that stopping and choosing look at
SAVE = ("best", "last", "both")


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
    force: bool = False,
    metric: str | None = None,
    init: Path | None = None,
    save: Literal["best", "last", "both"] = "both",
    patience: int | None = None,
    split: float | str | None = None,
    slow: float = 0.0,
    lost: float = 0.0,
    available: Available = None,
    executor: Executor | None = None,
) -> Generator[RoundDone, None, Comparison]:
    """Run until the target or R rounds; leave record, models and checkpoint in `out`.

    force: move what is at `out` aside. init: the model to start from. patience: stop after so many
    rounds without a better value of the metric. split: the share of each client's rows by which to
    stop and to choose the best model, or 'none'; by default 0.1 with patience or save='best', else
    none, and the problem's own validation data where it has some. The metrics of the rounds are
    then those of the rows held out, and the result has the test metrics of the model that was
    chosen. executor: what runs the cohorts, such as Ray(…) for a cluster; by default chosen.
    """
    R, patience = round_count(R), _checked_patience(patience)
    if save not in SAVE:
        raise BadArgument("save", "{save:{_given}}; pass best, last or both.", _given=repr(save))
    given = problem = as_problem(problem)
    if metric is not None:
        problem = with_target_metric(problem, metric)
    problem, held_out = _split(problem, split, patience is not None or save == "best", seed)
    validate = None if held_out == "none" else problem.validate
    goal = goal_of(problem, target)
    rounds = Rounds(
        S=S,
        seed=seed,
        x=None if init is None else read_model(init, problem),
        lost=lost,
        slow=slow,
        executor="auto" if executor is None else executor,
        available=available,
    )
    besides = {  # settings of which most runs have none
        "metric": metric,
        "init": None if init is None else model_digest(init),
        "split": None if held_out == "none" else held_out,
        "shards": None if executor is None else executor.facts().get("shards"),
    }
    settings = {
        **{"problem": name, "algorithm": repr(algorithm)},
        **recorded_settings(rounds, problem.N),
        **{what: value for what, value in besides.items() if value is not None},
    }
    Simulation(algorithm, problem, rounds)  # refuses what cannot run before anything is written
    if force:
        move_aside(out, resume)
    with Lock(out):
        record = Record(out, settings, problem=given, resume=resume)
        record.note(goal=goal.to_json(), R=R)  # for whoever watches the folder
        trial = Trial(
            algorithm,
            problem,
            record,
            rounds,
            label=kind(algorithm).name,
            keep_best=save != "last",
            measure=validate,
        )
        yield from trial.advance(R, goal, patience)
        trial.save()
        if trial.diverged:
            raise trial.diverged
        _write_models(trial, goal, save, out)
        chosen = _chosen(trial, goal, patience, save, held_out)
        told = About(
            split=held_out, seeds=(seed,), notes=tuple(problem_notes(problem, goal.metric))
        )
        result = _outcome(name, trial, goal, chosen, told)
        used = trial.sim.runs_on
        how = {"executor": used.name, "path": trial.sim.path, **execution_facts([used])}
        record.note(**how, **chosen.to_json())
        result.save()
        used.close()
        return result


def _write_models(trial: Trial, goal: Goal, save: str, out: Path) -> None:
    if save != "best":
        trial.write_last(out / "model.safetensors")
    if save != "last":
        trial.write_best(trial.record.best, goal)


def _outcome(
    name: str, trial: Trial, goal: Goal, chosen: SelectedModel, about: About
) -> Comparison:
    """Return a run as a comparison of one algorithm, which a page shows alike."""
    entry = entry_of(trial.label, trial.label, [trial], goal)
    entry.per_client = _served(trial, goal, chosen)
    return Comparison(
        problem=name,
        goal=goal,
        entries=[entry],
        advice=_sentence(entry, goal, chosen),
        folder=trial.record.folder,
        about=about,
        chosen=chosen,
        population=summarise_clients(trial.problem),
    )


def _chosen(
    trial: Trial, goal: Goal, patience: int | None, save: str, split: Split
) -> SelectedModel:
    """Return which model a run leaves, and how good it is; no model is trained once more."""
    rounds = trial.rounds
    stopped: Stopped = "rounds"
    if goal.first(rounds) is not None:
        stopped = "target"
    elif patience is not None and goal.rounds_without_gain(rounds) >= patience:
        stopped = "patience"
    line = rounds[-1] if save == "last" else goal.best_round(rounds)
    if line is None or split == "none":
        return SelectedModel(goal.name, stopped, None if line is None else line.r)
    test = None
    if trial.problem.has_test:
        test = trial.problem.evaluate(_model(trial, line.r))
    return SelectedModel(goal.name, stopped, line.r, split, dict(line.metrics), test)


def _served(trial: Trial, goal: Goal, chosen: SelectedModel) -> dict[str, Any] | None:
    """Return how the model that was chosen serves the clients, if they have samples."""
    if chosen.round is None or trial.problem.samples is None:
        return None
    found = per_client(trial.problem, _model(trial, chosen.round), goal.metric)
    return None if found is None else found.to_json()


def _model(trial: Trial, r: int) -> Vector:
    """Return x after the round whose model was written, from its file if that can be read."""
    x: Vector = trial.sim.server.x if r == trial.sim.r else trial.x_of(r)
    return x


def _checked_patience(patience: int | None) -> int | None:
    if patience is None:
        return None
    if isinstance(patience, bool) or not hasattr(patience, "__index__") or index(patience) < 1:
        sentence = "{patience:{_given}}; pass a number of rounds that is at least 1."
        raise BadArgument("patience", sentence, _given=repr(patience))
    return index(patience)


def _split(
    problem: Problem, split: float | str | None, chooses: bool, seed: int
) -> tuple[Problem, Split]:
    """Return the problem with rows held out, and which; without samples there are none."""
    if split is not None and split != "none" and not (isinstance(split, float) and 0 < split < 1):
        sentence = "{split:{_given}}; pass a share of the rows between 0 and 1, or none."
        raise BadArgument("split", sentence, _given=repr(split))
    if split == "none" or (split is None and not chooses and not problem.has_validation):
        return problem, "none"
    if problem.has_validation:
        return problem, "given"
    share = SPLIT if split is None else float(split)
    parted = problem if problem.split is None else problem.split(share, seed)
    return parted, share if parted.has_validation else "none"


def _sentence(entry: Entry, goal: Goal, chosen: SelectedModel) -> str:
    """Say what came of a run."""
    ran = rounds_in_words(len(entry.curve))
    where = "validation " if chosen.split != "none" else ""
    line = goal.best_round(entry.curve)
    best = "unknown" if line is None else f"{line.metrics[goal.name]:.4g}, after round {line.r}"
    if goal.target is not None and entry.rounds is not None:
        said = f"reached {where}{goal.name} {goal.target:g} in {rounds_in_words(entry.rounds)}"
    elif goal.target is not None and chosen.stopped != "patience":
        said = (
            f"did not reach {where}{goal.name} {goal.target:g} in {ran} (best {best}); "
            "allow more rounds and resume it, or let `trimtab compare` tune it"
        )
    else:
        short = "" if goal.target is None else f" short of {where}{goal.name} {goal.target:g}"
        ended = f"stopped{short} after" if chosen.stopped == "patience" else "ran"
        said = f"{ended} {ran}; its best {where}{goal.name} is {best}"
    if chosen.test is not None:
        tested = chosen.test.get(goal.name)
        score = "unknown" if tested is None else f"{tested:.4g}"
        said += f"; on the test data the model after round {chosen.round} has {score}"
    return f"{describe(entry)} {said}."
