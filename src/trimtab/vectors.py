"""A vector that remembers how it is made: a linear combination, computed in one pass when needed.

The local steps of most algorithms are linear combinations, `y - eta_l * (g(y, k) - c_i + c)`: as
tensors four passes over memory and four calls, as a `Combination` one. Algorithms do not notice:
whatever is not linear is computed on the tensor. A `tape.Tape` uses combinations of symbols.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from trimtab import native
from trimtab.core import Oracle, State, map_leaves

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
            return self._beyond("add", torch.add, self, sign * other)
        terms = list(self._terms)
        for a, tensor in more:
            for j, (b, known) in enumerate(terms):
                if known is tensor:
                    terms[j] = (b + sign * a, tensor)
                    break
            else:
                terms.append((sign * a, tensor))
        terms = [term for term in terms if term[0]] or terms[:1]  # what cancels is not read
        combination = type(self)(terms)
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
        return type(self)([(-a, tensor) for a, tensor in self._terms])

    def __mul__(self, number: Any) -> Any:
        if not isinstance(number, int | float):
            return self._beyond("mul", torch.mul, self, number)
        return type(self)([(number * a, tensor) for a, tensor in self._terms])

    __rmul__ = __mul__

    def __truediv__(self, number: Any) -> Any:
        if not isinstance(number, int | float):
            return self._beyond("div", torch.div, self, number)
        return type(self)([(a / number, tensor) for a, tensor in self._terms])

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_") and not name.endswith("__"):
            self._own()
        value = getattr(self.tensor(), name)
        return partial(self._beyond, name, value) if callable(value) else value

    def __setitem__(self, where: Any, value: Any) -> None:
        self._own()
        self._beyond("__setitem__", Tensor.__setitem__, self, where, value)

    def _own(self) -> None:
        """Take a tensor of its own, to be changed in place: others may be made of this one."""
        self.settle(self.tensor().clone())

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return cls._beyond(function.__name__, function, *args, **(kwargs or {}))

    @classmethod
    def _beyond(cls, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Compute on the tensors, since it is not linear."""
        plain = {key: _plain(value) for key, value in kwargs.items()}
        return function(*map(_plain, args), **plain)


def _operator(name: str) -> Callable[..., Any]:
    function = getattr(Tensor, name)
    return lambda self, *args: self._beyond(name, function, self, *args)


_FUNCTIONS = """
    add sub subtract mul multiply div divide true_divide floor_divide remainder fmod pow neg abs
    sign sqrt rsqrt square reciprocal exp expm1 log log1p sin cos tanh sigmoid relu erf floor ceil
    round trunc clamp clamp_min clamp_max clip maximum minimum where lerp addcmul addcdiv
    lt le gt ge eq ne logical_and logical_or logical_not isfinite isnan nan_to_num
    zeros_like ones_like full_like clone detach contiguous float double
"""
_OPERATORS = """
    __abs__ __pos__ __lt__ __le__ __gt__ __ge__ __eq__ __ne__ __rtruediv__ __pow__ __rpow__
    __floordiv__ __rfloordiv__ __mod__
"""
_EACH_ALIKE = {*_FUNCTIONS.split(), *_OPERATORS.split(), "__rsub__", "__rdiv__"}
_OTHERS = """
    __bool__ __float__ __int__ __len__ __iter__ __getitem__ __contains__ __matmul__ __rmatmul__
"""
for _name in (_OPERATORS + _OTHERS).split():  # Python looks these up in the class itself
    setattr(Combination, _name, _operator(_name))


class NotAlikeError(Exception):
    """Somebody looks at a vector as a whole, where there are several."""


class Rows(Combination):
    """The vectors of several clients, one in each row.

    It computes what treats every number alike, as most algorithms do. With a norm, an index or a
    comparison of whole vectors it would mix clients: NotAlikeError, and they go one by one.

    >>> import torch
    >>> rows = Rows.of(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    >>> torch.sqrt(1 - rows + rows**2).tensor()
    tensor([[2.6458, 3.6056],
            [1.0000, 1.0000]])
    >>> rows / rows.norm()
    Traceback (most recent call last):
    trimtab.vectors.NotAlikeError: norm
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        if not callable(value) and name not in ("dtype", "device"):
            raise NotAlikeError(name)
        return value

    @classmethod
    def _beyond(cls, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        known = name if name.endswith("__") else name.removesuffix("_")
        found = super()._beyond(name, function, *args, **kwargs) if known in _EACH_ALIKE else None
        if not isinstance(found, Tensor):
            raise NotAlikeError(name)
        return cls.of(found)


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):  # as torch.stack takes them
        return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value
    return value.tensor() if isinstance(value, Combination) else value


def lazy(tree: State, kind: type[Combination] = Combination) -> State:
    """Return a state or broadcast with its tensors as combinations."""
    return map_leaves(kind.of, tree)


def eager(tree: State) -> State:
    """Return a state or upload with its combinations as tensors."""
    if isinstance(tree, tuple):
        parts = [eager(part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return _plain(tree)


def lazily(g: Oracle, kind: type[Combination] = Combination) -> Callable[..., Combination]:
    """Return an oracle that takes and gives combinations."""
    return lambda y, k=None: kind.of(g(_plain(y), k))
