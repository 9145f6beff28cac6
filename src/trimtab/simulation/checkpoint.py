"""Save and load a simulation as one safetensors file whose header holds the settings as JSON.

On a cluster the client states are in snapshots, and the file holds the names of these instead.
"""

import json
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trimtab._files import atomic_write
from trimtab._version import RESULTS
from trimtab.core import Algorithm, State, leaves, map_leaves
from trimtab.errors import BadArgument
from trimtab.problems.identity import matches_fingerprint
from trimtab.problems.problem import Problem
from trimtab.simulation.sampling import FUNCTION

if TYPE_CHECKING:
    from trimtab.simulation.simulate import Simulation

# The format of files. Those of a cluster, whose client states are in snapshots, have format 2, and
# those of asynchronous rounds 3, so that a version that does not know these rejects them.
FORMAT = 1
WITH_SNAPSHOTS = 2
WITH_ARRIVALS = 3
_SETTINGS = ("r", "S", "seed", "lost", "slow", "cohorts", "executor", "changes", "clients")
_DTYPES = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8},
    **{"U8": torch.uint8, "BOOL": torch.bool},
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def save(sim: "Simulation", path: Path) -> None:
    """Write the states and the settings on which later rounds depend."""
    kept = sim.states.save_states(path, sim.r)  # the snapshots that hold the client states, if any
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
    if sim.arrivals is not None:
        settings |= {"format": WITH_ARRIVALS, "arrivals": sim.arrivals.facts()}
    if sim.available is not None:
        settings["available"] = sim.available.availability_id

    def tensors() -> Iterator[tuple[str, Tensor]]:
        yield from named("server", sim.server)
        for name, broadcast in sim.arrivals.fetched_tensors() if sim.arrivals else ():
            yield from named(name, broadcast)
        yield from () if kept else named_clients(sim.states.items())

    write_tensors(path, tensors, {"trimtab": json.dumps(settings)})


def settings(path: Path, algorithm: Algorithm, problem: Problem) -> dict[str, Any]:
    """Return the settings in a file. Raise ValueError for another algorithm or problem."""
    try:
        with safe_open(path, framework="pt") as file:
            saved: dict[str, Any] = json.loads((file.metadata() or {})["trimtab"])
            missing = {"algorithm", "problem", "server.0", *_SETTINGS} - {*saved, *file.keys()}
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file; pass one that sim.save wrote.") from None
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise damaged(path, str(error)) from None
    if saved.get("format") not in (FORMAT, WITH_SNAPSHOTS, WITH_ARRIVALS):
        raise ValueError(
            f"{path} has format {saved.get('format')}, this version of trimtab reads {FORMAT} to "
            f"{WITH_ARRIVALS}; continue it with the version that wrote it."
        )
    if missing:
        raise damaged(path, f"it has no {min(missing)}")
    if saved.get("results") != RESULTS:
        warnings.warn(
            f"{path} was saved by a trimtab version whose numbers differ from this one's, so that "
            "later rounds are not those that it would have run.",
            stacklevel=3,
        )
    if saved["algorithm"] != repr(algorithm):
        raise ValueError(
            f"{path} was saved with {saved['algorithm']}, not {algorithm}; load it with that, "
            "then replace sim.algorithm."
        )
    alike = matches_fingerprint(problem, saved["problem"])
    if alike.differs:
        raise ValueError(
            f"{path} was saved with another problem: {', '.join(alike.differs)}; pass the problem "
            "it was made with."
        )
    if alike.warning:
        warnings.warn(f"{path}: {alike.warning}", stacklevel=3)
    return saved


def check_availability(sim: "Simulation", path: Path, settings: dict[str, Any]) -> None:
    """Raise BadArgument unless the same clients are available as in the saved simulation."""
    before, now = settings.get("available"), sim.available and sim.available.availability_id
    if before == now:
        return
    if before is None:
        raise BadArgument(
            "available", "{_path} was saved without {available}; drop it.", _path=path
        )
    raise BadArgument(
        "available",
        "{_path} was saved with {_before} of available clients; pass the same {available} again.",
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
        if sim.arrivals is not None:
            sim.arrivals.restore(sim, settings["arrivals"], file)
    sim.r = settings["r"]
    sim.states.restore(settings.get("snapshots", {}), client, sim.r)
    sim.changes = [(r, text) for r, text in settings["changes"]]


# -- files of tensors
#
# They are written and read one tensor at a time, because all client states together may not fit
# into memory. The functions of safetensors need all tensors at once.


def named(name: str, state: State) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a state with their names in a file."""
    for j, leaf in enumerate(leaves(state)):
        yield f"{name}.{j}", leaf.detach()


def named_clients(states: Iterable[tuple[int, State]]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of client states with their names in a file."""
    for i, state in states:
        yield from named(f"client.{i}", state)


def write_tensors(
    path: Path, tensors: Callable[[], Iterator[tuple[str, Tensor]]], metadata: dict[str, str]
) -> None:
    """Write a safetensors file atomically.

    path: the file.
    tensors: yields names and tensors; called twice, for the header and for the data.
    metadata: texts for the header.
    """
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, leaf in tensors():
        start, end = end, end + leaf.numel() * leaf.element_size()
        entry = {"dtype": _NAMES[leaf.dtype], "shape": leaf.shape, "data_offsets": (start, end)}
        header[name] = entry
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # The data must begin at a multiple of 8 bytes.
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as part, open(part, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, leaf in tensors():
            file.write(leaf.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)


class TensorFile:
    """A file of tensors that is open for reading."""

    def __init__(self, path: Path, file: Any) -> None:
        self.path, self._file = path, file
        try:
            self._header = dict(json.loads(file.read(int.from_bytes(file.read(8), "little"))))
        except (ValueError, TypeError, OverflowError, MemoryError) as error:
            raise damaged(path, str(error)) from None
        self._begin = file.tell()

    @property
    def clients(self) -> list[int]:
        """The clients whose states are in the file, in its order."""
        names = (name.split(".") for name in self._header if name.startswith("client."))
        return [int(i) for _, i, j in names if j == "0"]

    def state(self, name: str, like: State) -> State:
        """Return the state of a name, in the form and on the device of `like`."""
        numbers = count()
        return map_leaves(lambda leaf: self._tensor(f"{name}.{next(numbers)}", leaf.device), like)

    def _tensor(self, name: str, device: torch.device) -> Tensor:
        if name not in self._header:
            raise damaged(self.path, f"it has no {name}")
        entry = self._header[name]
        start, end = entry["data_offsets"]
        data = torch.empty(end - start, dtype=torch.uint8)
        self._file.seek(self._begin + start)
        # A file that was copied incompletely has its whole header.
        if self._file.readinto(data.numpy().data) != end - start:
            raise damaged(self.path, "it ends too early")
        return data.view(_DTYPES[entry["dtype"]]).view(entry["shape"]).to(device)


@contextmanager
def reading(path: Path) -> Iterator[TensorFile]:
    """Open a file of tensors, and close it on exit."""
    with open(path, "rb") as file:
        yield TensorFile(path, file)


def damaged(path: Path, why: str) -> ValueError:
    """Return the error for a file that cannot be read."""
    why = (why.splitlines() or ["it cannot be read"])[0].rstrip(".")
    return ValueError(
        f"{path} is damaged or not a saved simulation ({why}); delete this file to start again, or "
        "resume without it, which runs its rounds again."
    )
