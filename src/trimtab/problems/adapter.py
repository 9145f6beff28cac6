"""Objects of other classes as problems."""

from abc import ABC
from collections.abc import Callable, Mapping
from copy import copy
from functools import lru_cache
from inspect import getattr_static, signature
from operator import attrgetter
from typing import Any

from torch import nn

from trimtab.problems.origin import origin_of, set_origin
from trimtab.problems.problem import Problem

_REQUIRED = ("N", "d", "weights", "x0", "oracle")
_OPTIONAL = tuple(name for name in dir(Problem) if name[0] != "_" and name not in _REQUIRED)


def as_problem(given: Any) -> Problem:
    """Return a problem as a `Problem`; an object of another class is adapted.

    The members that the object has win over the defaults of `Problem`; a member that is None counts
    as absent. The object is not copied.

    >>> from trimtab import Quadratic
    >>> quadratic = Quadratic(A=[1.0, 2.0], b=[0.0, 1.0])
    >>> as_problem(quadratic) is quadratic
    True
    """
    if isinstance(given, type) or not all(hasattr(given, name) for name in _REQUIRED):
        raise ValueError(f"{_shown(given)} is not a problem; {_instead(given)}.")
    return given if isinstance(given, Problem) else _class_named(type(given).__name__)(given)


def _shown(given: Any) -> str:
    if isinstance(given, type):
        return f"the class {given.__name__}"
    return repr(given) if given is None or isinstance(given, str) else f"a {type(given).__name__}"


def _instead(given: Any) -> str:
    """Return what to pass, which depends on what a user may have meant."""
    if isinstance(given, type):
        return "pass an instance of it"
    if hasattr(given, "columns") and hasattr(given, "iloc"):
        return "pass trimtab.Supervised.from_frame(…) of the table"
    if isinstance(given, nn.Module):
        return "pass trimtab.Supervised(module, loss, clients)"
    return "pass one that has N, d, weights, x0 and oracle, such as trimtab.Supervised(…)"


class _Adapted(Problem, ABC):
    """An object of another class, whose members are read when they are needed."""

    def __init__(self, given: Any) -> None:
        self._given = given
        set_origin(self, origin_of(given))

    def __getattr__(self, name: str) -> Any:
        # What is not a member of Problem is still an attribute of the user's own object.
        if name == "_given" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._given, name)

    def __repr__(self) -> str:
        return repr(self._given)

    def __copy__(self) -> Problem:
        # A metric that is set on the copy must not reach the object that was copied.
        other = as_problem(copy(self._given))
        set_origin(other, origin_of(self))
        return other

    def __reduce__(self) -> Any:
        return as_problem, (self._given,)

    def _overrides(self, name: str) -> bool:
        return getattr(self._given, name, None) is not None


@lru_cache(maxsize=256)
def _class_named(name: str) -> Any:
    """Return a class whose name is that of the object's class, since errors and records show it."""
    required = {n: property(attrgetter(f"_given.{n}"), _setter(n)) for n in _REQUIRED}
    optional = {n: property(_getter(n), _setter(n)) for n in _OPTIONAL}
    return type(name, (_Adapted,), required | optional)


def _getter(name: str) -> Any:
    default: Any = getattr_static(Problem, name)
    is_usable = _USABLE.get(name, lambda own: True)

    def get(self: _Adapted) -> Any:
        own = getattr(self._given, name, None)
        if own is None or not is_usable(own):
            return default.__get__(self) if hasattr(default, "__get__") else default
        if name in ("split", "with_metric"):
            return lambda *args: as_problem(own(*args))
        return own

    return get


def _setter(name: str) -> Any:
    return lambda self, value: setattr(self._given, name, value)


def _is_function_of_one(own: Any) -> bool:
    """Return whether a `loss` is f(x), and not a loss of outputs and targets."""
    try:
        signature(own.forward if isinstance(own, nn.Module) else own).bind(None)
    except TypeError:  # It takes other arguments, or is not a function.
        return False
    except ValueError:  # It has no signature.
        pass
    return True


# Users' classes have members of these names that mean something else.
_USABLE: dict[str, Callable[[Any], bool]] = {
    "loss": _is_function_of_one,
    "samples": callable,
    "metrics": lambda own: isinstance(own, Mapping),
}
