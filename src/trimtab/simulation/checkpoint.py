"""A simulation on disk: one safetensors file whose header holds the settings as JSON.

The file is written and read one tensor at a time, which safetensors' own functions do not do: the
client states may be more than fits into memory.
"""

import json
import warnings
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trimtab._files import whole
from trimtab._version import RESULTS
from trimtab.core import Algorithm, State, leaves, map_leaves
from trimtab.errors import BadArgument
from trimtab.problems.problem import Problem, same_problem
from trimtab.problems.problem import fingerprint as fingerprint
from trimtab.simulation.sampling import FUNCTION

if TYPE_CHECKING:
    from trimtab.simulation.simulate import Simulation

FORMAT = 1
_SETTINGS = ("r", "S", "seed", "lost", "cohorts", "executor", "changes", "clients")
_DTYPES = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8},
    **{"U8": torch.uint8, "BOOL": torch.bool},
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def save(sim: "Simulation", path: Path) -> None:
    """Write server state, client states, and all that decides the rounds to come."""
    settings = {
        "format": FORMAT,
        "results": RESULTS,
        "algorithm": repr(sim.algorithm),
        "problem": fingerprint(sim.problem),
        "r": sim.r,
        "S": sim.S,
        "seed": sim.seed,
        "lost": sim.lost,
        "slow": sim.slow,
        "cohorts": sim.cohorts,
        "executor": sim.executor,
        "changes": sim.changes,
        "clients": list(sim.states),
    }

    if sim.available is not None:
        settings["available"] = sim.available.known_by

    def tensors() -> Iterator[tuple[str, Tensor]]:
        yield from _named("server", sim.server)
        for i in sim.states:
            yield from _named(f"client.{i}", sim.states[i])

    _write_whole(path, tensors, {"trimtab": json.dumps(settings)})


def settings(path: Path, algorithm: Algorithm, problem: Problem) -> dict[str, Any]:
    """Return the settings in a file, if they are those of this algorithm and this problem."""
    try:
        with safe_open(path, framework="pt") as file:
            saved: dict[str, Any] = json.loads((file.metadata() or {})["trimtab"])
            missing = {"algorithm", "problem", "server.0", *_SETTINGS} - {*saved, *file.keys()}
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file; pass one that sim.save wrote.") from None
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise _damaged(path, str(error)) from None
    if saved.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {saved.get('format')}, this version of trimtab reads {FORMAT}; "
            "continue it with the version that wrote it."
        )
    if missing:
        raise _damaged(path, f"it has no {min(missing)}")
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


def _damaged(path: Path, why: str) -> ValueError:
    """Return the error that refuses a file, and says how to go on without it."""
    why = (why.splitlines() or ["it cannot be read"])[0].rstrip(".")
    return ValueError(
        f"{path} is damaged or no saved simulation ({why}); delete this file to start anew, or "
        "resume without it to have its rounds run once more."
    )


def restore(sim: "Simulation", path: Path, settings: dict[str, Any]) -> None:
    """Fill a new simulation with the states in a file."""
    x = sim.server.x
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        begin = file.tell()

        def tensor(name: str) -> Tensor:
            if name not in header:
                raise _damaged(path, f"it has no {name}")
            entry = header[name]
            start, end = entry["data_offsets"]
            data = torch.empty(end - start, dtype=torch.uint8)
            file.seek(begin + start)
            file.readinto(data.numpy().data)
            return data.view(_DTYPES[entry["dtype"]]).view(entry["shape"]).to(x.device)

        def read(name: str, like: State) -> State:
            numbers = count()
            return map_leaves(lambda _: tensor(f"{name}.{next(numbers)}"), like)

        sim.server = read("server", sim.server)
        client = sim.algorithm.init_client(x)
        for i in settings["clients"]:
            sim.states[i] = read(f"client.{i}", client)
    sim.r = settings["r"]
    sim.changes = [(r, text) for r, text in settings["changes"]]


def _write_whole(
    path: Path, tensors: Callable[[], Iterator[tuple[str, Tensor]]], metadata: dict[str, str]
) -> None:
    """Write a file so that it appears whole or not at all; go through the tensors twice."""
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, leaf in tensors():
        start, end = end, end + leaf.numel() * leaf.element_size()
        entry = {"dtype": _NAMES[leaf.dtype], "shape": leaf.shape, "data_offsets": (start, end)}
        header[name] = entry
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the numbers are aligned
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as part, open(part, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, leaf in tensors():
            file.write(leaf.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)


def _named(name: str, state: State) -> Iterator[tuple[str, Tensor]]:
    for j, leaf in enumerate(leaves(state)):
        yield f"{name}.{j}", leaf.detach()
