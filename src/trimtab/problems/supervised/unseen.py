"""Data that nobody learns from: a test set, clients' own test parts, and data for validation."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from trimtab.problems.supervised.client_data import ClientData, check_data, no_samples
from trimtab.problems.supervised.holdout import Part
from trimtab.problems.supervised.reading import Loose, Reader
from trimtab.problems.supervised.samples import Data
from trimtab.problems.supervised.trees import describe, leaves

_OWN = "the test part of client"


class Unseen:
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
        """Whether there are validation data; looks at clients until one gives up a row."""
        if isinstance(self.held_out, Part):
            return any(self.held_out.size(i) for i in range(len(self.held_out)))
        return self.held_out is not None

    @cached_property
    def validation(self) -> Data:
        """The validation data: those that were given, else the rows held out of all clients."""
        if not isinstance(self.held_out, Part):
            return self._read("the validation data", self.held_out)
        held = self.held_out
        rows = ((f"client {i}", held[i] if held.size(i) else None) for i in range(len(held)))
        return self._pooled("the validation data", rows)

    def has_own(self, i: int) -> bool:
        """Tell whether client i has a test part of its own."""
        return self.tests is not None and self.tests[i] is not None

    def own(self, i: int) -> Data | None:
        """Return the test part of client i; None if it has none."""
        return self._own[i] if self._own is not None and self.has_own(i) else None

    def _read(self, who: str, item: Any) -> Data:
        data = self.reader.read(who, item)
        check_data(who, data)
        self.check(who, data)
        return data

    def _pooled(self, who: str, items: Iterable[tuple[str, Any]]) -> Data:
        """Return the samples of all clients that have some, one client after the other."""
        parts: list[Data] = []
        for whose, item in items:
            if item is not None:
                part = self.reader.read(whose, item)
                check_data(whose, part)
                if parts and _shapes(part) != _shapes(parts[0]):
                    self.check(parts[0].who, parts[0])
                    self.check(whose, part)
                parts.append(part)
        if not parts:
            raise no_samples(who)
        pooled = _joined(who, parts)
        self.check(who, pooled)
        return pooled


def with_own_tests(
    clients: Sequence[Any], tests: Sequence[Any] | None
) -> tuple[Sequence[Any], Sequence[Any] | None]:
    """Return clients as pairs, and the test parts of those given as (X, y, (X_test, y_test))."""
    triples = isinstance(clients, list | tuple) and any(map(is_triple, clients))
    if triples and tests is not None:
        raise ValueError(
            "clients have test parts of their own, (X, y, test), and tests= gives others; pass "
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
    """Tell whether a client is (X, y, test): X and y are tensors or arrays, so it is no samples.

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
    # Three samples (x, y) in a tuple look much the same.
    rows = {len(part) if getattr(part, "shape", ()) else 0 for part in parts}
    return isinstance(item, tuple) and len(rows) == 1 and 0 not in rows


def _inside(part: Any) -> list[Any]:
    """Return the parts of inputs or targets; what is one tensor or array, as one."""
    if isinstance(part, Mapping):
        return list(part.values())
    return list(part) if isinstance(part, tuple) else [part]


def _shapes(data: Data) -> Any:
    if isinstance(data, Loose):
        return data.form
    return data.form, [(y.shape[1:], y.dtype) for y in leaves(data.y)]


def _joined(who: str, parts: Sequence[Data]) -> Data:
    try:
        return parts[0].joined(parts[1:], who)
    except (RuntimeError, TypeError, KeyError, ValueError) as error:
        inputs, targets = {describe(part.X) for part in parts}, {describe(part.y) for part in parts}
        shapes = sorted(inputs if len(inputs) > 1 else targets)
        raise ValueError(
            f"{who} come in shapes {' and '.join(shapes)}; give all clients the same."
        ) from error
