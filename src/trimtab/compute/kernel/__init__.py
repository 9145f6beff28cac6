"""Compiled kernels, loaded where they were built; everything works without them.

A kernel runs a program, that is gradients at linear combinations of vectors, and knows no
algorithm. It is used only if it passes a self-check against PyTorch when it is loaded. It trusts no
index: labels, rows and programs are looked at where they are used, since data may have changed.

The kernels come for three instruction sets. The environment variable TRIMTAB_NATIVE chooses another
than the widest one that the processor has: `any` (no wide instructions), `avx2`, `avx512`; `0` does
without kernels.
"""

import ctypes
import os
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_SUFFIX = {torch.float32: "f32", torch.float64: "f64"}
_POINTER, _LONG, _INT, _DOUBLE = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_double
_COMBINE, _GRADIENT = 0, 1
_NO_MEMORY, _BAD_LABEL, _BAD_ROW, _BAD_CODE = 1, 2, 3, 4
LEVELS = ("any", "avx2", "avx512")
"""The instruction sets; what `level` returns is a place in this list."""
_LONG_VECTOR = 1 << 20  # numbers, from which on threads pay

Terms = Sequence[tuple[float, Tensor]]
"""Numbers times tensors of one shape, to be added up."""

Batch = tuple[Tensor, Tensor, Tensor | None]
"""X, y, and which rows of them (None: all)."""


class BadDataError(ValueError):
    """A client's data are not, or no longer, what a kernel can use."""

    def __init__(self, place: int, what: str, who: str = "a client") -> None:
        super().__init__(f"{who} has {what}; make a new problem of data that were changed.")
        self.place, self.what = place, what

    def of(self, client: int) -> "BadDataError":
        """Return the same error with the client's number."""
        return BadDataError(self.place, self.what, f"client {client}")


@dataclass(frozen=True)
class Layers:
    """A classifier: the sizes of its input and of each layer's output, and what layers have."""

    sizes: tuple[int, ...]
    biased: tuple[bool, ...]
    relu: tuple[bool, ...]  # whether a ReLU follows

    @cached_property
    def d(self) -> int:
        """How many parameters it has."""
        pairs = zip(self.sizes, self.sizes[1:], self.biased, strict=False)
        return sum((inside + biased) * outside for inside, outside, biased in pairs)

    def check(self, x: Tensor) -> None:
        """Refuse a point of another length: a kernel would read beyond it."""
        if x.shape != (self.d,):
            raise ValueError(f"x has shape {tuple(x.shape)}; pass a vector of length d={self.d}.")


@dataclass(frozen=True)
class Code:
    """A program on numbered values: its inputs, then registers.

    steps: (dest, [(number, value), ...]) for a combination, whose first term alone may be dest
    itself, and (dest, point, batch) for a gradient. outputs: the combinations it returns.
    """

    inputs: int
    registers: int
    steps: Sequence[tuple[int, list[tuple[float, int]]] | tuple[int, int, int]]
    outputs: Sequence[list[tuple[float, int]]]

    @cached_property
    def encoded(self) -> "tuple[array[int], array[float], tuple[int, int, int, int]]":
        """Steps and outputs as the kernels read them, and how long both are: steps, then all."""
        steps: list[int] = []
        numbers: list[float] = []
        for step in self.steps:
            if len(step) == 3:
                steps += (_GRADIENT, *step)
            else:
                dest, terms = step
                steps += (_COMBINE, dest, len(terms), *(value for _, value in terms))
                numbers += (number for number, _ in terms)
        ends = len(steps), len(numbers)
        for terms in self.outputs:
            steps += (len(terms), *(value for _, value in terms))
            numbers += (number for number, _ in terms)
        return _longs(steps), array("d", numbers), (*ends, len(steps), len(numbers))


class _Model(ctypes.Structure):
    _fields_ = (
        ("layers", _LONG),
        ("sizes", _POINTER),
        ("biased", _POINTER),
        ("relu", _POINTER),
        ("l2", _DOUBLE),
    )


class _Program(ctypes.Structure):
    _fields_ = (
        ("inputs", _LONG),
        ("registers", _LONG),
        ("outputs", _LONG),
        ("length", _LONG),
        ("used", _LONG),
        ("whole", _LONG),
        ("count", _LONG),
        ("code", _POINTER),
        ("numbers", _POINTER),
    )


class _Trouble(ctypes.Structure):
    _fields_ = (("what", _LONG), ("client", _LONG), ("sample", _LONG), ("value", _LONG))


class _Clients(ctypes.Structure):
    _fields_ = (
        ("count", _LONG),
        ("batches", _LONG),
        ("X", _POINTER),
        ("y", _POINTER),
        ("lengths", _POINTER),
        ("rows", _POINTER),
        ("sizes", _POINTER),
        ("inputs", _POINTER),
        ("outputs", _POINTER),
        ("weights", _POINTER),
    )


@cache
def _library() -> ctypes.CDLL | None:
    """Load the kernels; not those that were built from other sources."""
    sizes = (ctypes.sizeof(kind) for kind in (_Model, _Program, _Clients))
    layout = sum(size * 1000**place for place, size in enumerate(sizes))
    for path in sorted(Path(__file__).parent.glob("_kernels*.so")):
        try:
            library = ctypes.CDLL(str(path))
            library.layout.restype = _LONG
            if library.layout() == layout:
                library.keep_memory()
                return library
        except (OSError, AttributeError):
            continue
    return None


@cache
def level() -> int | None:
    """Return which kernels are used, as a place in `LEVELS`; None for no kernel."""
    library = _library()
    widest = None if library is None else int(library.level())
    return _chosen(os.environ.get("TRIMTAB_NATIVE", ""), widest)


def _chosen(wanted: str, widest: int | None) -> int | None:
    """Return the level that somebody wants, by default the widest that there is.

    >>> _chosen("", 2), _chosen("avx2", 2), _chosen("0", 2)
    (2, 1, None)
    >>> _chosen("avx512", 1)
    Traceback (most recent call last):
    ValueError: TRIMTAB_NATIVE=avx512, but there is no such kernel here; pass 0, any or avx2.
    """
    here = LEVELS[: 0 if widest is None else widest + 1]
    if wanted == "0":
        return None
    if wanted == "":
        return widest
    if wanted not in here:
        others = " or ".join(filter(None, (", ".join(("0", *here)[:-1]), ("0", *here)[-1])))
        raise ValueError(
            f"TRIMTAB_NATIVE={wanted}, but there is no such kernel here; pass {others}."
        )
    return here.index(wanted)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _function(name: str, dtype: torch.dtype, level: int | None) -> Any:
    library = _library()
    if library is None or level is None or dtype not in _SUFFIX:
        return None
    function = getattr(library, f"{name}_{_SUFFIX[dtype]}_{level}")
    pointers = [_POINTER] * 3
    arguments = {
        "run": [*pointers, _LONG, _LONG, _POINTER, _POINTER, _INT, _POINTER],
        "outputs": [*pointers, _LONG, _POINTER, _INT],
        "combination": [_POINTER, _POINTER, _LONG, _LONG, _POINTER, _INT],
    }
    function.argtypes, function.restype = arguments[name], _INT if name == "outputs" else None
    return function


@cache
def works(dtype: torch.dtype) -> bool:
    """Tell whether there are kernels for a number type that pass their check."""
    return _function("run", dtype, level()) is not None and _is_right(dtype)


def run(
    layers: Layers,
    l2: float,
    code: Code,
    data: Sequence[tuple[Tensor, Tensor]],
    rows: Sequence[Sequence[Tensor | None]],
    inputs: Sequence[Sequence[Tensor]],
    outputs: Sequence[Sequence[Tensor | None]],
    weights: Sequence[float] | None = None,
    block: int = 1,
    threads: int | None = None,
) -> tuple[Tensor, list[list[float]]]:
    """Run a program for each client, on all cores.

    rows[i][j] are the samples of client i in batch j (None: all). Outputs are written where
    outputs[i] says (None: nowhere). With weights, returns the sums over the clients of
    weights[i] times output j, (outputs, d), and the |output|^2 of each client. Clients are added
    up in blocks of `block`, so that the number of threads changes no bit.
    """
    dtype, d = inputs[0][0].dtype, layers.d
    s, m, blocks = len(data), len(code.outputs), -(-len(data) // block)
    _check_vectors(layers, dtype, inputs, s, code.inputs)
    _check_vectors(layers, dtype, outputs, s, m)
    _check_data(layers, dtype, data, rows)
    sizes = [
        len(y) if some is None else len(some)
        for (_, y), row in zip(data, rows, strict=True)
        for some in row
    ]
    steps, numbers, ends = code.encoded
    arrays: list[array[Any]] = [
        steps,
        numbers,
        _places(X for X, _ in data),
        _places(y for _, y in data),
        _longs(len(y) for _, y in data),
        _places(some for row in rows for some in row),
        _longs(sizes),
        _places(vector for row in inputs for vector in row),
        _places(vector for row in outputs for vector in row),
        array("d", weights or ()),
    ]
    at = [part.buffer_info()[0] for part in arrays]
    model, _own = _model(layers, l2)
    program = _Program(code.inputs, code.registers, m, *ends, *at[:2])
    trouble = _Trouble()
    clients = _Clients(s, len(rows[0]), *at[2:])
    sums = torch.empty((blocks, m, d) if weights else 0, dtype=dtype)
    squares = torch.empty((s, m), dtype=torch.float64)
    _function("run", dtype, level())(
        ctypes.byref(model),
        ctypes.byref(program),
        ctypes.byref(clients),
        d,
        block,
        sums.data_ptr() if weights else None,
        squares.data_ptr(),
        threads or min(blocks, cores()),
        ctypes.byref(trouble),
    )
    _raise(trouble, layers, data)
    return (sums[0], squares.tolist()) if weights else (sums, [])


def _raise(trouble: _Trouble, layers: Layers, data: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Raise what a kernel complains of, if it does."""
    if trouble.what == _NO_MEMORY:
        raise MemoryError("there is no memory left for the clients' vectors.")
    if trouble.what == _BAD_CODE:
        raise ValueError("a program reads or writes what is not there; report its algorithm.")
    if trouble.what == _BAD_LABEL:
        what = f"label {trouble.value} in sample {trouble.sample}, of {layers.sizes[-1]} classes"
        raise BadDataError(trouble.client, what)
    if trouble.what == _BAD_ROW:
        count = len(data[trouble.client][1])
        raise BadDataError(
            trouble.client, f"no sample {trouble.value} for a mini-batch, but {count}"
        )


def _check_vectors(
    layers: Layers,
    dtype: torch.dtype,
    vectors: Sequence[Sequence[Tensor | None]],
    rows: int,
    columns: int,
) -> None:
    """Refuse vectors that a kernel would read or write beyond; those of several rows once."""
    if len(vectors) != rows or any(len(row) != columns for row in vectors):
        raise ValueError(f"a kernel takes {columns} vectors for each of {rows} clients.")
    for vector in {id(vector): vector for row in vectors for vector in row}.values():
        if vector is None:
            continue
        layers.check(vector)
        if vector.dtype != dtype or not vector.is_contiguous() or not vector.is_cpu:
            raise ValueError(
                f"a kernel was given a vector of {vector.dtype} on {vector.device}; "
                f"pass contiguous ones of {dtype} in the processor's memory."
            )


def _check_data(
    layers: Layers,
    dtype: torch.dtype,
    data: Sequence[tuple[Tensor, Tensor]],
    rows: Sequence[Sequence[Tensor | None]],
) -> None:
    """Refuse data that have changed their shape or type, and mini-batches that are no indices."""
    features, count = layers.sizes[0], len(rows[0])
    for place, ((X, y), row) in enumerate(zip(data, rows, strict=True)):
        n = y.shape[0] if y.dim() == 1 else -1
        if not (
            X.shape == (n, features) and X.dtype == dtype and X.is_contiguous() and X.is_cpu
            and y.dtype == torch.int64 and y.is_contiguous() and y.is_cpu and len(row) == count
        ):  # fmt: skip
            raise BadDataError(
                place,
                f"inputs of shape {tuple(X.shape)} and targets of shape {tuple(y.shape)}, "
                f"{X.dtype} and {y.dtype}",
            )
        for some in row:
            if not (n if some is None else len(some)):
                raise BadDataError(place, "no samples for a mini-batch")
            if some is not None and (some.dtype != torch.int64 or not some.is_contiguous()):
                raise BadDataError(place, f"a mini-batch of {some.dtype}")


_ONE_GRADIENT = Code(inputs=1, registers=1, steps=[(1, 0, 0)], outputs=[[(1.0, 1)]])


def gradients(layers: Layers, x: Tensor, batches: Sequence[Batch]) -> Tensor:
    """Return the gradients of s mini-batches, (s, d), at x of shape (d,) or (s, d)."""
    x = x.contiguous()
    found = torch.empty((len(batches), x.shape[-1]), dtype=x.dtype)
    points = x.expand(found.shape)
    run(
        layers,
        0.0,
        _ONE_GRADIENT,
        [(X, y) for X, y, _ in batches],
        [[rows] for _, _, rows in batches],
        [[point] for point in points],
        [[row] for row in found],
    )
    return found


def outputs(layers: Layers, x: Tensor, X: Tensor) -> Tensor:
    """Return what a classifier says of each row of X, on all cores."""
    layers.check(x)
    if X.shape[1:] != (layers.sizes[0],) or x.dtype != X.dtype:
        raise ValueError(
            f"X has shape {tuple(X.shape)} and {X.dtype}; pass rows of {layers.sizes[0]} numbers "
            f"of {x.dtype}."
        )
    out = torch.empty((len(X), layers.sizes[-1]), dtype=X.dtype)
    model, _own = _model(layers)
    function = _function("outputs", X.dtype, level())
    x, X = x.contiguous(), X.contiguous()
    if function(ctypes.byref(model), x.data_ptr(), X.data_ptr(), len(X), out.data_ptr(), cores()):
        raise MemoryError("there is no memory left for an evaluation.")
    return out


def combine(terms: Terms) -> Tensor:
    """Return the sum of the terms, in one pass where there is a kernel.

    Long ones use as many threads as PyTorch would here.
    """
    first = terms[0][1]
    kind = first.shape, first.dtype, first.device
    alike = all((t.shape, t.dtype, t.device) == kind and t.is_contiguous() for _, t in terms)
    on_cpu = first.device.type == "cpu" and alike
    function = _function("combination", first.dtype, level()) if on_cpu else None
    if function is None:
        total = terms[0][0] * first
        for a, tensor in terms[1:]:
            total = total + a * tensor
        return total
    out = torch.empty_like(first)
    numbers, places = array("d", (a for a, _ in terms)), _places(t for _, t in terms)
    addresses = numbers.buffer_info()[0], places.buffer_info()[0]
    threads = torch.get_num_threads() if first.numel() >= _LONG_VECTOR else 1
    function(*addresses, len(terms), first.numel(), out.data_ptr(), threads)
    return out


def _model(layers: Layers, l2: float = 0.0) -> tuple[_Model, Any]:
    """Return a model for the kernels, and the arrays it points to, which must live as long."""
    own = (_longs(layers.sizes), array("i", layers.biased), array("i", layers.relu))
    return _Model(len(layers.biased), *(part.buffer_info()[0] for part in own), l2), own


def _longs(numbers: Iterable[int]) -> "array[int]":
    return array("l", numbers)


def _places(tensors: Iterable[Tensor | None]) -> "array[int]":
    return array("Q", (0 if tensor is None else tensor.data_ptr() for tensor in tensors))


def _is_right(dtype: torch.dtype) -> bool:
    """Compare a gradient with PyTorch's, whatever modes and replacements are in force meanwhile."""
    draw = torch.Generator().manual_seed(0)
    X = torch.randn(21, 53, generator=draw, dtype=dtype)
    y = torch.arange(21) % 5
    rows = torch.randperm(21, generator=draw)[:13]
    x = torch.randn(7 * 54 + 5 * 8, generator=draw, dtype=dtype)
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
    ):
        z = x.clone().requires_grad_()
        hidden = (X[rows] @ z[:371].view(7, 53).T + z[371:378]).clamp(min=0)
        logits = hidden @ z[378:413].view(5, 7).T + z[413:]
        loss = -logits.log_softmax(1).gather(1, y[rows, None]).mean()
        (expected,) = torch.autograd.grad(loss, z)
    layers = Layers((53, 7, 5), (True, True), (True, False))
    found = gradients(layers, x, [(X, y, rows)])[0]
    return torch.allclose(found, expected, rtol=1e-3, atol=1e-5)
