"""A vector that remembers how it is made: a linear combination, computed in one pass when needed.

The local steps of most algorithms are linear combinations, `y - eta_l * (g(y, k) - c_i + c)`: as
tensors four passes over memory and four calls, as a `LazyVector` one. Algorithms do not notice:
whatever is not linear is computed on the tensor, and what only a tensor can do is a NotLazyError,
upon which the program runs again on tensors. A `tape.Tape` uses combinations of symbols.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from trimtab.compute import kernel
from trimtab.core import Leaf, State, map_leaves
from trimtab.core.oracle import ClientOracle

_MANY = 6  # a combination of more terms is settled
_SHARING = "data grad numpy untyped_storage storage data_ptr set_ __array__ __dlpack__"
_ONLY_TENSORS = frozenset(_SHARING.split())  # through these a change in place goes unnoticed

Term = tuple[float, Any, int]
"""A number, a tensor or symbol, and the tensor's version when it was taken down."""


class NotLazyError(Exception):
    """Somebody does with a lazy vector what only a tensor can do."""


class NotLinearError(NotLazyError):
    """Somebody wants the numbers of a vector that is not there yet."""


class NotAlikeError(NotLazyError):
    """Somebody looks at a vector as a whole, where there are several."""


class _Recorder(Protocol):
    def settled(self, y: Any) -> "Symbol": ...


class Symbol:
    """A vector that is not there yet; its recorder takes down how to make it."""

    __slots__ = ("recorder",)

    def __init__(self, recorder: _Recorder) -> None:
        self.recorder = recorder


class LazyVector(Leaf):
    """The sum of numbers times tensors of one shape.

    A tensor that is changed in place after it became part of a sum is found out by its version.

    >>> import torch
    >>> a, b = LazyVector.of(torch.ones(2)), LazyVector.of(torch.arange(2.0))
    >>> (a - 0.5 * (b - a)).tensor()
    tensor([1.5000, 1.0000])
    """

    __slots__ = ("_given", "_tensor", "_terms")
    __array_priority__ = 1000  # numpy's numbers leave operators to it, as they do to tensors

    def __init__(self, terms: list[Term]) -> None:
        self._terms = terms
        self._tensor: Tensor | None = None
        self._given = False

    @classmethod
    def of(cls, tensor: Tensor, given: bool = True) -> "LazyVector":
        """Return a tensor as the combination it trivially is.

        One that is given belongs to somebody else; a program may not change it in place.
        """
        combination = cls([(1.0, tensor, 0)])
        combination._tensor, combination._given = tensor, given
        return combination

    @classmethod
    def symbol(cls, symbol: Symbol) -> "LazyVector":
        """Return a symbol as the combination it trivially is."""
        return cls([(1.0, symbol, 0)])

    def tensor(self) -> Tensor:
        """Return the tensor, computed at the first call."""
        if self._tensor is None:
            for _, value, version in self._terms:
                if isinstance(value, Symbol):
                    raise NotLinearError
                if _version(value) != version:
                    raise NotLazyError("a tensor that was changed in place")
            self.settle(kernel.combine(self.terms))
        assert self._tensor is not None
        return self._tensor

    @property
    def terms(self) -> list[tuple[float, Any]]:
        """Numbers times tensors or symbols that add up to this."""
        return [(number, value) for number, value, _ in self._terms]

    def settle(self, value: Any) -> None:
        """Take a tensor or symbol that stands for all the terms."""
        self._terms = [(1.0, value, 0)]
        self._tensor = value if isinstance(value, Tensor) else None

    def _now(self) -> list[Term]:
        """Return the terms, a settled tensor as it is now."""
        if self._tensor is None:
            return self._terms
        return [(1.0, self._tensor, _version(self._tensor))]

    def _is_linear(self) -> bool:
        """Tell whether multiples and sums may wait: of floats, and without autograd."""
        value = self._terms[0][1]
        return isinstance(value, Symbol) or (
            value.dtype.is_floating_point and not value.requires_grad
        )

    def _fits(self, other: Any) -> bool:
        """Tell whether a sum with the other one is a combination of alike vectors."""
        mine = self._terms[0][1]
        theirs = other._terms[0][1] if isinstance(other, LazyVector) else other
        if isinstance(mine, Symbol) or isinstance(theirs, Symbol):
            return isinstance(mine, Symbol) and isinstance(theirs, Symbol)
        return (
            isinstance(theirs, Tensor)
            and (mine.shape, mine.dtype, mine.device) == (theirs.shape, theirs.dtype, theirs.device)
            and self._is_linear()
            and not theirs.requires_grad
        )

    def _plus(self, other: Any, sign: float) -> "LazyVector":
        more = other._now() if isinstance(other, LazyVector) else [(1.0, other, _version(other))]
        terms = list(self._now())
        for a, tensor, version in more:
            for j, (b, known, then) in enumerate(terms):
                if known is tensor and then == version:
                    terms[j] = (b + sign * a, tensor, version)
                    break
            else:
                terms.append((sign * a, tensor, version))
        terms = [term for term in terms if term[0]] or terms[:1]  # what cancels is not read
        combination = type(self)(terms)
        if len(terms) > _MANY:
            symbols = [value for _, value, _ in terms if isinstance(value, Symbol)]
            if symbols:
                symbols[0].recorder.settled(combination)
            else:
                combination.tensor()
        return combination

    def _times(self, number: float) -> "LazyVector":
        return type(self)([(number * a, value, version) for a, value, version in self._now()])

    def __add__(self, other: Any) -> Any:
        if self._fits(other):
            return self._plus(other, 1.0)
        return self._beyond("add", torch.add, self, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        if self._fits(other):
            return self._plus(other, -1.0)
        return self._beyond("sub", torch.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        if self._fits(other):
            return self._times(-1.0)._plus(other, 1.0)
        return self._beyond("__rsub__", Tensor.__rsub__, self, other)

    def __neg__(self) -> Any:
        return self._times(-1.0) if self._is_linear() else self._beyond("neg", torch.neg, self)

    def __mul__(self, number: Any) -> Any:
        if isinstance(number, int | float) and self._is_linear():
            return self._times(number)
        return self._beyond("mul", torch.mul, self, number)

    __rmul__ = __mul__

    def __truediv__(self, number: Any) -> Any:
        if isinstance(number, int | float) and number and self._is_linear():
            return type(self)([(a / number, value, version) for a, value, version in self._now()])
        return self._beyond("div", torch.div, self, number)

    def __getattr__(self, name: str) -> Any:
        if name in _ONLY_TENSORS:
            raise NotLazyError(name)
        if _changes(name):
            return partial(self._in_place, name)
        value = getattr(self.tensor(), name)
        return partial(self._beyond, name, value) if callable(value) else value

    def _in_place(self, name: str, *args: Any, **kwargs: Any) -> "LazyVector":
        """Change the tensor itself, unless it is somebody else's."""
        self._own()
        self._beyond(name, getattr(Tensor, name), self, *args, **kwargs)
        return self

    def _own(self) -> None:
        """Have a tensor of its own, that may be changed."""
        self.tensor()
        if self._given:
            raise NotLazyError("a change in place of what was given")

    def __setitem__(self, where: Any, value: Any) -> None:
        self._in_place("__setitem__", where, value)

    def __deepcopy__(self, memo: Any) -> "LazyVector":
        return type(self).of(self.tensor().clone(), given=False)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise NotLazyError("a copy that shares its memory, or a pickle")

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        changed = args[:1] if _changes(function.__name__) or kwargs.get("inplace") else ()
        for vector in (*changed, kwargs.get("out")):
            if isinstance(vector, LazyVector):
                vector._own()
        return cls._beyond(function.__name__, function, *args, **kwargs)

    @classmethod
    def _beyond(cls, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Compute on the tensors, since it is not linear."""
        plain = {key: _plain(value) for key, value in kwargs.items()}
        return function(*map(_plain, args), **plain)


def _version(tensor: Tensor) -> int:
    """Return how often a tensor was changed in place; those of inference mode do not count it."""
    return 0 if tensor.is_inference() else tensor._version


def _changes(name: str) -> bool:
    """Tell whether a function of this name changes its first argument."""
    return name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))


def _operator(name: str) -> Callable[..., Any]:
    function = getattr(Tensor, name)
    return lambda self, *args: self._beyond(name, function, self, *args)


def _operator_in_place(name: str) -> Callable[..., Any]:
    return lambda self, *args: self._in_place(name, *args)


_FUNCTIONS = """
    add sub subtract mul multiply div divide true_divide floor_divide remainder fmod pow neg abs
    sign sqrt rsqrt square reciprocal exp expm1 log log1p sin cos tanh sigmoid relu erf floor ceil
    round trunc clamp clamp_min clamp_max clip maximum minimum where lerp addcmul addcdiv
    lt le gt ge eq ne logical_and logical_or logical_not isfinite isnan nan_to_num
    zeros_like ones_like full_like clone detach contiguous float double copy zero fill
"""
_OPERATORS = """
    __abs__ __pos__ __lt__ __le__ __gt__ __ge__ __eq__ __ne__ __rtruediv__ __pow__ __rpow__
    __floordiv__ __rfloordiv__ __mod__ __rmod__ __invert__ __and__ __rand__ __or__ __ror__
    __xor__ __rxor__ __lshift__ __rlshift__ __rshift__ __rrshift__
"""
_OPERATORS_IN_PLACE = """
    __iadd__ __isub__ __imul__ __itruediv__ __ifloordiv__ __imod__ __ipow__ __iand__ __ior__
    __ixor__ __ilshift__ __irshift__
"""
_OTHERS = """
    __bool__ __float__ __int__ __complex__ __index__ __len__ __iter__ __reversed__ __getitem__
    __contains__ __matmul__ __rmatmul__ __format__
"""
_IN_PLACE = {*_OPERATORS_IN_PLACE.split(), "__setitem__"}
_EACH_ALIKE = {*_FUNCTIONS.split(), *_OPERATORS.split(), *_OPERATORS_IN_PLACE.split()}
_EACH_ALIKE |= {"__rsub__", "__rdiv__"}
for _name in (_OPERATORS + _OTHERS).split():  # Python looks these up in the class itself
    setattr(LazyVector, _name, _operator(_name))
for _name in _OPERATORS_IN_PLACE.split():
    setattr(LazyVector, _name, _operator_in_place(_name))


class LazyRows(LazyVector):
    """The vectors of several clients, one in each row.

    It computes what treats every number alike, as most algorithms do. With a norm, an index or a
    comparison of whole vectors it would mix clients: NotAlikeError, and they go one by one.

    >>> import torch
    >>> rows = LazyRows.of(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    >>> torch.sqrt(1 - rows + rows**2).tensor()
    tensor([[2.6458, 3.6056],
            [1.0000, 1.0000]])
    >>> rows / rows.norm()
    Traceback (most recent call last):
    trimtab.compute.lazy.NotAlikeError: norm
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        if not callable(value) and name not in ("dtype", "device"):
            raise NotAlikeError(name)
        return value

    def _fits(self, other: Any) -> bool:
        return isinstance(other, LazyVector) and super()._fits(other)

    @classmethod
    def _beyond(cls, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        known = name if name.endswith("__") else name.removesuffix("_")
        changed = [
            *(args[:1] if _changes(name) else ()),
            *(v for k, v in kwargs.items() if k == "out"),
        ]
        tables = any(_is_table(value) for value in (*args, *kwargs.values()))
        if known not in _EACH_ALIKE or tables or not all(isinstance(v, cls) for v in changed):
            raise NotAlikeError(name)
        found = super()._beyond(name, function, *args, **kwargs)
        if not isinstance(found, Tensor):
            raise NotAlikeError(name)
        shared = {_place(value) for value in args if isinstance(value, Tensor | LazyVector)}
        return cls.of(found, given=_place(found) in shared)


def _is_table(value: Any) -> bool:
    """Tell whether this is a tensor of several rows that are not those of the clients."""
    return isinstance(value, Tensor) and value.dim() > 1


def _place(tensor: Tensor | LazyVector) -> int:
    place: int = _plain(tensor).untyped_storage().data_ptr()
    return place


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):  # as torch.stack takes them
        return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value
    return value.tensor() if isinstance(value, LazyVector) else value


def lazy(tree: State, kind: type[LazyVector] = LazyVector) -> State:
    """Return a state or broadcast with its floating-point tensors as combinations.

    They count changes for themselves, since states of several clients may share their memory, where
    one is kept while another is in use.
    """
    return map_leaves(lambda leaf: kind.of(leaf.data) if leaf.is_floating_point() else leaf, tree)


def eager(tree: State) -> State:
    """Return a state or upload with its combinations as tensors."""
    return map_leaves(_plain, tree)


def lazily(g: ClientOracle, kind: type[LazyVector] = LazyVector) -> ClientOracle:
    """Return an oracle that takes and gives lazy vectors."""

    def gradient(y: Any, k: int | None = None) -> Any:
        return kind.of(g.gradient(_plain(y), k), given=False)

    def draw(what: Any, like: Any) -> Any:
        return kind.of(g.draw(what, _plain(like)), given=False)

    return replace(g, gradient=gradient, draw=draw)
