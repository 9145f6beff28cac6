"""The data of Supervised, each read when first used: clients, rows held out, tests, validation."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

import numpy
import torch
from torch import Tensor, dtype
from torch.utils.data import DataLoader, Subset, TensorDataset

from trimtab.compute.kernel import BadDataError, ClientSamples, Layers, SampleCache, Samples
from trimtab.core.streams import SPLIT, stream
from trimtab.problems.supervised.data import Data
from trimtab.problems.supervised.flat import describe, leaves, map_tree
from trimtab.problems.supervised.reading import (
    Reader,
    check_data,
    check_dataset,
    is_sparse,
    no_samples,
)

_ENOUGH = 5  # A client with fewer rows needs all of them for training.
_KEPT = 128  # Clients of a lazy sequence in memory; all of them may be millions.
_OWN = "the test part of client"
_SMALL = 1 << 14  # Numbers of a client that is checked together with others, on a copy.


@dataclass(frozen=True, eq=False)
class HeldOutView:
    """One side of a split of every client: the training rows, or the rows held out.

    A sequence as lazy as `whole`: a client is read when it is indexed. The rows held out depend on
    (seed, client) and the number of rows; both sides keep the order of the rows.
    """

    whole: Sequence[Any]
    fraction: float
    seed: int
    held: bool  # whether these are the rows held out
    reader: Reader  # knows whether a client is a sequence of samples

    def __len__(self) -> int:
        return len(self.whole)

    def __getitem__(self, i: int) -> Any:
        item, owner = self.whole[i], f"client {i}"
        if isinstance(item, TensorDataset) and len(item.tensors) == 2:
            item = item.tensors
        if isinstance(item, Data):
            return item.take(self._rows(i, len(item)).to(item.device))
        if self.reader.collate is not None or not self.reader.is_columns(item):
            check_dataset(owner, item)
            return Subset(item, self._rows(i, len(item)).tolist())
        whole = Data(*self.reader.columns(owner, item))
        sizes = {len(leaf) if leaf.dim() else 0 for leaf in leaves(whole.batch)}
        if len(sizes) > 1 or 0 in sizes:
            return whole.batch  # The check of the whole data raises the error.
        rows = self._rows(i, len(whole))
        return map_tree(lambda leaf: leaf[rows.to(leaf.device)], whole.batch)

    def size(self, i: int) -> int:
        """Return how many rows client i has on this side."""
        n = self.whole_size(i)
        out = held_out(n, self.fraction)
        return out if self.held else n - out

    def whole_size(self, i: int) -> int:
        """Return how many rows client i has on both sides."""
        return self.reader.size(self.whole[i])

    def _rows(self, i: int, n: int) -> Tensor:
        order = torch.randperm(n, generator=stream(self.seed, SPLIT, i))
        out = held_out(n, self.fraction)
        return (order[:out] if self.held else order[out:]).sort().values


def held_out(n: int, fraction: float) -> int:
    """Return how many of n rows are held out: at least one if n >= 5, else none.

    >>> [held_out(n, 0.1) for n in (1, 4, 5, 20, 100)]
    [0, 0, 1, 2, 10]
    """
    return min(n - 1, max(1, round(fraction * n))) if n >= _ENOUGH else 0


def check_fraction(fraction: float) -> None:
    """Raise ValueError unless this is a number between 0 and 1."""
    number = isinstance(fraction, int | float) and not isinstance(fraction, bool)
    if not number or not 0 < fraction < 1:
        raise ValueError(f"fraction={fraction!r} of each client's rows; pass one between 0 and 1.")


class ClientData:
    """The data of clients; `self[i]` is read, and passed to `check`, when it is first used.

    Clients of a list or tuple stay in memory; of another sequence, the last few that were used.
    """

    def __init__(
        self,
        clients: Sequence[Any],
        reader: Reader,
        check: Callable[[str, Data], None],
        name: str = "client",
    ) -> None:
        self.clients, self.reader, self.check = clients, reader, check
        self.name = name  # in errors, before the number of the client
        self.in_memory = isinstance(whole(clients), list | tuple)
        self._read: OrderedDict[int, Data] = OrderedDict()
        self._part = clients if isinstance(clients, HeldOutView) else None
        self._lock = Lock()  # Executors read from several threads.
        self._cache = SampleCache()

    def __len__(self) -> int:
        return len(self.clients)

    def size(self, i: int) -> int:
        """Return the number of samples of client i."""
        if i in self._read:
            return len(self._read[i])
        try:
            return self.reader.size(self.clients[i]) if self._part is None else self._part.size(i)
        except TypeError:
            return len(self[i])  # Reading it raises an error that names the fault.

    def whole_size(self, i: int) -> int:
        """Return the number of samples of client i, those held out for validation as well."""
        return self.size(i) if self._part is None else self._part.whole_size(i)

    def targets(self) -> list[Any] | None:
        """Return the targets of each client; None where clients would have to be read for them."""
        return [self[i].y for i in range(len(self))] if self.in_memory else None

    def __getitem__(self, i: int) -> Data:
        if self.in_memory and i in self._read:
            return self._read[i]  # Without the lock, since it is never removed.
        return self.several([i])[0]

    def several(self, clients: Sequence[int]) -> list[Data]:
        """Return the data of several clients; those that are new and small are checked together."""
        with self._lock:
            found = {i: self._read[i] for i in clients if i in self._read}
            new: dict[Any, dict[str, Data]] = {}
            for i in clients:
                if i not in found:
                    owner = f"{self.name} {i}"
                    data = found[i] = self.reader.unchecked(owner, self.clients[i])
                    new.setdefault(data.kind if _is_small(data) else i, {})[owner] = data
            for group in new.values():
                self._check(group)
            self._read |= found
            for i in found if not self.in_memory else ():
                self._read.move_to_end(i)
            while not self.in_memory and len(self._read) > _KEPT:
                self._read.popitem(last=False)
            return [found[i] for i in clients]

    def _check(self, group: Mapping[str, Data]) -> None:
        (owner, first), *others = group.items()
        if others:
            together = first.joined([data for _, data in others], owner)
            with suppress(ValueError):  # The error below names the client.
                check_data(owner, together)
                self.check(owner, together)
                return
        for owner, data in group.items():
            check_data(owner, data)
            self.check(owner, data)

    def for_kernel(
        self, clients: Sequence[int], layers: Layers, kind: dtype
    ) -> ClientSamples | None:
        """Return the data of some clients as a kernel reads them; None if it cannot."""
        what = layers, kind, tuple(clients)
        found = self._cache.get(what)
        if found is not None:
            return found
        data, samples = self.several(clients), list[Samples]()
        for place, each in enumerate(data):
            try:
                own = each.for_kernel(layers, kind)
            except BadDataError as error:
                raise error.at_position(place) from None
            if own is None:
                return None
            samples.append(own)
        found = ClientSamples(samples)
        # Clients of a lazy sequence leave memory, and their tensors with them.
        if self.in_memory:
            self._cache.keep(what, [part for each in data for part in (each.X, each.y)], found)
        return found


def whole(clients: Sequence[Any]) -> Sequence[Any]:
    """Return clients as they were given, before some of their rows were held out."""
    return clients.whole if isinstance(clients, HeldOutView) else clients


def check_clients(clients: Any) -> None:
    """Raise ValueError unless this is a sequence of clients."""
    kind = type(clients).__name__
    if isinstance(clients, Mapping):
        raise ValueError(f"clients is a {kind}; pass a list, such as list(clients.values()).")
    if isinstance(clients, DataLoader | Tensor | numpy.ndarray | str | TensorDataset):
        raise ValueError(f"clients is a {kind}; pass a list with a pair (X, y) for each client.")
    if not (hasattr(clients, "__len__") and hasattr(clients, "__getitem__")):
        raise ValueError(f"clients is a {kind}; pass a list, such as list(clients).")
    if len(clients) == 0:
        raise ValueError("Supervised: there are no clients; pass at least one.")
    if not isinstance(clients, list | tuple):
        return
    for i, client in enumerate(clients):
        if isinstance(client, Tensor | numpy.ndarray) or is_sparse(client):
            raise ValueError(
                f"client {i} is a {type(client).__name__}, not a pair; pass a list with a pair "
                "(X, y) for each client, [(X, y)] if there is one."
            )


def _is_small(data: Data) -> bool:
    """Return whether a check of this and other data together takes less time than one by one."""
    few = data.plain and data.X.dim() and data.y.dim() and data.X.numel() <= _SMALL
    return bool(few and len(data.y) == len(data.X) > 1)


class EvaluationData:
    """Test and validation data; each is read and checked when first used, and then kept."""

    def __init__(
        self,
        test: Any,
        tests: Sequence[Any] | None,
        validation: Any,
        reader: Reader,
        check: Callable[[str, Data], None],
    ) -> None:
        self.given, self.tests, self.held_out = test, tests, validation
        self.reader, self.check = reader, check
        self._own = None if tests is None else ClientData(tests, reader, check, _OWN)

    @property
    def has_test(self) -> bool:
        """Whether there is a test set: one that was given, or all clients' own test parts."""
        return self.given is not None or self.tests is not None

    @cached_property
    def test(self) -> Data:
        """The test set that was given, else the clients' own test parts together."""
        if self.given is not None or self.tests is None:
            return self._read("the test set", self.given)
        own = ((f"{_OWN} {i}", self.tests[i]) for i in range(len(self.tests)))
        return self._pooled("the test set", own)

    @cached_property
    def has_validation(self) -> bool:
        """Whether there are validation data; reads sizes until a client has a row held out."""
        if isinstance(self.held_out, HeldOutView):
            return any(self.held_out.size(i) for i in range(len(self.held_out)))
        return self.held_out is not None

    @cached_property
    def validation(self) -> Data:
        """The validation data: those that were given, else the rows held out of all clients."""
        if not isinstance(self.held_out, HeldOutView):
            return self._read("the validation data", self.held_out)
        held = self.held_out
        rows = ((f"client {i}", held[i] if held.size(i) else None) for i in range(len(held)))
        return self._pooled("the validation data", rows)

    def has_own(self, i: int) -> bool:
        """Return whether client i has its own test part."""
        return self.tests is not None and self.tests[i] is not None

    def own(self, i: int) -> Data | None:
        """Return the test part of client i; None if it has none."""
        return self._own[i] if self._own is not None and self.has_own(i) else None

    def _read(self, owner: str, item: Any) -> Data:
        data = self.reader.read(owner, item)
        self.check(owner, data)
        return data

    def _pooled(self, owner: str, items: Iterable[tuple[str, Any]]) -> Data:
        """Return the samples of all clients that have some, one client after the other."""
        parts: list[Data] = []
        for whose, item in items:
            if item is not None:
                part = self.reader.read(whose, item)
                if parts and _shapes(part) != _shapes(parts[0]):
                    self.check(parts[0].owner, parts[0])
                    self.check(whose, part)
                parts.append(part)
        if not parts:
            raise no_samples(owner)
        pooled = _joined(owner, parts)
        self.check(owner, pooled)
        return pooled


def with_own_tests(
    clients: Sequence[Any], tests: Sequence[Any] | None
) -> tuple[Sequence[Any], Sequence[Any] | None]:
    """Return clients as pairs, and the test parts of those given as (X, y, (X_test, y_test))."""
    triples = isinstance(clients, list | tuple) and any(map(is_triple, clients))
    if triples and tests is not None:
        raise ValueError(
            "clients have their own test parts, (X, y, test), and tests= has others; pass "
            "one of the two."
        )
    if triples:
        tests = [item[2] if is_triple(item) else None for item in clients]
        clients = [tuple(item[:2]) if is_triple(item) else item for item in clients]
    if tests is None:
        return clients, None
    if not (hasattr(tests, "__len__") and hasattr(tests, "__getitem__")) or isinstance(tests, dict):
        raise ValueError(
            f"tests is a {type(tests).__name__}; pass a list with a pair (X, y), or None, for each "
            "client."
        )
    if len(tests) != len(clients):
        raise ValueError(
            f"tests has {len(tests)} parts for {len(clients)} clients; pass one for each client, "
            "None for one that has none."
        )
    if isinstance(tests, list | tuple) and all(item is None for item in tests):
        return clients, None
    return clients, tests


def is_triple(item: Any) -> bool:
    """Return whether a client is (X, y, test), and not a list of three samples.

    >>> import torch
    >>> is_triple((torch.zeros(2, 3), torch.zeros(2), (torch.zeros(1, 3), torch.zeros(1))))
    True
    >>> is_triple([([0.0, 1.0], 1), ([1.0, 1.0], 0), ([2.0, 0.0], 1)])
    False
    """
    three = isinstance(item, tuple | list) and len(item) == 3
    if not three or isinstance(item[2], Mapping) or hasattr(item[2], "shape"):
        return False
    parts = [part for given in item[:2] for part in _inside(given)]
    if not any(isinstance(given, tuple) for given in item[:2]):
        return bool(parts) and all(hasattr(part, "shape") for part in parts)
    # Three samples (x, y) in a tuple look the same, but have no common number of rows.
    rows = {part.shape[0] if getattr(part, "shape", ()) else 0 for part in parts}
    return isinstance(item, tuple) and len(rows) == 1 and 0 not in rows


def _inside(part: Any) -> list[Any]:
    if isinstance(part, Mapping):
        return list(part.values())
    return list(part) if isinstance(part, tuple) else [part]


def _shapes(data: Data) -> Any:
    if data.samples is not None:
        return data.form
    return data.form, [(y.shape[1:], y.dtype) for y in leaves(data.y)]


def _joined(owner: str, parts: Sequence[Data]) -> Data:
    try:
        return parts[0].joined(parts[1:], owner)
    except (RuntimeError, TypeError, KeyError, ValueError) as error:
        inputs, targets = {describe(part.X) for part in parts}, {describe(part.y) for part in parts}
        shapes = sorted(inputs if len(inputs) > 1 else targets)
        raise ValueError(
            f"{owner} come in shapes {' and '.join(shapes)}; give all clients the same."
        ) from error
