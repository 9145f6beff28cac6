"""Where a run starts: the model it is given, and the weights of its clients."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from trimtab.core import Vector
from trimtab.errors import BadArgument
from trimtab.problems.capabilities import capabilities
from trimtab.problems.problem import Problem
from trimtab.problems.supervised.problem import Supervised
from trimtab.simulation import Rounds, cohort_size
from trimtab.simulation.sampling import FUNCTION, Available, availability


def weighted(problem: Problem, weights: str | None) -> Problem:
    """Return the problem with clients that weigh alike ('uniform'), or by their 'samples'."""
    if weights is None:
        return problem
    if not isinstance(problem, Supervised):
        raise BadArgument("weights", "this problem weighs its clients itself; drop {weights}.")
    if weights not in ("uniform", "samples"):
        raise BadArgument(
            "weights", "{weights:{_given}}; pass uniform or samples.", _given=repr(weights)
        )
    return problem.replace(weights=None if weights == "uniform" else weights)


def digest(path: Path) -> str:
    """Return what tells the model in a file from others, for the settings of a run."""
    return f"{path.name} sha256:{sha256(path.read_bytes()).hexdigest()[:16]}"


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
    """Return what tells one table of who is there from another."""
    there = availability(available, N)
    if there is None or there.availability_id == FUNCTION:
        return None if there is None else FUNCTION
    return f"{Path(str(available)).name} {there.availability_id}"


def read_model(path: Path, problem: Problem) -> Vector:
    """Return the x of a model that was saved: a state_dict, or {"x": …} where there is no module.

    What is frozen in the problem's module must be the same in the file.
    """
    try:
        tensors = load_file(path)
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file; pass a saved model.") from None
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is no model ({error}); pass a safetensors file.") from None
    can, x = capabilities(problem), problem.x0()
    if can.state_dict is None or can.vector is None or set(tensors) == {"x"}:
        _check_shapes(path, tensors, {"x": x})
        return tensors["x"].to(x)
    _check_shapes(path, tensors, can.state_dict(x))
    start = can.vector(tensors)
    for name, value in can.state_dict(start).items():
        if not torch.equal(value, tensors[name].to(value)):
            raise ValueError(
                f"{path} has another {name!r} than the problem, where it is frozen; pass a model "
                "with the same frozen parts."
            )
    return start


def _check_shapes(path: Path, tensors: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """Refuse a model of another build."""
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
