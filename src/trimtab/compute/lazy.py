"""Lazy vectors: linear combinations of tensors that are computed in one pass when needed.

The local steps of most algorithms are linear combinations, `y - eta_l * (g(y, k) - c_i + c)`: with
tensors four passes over memory and four calls, with a `LazyVector` one of each. Algorithms do not
notice: other operations are computed on the tensor, and an operation that needs a real tensor
raises NotLazyError, after which the executor runs the program again on tensors. A `tape.Tape` is
traced with combinations of symbols.
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

# A combination with more terms is computed at once, so that sums over many steps do not grow.
# A step of SCAFFOLD has four terms; six leave two for an algorithm's further vectors.
_MAX_TERMS = 6

Term = tuple[float, Any, int]
"""A factor, a tensor or symbol, and the version of the tensor when the term was made."""

# -- names of PyTorch's functions and methods, by their effect on a vector

_ELEMENTWISE_FUNCTIONS = """
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
_WHOLE_VECTOR = """
    __bool__ __float__ __int__ __complex__ __index__ __len__ __iter__ __reversed__ __getitem__
    __contains__ __matmul__ __rmatmul__ __format__
"""
_SHARED = "data grad numpy untyped_storage storage data_ptr set_ __array__ __dlpack__"

SPECIAL_METHODS = (*_OPERATORS.split(), *_WHOLE_VECTOR.split())
"""Methods that Python looks up on the class; linear and in-place operators are separate."""

SPECIAL_METHODS_IN_PLACE = tuple(_OPERATORS_IN_PLACE.split())
"""The operators that change their first operand."""

SHARES_MEMORY = frozenset(_SHARED.split())
"""Attributes whose results share memory: changes through them do not raise the version."""

_IN_PLACE = {*SPECIAL_METHODS_IN_PLACE, "__setitem__"}
_ELEMENTWISE = {*_ELEMENTWISE_FUNCTIONS.split(), *_OPERATORS.split(), *SPECIAL_METHODS_IN_PLACE}
_ELEMENTWISE |= {"__rsub__", "__rdiv__"}


def is_in_place(name: str) -> bool:
    """Return whether a function of this name changes its first argument.

    >>> is_in_place("add_"), is_in_place("__iadd__"), is_in_place("__add__")
    (True, True, False)
    """
    return name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))


def is_elementwise(name: str) -> bool:
    """Return whether each element of the result depends on elements of the same index only.

    >>> is_elementwise("sqrt_"), is_elementwise("norm")
    (True, False)
    """
    plain = name if name.endswith("__") else name.removesuffix("_")
    return plain in _ELEMENTWISE


# -- vectors


class NotLazyError(Exception):
    """A program uses a lazy vector in a way that needs a real tensor."""


class NotLinearError(NotLazyError):
    """A traced program needs the values of a symbol, which has none."""


class NotBatchableError(NotLazyError):
    """A program uses a whole vector where rows hold those of several clients."""


class _SymbolRecorder(Protocol):
    def symbol_for(self, y: Any) -> "Symbol": ...


class Symbol:
    """A vector without values; its recorder records how to compute it."""

    __slots__ = ("recorder",)

    def __init__(self, recorder: _SymbolRecorder) -> None:
        self.recorder = recorder


class LazyVector(Leaf):
    """A sum of factors times tensors of one shape.

    A tensor that was changed in place after it became a term has another version: NotLazyError.

    >>> import torch
    >>> a, b = LazyVector.of(torch.ones(2)), LazyVector.of(torch.arange(2.0))
    >>> (a - 0.5 * (b - a)).tensor()
    tensor([1.5000, 1.0000])
    """

    __slots__ = ("_borrowed", "_tensor", "_terms")
    # NumPy scalars leave operators to objects of higher priority, as they do for tensors.
    __array_priority__ = 1000

    def __init__(self, terms: list[Term]) -> None:
        self._terms = terms
        self._tensor: Tensor | None = None
        self._borrowed = False

    @classmethod
    def of(cls, tensor: Tensor, borrowed: bool = True) -> "LazyVector":
        """Return the combination of one tensor.

        borrowed: whether the tensor belongs to the caller, so that a program may not change it.
        """
        combination = cls([(1.0, tensor, 0)])
        combination._tensor, combination._borrowed = tensor, borrowed
        return combination

    @classmethod
    def symbol(cls, symbol: Symbol) -> "LazyVector":
        """Return the combination of one symbol."""
        return cls([(1.0, symbol, 0)])

    def tensor(self) -> Tensor:
        """Return the tensor, computed at the first call."""
        if self._tensor is None:
            for _, value, version in self._terms:
                if isinstance(value, Symbol):
                    raise NotLinearError
                if _version(value) != version:
                    raise NotLazyError("a tensor that was changed in place")
            self.materialise(kernel.combine(self.terms))
        assert self._tensor is not None
        return self._tensor

    @property
    def terms(self) -> list[tuple[float, Any]]:
        """The factors and their tensors or symbols."""
        return [(number, value) for number, value, _ in self._terms]

    def materialise(self, value: Any) -> None:
        """Replace all terms by a tensor or symbol that equals their sum."""
        self._terms = [(1.0, value, 0)]
        self._tensor = value if isinstance(value, Tensor) else None

    def _current_terms(self) -> list[Term]:
        """Return the terms; a computed tensor has its present version."""
        if self._tensor is None:
            return self._terms
        return [(1.0, self._tensor, _version(self._tensor))]

    def _is_linear(self) -> bool:
        """Return whether sums may be lazy: for floating-point numbers without autograd."""
        value = self._terms[0][1]
        return isinstance(value, Symbol) or (
            value.dtype.is_floating_point and not value.requires_grad
        )

    def _is_compatible(self, other: Any) -> bool:
        """Return whether the sum with another vector is a combination too."""
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
        more = (
            other._current_terms()
            if isinstance(other, LazyVector)
            else [(1.0, other, _version(other))]
        )
        terms = list(self._current_terms())
        for a, tensor, version in more:
            for j, (b, known, then) in enumerate(terms):
                if known is tensor and then == version:
                    terms[j] = (b + sign * a, tensor, version)
                    break
            else:
                terms.append((sign * a, tensor, version))
        # A term that cancels need not be read; one term stays for shape and dtype.
        terms = [term for term in terms if term[0]] or terms[:1]
        combination = type(self)(terms)
        if len(terms) > _MAX_TERMS:
            symbols = [value for _, value, _ in terms if isinstance(value, Symbol)]
            if symbols:
                symbols[0].recorder.symbol_for(combination)
            else:
                combination.tensor()
        return combination

    def _times(self, number: float) -> "LazyVector":
        return type(self)(
            [(number * a, value, version) for a, value, version in self._current_terms()]
        )

    def __add__(self, other: Any) -> Any:
        if self._is_compatible(other):
            return self._plus(other, 1.0)
        return self._on_tensors("add", torch.add, self, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        if self._is_compatible(other):
            return self._plus(other, -1.0)
        return self._on_tensors("sub", torch.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        if self._is_compatible(other):
            return self._times(-1.0)._plus(other, 1.0)
        return self._on_tensors("__rsub__", Tensor.__rsub__, self, other)

    def __neg__(self) -> Any:
        return self._times(-1.0) if self._is_linear() else self._on_tensors("neg", torch.neg, self)

    def __mul__(self, number: Any) -> Any:
        if isinstance(number, int | float) and self._is_linear():
            return self._times(number)
        return self._on_tensors("mul", torch.mul, self, number)

    __rmul__ = __mul__

    def __truediv__(self, number: Any) -> Any:
        if isinstance(number, int | float) and number and self._is_linear():
            return type(self)(
                [(a / number, value, version) for a, value, version in self._current_terms()]
            )
        return self._on_tensors("div", torch.div, self, number)

    def __getattr__(self, name: str) -> Any:
        if name in SHARES_MEMORY:
            raise NotLazyError(name)
        if is_in_place(name):
            return partial(self._in_place, name)
        value = getattr(self.tensor(), name)
        return partial(self._on_tensors, name, value) if callable(value) else value

    def _in_place(self, name: str, *args: Any, **kwargs: Any) -> "LazyVector":
        """Change the tensor in place; raise NotLazyError if it is borrowed."""
        self._require_owned()
        self._on_tensors(name, getattr(Tensor, name), self, *args, **kwargs)
        return self

    def _require_owned(self) -> None:
        """Compute the tensor; raise NotLazyError if it is borrowed."""
        self.tensor()
        if self._borrowed:
            raise NotLazyError("a change in place of a borrowed tensor")

    def __setitem__(self, where: Any, value: Any) -> None:
        self._in_place("__setitem__", where, value)

    def __deepcopy__(self, memo: Any) -> "LazyVector":
        return type(self).of(self.tensor().clone(), borrowed=False)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise NotLazyError("a copy that shares its memory, or a pickle")

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        changed = args[:1] if is_in_place(function.__name__) or kwargs.get("inplace") else ()
        for vector in (*changed, kwargs.get("out")):
            if isinstance(vector, LazyVector):
                vector._require_owned()
        return cls._on_tensors(function.__name__, function, *args, **kwargs)

    @classmethod
    def _on_tensors(cls, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function that is not linear on the tensors."""
        plain = {key: as_tensor(value) for key, value in kwargs.items()}
        return function(*map(as_tensor, args), **plain)


def _version(tensor: Tensor) -> int:
    """Return the version of a tensor; tensors of inference mode do not have one."""
    return 0 if tensor.is_inference() else tensor._version


def _operator(name: str) -> Callable[..., Any]:
    function = getattr(Tensor, name)
    return lambda self, *args: self._on_tensors(name, function, self, *args)


def _operator_in_place(name: str) -> Callable[..., Any]:
    return lambda self, *args: self._in_place(name, *args)


# Python looks up operators on the class, never through __getattr__.
for _name in SPECIAL_METHODS:
    setattr(LazyVector, _name, _operator(_name))
for _name in SPECIAL_METHODS_IN_PLACE:
    setattr(LazyVector, _name, _operator_in_place(_name))


def as_tensor(value: Any) -> Any:
    """Return the tensor of a lazy vector, also inside a list or tuple; other values unchanged."""
    if isinstance(value, list | tuple):  # torch.stack takes its vectors in one.
        return type(value)(map(as_tensor, value)) if type(value) in (list, tuple) else value
    return value.tensor() if isinstance(value, LazyVector) else value


def lazy(tree: State, kind: type[LazyVector] = LazyVector) -> State:
    """Return a state or broadcast with its floating-point vectors as lazy vectors.

    Scalars remain tensors. Each lazy vector uses `leaf.data`, which has its own version counter:
    states of several clients may be views of one tensor, and storing the state of one client must
    not look like a change of another.
    """

    def combination(leaf: Tensor) -> Any:
        return kind.of(leaf.data) if leaf.is_floating_point() and leaf.dim() else leaf

    return map_leaves(combination, tree)


def eager(tree: State) -> State:
    """Return a state or upload with its lazy vectors as tensors."""
    return map_leaves(as_tensor, tree)


def with_lazy_vectors(g: ClientOracle, kind: type[LazyVector] = LazyVector) -> ClientOracle:
    """Return an oracle that accepts and returns lazy vectors."""

    def gradient(y: Any, k: int | None = None) -> Any:
        return kind.of(g.gradient(as_tensor(y), k), borrowed=False)

    def draw(what: Any, like: Any) -> Any:
        return kind.of(g.draw(what, as_tensor(like)), borrowed=False)

    return replace(g, gradient=gradient, draw=draw)
