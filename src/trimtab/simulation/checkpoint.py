"""A simulation on disk: one safetensors file whose header holds the settings as JSON.

Where client states have snapshots of their own, the file has the names of those in their place.
"""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from trimtab._version import RESULTS
from trimtab.core import Algorithm
from trimtab.errors import BadArgument
from trimtab.problems.fingerprint import same_problem
from trimtab.problems.problem import Problem
from trimtab.simulation.sampling import FUNCTION
from trimtab.simulation.tensor_file import damaged, named, named_clients, reading, write_tensors

if TYPE_CHECKING:
    from trimtab.simulation.simulate import Simulation

FORMAT = 1
WITH_SNAPSHOTS = 2  # the format of files whose client states are elsewhere
_SETTINGS = ("r", "S", "seed", "lost", "cohorts", "executor", "changes", "clients")


def save(sim: "Simulation", path: Path) -> None:
    """Write server state, client states, and all that decides the rounds to come."""
    kept = sim.states.keep(path, sim.r)  # what is not in this file, and where it is
    settings = {
        "format": WITH_SNAPSHOTS if kept else FORMAT,
        "results": RESULTS,
        "algorithm": repr(sim.algorithm),
        "problem": sim.problem.fingerprint,
        "r": sim.r,
        "S": sim.S,
        "seed": sim.seed,
        "lost": sim.lost,
        "slow": sim.slow,
        "cohorts": sim.cohorts,
        "executor": sim.executor,
        "changes": sim.changes,
        "clients": [] if kept else list(sim.states),
    }
    if kept:
        settings["snapshots"] = kept
    if sim.available is not None:
        settings["available"] = sim.available.known_by

    def tensors() -> Iterator[tuple[str, Tensor]]:
        yield from named("server", sim.server)
        yield from () if kept else named_clients(sim.states.items())

    write_tensors(path, tensors, {"trimtab": json.dumps(settings)})


def settings(path: Path, algorithm: Algorithm, problem: Problem) -> dict[str, Any]:
    """Return the settings in a file, if they are those of this algorithm and this problem."""
    try:
        with safe_open(path, framework="pt") as file:
            saved: dict[str, Any] = json.loads((file.metadata() or {})["trimtab"])
            missing = {"algorithm", "problem", "server.0", *_SETTINGS} - {*saved, *file.keys()}
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file; pass one that sim.save wrote.") from None
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise damaged(path, str(error)) from None
    if saved.get("format") not in (FORMAT, WITH_SNAPSHOTS):
        raise ValueError(
            f"{path} has format {saved.get('format')}, this version of trimtab reads {FORMAT} and "
            f"{WITH_SNAPSHOTS}; continue it with the version that wrote it."
        )
    if missing:
        raise damaged(path, f"it has no {min(missing)}")
    if saved.get("results", 1) != RESULTS:
        warnings.warn(
            f"{path} was saved by a trimtab whose numbers differ from this one's, so that the "
            "rounds to come are not those that it would have run.",
            stacklevel=3,
        )
    if saved["algorithm"] != repr(algorithm):
        raise ValueError(
            f"{path} was saved with {saved['algorithm']}, not {algorithm}; load it with that, "
            "then replace sim.algorithm."
        )
    alike = same_problem(problem, saved["problem"])
    if alike.differs:
        raise ValueError(
            f"{path} was saved with another problem: {', '.join(alike.differs)}; pass the problem "
            "it was made with."
        )
    if alike.warning:
        warnings.warn(f"{path}: {alike.warning}", stacklevel=3)
    return saved


def check_availability(sim: "Simulation", path: Path, settings: dict[str, Any]) -> None:
    """Refuse to go on with other clients than the saved simulation would ask."""
    before, now = settings.get("available"), sim.available and sim.available.known_by
    if before == now:
        return
    if before is None:
        raise BadArgument(
            "available", "{_path} was saved without {available}; drop it.", _path=path
        )
    raise BadArgument(
        "available",
        "{_path} was saved with {_before} of who is there when; pass the same {available} again.",
        _path=path,
        _before=before if before == FUNCTION else "another table" if now else "a table",
    )


def restore(sim: "Simulation", path: Path, settings: dict[str, Any]) -> None:
    """Fill a new simulation with the states in a file."""
    client = sim.algorithm.init_client(sim.server.x)
    with reading(path) as file:
        sim.server = file.state("server", sim.server)
        for i in settings["clients"]:
            sim.states[i] = file.state(f"client.{i}", client)
    sim.r = settings["r"]
    sim.states.restore(settings.get("snapshots", {}), client, sim.r)
    sim.changes = [(r, text) for r, text in settings["changes"]]
