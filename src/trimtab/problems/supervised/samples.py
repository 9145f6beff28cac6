"""The clients' data: read when a client is first sampled, checked once, cut into mini-batches."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from math import ceil
from threading import Lock
from typing import Any, Literal

import numpy
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from trimtab.core.streams import BATCH, stream
from trimtab.problems.fingerprint import update
from trimtab.problems.supervised.flat import first_line

_KEPT = 128  # clients of a lazy sequence that stay in memory


@dataclass(frozen=True)
class Data:
    """Inputs and targets of equal length."""

    X: Tensor
    y: Tensor
    who: str = "the data"  # whose they are, for errors

    def __len__(self) -> int:
        return self.X.shape[0]

    @cached_property
    def labelled(self) -> bool:
        """Whether these are flat samples with one label each, none of them to be ignored."""
        flat = self.X.dim() == 2 and self.X.is_floating_point() and self.y.dim() == 1
        return flat and not self.y.is_floating_point() and int(self.y.min()) >= 0


def read(who: str, item: Any, dtype: torch.dtype, device: torch.device) -> Data:
    """Return a pair (X, y), or a map-style Dataset of such pairs, as two tensors."""
    if not _is_pair(item):
        item = _collated(who, item)
    X, y = as_tensor(f"the inputs of {who}", item[0]), as_tensor(f"the targets of {who}", item[1])
    X = X.to(dtype) if X.is_floating_point() else X
    y = y.to(dtype) if y.is_floating_point() else y.long()
    return Data(X.to(device).contiguous(), y.to(device).contiguous(), who)


def as_tensor(what: str, part: Any) -> Tensor:
    """Return numbers as a plain tensor: from a tensor, an array, a table or a list of them."""
    if isinstance(part, Tensor):
        if part.is_complex() or part.layout is not torch.strided:
            kind = "complex" if part.is_complex() else "sparse"
            raise ValueError(f"{what} are {kind}; pass real numbers in a dense tensor.")
        as_is = type(part) is Tensor and not part.requires_grad
        plain: Tensor = part if as_is else part.detach().as_subclass(Tensor)
        return plain.clone() if plain.is_inference() else plain
    try:
        if isinstance(part, list | tuple) and part and isinstance(part[0], Tensor):
            return torch.stack([as_tensor(what, row) for row in part])
        array = numpy.asarray(part)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"a {type(part).__name__} of {array.dtype}")
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        usable = array.flags.writeable and min(array.strides, default=0) >= 0
        return torch.as_tensor(array if usable else array.copy())
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{what} are no numbers ({first_line(error)}); pass a tensor or an array of them."
        ) from error


def _collated(who: str, dataset: Any) -> tuple[Any, Any]:
    """Return all samples of a map-style Dataset as X and y."""
    if isinstance(dataset, DataLoader):
        raise ValueError(
            f"{who} is a DataLoader; pass its dataset, and the size of mini-batches as batch=…."
        )
    sized = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if not sized or isinstance(dataset, IterableDataset):
        raise ValueError(
            f"{who} is a {type(dataset).__name__}; pass a pair (X, y), or a Dataset with a length "
            "whose samples are such pairs."
        )
    if isinstance(dataset, Mapping | str | Tensor | numpy.ndarray):
        raise ValueError(
            f"{who} is a {type(dataset).__name__}; pass a pair (X, y) of inputs and targets."
        )
    samples = [_sample(who, dataset, j) for j in range(len(dataset))]
    if not samples:
        return torch.empty(0), torch.empty(0)
    try:
        X, y = default_collate(samples)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"the samples of {who} do not fit together ({first_line(error)}); make them tensors "
            "of one shape."
        ) from error
    return X, y


def _sample(who: str, dataset: Any, j: int) -> tuple[Any, ...]:
    """Return sample j of a Dataset as a pair (x, y)."""
    try:
        sample = dataset[j]
    except (KeyError, NotImplementedError) as error:
        raise ValueError(
            f"sample {j} of {who} cannot be read ({type(error).__name__}); pass a pair (X, y), or "
            "a Dataset whose samples are numbered from 0."
        ) from error
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        parts = f" of {len(sample)} parts" if isinstance(sample, tuple | list) else ""
        raise ValueError(
            f"sample {j} of {who} is a {type(sample).__name__}{parts}; make it a pair (x, y)."
        )
    what = f"parts of sample {j} of {who}"
    return tuple(as_tensor(what, p) if isinstance(p, list | tuple) else p for p in sample)


def size(item: Any) -> int:
    """Return how many samples a pair or a Dataset has, without reading them."""
    return len(item[1]) if _is_pair(item) else len(item)


def _is_pair(item: Any) -> bool:
    """Tell whether this is (X, y); two tuples of two are two samples (x, y)."""
    two = isinstance(item, tuple | list) and len(item) == 2
    return two and not all(isinstance(part, tuple) and len(part) == 2 for part in item)


def hashed_items(items: Iterable[Any]) -> str:
    """Return a hash of the data of clients; of a Dataset that reads its samples, of its size."""
    digest, complete = sha256(), True
    for item in items:
        tensors = item.tensors if isinstance(item, TensorDataset) else item
        if isinstance(tensors, tuple | list) and tensors:
            whole = isinstance(item, TensorDataset) or _is_pair(item)
            for part in tensors if whole else _collated("a client", tensors):
                update(digest, as_tensor("the data", part))
        else:
            digest.update(repr(size(item)).encode())
            complete = False
    return f"{digest.hexdigest()[:16]}{'' if complete else '?'}"


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
        if isinstance(client, Tensor | numpy.ndarray):
            raise ValueError(
                f"client {i} is a {type(client).__name__}, not a pair; pass a list with a pair "
                "(X, y) for each client, [(X, y)] if there is one."
            )


class ClientData:
    """A sequence of clients, possibly lazy; `self[i]` is read, and passed to `check`, when needed.

    What a list or tuple holds is kept once read; of another sequence, the last few clients used.
    """

    def __init__(
        self,
        clients: Sequence[Any],
        dtype: torch.dtype,
        device: torch.device,
        check: Callable[[str, Data], None],
    ) -> None:
        self.clients, self.dtype, self.device, self.check = clients, dtype, device, check
        self.in_memory = isinstance(clients, list | tuple)
        self._read: OrderedDict[int, Data] = OrderedDict()
        self._lock = Lock()  # executors read from several threads

    def __len__(self) -> int:
        return len(self.clients)

    def size(self, i: int) -> int:
        """Return the number of samples of client i."""
        if i in self._read:
            return len(self._read[i])
        try:
            return size(self.clients[i])
        except TypeError:
            return len(self[i])  # which says what is wrong with it

    def __getitem__(self, i: int) -> Data:
        with self._lock:
            if i in self._read:
                self._read.move_to_end(i)
                return self._read[i]
            data = read(f"client {i}", self.clients[i], self.dtype, self.device)
            check_data(f"client {i}", data)
            self.check(f"client {i}", data)
            self._read[i] = data
            if not self.in_memory and len(self._read) > _KEPT:
                self._read.popitem(last=False)
            return data


def check_data(who: str, data: Data) -> None:
    """Refuse what no model can learn from."""
    X, y = data.X, data.y
    if not X.dim():
        raise ValueError(f"{who} has one number as its inputs; pass samples, one in each row.")
    if not len(data):
        raise no_samples(who)
    if y.dim() == 0 or X.shape[0] != y.shape[0]:
        raise ValueError(
            f"{who} has {X.shape[0]} inputs but {y.shape[0] if y.dim() else 0} targets; "
            "pass as many of one as of the other."
        )
    for name, part in (("inputs", X), ("targets", y)):
        if part.is_floating_point() and not bool(torch.isfinite(part).all()):
            row = int((~torch.isfinite(part.reshape(len(part), -1)).all(1)).nonzero()[0])
            raise ValueError(
                f"{who} has NaN or infinity in its {name} (first in sample {row}); "
                "drop or fill in such samples."
            )


def no_samples(who: str) -> ValueError:
    """Return the error that refuses an empty client."""
    return ValueError(f"{who} has no samples; leave it out, or give it data.")


def batch_size(batch: int | float | None, n: int) -> int:
    """Return the size of a mini-batch of n samples.

    >>> batch_size(None, 15), batch_size(20, 15), batch_size(0.2, 15)
    (15, 15, 3)
    """
    if batch is None:
        return n
    if isinstance(batch, float):
        return max(1, ceil(batch * n - 1e-9))  # 0.2 * 15 is a little more than 3
    return min(n, batch)


def check_batch(batch: int | float | None) -> None:
    """Refuse a batch that is neither a size nor a fraction."""
    if batch is None:
        return
    whole = isinstance(batch, int) and not isinstance(batch, bool) and batch >= 1
    if not whole and not (isinstance(batch, float) and 0 < batch <= 1):
        raise ValueError(
            f"batch={batch!r}; pass a number of samples, a fraction of the local data such as "
            "0.2, or None for all of it."
        )


class Batches:
    """The mini-batches of one client in one round, a function of (seed, i, r, k) alone."""

    def __init__(
        self,
        data: Data,
        batch: int | float | None,
        sampling: Literal["reshuffle", "iid"],
        key: tuple[int, int, int],
    ) -> None:
        self.data, self.sampling, self.key = data, sampling, key
        self.n, self.b = len(data), batch_size(batch, len(data))
        self.steps = ceil(self.n / self.b)  # in one pass
        self.whole = batch is None or (sampling == "reshuffle" and self.b == self.n)
        self._pass, self._order = -1, tuple[Tensor, ...]()

    def rows(self, k: int) -> Tensor | None:
        """Return which samples make up mini-batch k; None for all of them."""
        if self.whole:
            return None
        device = self.data.X.device
        if self.sampling == "iid":
            return torch.randint(self.n, (self.b,), generator=self._stream(k)).to(device)
        number, step = divmod(k, self.steps)
        if number != self._pass:
            order = torch.randperm(self.n, generator=self._stream(number))
            self._pass, self._order = number, torch.split(order.to(device), self.b)
        return self._order[step]

    def __getitem__(self, k: int) -> Data:
        rows = self.rows(k)
        if rows is None:
            return self.data
        X, y = self.data.X, self.data.y
        part = X.index_select(0, rows), y.index_select(0, rows)  # 5 x as fast as X[rows]
        return Data(*part, self.data.who)

    def _stream(self, number: int) -> torch.Generator:
        seed, i, r = self.key
        return stream(seed, BATCH, i, r, number)
