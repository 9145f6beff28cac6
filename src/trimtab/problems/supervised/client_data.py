"""The clients of Supervised: each is read when it is first sampled, and checked once."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

import numpy
from torch import Tensor, dtype
from torch.utils.data import DataLoader, TensorDataset

from trimtab.compute.kernel import BadDataError, Chosen, Cohorts, Layers, Samples
from trimtab.problems.supervised.holdout import Part
from trimtab.problems.supervised.reading import Loose, Reader
from trimtab.problems.supervised.samples import Data, is_sparse
from trimtab.problems.supervised.trees import leaves

_PIECE = 256  # of samples that a collate makes batches of, <= 256 are looked at together
_KEPT = 128  # of a lazy sequence, <= 128 clients stay in memory


class ClientData:
    """A sequence of clients, possibly lazy; `self[i]` is read, and passed to `check`, when needed.

    What a list or tuple holds is kept once read; of another sequence, the last few clients used.
    """

    def __init__(
        self,
        clients: Sequence[Any],
        reader: Reader,
        check: Callable[[str, Data], None],
        name: str = "client",
    ) -> None:
        self.clients, self.reader, self.check = clients, reader, check
        self.name = name  # what they are called in errors, before the number
        self.in_memory = isinstance(whole(clients), list | tuple)
        self._read: OrderedDict[int, Data] = OrderedDict()
        self._part = clients if isinstance(clients, Part) else None
        self._lock = Lock()  # Executors read from several threads.
        self._cohorts = Cohorts()

    def __len__(self) -> int:
        return len(self.clients)

    def size(self, i: int) -> int:
        """Return the number of samples of client i."""
        if i in self._read:
            return len(self._read[i])
        try:
            part = self._part
            return self.reader.size(self.clients[i]) if part is None else part.size(i)
        except TypeError:
            return len(self[i])  # Reading it says what is wrong with it.

    def whole_size(self, i: int) -> int:
        """Return the number of samples of client i, those held out for validation as well."""
        return self.size(i) if self._part is None else self._part.whole_size(i)

    def targets(self) -> list[Any] | None:
        """Return the targets of each client; None where clients would have to be read for them."""
        return [self[i].y for i in range(len(self))] if self.in_memory else None

    def __getitem__(self, i: int) -> Data:
        if self.in_memory and i in self._read:
            return self._read[i]  # It is never dropped.
        who = f"{self.name} {i}"
        with self._lock:
            if i in self._read:
                self._read.move_to_end(i)
                return self._read[i]
            data = self.reader.read(who, self.clients[i])
            check_data(who, data)
            self.check(who, data)
            self._read[i] = data
            if not self.in_memory and len(self._read) > _KEPT:
                self._read.popitem(last=False)
            return data

    def for_kernel(self, clients: Sequence[int], layers: Layers, kind: dtype) -> Chosen | None:
        """Return the data of some clients as a kernel reads them; None if it cannot."""
        what = layers, kind, tuple(clients)
        found = self._cohorts.get(what)
        if found is not None:
            return found
        data, samples = [self[i] for i in clients], list[Samples]()
        for place, each in enumerate(data):
            try:
                own = each.for_kernel(layers, kind)
            except BadDataError as error:
                raise error.at(place) from None
            if own is None:
                return None
            samples.append(own)
        found = Chosen(samples)
        if self.in_memory:  # Others come and go.
            self._cohorts.keep(what, [part for each in data for part in (each.X, each.y)], found)
        return found


def whole(clients: Sequence[Any]) -> Sequence[Any]:
    """Return clients as they were given, before some of their rows were held out."""
    return clients.whole if isinstance(clients, Part) else clients


def check_clients(clients: Any) -> None:
    """Refuse what is no sequence of clients."""
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


def check_data(who: str, data: Data) -> None:
    """Refuse what no model can learn from."""
    if isinstance(data, Loose):
        if not len(data):
            raise no_samples(who)
        for start in range(0, len(data), _PIECE):
            _check_finite(who, data.cut(start, start + _PIECE), start)
        return
    inputs, targets = leaves(data.X), leaves(data.y)
    if not all(leaf.dim() for leaf in inputs):
        raise ValueError(f"{who} has one number as its inputs; pass samples, one in each row.")
    if not len(data):
        raise no_samples(who)
    counts = [len(leaf) for leaf in inputs]
    if len(set(counts)) > 1:
        raise ValueError(
            f"{who} has {counts[0]} rows in one part of its inputs but "
            f"{next(count for count in counts if count != counts[0])} in another; pass a row for "
            "each sample in every part."
        )
    for y in targets:
        if y.dim() == 0 or y.shape[0] != counts[0]:
            raise ValueError(
                f"{who} has {counts[0]} inputs but {y.shape[0] if y.dim() else 0} targets; "
                "pass as many of one as of the other."
            )
    _check_finite(who, data, 0)


def _check_finite(who: str, data: Data, first: int) -> None:
    for name, tree in (("inputs", data.X), ("targets", data.y)):
        for part in leaves(tree):
            if part.is_floating_point() and not bool(part.isfinite().all()):
                row = int((~part.isfinite().reshape(len(part), -1).all(1)).nonzero()[0])
                raise ValueError(
                    f"{who} has NaN or infinity in its {name} (first in sample {first + row}); "
                    "drop or fill in such samples."
                )


def no_samples(who: str) -> ValueError:
    """Return the error that refuses an empty client."""
    return ValueError(f"{who} has no samples; leave it out, or give it data.")
