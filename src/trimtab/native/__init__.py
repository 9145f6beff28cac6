"""Compiled kernels, loaded where they were built; everything works without them.

A kernel computes g(y, k), or a linear combination of vectors, and knows no algorithm. It is used
only if it passes a self-check against PyTorch when it is loaded; TRIMTAB_NATIVE=0 does without.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from threading import local
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_SUFFIX = {torch.float32: "f32", torch.float64: "f64"}
_POINTER, _WHOLE, _INT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
_scratch = local()

Terms = Sequence[tuple[float, Tensor]]
"""Numbers times tensors of shape (d,) or (s, d), to be added up."""

Batch = tuple[Tensor, Tensor, Tensor | None]
"""X, y, and which rows of them (None: all)."""

Logistic = Callable[[Terms, Sequence[Batch], int, bool], tuple[Tensor, Tensor]]
"""kernel(terms, batches, classes, biased): the point that the terms add up to, and the gradients of
s clients there, both (s, d); the point is (d,) if it is a single term of that shape."""


@cache
def _library() -> ctypes.CDLL | None:
    if os.environ.get("TRIMTAB_NATIVE") == "0":
        return None
    for path in sorted(Path(__file__).parent.glob("_logistic*.so")):
        try:
            library = ctypes.CDLL(str(path))
            library.keep_memory()
            return library
        except (OSError, AttributeError):
            continue
    return None


def level() -> int | None:
    """Return which kernel this machine uses (0: any, 1: AVX2, 2: AVX-512), None for no kernel."""
    library = _library()
    return None if library is None else int(library.level())


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _function(name: str, dtype: torch.dtype, arguments: tuple[Any, ...]) -> Any:
    library = _library()
    if library is None or dtype not in _SUFFIX:
        return None
    function = getattr(library, f"{name}_{_SUFFIX[dtype]}_{level()}")
    function.argtypes, function.restype = arguments, None
    return function


@cache
def logistic(dtype: torch.dtype) -> Logistic | None:
    """Return the kernel for a number type, or None where there is none that passes its check."""
    arguments = [*[_POINTER] * 3, _WHOLE, *[_POINTER] * 5, *[_WHOLE] * 3, _INT]
    arguments += [_POINTER, _POINTER, _WHOLE, _INT]
    function = _function("logistic_many", dtype, tuple(arguments))
    if function is None:
        return None

    def kernel(
        terms: Terms, batches: Sequence[Batch], classes: int, biased: bool
    ) -> tuple[Tensor, Tensor]:
        s, d, length = len(batches), batches[0][0].shape[1], terms[0][1].shape[-1]
        given = len(terms) == 1 and terms[0][0] == 1.0
        point = terms[0][1] if given else torch.empty((s, length), dtype=dtype)
        out = torch.empty((s, length), dtype=dtype)
        sizes = [len(X if rows is None else rows) for X, _, rows in batches]
        room, threads = max(sizes) * (2 * classes + 3 + 48), min(s, cores())
        function(
            *_described(terms),
            None if given else point.data_ptr(),
            (_POINTER * s)(*(X.data_ptr() for X, _, _ in batches)),
            (_POINTER * s)(*(y.data_ptr() for _, y, _ in batches)),
            (_POINTER * s)(*(None if rows is None else rows.data_ptr() for _, _, rows in batches)),
            (_WHOLE * s)(*sizes),
            s,
            d,
            classes,
            biased,
            out.data_ptr(),
            _work(room * threads, dtype).data_ptr(),
            room,
            threads,
        )
        return point, out

    return kernel if _is_right(kernel, dtype) else None


def combine(terms: Terms) -> Tensor:
    """Return the sum of the terms, in one pass where there is a kernel."""
    largest = max((tensor for _, tensor in terms), key=Tensor.dim)
    dtype, shape = largest.dtype, largest.shape
    arguments = (*[_POINTER] * 3, *[_WHOLE] * 3, _POINTER, _INT)
    function = _function("combine", dtype, arguments) if fits(terms) else None
    if function is None:
        total = terms[0][0] * terms[0][1]
        for a, tensor in terms[1:]:
            total = total + a * tensor
        return total
    out = torch.empty(shape, dtype=dtype)
    rows = shape[0] if largest.dim() == 2 else 1
    function(*_described(terms), rows, shape[-1], out.data_ptr(), cores() if rows > 1 else 1)
    return out


def fits(terms: Terms) -> bool:
    """Tell whether a kernel can read these terms: plain vectors, or rows of them, in memory."""
    first = terms[0][1]
    return first.device.type == "cpu" and all(
        t.dim() in (1, 2) and t.is_contiguous() and t.dtype == first.dtype for _, t in terms
    )


def _described(terms: Terms) -> tuple[Any, Any, Any, int]:
    """Return the numbers, where the tensors are, and how far their rows are apart."""
    m = len(terms)
    numbers = (ctypes.c_double * m)(*(a for a, _ in terms))
    places = (_POINTER * m)(*(tensor.data_ptr() for _, tensor in terms))
    strides = (_WHOLE * m)(*(t.shape[1] if t.dim() == 2 else 0 for _, t in terms))
    return numbers, places, strides, m


def _work(size: int, dtype: torch.dtype) -> Tensor:
    """Return room for a kernel's own use, one piece for each calling thread."""
    piece: Tensor | None = getattr(_scratch, _SUFFIX[dtype], None)
    if piece is None or piece.numel() < size:
        piece = torch.empty(size, dtype=dtype)
        setattr(_scratch, _SUFFIX[dtype], piece)
    return piece


def _is_right(kernel: Logistic, dtype: torch.dtype) -> bool:
    draw = torch.Generator().manual_seed(0)
    X = torch.randn(21, 53, generator=draw, dtype=dtype)
    y = torch.arange(21) % 5
    rows = torch.randperm(21, generator=draw)[:13]
    x = torch.randn(2, 5 * 54, generator=draw, dtype=dtype)
    with torch.enable_grad():
        z = (x[0] - 0.5 * x[1]).detach().requires_grad_()
        loss = F.cross_entropy(F.linear(X[rows], z[: 5 * 53].view(5, 53), z[5 * 53 :]), y[rows])
        (expected,) = torch.autograd.grad(loss, z)
    point, found = kernel([(1.0, x[0]), (-0.5, x[1])], [(X, y, rows)], 5, True)
    pairs = ((found[0], expected), (point[0], z))
    return all(torch.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in pairs)
