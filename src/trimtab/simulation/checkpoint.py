"""A simulation on disk: one safetensors file whose header holds the settings as JSON."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from trimtab.core import Algorithm, State, leaves, map_leaves
from trimtab.problems.problem import Problem

if TYPE_CHECKING:
    from trimtab.simulation.simulate import Simulation

FORMAT = 1


def fingerprint(problem: Problem) -> str:
    """Return a text that tells problems apart; their own, or their sizes."""
    return getattr(problem, "fingerprint", None) or (
        f"{type(problem).__name__} N={problem.N} d={problem.d}"
    )


def write_whole(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file so that it appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    save_file(tensors, part, metadata)
    with open(part, "rb") as file:
        os.fsync(file.fileno())
    os.replace(part, path)


def save(sim: "Simulation", path: Path) -> None:
    """Write server state, client states, and all that decides the rounds to come."""
    settings = {
        "format": FORMAT,
        "algorithm": repr(sim.algorithm),
        "problem": fingerprint(sim.problem),
        "r": sim.r,
        "S": sim.S,
        "seed": sim.seed,
        "lost": sim.lost,
        "cohorts": sim.cohorts,
        "executor": sim.executor,
        "changes": sim.changes,
        "clients": list(sim.states),
    }
    tensors = _named("server", sim.server)
    for i in sim.states:
        tensors |= _named(f"client.{i}", sim.states[i])
    write_whole(path, tensors, {"trimtab": json.dumps(settings)})


def settings(path: Path, algorithm: Algorithm, problem: Problem) -> dict[str, Any]:
    """Return the settings in a file, if they are those of this algorithm and this problem."""
    try:
        with safe_open(path, framework="pt") as file:
            found: dict[str, Any] = json.loads((file.metadata() or {})["trimtab"])
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file; pass one that sim.save wrote.") from None
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise ValueError(f"{path} is damaged or no saved simulation ({error}).") from None
    if found.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {found.get('format')}, this version of trimtab reads {FORMAT}; "
            "continue it with the version that wrote it."
        )
    if found["algorithm"] != repr(algorithm):
        raise ValueError(
            f"{path} was saved with {found['algorithm']}, not {algorithm}; load it with that, "
            "then replace sim.algorithm."
        )
    if found["problem"] != fingerprint(problem):
        raise ValueError(
            f"{path} was saved with another problem ({found['problem']}, "
            f"not {fingerprint(problem)}); pass the problem it was made with."
        )
    return found


def restore(sim: "Simulation", path: Path, settings: dict[str, Any]) -> None:
    """Fill a new simulation with the states in a file."""
    x = sim.server.x
    with safe_open(path, framework="pt", device=str(x.device)) as file:

        def read(name: str, like: State) -> State:
            names = iter(range(len(leaves(like))))
            return map_leaves(lambda _: file.get_tensor(f"{name}.{next(names)}"), like)

        sim.server = read("server", sim.server)
        client = sim.algorithm.init_client(x)
        for i in settings["clients"]:
            sim.states[i] = read(f"client.{i}", client)
    sim.r = settings["r"]
    sim.changes = [(r, text) for r, text in settings["changes"]]


def _named(name: str, state: State) -> dict[str, Tensor]:
    # Cloned: safetensors wants no two tensors in one storage.
    return {f"{name}.{j}": leaf.detach().clone() for j, leaf in enumerate(leaves(state))}
