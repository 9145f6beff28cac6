"""A vector that remembers how it is made: a linear combination, computed in one pass when needed.

The local steps of most algorithms are linear combinations, `y - eta_l * (g(y, k) - c_i + c)`: as
tensors four passes over memory and four calls, as a `Combination` one. Algorithms do not notice:
whatever is not linear is computed on the tensor. A `tape.Tape` uses combinations of symbols.
"""

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from trimtab import native
from trimtab.core import Oracle, State

_MANY = 6  # terms, beyond which a combination is settled


class NotLinearError(Exception):
    """Somebody wants the numbers of a vector that is not there yet."""


class _Recorder(Protocol):
    def settled(self, y: Any) -> "Symbol": ...


class Symbol:
    """A vector that is not there yet; its recorder takes down how to make it."""

    __slots__ = ("recorder",)

    def __init__(self, recorder: _Recorder) -> None:
        self.recorder = recorder


class Combination:
    """The sum of numbers times tensors of one shape.

    >>> import torch
    >>> a, b = Combination.of(torch.ones(2)), Combination.of(torch.arange(2.0))
    >>> (a - 0.5 * (b - a)).tensor()
    tensor([1.5000, 1.0000])
    """

    __slots__ = ("_tensor", "_terms")

    def __init__(self, terms: list[tuple[float, Any]]) -> None:
        self._terms = terms
        self._tensor: Tensor | None = None

    @classmethod
    def of(cls, tensor: Tensor) -> "Combination":
        """Return a tensor as the combination it trivially is."""
        combination = cls([(1.0, tensor)])
        combination._tensor = tensor
        return combination

    def tensor(self) -> Tensor:
        """Return the tensor, computed at the first call."""
        if self._tensor is None:
            if any(isinstance(value, Symbol) for _, value in self._terms):
                raise NotLinearError
            self.settle(native.combine(self._terms))
        assert self._tensor is not None
        return self._tensor

    @property
    def terms(self) -> list[tuple[float, Any]]:
        """Numbers times tensors or symbols that add up to this."""
        return self._terms

    def settle(self, value: Any) -> None:
        """Take a tensor or symbol that stands for all the terms."""
        self._terms = [(1.0, value)]
        self._tensor = value if isinstance(value, Tensor) else None

    def _plus(self, other: Any, sign: float) -> Any:
        if isinstance(other, Combination):
            more = other._terms
        elif isinstance(other, Tensor):
            more = [(1.0, other)]
        else:
            return NotImplemented
        terms = list(self._terms)
        for a, tensor in more:
            for j, (b, known) in enumerate(terms):
                if known is tensor:
                    terms[j] = (b + sign * a, tensor)
                    break
            else:
                terms.append((sign * a, tensor))
        combination = Combination(terms)
        if len(terms) > _MANY:
            symbols = [value for _, value in terms if isinstance(value, Symbol)]
            if symbols:
                symbols[0].recorder.settled(combination)
            else:
                combination.tensor()
        return combination

    def __add__(self, other: Any) -> Any:
        return self._plus(other, 1.0)

    def __radd__(self, other: Any) -> Any:
        return self._plus(other, 1.0)

    def __sub__(self, other: Any) -> Any:
        return self._plus(other, -1.0)

    def __rsub__(self, other: Any) -> Any:
        return (-self)._plus(other, 1.0)

    def __neg__(self) -> "Combination":
        return Combination([(-a, tensor) for a, tensor in self._terms])

    def __mul__(self, number: Any) -> Any:
        if not isinstance(number, int | float):
            return self.tensor() * _plain(number)
        return Combination([(number * a, tensor) for a, tensor in self._terms])

    __rmul__ = __mul__

    def __truediv__(self, number: Any) -> Any:
        if not isinstance(number, int | float):
            return self.tensor() / _plain(number)
        return Combination([(a / number, tensor) for a, tensor in self._terms])

    def __pow__(self, power: Any) -> Any:
        return self.tensor() ** power

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor(), name)

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        plain = {name: _plain(value) for name, value in (kwargs or {}).items()}
        return function(*(_plain(value) for value in args), **plain)


def _plain(value: Any) -> Any:
    return value.tensor() if isinstance(value, Combination) else value


def lazy(tree: State) -> State:
    """Return a state or broadcast with its tensors as combinations."""
    if isinstance(tree, tuple):
        parts = [lazy(part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return Combination.of(tree) if isinstance(tree, Tensor) else tree


def eager(tree: State) -> State:
    """Return a state or upload with its combinations as tensors."""
    if isinstance(tree, tuple):
        parts = [eager(part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return _plain(tree)


def lazily(g: Oracle) -> Callable[..., Combination]:
    """Return an oracle that takes and gives combinations."""
    return lambda y, k=None: Combination.of(g(_plain(y), k))
