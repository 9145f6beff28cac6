"""Safetensors files that are written and read one tensor at a time.

The functions of safetensors itself do not do so: client states may be more than fits into memory.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab._files import atomic_write
from trimtab.core import State, leaves, map_leaves

_DTYPES = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8},
    **{"U8": torch.uint8, "BOOL": torch.bool},
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def named(name: str, state: State) -> Iterator[tuple[str, Tensor]]:
    """Go through the tensors of a state with the names they have in a file."""
    for j, leaf in enumerate(leaves(state)):
        yield f"{name}.{j}", leaf.detach()


def named_clients(states: Iterable[tuple[int, State]]) -> Iterator[tuple[str, Tensor]]:
    """Go through the tensors of clients' states with the names they have in a file."""
    for i, state in states:
        yield from named(f"client.{i}", state)


def write_tensors(
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
    with atomic_write(path) as part, open(part, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, leaf in tensors():
            file.write(leaf.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)


class TensorFile:
    """A file that is open to be read."""

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
        """Return the state of a name, in the form and on the device of another."""
        numbers = count()
        return map_leaves(lambda leaf: self._tensor(f"{name}.{next(numbers)}", leaf.device), like)

    def _tensor(self, name: str, device: torch.device) -> Tensor:
        if name not in self._header:
            raise damaged(self.path, f"it has no {name}")
        entry = self._header[name]
        start, end = entry["data_offsets"]
        data = torch.empty(end - start, dtype=torch.uint8)
        self._file.seek(self._begin + start)
        if self._file.readinto(data.numpy().data) != end - start:
            raise damaged(self.path, "it ends too early")
        return data.view(_DTYPES[entry["dtype"]]).view(entry["shape"]).to(device)


@contextmanager
def reading(path: Path) -> Iterator[TensorFile]:
    """Open a file to be read."""
    with open(path, "rb") as file:
        yield TensorFile(path, file)


def damaged(path: Path, why: str) -> ValueError:
    """Return the error that refuses a file, and says how to go on without it."""
    why = (why.splitlines() or ["it cannot be read"])[0].rstrip(".")
    return ValueError(
        f"{path} is damaged or no saved simulation ({why}); delete this file to start anew, or "
        "resume without it to have its rounds run once more."
    )
