"""`trimtab run`: one algorithm on one problem, recorded."""

from collections.abc import Generator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, get_args

from trimtab._files import Lock
from trimtab.algorithms.registry import kind
from trimtab.core import Algorithm, Vector
from trimtab.core.task import task
from trimtab.errors import BadArgument
from trimtab.problems.adapter import as_problem
from trimtab.problems.clients import problem_notes, summarise_clients
from trimtab.problems.problem import Problem
from trimtab.problems.saved import Card, save_model
from trimtab.simulation import Executor, Rounds, Simulation
from trimtab.simulation.sampling import Available
from trimtab.studies.comparison import About, Comparison
from trimtab.studies.entry import Entry, describe, new_entry, rounds_in_words
from trimtab.studies.goal import Goal, checked_count, cost_of, goal_of
from trimtab.studies.holdout import (
    HeldOutProblem,
    held_out,
    model_digest,
    read_model,
    recorded_settings,
)
from trimtab.studies.record import (
    Record,
    RoundDone,
    SelectedModel,
    SelectedOn,
    Stopped,
    execution_facts,
    move_aside,
)
from trimtab.studies.trial import RoundsWithoutGain, Trial

SPLIT = 0.1  # of each client's rows: the share that `compare` holds out by default, too
Save = Literal["best", "last", "both"]


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
    save: Save = "both",
    patience: int | None = None,
    split: float | str | None = None,
    slow: float = 0.0,
    lost: float = 0.0,
    available: Available = None,
    executor: Executor | None = None,
) -> Generator[RoundDone, None, Comparison]:
    """Run an algorithm until it holds the target, at most R rounds, and save its models.

    S, seed, slow, lost, available: as for `simulate`. R: the largest number of rounds, default 200.
    target: a value of the metric; without one, all R rounds are run.
    name: the name of the problem in the record. out: the folder of record, models and checkpoint.
    resume: continue the run in `out`. force: move what is at `out` aside.
    metric: the metric that decides; by default the problem's own, else accuracy, else the loss.
    init: the file of the model to start from; by default the problem's x0.
    save: the models to save, after the best round, the last one, or both.
    patience: stop after so many rounds without a better value of the metric; by default never.
    split: the share of each client's rows that decide when to stop and which round is the best, or
        "none"; by default the problem's own validation data, else 0.1 with `patience` or
        save="best", else none. The metrics of the rounds are those of the held-out rows, and the
        result has the test metrics of the selected model.
    executor: what runs the clients, such as Ray(…) for a cluster; by default the fastest.
    """
    R = checked_count("R", R, "rounds R")
    if patience is not None:
        patience = checked_count("patience", patience, "rounds")
    if save not in get_args(Save):
        raise BadArgument("save", "{save:{_given}}; pass best, last or both.", _given=repr(save))
    given = as_problem(problem)
    selects = patience is not None or save == "best"
    measured = _held_out(given, split, selects=selects, seed=seed, metric=metric)
    problem = measured.problem
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
    optional = {
        "metric": metric,
        "init": None if init is None else model_digest(init),
        "split": None if measured.split == "none" else measured.split,
        "shards": None if executor is None else executor.facts().get("shards"),
    }
    settings = {
        **{"problem": name, "algorithm": repr(algorithm)},
        **recorded_settings(rounds, problem.N),
        **{what: value for what, value in optional.items() if value is not None},
    }
    # Raises an error about what cannot run before anything is written or moved.
    Simulation(algorithm, problem, rounds)
    if force:
        move_aside(out, resume)
    with Lock(out):
        record = Record(out, settings, problem=given, resume=resume)
        record.note(goal=goal.to_json(), R=R)  # for a live page
        trial = Trial(
            algorithm,
            problem,
            record,
            rounds,
            label=kind(algorithm).name,
            keep_best=save != "last",
            measure=measured.validate,
        )
        yield from trial.advance(R, goal, patience)
        trial.save()
        if trial.diverged:
            raise trial.diverged
        if save == "both":
            trial.write_last(out / "model.safetensors")
        model = (trial.sim.r, trial.sim.server.x) if save == "last" else trial.best_x(goal)
        selected = _selected(trial, goal, patience, save, measured, model)
        result = _outcome(name, trial, goal, selected, model)
        result.about = About(
            split=measured.split,
            tested_on=measured.tested_on,
            seeds=(seed,),
            notes=(*problem_notes(problem, goal.metric), *_rising_loss(trial, selected, measured)),
        )
        used = trial.sim.runs_on
        how = {"executor": used.name, "path": trial.sim.path, **execution_facts([used])}
        # The model comes first: a run whose result is written counts as finished.
        if model is not None:
            _save(trial, given, result, model, save)
        record.note(**how, **selected.to_json())
        result.save()
        used.close()
        return result


Model = tuple[int, Vector]
"""A round, and x after it."""


def _save(trial: Trial, given: Problem, result: Comparison, model: Model, save: Save) -> None:
    """Write the model that was chosen, and what `trimtab.load` needs."""
    chosen, entry, (r, x) = result.chosen, result.entries[0], model
    assert chosen is not None
    assert result.folder is not None
    seen = chosen.validation or trial.rounds[r - 1].metrics
    held_out = chosen.split != "none" and chosen.test is None
    measured_on = "validation data" if held_out else f"{result.about.tested_on} data"
    card = Card(
        data=result.problem,
        algorithm=entry.name,
        settings=entry.settings,
        seed=trial.settings.seed,
        round=r,
        metrics=seen if chosen.test is None else chosen.test,
        measured_on=measured_on,
        notes=result.about.notes,
    )
    weights = "model.safetensors" if save == "last" else "best.safetensors"
    save_model(result.folder, given, x, card, weights=weights)


def _outcome(
    name: str, trial: Trial, goal: Goal, selected: SelectedModel, model: Model | None
) -> Comparison:
    """Return a run as a comparison of one algorithm, with the cost to the target.

    Without a target, the cost is that of the selected model.
    """
    cost = goal.cost_to_target(trial.rounds)
    if goal.target is None and model is not None:
        cost = cost_of(trial.rounds[: model[0]])
    entry = new_entry(trial.label, trial.label, trial.algorithm, trial.problem.d)
    entry = replace(entry, **({} if cost is None else asdict(cost)))
    entry.best, entry.curve = goal.best(trial.rounds), trial.rounds
    entry.tests = {n: v for n, v in (selected.test or {}).items() if v is not None}
    entry.test = entry.tests.get(goal.name)
    if model is not None:
        entry.per_client = trial.client_metrics(model[1], goal.metric)
    return Comparison(
        problem=name,
        goal=goal,
        entries=[entry],
        advice=_sentence(entry, goal, selected, trial),
        folder=trial.record.folder,
        chosen=selected,
        population=summarise_clients(trial.problem),
    )


def _selected(
    trial: Trial,
    goal: Goal,
    patience: int | None,
    save: Save,
    measured: HeldOutProblem,
    model: Model | None,
) -> SelectedModel:
    """Return what selected the model that a run leaves, and its metrics."""
    rounds = trial.rounds
    stopped: Stopped = "rounds"
    if goal.held(rounds) is not None:
        stopped = "target"
    elif patience is not None and RoundsWithoutGain(goal).count(rounds) >= patience:
        stopped = "patience"
    if model is None:
        return SelectedModel(goal.name, stopped)
    r, x = model
    metrics = dict(rounds[r - 1].metrics)
    selected = SelectedModel(
        metric=goal.name,
        stopped=stopped,
        round=r,
        split=measured.split,
        selected_on=None if save == "last" else _selected_on(measured),
    )
    if measured.split == "none":
        tested = measured.tested_on == "test"
        return replace(selected, test=metrics if tested else None)
    test: dict[str, float | None] | None = None
    if trial.problem.has_test:
        test = {**trial.problem.evaluate(x)}
    return replace(selected, validation=metrics, test=test)


def _selected_on(measured: HeldOutProblem) -> SelectedOn:
    if measured.split != "none":
        return "validation"
    # Only a problem with rows says which of them `evaluate` uses.
    return "evaluate" if measured.problem.samples is None else measured.tested_on


def _rising_loss(trial: Trial, selected: SelectedModel, measured: HeldOutProblem) -> list[str]:
    """Return a note if the loss of the model is above that of the start, as after a huge step."""
    r, x = selected.round, trial.settings.x
    if r is None:
        return []
    start = trial.problem.x0(trial.settings.seed) if x is None else x
    before, after = measured.validate(start).get("loss"), trial.rounds[r - 1].metrics.get("loss")
    if before is None or after is None or after <= before:
        return []
    return [
        f"the loss after round {r}, {after:.3g}, is above that of the start, {before:.3g}; a "
        "smaller step size may be better."
    ]


def _held_out(
    problem: Problem, split: float | str | None, *, selects: bool, seed: int, metric: str | None
) -> HeldOutProblem:
    """Return the problem with held-out rows; selects: whether something is chosen by them."""
    share: Any = None if split == "none" else split
    if split is None and (selects or problem.has_validation):
        share = SPLIT
    return held_out(problem, share, seed, metric)


def _sentence(entry: Entry, goal: Goal, selected: SelectedModel, trial: Trial) -> str:
    """Return the result of a run in one sentence."""
    rounds = trial.rounds
    ran = rounds_in_words(len(rounds))
    where = "validation " if selected.split != "none" else ""
    line = goal.best_round(rounds)
    best = "unknown" if line is None else f"{line.metrics[goal.name]:.4g}, after round {line.r}"
    if goal.target is not None and entry.rounds is not None:
        said = f"reached {where}{goal.name} {goal.target:g} in {rounds_in_words(entry.rounds)}"
    elif goal.target is not None and selected.stopped != "patience":
        met = goal.first(rounds)
        short = f"did not reach {where}{goal.name} {goal.target:g}"
        if met is not None:
            short = f"met {where}{goal.name} {goal.target:g} in round {met.r}, but did not hold it"
        said = (
            f"{short} in {ran} (best {best}); "
            "allow more rounds and resume it, or let `trimtab compare` tune it"
        )
    else:
        short = "" if goal.target is None else f" short of {where}{goal.name} {goal.target:g}"
        ended = f"stopped{short} after" if selected.stopped == "patience" else "ran"
        said = f"{ended} {ran}; its best {where}{goal.name} is {best}"
    if selected.split != "none" and selected.test is not None:
        tested = selected.test.get(goal.name)
        score = "unknown" if tested is None else f"{tested:.4g}"
        said += f"; on the test data the model after round {selected.round} has {score}"
    return f"{describe(entry)} {said}."
