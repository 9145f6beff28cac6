"""Identify a problem in a saved run by a line of named parts.

A fingerprint is `Supervised/2 N=10 d=650 batch=32 loss=1f2e3d4c5b6a7988 …`: numbers are written
out, everything else is hashed. A loss is hashed by what it computes (its code, its parameters and
the values it captured), not by its address in memory. A hash that ends with `?` covers only a part.
"""

import sys
import sysconfig
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import partial
from hashlib import sha256
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from trimtab.problems.problem import Problem

_FORM = 2  # It rises when the same problem gets other parts.
_WORDS = {
    "module": "the module differs",
    "start": "the parameters or buffers of the module differ",
    "loss": "the loss differs",
    "metrics": "the metrics differ",
    "collate": "the collate differs",
    "data": "the data of the clients differ",
    "test": "the test data differ",
    "tests": "the test parts of the clients differ",
    "validation": "the validation data differ",
    "weights": "the weights of the clients differ",
    "target_scale": "the mean or the deviation of the target differs",
    "A": "the matrices A differ",
    "b": "the vectors b differ",
    "noise": "the covariances of the noise differ",
}
# A line without these says that there are none.
_OFTEN_ABSENT = ("tests", "validation", "collate", "target_scale")


@dataclass(frozen=True)
class FingerprintComparison:
    """How a stored fingerprint compares with a problem."""

    differs: tuple[str, ...] = ()  # e.g. 'batch was 32, is now 64'
    unknown: tuple[str, ...] = ()  # parts that cannot be compared

    @property
    def warning(self) -> str:
        """A sentence about the parts that cannot be compared; empty if there are none."""
        if not self.unknown:
            return ""
        return (
            f"nothing can be said of {' and '.join(self.unknown)}; make sure that they are what "
            "they were when this was saved."
        )


def line(kind: str, parts: Mapping[str, Any]) -> str:
    """Return a fingerprint.

    >>> line("Supervised", {"N": 3, "batch": 0.2})
    'Supervised/2 N=3 batch=0.2'
    """
    return " ".join([f"{kind}/{_FORM}", *(f"{name}={value}" for name, value in parts.items())])


def is_line(stored: str) -> bool:
    """Return whether a stored fingerprint has named parts."""
    return stored.partition(" ")[0].endswith(f"/{_FORM}")


def matches_fingerprint(problem: Problem, stored: str) -> FingerprintComparison:
    """Compare a problem with the fingerprint in a saved run."""
    now = problem.fingerprint
    if is_line(stored) and is_line(now):
        return compare_fingerprints(stored, now)
    if stored != now:
        return FingerprintComparison((f"it was {stored}, is now {now}",))
    if problem._overrides("fingerprint"):
        return FingerprintComparison()
    return FingerprintComparison(unknown=(f"this {now}, which has no fingerprint",))


def compare_fingerprints(stored: str, now: str) -> FingerprintComparison:
    """Compare two fingerprints part by part.

    >>> compare_fingerprints("Supervised/2 N=3 batch=32", "Supervised/2 N=3 batch=64").differs
    ('batch was 32, is now 64',)
    """
    if stored == now and "?" not in now:
        return FingerprintComparison()
    (old_kind, old), (kind, new) = _parts(stored), _parts(now)
    if old_kind != kind:
        return FingerprintComparison((f"it was a {_name(old_kind)}, is now a {_name(kind)}",))
    differs, unknown = list[str](), list[str]()
    for name in {**old, **new}:
        absent = "None" if name in _OFTEN_ABSENT else "?"
        was, now_is = old.get(name, absent), new.get(name, absent)
        if was != now_is and _comparable(was, now_is):
            differs.append(_WORDS.get(name, f"{name} was {was}, is now {now_is}"))
        elif was != now_is or "?" in was:
            unknown.append(_WORDS.get(name, name).removesuffix("s").removesuffix(" differ"))
    return FingerprintComparison(tuple(differs), tuple(unknown))


def _comparable(was: str, now: str) -> bool:
    # A hash of code depends on the version of Python, which is written before it.
    pythons = {value.partition(":")[0] for value in (was, now) if ":" in value}
    return "?" not in (was, now) and len(pythons) < 2


def _name(kind: str) -> str:
    return kind.partition("/")[0]


def _parts(text: str) -> tuple[str, dict[str, str]]:
    kind, *parts = text.split(" ")
    return kind, {name: value for name, _, value in (part.partition("=") for part in parts)}


# -- hashes of tensors, and of functions and modules by what they compute

_PYTHON = f"py{sys.version_info.major}{sys.version_info.minor}"
_PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, type(Ellipsis)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
# Functions and classes of these packages and of the standard library are hashed by name.
_KNOWN = {"torch", "numpy", "trimtab"}
# Classes that moved keep the module and name that the fingerprints of saved runs have for them.
_SAVED_AS = {
    ("trimtab.problems.catalogue", "_Block"): ("trimtab.problems.models", "_Block"),
    ("trimtab.problems.supervised.hugging_face", "SplitBatches"): (
        "trimtab.problems.supervised.hugging_face",
        "Collated",
    ),
    ("trimtab.problems.supervised.losses", "OnBatch"): (
        "trimtab.problems.supervised.on_batch",
        "OnBatch",
    ),
}
_INSTALLED = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
# These attributes do not change results.
_NO_STATE = {
    *("training", "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__"),
    *("__annotations__", "__annotate__", "__abstractmethods__", "_abc_impl", "__parameters__"),
    *("__orig_bases__", "__dataclass_fields__", "__dataclass_params__", "__match_args__"),
    *("__firstlineno__", "__static_attributes__", "__slots__"),
}
_BY_REPR = (range, slice, PurePath, Decimal, Fraction, date, time, timedelta)


def hashed_tensors(tensors: Sequence[Tensor]) -> str:
    """Return a hash of the numbers in tensors, their dtypes and shapes."""
    digest = sha256()
    for tensor in tensors:
        update(digest, tensor)
    return digest.hexdigest()[:16]


def update(digest: Any, t: Tensor) -> None:
    """Add dtype, shape and numbers of a tensor to a digest."""
    t = t.detach().cpu()
    digest.update(repr((t.dtype, tuple(t.shape))).encode())
    flat = t.reshape(-1).resolve_conj().resolve_neg().contiguous()
    digest.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")


def hashed_code(thing: Any, *, values: bool = True) -> str:
    """Return a hash of what a loss, a metric or a module computes.

    Without `values`, parameters count by their shapes only.

    >>> hashed_code(lambda x: x + 1) == hashed_code(lambda x: x + 1)
    True
    >>> hashed_code(lambda x: x + 1) == hashed_code(lambda x: x + 2)
    False
    """
    walk = _HashVisitor(values)
    try:
        walk.visit(thing)
    except Exception:  # This object cannot be looked into.
        return "?"
    mark = f"{_PYTHON}:" if walk.has_code else ""
    return f"{mark}{walk.digest.hexdigest()[:16]}{'' if walk.complete else '?'}"


class _HashVisitor:
    """Visits everything that an object computes with, and adds it to a digest.

    Every object gets a number when it is first met, so that a second meeting, or a circle, is a
    reference to that number.
    """

    def __init__(self, values: bool) -> None:
        self.values, self.digest = values, sha256()
        self.complete, self.has_code = True, False
        self._met: dict[int, tuple[int, Any]] = {}

    def add(self, *words: object) -> None:
        self.digest.update(repr(words).encode())

    def visit(self, thing: Any) -> None:
        if isinstance(thing, _PLAIN):
            self.add(type(thing).__name__, thing)
            return
        if id(thing) in self._met:
            self.add("again", self._met[id(thing)][0])
            return
        self._met[id(thing)] = len(self._met), thing
        if _installed(thing):
            name = getattr(thing, "__module__", ""), thing.__qualname__
            self.add(*_SAVED_AS.get(name, name))
        else:
            self._open(thing)

    def _open(self, thing: Any) -> None:
        if isinstance(thing, Tensor):
            self._tensor(thing)
        elif isinstance(thing, numpy.ndarray | numpy.generic):
            array = numpy.asarray(thing)
            self.add("array", str(array.dtype), array.shape, array.tobytes())
            self.complete &= not array.dtype.hasobject
        elif isinstance(thing, Mapping | MappingProxyType):
            self.add("mapping", len(thing))
            for key, value in thing.items():
                self.visit(key)
                self.visit(value)
        elif isinstance(thing, list | tuple):
            self.add(type(thing).__name__, len(thing))
            for value in thing:
                self.visit(value)
        elif isinstance(thing, Set):
            self.add("set", sorted(map(repr, thing)))
        elif isinstance(thing, ModuleType):
            self.add("module", thing.__name__)
        elif isinstance(thing, partial):
            self.add("partial")
            for part in (thing.func, thing.args, thing.keywords):
                self.visit(part)
        elif isinstance(thing, MethodType):
            self.add("method", thing.__func__.__name__)
            self.visit(thing.__func__)
            self.visit(thing.__self__)
        elif isinstance(thing, FunctionType):
            self._function(thing)
        elif isinstance(thing, type):
            self._class(thing)
        elif isinstance(thing, Enum):
            self.add("enum", type(thing).__qualname__, thing.name)
        elif isinstance(thing, _BY_REPR):
            self.add(repr(thing))
        else:
            self._object(thing)

    def _tensor(self, t: Tensor) -> None:
        self.add("tensor", str(t.dtype), tuple(t.shape), t.requires_grad)
        if self.values or not isinstance(t, nn.Parameter):
            update(self.digest, t)
        self.visit(list((t._backward_hooks or {}).values()))

    def _function(self, f: FunctionType) -> None:
        self.add("function")
        self._code(f.__code__)
        self.visit(f.__defaults__)
        self.visit(f.__kwdefaults__)
        for cell in f.__closure__ or ():
            self.visit(_content(cell))
        for name in sorted(_names(f.__code__)):
            if name in f.__globals__:
                self.add("global", name)
                self.visit(f.__globals__[name])

    def _code(self, code: CodeType) -> None:
        self.has_code = True
        self.add("code", code.co_code, code.co_names, code.co_argcount, code.co_kwonlyargcount)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._code(constant)
            else:
                self.visit(constant)

    def _class(self, cls: type) -> None:
        self.add("class", cls.__name__)
        for base in cls.__bases__:
            self.visit(base)
        for name, value in sorted(vars(cls).items()):
            if name not in _NO_STATE:
                self.add(name)
                for part in _inside(value):
                    self.visit(part)

    def _object(self, thing: Any) -> None:
        self.add("object")
        self.visit(type(thing))
        slots = [name for cls in type(thing).__mro__ for name in getattr(cls, "__slots__", ())]
        state = {name: getattr(thing, name) for name in slots if hasattr(thing, name)}
        state |= getattr(thing, "__dict__", {})
        if _of_python(type(thing)) or not (state or hasattr(thing, "__dict__")):
            # What is inside a logger, a lock or a generator says nothing.
            self.complete = False
            return
        for name, value in state.items():
            if name not in _NO_STATE:
                self.add(name)
                # The keys of hooks are numbered by the process.
                hooks = "_hooks" in name and isinstance(value, Mapping)
                self.visit(list(value.values()) if hooks else value)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "empty"


def _names(code: CodeType) -> set[str]:
    """Return the names that code, and code inside it, may look up globally."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*(_names(constant) for constant in inner))


def _inside(value: Any) -> tuple[Any, ...]:
    """Return the functions inside a class attribute."""
    if isinstance(value, staticmethod | classmethod):
        return (value.__func__,)
    if isinstance(value, property):
        return value.fget, value.fset, value.fdel
    return (value,)


def _installed(thing: Any) -> bool:
    """Return whether this is a function or class of a library, which its name identifies."""
    if isinstance(thing, BuiltinFunctionType):
        return isinstance(thing.__self__, ModuleType | type(None))
    if not isinstance(thing, FunctionType | type) or "<" in thing.__qualname__:
        return type(thing).__name__ in _DESCRIPTORS
    # What functools.wraps wraps has the name of another function, but its own globals.
    if isinstance(thing, FunctionType):
        module = str(thing.__globals__.get("__name__"))
    else:
        module = thing.__module__
    if module.partition(".")[0] in _KNOWN or _is_python(module):
        return True
    path = getattr(sys.modules.get(module), "__file__", None) or ""
    return path.startswith(_INSTALLED)


def _of_python(cls: type) -> bool:
    return _is_python(cls.__module__)


def _is_python(module: str) -> bool:
    top = module.partition(".")[0]
    return top in sys.stdlib_module_names and top != "__main__"


_DESCRIPTORS = {
    "method_descriptor",
    "wrapper_descriptor",
    "getset_descriptor",
    "member_descriptor",
    "builtin_function_or_method",
}
