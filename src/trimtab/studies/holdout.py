"""The problem of a study: how it is named, what it validates on, which model and weights it has."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from trimtab.core import Algorithm, Vector
from trimtab.errors import BadArgument
from trimtab.problems.adapter import as_problem
from trimtab.problems.clients import problem_notes
from trimtab.problems.loading import load_problem_and_target
from trimtab.problems.metrics import Metric
from trimtab.problems.problem import Problem, with_target_metric
from trimtab.problems.supervised.problem import Supervised
from trimtab.simulation import Rounds, Simulation, check_seed, cohort_size
from trimtab.simulation.sampling import FUNCTION, Available, availability
from trimtab.studies.goal import Goal
from trimtab.studies.record import Split
from trimtab.studies.statistics import NORMAL

# -- the name of a problem


@dataclass(frozen=True)
class ProblemSpec:
    """A problem by its name or `file.py:function`, and options, so that workers can create it too.

    >>> problem, target = ProblemSpec("digits", batch=16).problem_and_target
    >>> problem.batch
    16
    """

    spec: str
    seed: int = 0
    batch: int | float | None = None
    data: Path | None = None
    partition: str | None = None
    weights: str | None = None

    def __post_init__(self) -> None:
        check_seed(self.seed)

    @cached_property
    def problem_and_target(self) -> tuple[Problem, float | None]:
        """The problem and the target it suggests, created on first use."""
        problem, target = load_problem_and_target(
            self.spec, partition=self.partition, batch=self.batch, data=self.data, seed=self.seed
        )
        return with_weights(as_problem(problem), self.weights), target


def with_weights(problem: Problem, weights: str | None) -> Problem:
    """Return the problem with equal client weights ('uniform') or weights by 'samples'."""
    if weights is None:
        return problem
    if not isinstance(problem, Supervised):
        raise BadArgument("weights", "this problem weighs its clients itself; drop {weights}.")
    if weights not in ("uniform", "samples"):
        raise BadArgument(
            "weights", "{weights:{_given}}; pass uniform or samples.", _given=repr(weights)
        )
    return problem.replace(weights=None if weights == "uniform" else weights)


# -- held-out rows

Evaluate = Callable[[Vector], dict[str, float]]
"""Returns the metrics of a model."""

JUDGED_ON_TEST = "runs were tuned, stopped and compared on the {data}, which flatters all of them."
FEW_ROWS = (
    "the validation rows know {goal.name} to ± {goal.slack:g} (90 %), so a difference counts only "
    "if it also holds for {easier.target:g}."
)
TOO_FEW_ROWS = (
    "the validation rows are too few to tell how well they know {goal.name}, so a difference may "
    "be theirs; hold out more."
)
NO_TEST = "there are no test data: the last numbers are of the rows that were trained on."


@dataclass(frozen=True)
class HeldOutProblem:
    """A problem whose runs are tuned, stopped and compared by `validate`, and scored by `evaluate`.

    split: the rows of `validate`: a share of each client's, "given" for the problem's own, or
        "none" where it uses the rows of `evaluate`.
    judged_on_test: whether it uses those rows although rows could have been held out.
    """

    problem: Problem
    validate: Evaluate
    split: Split
    evaluate: Evaluate
    simulation: Callable[[Algorithm, Any, Rounds], Any] = Simulation
    judged_on_test: bool = False

    @property
    def tested_on(self) -> Literal["test", "training"]:
        """The data of `evaluate`."""
        return "test" if self.problem.has_test else "training"

    def metric_error(self, x: Vector, metric: Metric) -> float | None:
        """Return half the 90 % interval of a metric at x, due to the number of held-out rows.

        0 where nothing is held out or the problem has no `validation_error`; None where the rows
        are too few for an interval.
        """
        error = None if self.split == "none" else self.problem.validation_error
        if error is None:
            return 0.0
        found = error(x, metric.name)
        return None if found is None else float(f"{NORMAL * found:.2g}")

    def notes(self, goal: Goal, untold: bool = False) -> list[str]:
        """Return notes on the data; untold: the rows are too few for the error of the metric."""
        own = [JUDGED_ON_TEST.format(data=f"{self.tested_on} data")] if self.judged_on_test else []
        own += [NO_TEST] if self.tested_on == "training" and not self.judged_on_test else []
        own += [FEW_ROWS.format(goal=goal, easier=goal.easier())] if goal.slack else []
        own += [TOO_FEW_ROWS.format(goal=goal)] if untold else []
        return [*own, *problem_notes(self.problem, goal.metric)]


def held_out(
    problem: Problem, split: float | None, seed: int, metric: str | None
) -> HeldOutProblem:
    """Return the problem with a share of each client's rows held out, drawn from the seed."""
    check_seed(seed)
    if split is not None and not (isinstance(split, float) and 0 < split < 1):
        sentence = "{split:{_given}}; pass a share of the rows between 0 and 1, or none."
        raise BadArgument("split", sentence, _given=repr(split))
    problem = problem if metric is None else with_target_metric(problem, metric)
    evaluate, given = problem.evaluate, problem.has_validation
    if problem.split is None and not given:
        return HeldOutProblem(problem, evaluate, "none", evaluate)
    kept = problem
    if split is not None and not given and problem.split is not None:
        kept = problem.split(split, seed)
    if split is None or not kept.has_validation:  # The clients may be too small to spare a row.
        return HeldOutProblem(problem, evaluate, "none", evaluate, judged_on_test=True)
    return HeldOutProblem(kept, kept.validate, "given" if given else split, kept.evaluate)


# -- arguments of compare


def check_compare(
    *,
    K: object = None,
    eta_g: object = None,
    name: object = None,
    out: object = None,
    resume: bool = False,
    prior: object = None,
    cluster: object = False,
) -> None:
    """Raise BadArgument for arguments that are checked nowhere else, before the problem is loaded.

    The algorithms check the values of K and eta_g themselves.
    """
    if isinstance(K, Sequence):
        if isinstance(K, str) or not K:
            sentence = "{K:{_given}}; pass a number of local steps, a list of them, or Epochs."
            raise BadArgument("K", sentence, _given=repr(K))
        if any(K.count(each) > 1 for each in K):
            raise BadArgument("K", "{K:{_given}} has a number twice; pass it once.", _given=K)
    if eta_g == 0:
        raise BadArgument("eta_g", "{eta_g:0} never moves the model; pass a positive number.")
    if name is not None and not isinstance(name, str):
        raise BadArgument("name", "{name:{_given}}; pass a text.", _given=repr(name))
    if out is not None and not isinstance(out, str | Path):
        raise BadArgument("out", "{out:{_given}}; pass the path of a folder.", _given=repr(out))
    if resume and out is None:
        raise BadArgument("resume", "{resume:True} continues what is in {out}; pass {out} too.")
    if prior is not None and not hasattr(prior, "judged"):
        sentence = "{prior:{_given}}; pass the Prior of a diagnosis."
        raise BadArgument("prior", sentence, _given=repr(prior))
    if not isinstance(cluster, str | bool):
        sentence = "{cluster:{_given}}; pass an address, or True for this machine."
        raise BadArgument("cluster", sentence, _given=repr(cluster))


# -- settings and the initial model of a run


def recorded_settings(rounds: Rounds, N: int) -> dict[str, Any]:
    """Return the settings that a record holds; slow, lost and available only where given."""
    few = {
        "slow": rounds.slow or None,
        "lost": rounds.lost or None,
        "available": _availability_id(rounds.available, N),
    }
    settings = {"seed": rounds.seed, "S": cohort_size(rounds.S, N)}
    return settings | {name: value for name, value in few.items() if value is not None}


def _availability_id(available: Available, N: int) -> str | None:
    """Return what identifies a table of available clients."""
    there = availability(available, N)
    if there is None or there.availability_id == FUNCTION:
        return None if there is None else FUNCTION
    return f"{Path(str(available)).name} {there.availability_id}"


def model_digest(path: Path) -> str:
    """Return what identifies the model in a file, for the settings of a run."""
    return f"{path.name} sha256:{sha256(path.read_bytes()).hexdigest()[:16]}"


def read_model(path: Path, problem: Problem) -> Vector:
    """Return the x of a saved model: a state_dict, or {"x": …} where there is no module.

    Raise ValueError if a frozen parameter or buffer differs from that of the problem's module.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder; pass the file of a model, best.safetensors in it.")
    try:
        tensors = load_file(path)
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file; pass a saved model.") from None
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is no model ({error}); pass a safetensors file.") from None
    x, flatten = problem.x0(), problem.flatten
    if flatten is None or set(tensors) == {"x"}:
        _check_shapes(path, tensors, {"x": x})
        return tensors["x"].to(x)
    _check_shapes(path, tensors, problem.unflatten(x))
    start = flatten(tensors)
    # BatchNorm's statistics are not frozen: they are estimated again at every x.
    estimated = problem.statistics(start) if isinstance(problem, Supervised) else {}
    for name, value in problem.unflatten(start).items():
        if name not in estimated and not torch.equal(value, tensors[name].to(value)):
            raise ValueError(
                f"{path} has another {name!r} than the problem, where it is frozen; pass a model "
                "with the same frozen parts."
            )
    return start


def _check_shapes(path: Path, tensors: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """Raise ValueError if the names or shapes of a model differ from those of the problem."""
    for name in [*wanted, *tensors]:
        ours, theirs = (
            tuple(each[name].shape) if name in each else None for each in (wanted, tensors)
        )
        if ours == theirs:
            continue
        if theirs is None:
            what = f"has no {name!r}, which the problem has in shape {ours}"
        elif ours is None:
            what = f"has {name!r}, which the problem has not"
        else:
            what = f"has {name!r} of shape {theirs}, the problem of {ours}"
        raise ValueError(f"{path} {what}; pass a model of the same build.")
