"""The states of the clients seen so far: in memory up to a limit, beyond it in mapped files."""

from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from weakref import finalize

import torch
from torch import Tensor

from trimtab.core import State, leaves, map_leaves, nbytes

_ROWS = 256  # states in one mapped file


class ClientStates:
    """A mapping from client to state that holds `limit` bytes in memory at most (None: no limit).

    >>> states = ClientStates(limit=0)
    >>> states[3] = torch.arange(2.0)
    >>> states[3], len(states)
    (tensor([0., 1.]), 1)
    """

    def __init__(self, limit: int | None = None) -> None:
        whole = isinstance(limit, int) and not isinstance(limit, bool)
        if limit is not None and (not whole or limit < 0):
            raise ValueError(f"memory={limit!r}; pass a number of bytes, or None for no limit.")
        self.limit = limit
        self.in_memory = 0
        self._states: dict[int, State] = {}
        self._files: _MappedRows | None = None

    def __setitem__(self, client: int, state: State) -> None:
        if not leaves(state):
            return  # nothing to remember
        if client in self._states:
            self._states[client] = state
        elif self._files is not None and client in self._files.rows:
            self._files.write(client, state)
        elif self.limit is None or self.in_memory + nbytes(state) <= self.limit:
            self._states[client] = state
            self.in_memory += nbytes(state)
        else:
            if self._files is None:
                self._files = _MappedRows(state)
            self._files.write(client, state)

    def __getitem__(self, client: int) -> State:
        if client in self._states:
            return self._states[client]
        if self._files is not None and client in self._files.rows:
            return self._files.read(client)
        raise KeyError(client)

    def __contains__(self, client: int) -> bool:
        return client in self._states or (self._files is not None and client in self._files.rows)

    def __iter__(self) -> Iterator[int]:
        """Go through the clients seen, in the order of their numbers."""
        return iter(sorted([*self._states, *(self._files.rows if self._files else ())]))

    def __len__(self) -> int:
        return len(self._states) + (len(self._files.rows) if self._files else 0)


class _MappedRows:
    """One state a row, in mapped files of `_ROWS` rows that vanish with this object."""

    def __init__(self, like: State) -> None:
        self.folder = Path(mkdtemp(prefix="trimtab-states-"))
        finalize(self, rmtree, self.folder, ignore_errors=True)
        self.like = like
        self.rows: dict[int, int] = {}
        self.files: list[list[Tensor]] = []

    def _row(self, client: int) -> State:
        file, row = divmod(self.rows[client], _ROWS)
        parts = iter(self.files[file])
        return map_leaves(lambda leaf: next(parts)[row].view_as(leaf), self.like)

    def read(self, client: int) -> State:
        return map_leaves(
            lambda leaf, row: row.clone().to(leaf.device), self.like, self._row(client)
        )

    def write(self, client: int, state: State) -> None:
        if client not in self.rows:
            if len(self.rows) == len(self.files) * _ROWS:
                self.files.append([self._map(j, leaf) for j, leaf in enumerate(leaves(self.like))])
            self.rows[client] = len(self.rows)
        map_leaves(lambda row, leaf: row.copy_(leaf), self._row(client), state)

    def _map(self, j: int, leaf: Tensor) -> Tensor:
        path = self.folder / f"{len(self.files)}-{j}"
        size = _ROWS * leaf.numel()
        return torch.from_file(str(path), shared=True, size=size, dtype=leaf.dtype).view(_ROWS, -1)
