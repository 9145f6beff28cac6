"""Find and load the compiled library, and check that it was built from these sources."""

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

import torch

from trimtab.compute.kernel.program import (
    ACTIVATIONS,
    LOSSES,
    ClientsStruct,
    DrawsStruct,
    ModelStruct,
    ProgramStruct,
    TroubleStruct,
)

SIMD_LEVELS = ("any", "avx2", "avx512")
"""The instruction sets, from narrow to wide; `simd_level` returns an index of this tuple."""

CORES_VARIABLE = "TRIMTAB_CORES"
"""The environment variable with the number of cores that a process may use."""

_SUFFIX = {torch.float32: "f32", torch.float64: "f64"}
_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
_ARGUMENTS = {
    "run": [*[_POINTER] * 3, _LONG, _POINTER, _POINTER, _INT, _POINTER],
    "outputs": [*[_POINTER] * 3, _LONG, _POINTER, _INT],
    "combination": [_POINTER, _POINTER, _LONG, _LONG, _POINTER, _INT],
    "numbers_to_draw": [_POINTER],
    "draw": [_POINTER] * 4,
}

_RESULTS = {"outputs": _INT, "numbers_to_draw": _LONG}


@cache
def _loaded() -> ctypes.CDLL | None:
    """Return the library, None if there is none."""
    return _found()[0]


def why_not() -> str | None:
    """Return why the library cannot be used, as a sentence; None if it can."""
    return _found()[1]


@cache
def _found() -> tuple[ctypes.CDLL | None, str | None]:
    """Return the library, or the reason why there is none."""
    reason = "the kernels were not compiled; run `make kernel`, which needs a C compiler."
    for path in sorted(Path(__file__).parent.glob("_kernels*.so")):
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            reason = f"{path.name} cannot be loaded ({error}); run `make kernel`."
            continue
        other = differences(library)
        if other is None:
            library.keep_memory()
            return library, None
        reason = f"{path.name} was built from other sources ({other}); run `make kernel`."
    return None, reason


def differences(library: Any) -> str | None:
    """Return how a library differs from these sources; None if it does not.

    Structures of another size would make the kernel read beyond their end.
    """
    for kind in (ModelStruct, ProgramStruct, ClientsStruct, DrawsStruct, TroubleStruct):
        name, here = kind.__name__.removesuffix("Struct"), ctypes.sizeof(kind)
        try:
            there = _LONG.in_dll(library, f"size_of_{name}").value
        except ValueError:
            return f"it has no size of {name}"
        if there != here:
            return f"{name} has {there} bytes there and {here} here"
    for what, names in (("losses", LOSSES), ("activations", ACTIVATIONS)):
        known = _names(library, what)
        if known != list(names):
            return f"it knows the {what} {', '.join(known)}"
    return None


def _names(library: Any, what: str) -> list[str]:
    """Return the names of the losses or activations in a library."""
    words = ctypes.c_char_p.in_dll(library, f"names_of_{what}").value or b""
    return words.decode().lower().split()


@cache
def simd_level() -> int | None:
    """Return the instruction set in use, as an index of `SIMD_LEVELS`; None for no kernel."""
    library = _loaded()
    widest = None if library is None else int(library.level())
    return _chosen(os.environ.get("TRIMTAB_NATIVE", ""), widest)


def _chosen(wanted: str, widest: int | None) -> int | None:
    """Return the level that TRIMTAB_NATIVE names, by default the widest available.

    >>> _chosen("", 2), _chosen("avx2", 2), _chosen("0", 2)
    (2, 1, None)
    >>> _chosen("avx512", 1)
    Traceback (most recent call last):
    ValueError: TRIMTAB_NATIVE=avx512, but there is no such kernel here; pass 0, any or avx2.
    """
    available = SIMD_LEVELS[: 0 if widest is None else widest + 1]
    if wanted == "0":
        return None
    if wanted == "":
        return widest
    if wanted not in available:
        others = " or ".join(
            filter(None, (", ".join(("0", *available)[:-1]), ("0", *available)[-1]))
        )
        raise ValueError(
            f"TRIMTAB_NATIVE={wanted}, but there is no such kernel here; pass {others}."
        )
    return available.index(wanted)


def cores() -> int:
    """Return how many cores this process may use.

    TRIMTAB_CORES sets the number where several processes share a machine.
    """
    own = os.environ.get(CORES_VARIABLE, "")
    if own.isdigit() and int(own) > 0:
        return int(own)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def function(name: str, dtype: torch.dtype, level: int | None) -> Any:
    """Return a function of the library for a dtype and level; None if there is none."""
    library = _loaded()
    if library is None or level is None or dtype not in _SUFFIX:
        return None
    return _typed(library, name, f"{name}_{_SUFFIX[dtype]}_{level}")


@cache
def common(name: str) -> Any:
    """Return a function of the library that has no dtype."""
    library = _loaded()
    assert library is not None
    return _typed(library, name, name)


def _typed(library: Any, name: str, symbol: str) -> Any:
    compiled = getattr(library, symbol)
    compiled.argtypes, compiled.restype = _ARGUMENTS[name], _RESULTS.get(name)
    return compiled
