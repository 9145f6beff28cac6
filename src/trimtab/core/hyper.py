"""Hyper-parameters: the type of a field defines its range, and marks the step size.

eta_l: StepSize         positive; the one that is tuned
K: Steps                a whole number >= 1, or Epochs of each client's own data
K: EqualSteps           a whole number >= 1, because the server computes with it
mu: NonNegative         also Positive, Fraction (0 <= v < 1), Share (0 < v <= 1)
"""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from math import isfinite, nan
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    Protocol,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

from trimtab.errors import BadArgument


@dataclass(frozen=True)
class Rule:
    """A condition on a value, and the advice if the value does not meet it.

    holds: returns whether a value is allowed.
    sentence: the end of the error message; `{name}` is replaced by the name of the field.
    """

    holds: Callable[[Any], bool]
    sentence: str


def _number(what: str, holds: Callable[[float], bool]) -> Rule:
    def is_one(value: Any) -> bool:
        # bool is a subclass of int, and True is never meant as 1 here.
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and isfinite(value) and holds(value)

    return Rule(is_one, f"; pass a number that is {what}.")


def _counts(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


@dataclass(frozen=True)
class Epochs:
    """Passes of each client over its own data, in place of a number of local steps.

    count: the number of passes, positive; a fraction such as 0.25 is a part of a pass.

    >>> Epochs(5), Epochs(5).steps(3), Epochs(0.25).steps(3)
    (Epochs(5), 15, 1)
    """

    count: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", plain_number(self.count))
        if not _POSITIVE.holds(self.count):
            raise ValueError(f"{self!r}{_POSITIVE.sentence}")

    def steps(self, in_a_pass: int) -> int:
        """Return the local steps of a client with `in_a_pass` steps per pass; at least one."""
        return max(1, round(self.count * in_a_pass))

    def __repr__(self) -> str:
        return f"Epochs({self.count!r})"

    def __str__(self) -> str:
        return f"{self.count:g} epoch{'' if self.count == 1 else 's'}"


_STEP_SIZE = object()  # It marks the field that `compare` tunes.
_POSITIVE = _number("positive", lambda v: v > 0)

Positive = Annotated[float, _POSITIVE]
NonNegative = Annotated[float, _number("zero or positive", lambda v: v >= 0)]
Fraction = Annotated[float, _number("at least 0 and below 1", lambda v: 0 <= v < 1)]
Share = Annotated[float, _number("above 0 and at most 1", lambda v: 0 < v <= 1)]
StepSize = Annotated[float, _POSITIVE, _STEP_SIZE]
Count = Annotated[int, Rule(_counts, "; pass a whole number {name} >= 1.")]
_LOCAL_STEPS = ", but it counts local steps; pass a whole number {name} >= 1."
Steps = Annotated[
    int | Epochs,
    Rule(lambda v: isinstance(v, Epochs) or _counts(v), _LOCAL_STEPS),
]
EqualSteps = Annotated[int, Rule(_counts, _LOCAL_STEPS)]


@dataclass(frozen=True)
class Parameter:
    """One hyper-parameter of a class: its name, its plain type, and its default if it has one."""

    name: str
    type: Any
    required: bool
    rule: Rule | None = None
    is_step: bool = False
    default: Any = None

    @property
    def wraps(self) -> Any:
        """The algorithm's class, if this parameter is an algorithm that is wrapped; else None."""
        return self.type if isinstance(self.type, type) and is_dataclass(self.type) else None


def parameters_of(cls: type[Any]) -> tuple[Parameter, ...]:
    """Return the hyper-parameters of a dataclass; a wrapped algorithm is replaced by its own.

    >>> from trimtab import RichardsonRomberg
    >>> [parameter.name for parameter in parameters_of(RichardsonRomberg)]
    ['eta_l', 'K', 'eta_g']
    """
    parameters: list[Parameter] = []
    for parameter in own_parameters(cls):
        parameters += (parameter,) if parameter.wraps is None else parameters_of(parameter.wraps)
    return tuple(parameters)


def own_parameters(cls: type[Any]) -> tuple[Parameter, ...]:
    """Return the fields of a dataclass as hyper-parameters."""
    hashable: Any = cls  # mypy does not take type[Any] for a Hashable, as `cache` needs it.
    return _own_parameters(hashable)


@cache
def _own_parameters(cls: Any) -> tuple[Parameter, ...]:
    if not is_dataclass(cls):
        return ()
    try:
        hints = get_type_hints(cls, include_extras=True)
    except (NameError, TypeError):  # A type is imported for type checkers only: no rules.
        hints = {}
    # A class without a StepSize field, of a user, may still have a field with the usual name.
    fallback = next((f.name for f in fields(cls) if f.name in ("eta_l", "eta")), "")
    marked = any(_STEP_SIZE in get_args(hints.get(f.name)) for f in fields(cls))
    return tuple(
        Parameter(
            name=f.name,
            type=_plain_type(hints.get(f.name, Any)),
            required=f.default is MISSING and f.default_factory is MISSING,
            rule=_rule(hints.get(f.name)),
            is_step=_STEP_SIZE in get_args(hints.get(f.name)) if marked else f.name == fallback,
            default=None if f.default is MISSING else f.default,
        )
        for f in fields(cls)
        if f.init
    )


def _rule(hint: Any) -> Rule | None:
    """Return the rule that a type carries; of a Literal, that it is one of its values."""
    values = get_args(hint)
    if get_origin(hint) is Literal:
        return Rule(lambda value: value in values, f"; pass {' or '.join(map(repr, values))}.")
    return next((value for value in values if isinstance(value, Rule)), None)


def _plain_type(hint: Any) -> Any:
    """Return the type that a value is read as: float of Annotated[float, …], str of a Literal."""
    if get_origin(hint) is Annotated:
        return _plain_type(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return type(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return _plain_type(get_args(hint)[0])
    return hint


def validate(hyper: Any) -> None:
    """Check a dataclass of hyper-parameters by the types of its fields; for `__post_init__`.

    Numbers of NumPy or PyTorch become Python numbers, so that `repr` can be read back.

    >>> from trimtab import FedAvg
    >>> FedAvg(eta_l=0.1, K=0)
    Traceback (most recent call last):
    trimtab.errors.BadArgument: FedAvg: K=0, but it counts local steps; pass a whole number K >= 1.
    """
    for parameter in own_parameters(type(hyper)):
        name, rule = parameter.name, parameter.rule
        value = plain_number(getattr(hyper, name))
        # The dataclass is frozen, so that a plain assignment would raise an error.
        if value is not getattr(hyper, name):
            object.__setattr__(hyper, name, value)
        if rule is not None and not rule.holds(value):
            sentence = f"{{_who}}: {{{name}:{{_value}}}}" + rule.sentence.replace("{name}", name)
            raise BadArgument(name, sentence, _who=type(hyper).__name__, _value=repr(value))


def plain_number(value: Any) -> Any:
    """Return a number of NumPy or PyTorch as a Python number, and other values unchanged."""
    return value.item() if getattr(value, "shape", None) == () else value


# -- instances


@runtime_checkable
class Varying(Protocol):
    """An algorithm whose hyper-parameters change from round to round."""

    def at(self, r: int) -> Any:
        """Return the algorithm of round r."""
        ...


def at(algorithm: Any, r: int) -> Any:
    """Return the algorithm of round r; without schedules, the same object.

    >>> from trimtab import Decay, FedAvg, Rounding, Scheduled, Through
    >>> at(Through(Scheduled(FedAvg(eta_l=0.1, K=5), eta_l=Decay(0.5)), (Rounding(0.1),)), 3)
    Through(algorithm=FedAvg(eta_l=0.025, K=5, eta_g=1.0), stages=(Rounding(step=0.1),))
    """
    kind: Any = type(algorithm)
    if _varies(kind):
        return at(algorithm.at(r), r)
    for parameter in own_parameters(type(algorithm)):
        value = getattr(algorithm, parameter.name)
        now = at(value, r) if wrapped(value) else value
        if now is not value:
            algorithm = replace(algorithm, **{parameter.name: now})
    return algorithm


@cache
def _varies(kind: Any) -> bool:
    # Cached, because a check of a protocol takes 10 us.
    return issubclass(kind, Varying)


def wrapped(value: Any) -> bool:
    """Return whether the value of a field is a wrapped algorithm."""
    return is_dataclass(value) and not isinstance(value, type) and hasattr(value, "init_server")


def settings_of(algorithm: Any) -> dict[str, Any]:
    """Return an algorithm's hyper-parameters; a wrapped algorithm is replaced by its own.

    >>> from trimtab import FedAvg, Mime, Momentum, RichardsonRomberg
    >>> settings_of(RichardsonRomberg(FedAvg(eta_l=0.1, K=5)))
    {'eta_l': 0.1, 'K': 5, 'eta_g': 1.0}
    >>> settings_of(Mime(eta=0.1, K=5, base=Momentum()))
    {'eta': 0.1, 'K': 5, 'base': Momentum(beta=0.9)}
    """
    settings: dict[str, Any] = {}
    for parameter in own_parameters(type(algorithm)):
        value = getattr(algorithm, parameter.name)
        settings |= settings_of(value) if wrapped(value) else {parameter.name: value}
    return settings


def step_size(algorithm: Any) -> tuple[str, float]:
    """Return name and value of an algorithm's step size, or ("", nan).

    >>> from trimtab import FedAvg, RichardsonRomberg
    >>> step_size(RichardsonRomberg(FedAvg(eta_l=0.1, K=5)))
    ('eta_l', 0.1)
    """
    for parameter in own_parameters(type(algorithm)):
        value = getattr(algorithm, parameter.name)
        if parameter.is_step:
            return parameter.name, value
        if wrapped(value) and step_size(value)[0]:
            return step_size(value)
    return "", nan


def with_step(algorithm: Any, eta: float) -> Any:
    """Return an algorithm with another step size.

    >>> from trimtab import FedAvg, RichardsonRomberg
    >>> with_step(RichardsonRomberg(FedAvg(eta_l=0.1, K=5)), 0.2)
    RichardsonRomberg(fedavg=FedAvg(eta_l=0.2, K=5, eta_g=1.0))
    """
    for parameter in own_parameters(type(algorithm)):
        value = getattr(algorithm, parameter.name)
        if parameter.is_step:
            return replace(algorithm, **{parameter.name: eta})
        if wrapped(value) and step_size(value)[0]:
            return replace(algorithm, **{parameter.name: with_step(value, eta)})
    raise ValueError(f"{algorithm} has no step size; give one of its fields the type StepSize.")
