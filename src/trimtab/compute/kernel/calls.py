"""Call the kernels: programs for several clients, gradients, outputs, linear combinations.

The last section compares the kernels with PyTorch, before their first use.
"""

import ctypes
from array import array
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import pairwise
from math import pi, sqrt
from threading import local
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor

from trimtab.compute.kernel import library
from trimtab.compute.kernel.draws import DrawnBatches
from trimtab.compute.kernel.program import (
    Batch,
    ClientsStruct,
    EncodedProgram,
    Layers,
    ModelStruct,
    Terms,
    TroubleStruct,
    addresses,
    encoded_model,
)
from trimtab.compute.kernel.samples import (
    ClientSamples,
    Samples,
    check_rows,
    check_vectors,
    raise_kernel_error,
    wrong_vector_count,
)
from trimtab.core.threads import one_thread

# Threads start in each call. They pay off from about 100 us of work on, 500,000 multiplications.
_MIN_THREADED_WORK = 500_000
# They pay off for a combination of vectors with this many elements, 4 MiB in float32.
_LONG_VECTOR = 1 << 20
# Limit of the buffer for sums of blocks, 64 MiB; one slot per thread is always allowed.
_MAX_SUM_BYTES = 1 << 26
# Cost in outputs: a layer of 2 to 15 outputs fills one vector register, so it takes as long as one
# of 16. A single output has its own code and takes as long as 4.
_FULL_LAYER_COST = 16
_SINGLE_OUTPUT_COST = 4
_ONE_GRADIENT = EncodedProgram(inputs=1, registers=1, steps=[(1, 0, 0)], outputs=[[(1.0, 1)]])


class ClientVectors(Sequence[Sequence[Tensor | None]]):
    """A row of vectors for each client, known by their addresses, so that none is inspected.

    addresses: row by row; 0 for no vector.
    clients: the number of rows.
    d, dtype: of all vectors, which are in the memory of the CPU.
    row: returns the vectors of a client as tensors, and keeps the memory alive.
    """

    def __init__(
        self,
        addresses: "array[int]",
        clients: int,
        d: int,
        dtype: torch.dtype,
        row: Callable[[int], Sequence[Tensor | None]],
    ) -> None:
        self.addresses, self.clients, self.d, self.dtype, self._row = (
            addresses,
            clients,
            d,
            dtype,
            row,
        )

    def __len__(self) -> int:
        return self.clients

    @overload
    def __getitem__(self, j: int) -> Sequence[Tensor | None]: ...
    @overload
    def __getitem__(self, j: slice) -> Sequence[Sequence[Tensor | None]]: ...
    def __getitem__(self, j: Any) -> Any:
        if isinstance(j, slice):
            return [self._row(i) for i in range(*j.indices(len(self)))]
        return self._row(range(len(self))[j])


class KernelResult(NamedTuple):
    """The result of a program."""

    sums: Tensor  # over clients, of weight times output, (outputs, d); empty without weights
    squares: list[list[float]]  # |output|^2 by output and client
    work: int  # sample gradients


def run(
    layers: Layers,
    l2: float,
    code: EncodedProgram,
    data: Sequence[Samples | tuple[Tensor, Tensor]] | ClientSamples,
    rows: Sequence[Sequence[Tensor | None]] | DrawnBatches,
    inputs: Sequence[Sequence[Tensor | None]],
    outputs: Sequence[Sequence[Tensor | None]],
    weights: Sequence[float] | None = None,
    block: int = 1,
    threads: int | None = None,
    slots: int | None = None,
) -> KernelResult:
    """Run a program for each client, on all cores if the work is worth it.

    Clients are added in blocks, and blocks in order, so the bits do not depend on threads or slots.

    layers, l2: the network and its penalty (l2 / 2) |x|^2.
    code: the program.
    data: the samples of each client.
    rows: rows[i][j] are the rows of client i in mini-batch j (None: all), or drawn by a BatchPlan.
    inputs: the vectors that each client's program reads.
    outputs: where the outputs of each client are written (None: nowhere).
    weights: of the clients in the sums; None for no sums.
    block: clients per block.
    threads: None for as many as the work is worth.
    slots: buffers for the sums of blocks; None for as many as fit the memory limit.
    """
    dtype, d, m = _vector_dtype(inputs), layers.d, len(code.outputs)
    samples = data if isinstance(data, ClientSamples) else _check_samples(layers, dtype, data)
    s, blocks = len(samples), -(-len(samples) // block)
    drawn = rows if isinstance(rows, DrawnBatches) else _as_drawn_batches(samples.lengths, rows)
    if len(drawn) != s:
        raise ValueError(f"a kernel takes mini-batches for {s} clients, not {len(drawn)}.")
    read = _addresses(layers, dtype, inputs, s, code.inputs)
    written = _addresses(layers, dtype, outputs, s, m)
    model, _arrays = _model(layers, l2)
    known = range(drawn.batches)  # The kernel reports an error for any other.
    work = sum(drawn.samples_per_batch[batch] for batch in code.batches if batch in known)
    if threads is None:
        pays = s > 1 and _worth_threads(layers, code, work, s)
        threads = min(blocks, library.cores()) if pays else 1
    if slots is None:
        fit = _MAX_SUM_BYTES // max(1, m * d * dtype.itemsize)
        slots = min(blocks, max(fit, threads + 1)) if weights else blocks
    given = array("d", weights or ())
    squares = array("d", bytes(8 * s * m))
    places = [part.buffer_info()[0] for part in (read, written, given, squares)]
    clients = ClientsStruct(
        s, drawn.batches, block, slots, *samples.addresses, *drawn.addresses, *places[:3]
    )
    error = TroubleStruct()
    total = torch.empty((m if weights else 0, d), dtype=dtype)
    sums = _sum_buffer(slots * m * d, dtype) if weights and slots > 1 else total
    library.function("run", dtype, library.simd_level())(
        ctypes.byref(model),
        ctypes.byref(code.program),
        ctypes.byref(clients),
        d,
        sums.data_ptr() if weights else None,
        places[3],
        threads,
        ctypes.byref(error),
    )
    if error.what:
        raise_kernel_error(error, layers, samples.lengths)
    if not weights:
        return KernelResult(total, [], work)
    if sums is not total:
        ctypes.memmove(total.data_ptr(), sums.data_ptr(), total.nbytes)
    return KernelResult(total, [squares[j::m].tolist() for j in range(m)], work)


_BUFFERS = local()


def _sum_buffer(count: int, dtype: torch.dtype) -> Tensor:
    """Return a buffer of at least `count` elements for the sums of several blocks.

    The next call of this thread uses it again: a freed buffer would leave a hole in the heap, which
    a small allocation in it makes useless.
    """
    if count * dtype.itemsize > _MAX_SUM_BYTES:
        return torch.empty(count, dtype=dtype)
    kept: Tensor | None = getattr(_BUFFERS, "kept", None)
    if kept is None or kept.dtype != dtype or len(kept) < count:
        kept = _BUFFERS.kept = torch.empty(count, dtype=dtype)
    return kept


def _vector_dtype(vectors: Sequence[Sequence[Tensor | None]]) -> torch.dtype:
    if isinstance(vectors, ClientVectors):
        return vectors.dtype
    first = vectors[0][0]
    assert first is not None
    return first.dtype


def _addresses(
    layers: Layers,
    dtype: torch.dtype,
    vectors: Sequence[Sequence[Tensor | None]],
    rows: int,
    columns: int,
) -> "array[int]":
    """Return the addresses of the clients' vectors; raise ValueError if they do not fit."""
    if isinstance(vectors, ClientVectors) and (vectors.d, vectors.dtype) == (layers.d, dtype):
        if len(vectors.addresses) != rows * columns:
            raise wrong_vector_count(rows, columns)
        return vectors.addresses
    check_vectors(layers, dtype, vectors, rows, columns)
    return addresses([vector for row in vectors for vector in row])


def _worth_threads(layers: Layers, code: EncodedProgram, work: int, clients: int) -> bool:
    """Return whether a run takes longer than the start of threads."""
    sample = sum(
        inside * (_SINGLE_OUTPUT_COST if outside == 1 else max(outside, _FULL_LAYER_COST))
        for inside, outside in pairwise(layers.sizes)
    )
    steps = clients * len(code.steps) * layers.d
    return work * sample + steps >= _MIN_THREADED_WORK


@lru_cache(maxsize=64)
def _model(layers: Layers, l2: float) -> tuple[ModelStruct, Any]:
    """Return the result of `encoded_model`, which is equal in every round."""
    return encoded_model(layers, l2)


def _check_samples(
    layers: Layers, dtype: torch.dtype, data: Sequence[Samples | tuple[Tensor, Tensor]]
) -> ClientSamples:
    return ClientSamples(
        [
            given if isinstance(given, Samples) else Samples(layers, dtype, *given, place)
            for place, given in enumerate(data)
        ]
    )


def _as_drawn_batches(
    lengths: Sequence[int], rows: Sequence[Sequence[Tensor | None]]
) -> DrawnBatches:
    """Return mini-batches that PyTorch drew, in the layout of the kernels."""
    check_rows(lengths, rows)
    sizes = [
        [length if indices is None else len(indices) for indices in row]
        for length, row in zip(lengths, rows, strict=True)
    ]
    places = [[0 if indices is None else indices.data_ptr() for indices in row] for row in rows]
    taken = [sum(column) for column in zip(*sizes, strict=True)]
    return DrawnBatches(torch.tensor([places, sizes]).flatten(), len(rows), len(rows[0]), taken)


def gradients(layers: Layers, x: Tensor, batches: Sequence[Batch]) -> Tensor:
    """Return the gradients of s mini-batches, (s, d), at x of shape (d,) or (s, d)."""
    x = x.contiguous()
    out = torch.empty((len(batches), x.shape[-1]), dtype=x.dtype)
    points = x.expand(out.shape)
    run(
        layers,
        0.0,
        _ONE_GRADIENT,
        [(X, y) for X, y, _ in batches],
        [[rows] for _, _, rows in batches],
        [[point] for point in points],
        [[row] for row in out],
    )
    return out


def outputs(layers: Layers, x: Tensor, X: Tensor) -> Tensor:
    """Return the outputs of a network for the samples of X, on all cores."""
    return outputs_of_each(layers, x, [X])


def outputs_of_each(layers: Layers, x: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """Return the outputs for the samples of several inputs, concatenated."""
    layers.check(x)
    for X in parts:
        if not layers.takes(X) or x.dtype != X.dtype:
            raise ValueError(
                f"X has shape {tuple(X.shape)} and {X.dtype}; pass rows of {layers.sizes[0]} "
                f"numbers of {x.dtype}."
            )
    sizes, columns = [X.shape[0] for X in parts], layers.sizes[-1]
    out = torch.empty(layers.output_shape(sum(sizes)), dtype=x.dtype)
    model, _arrays = _model(layers, 0.0)
    function = library.function("outputs", x.dtype, library.simd_level())
    x, place, cores = x.contiguous(), out.data_ptr(), library.cores()
    for X, rows in zip(parts, sizes, strict=True):
        X = X.contiguous()
        if function(ctypes.byref(model), x.data_ptr(), X.data_ptr(), rows, place, cores):
            raise MemoryError("there is no memory left for an evaluation.")
        place += rows * columns * out.element_size()
    return out


def combine(terms: Terms) -> Tensor:
    """Return the sum of the terms, in one pass if there is a kernel.

    Long vectors use as many threads as PyTorch would.
    """
    first = terms[0][1]
    kind = first.shape, first.dtype, first.device
    alike = all((t.shape, t.dtype, t.device) == kind and t.is_contiguous() for _, t in terms)
    function = None
    if first.device.type == "cpu" and alike:
        function = library.function("combination", first.dtype, library.simd_level())
    if function is None:
        total = terms[0][0] * first
        for a, tensor in terms[1:]:
            total = total + a * tensor
        return total
    out = torch.empty_like(first)
    numbers, tensors = array("d", (a for a, _ in terms)), addresses([t for _, t in terms])
    places = numbers.buffer_info()[0], tensors.buffer_info()[0]
    threads = torch.get_num_threads() if first.numel() >= _LONG_VECTOR else 1
    function(*places, len(terms), first.numel(), out.data_ptr(), threads)
    return out


# -- self-check

# The functions of the kernels, with methods of tensors: users may have replaced torch's functions.
TORCH_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda z: z,
    "relu": lambda z: z.clamp(min=0),
    "tanh": lambda z: z.tanh(),
    "sigmoid": lambda z: z.sigmoid(),
    "silu": lambda z: z * z.sigmoid(),
    "gelu": lambda z: z * (1 + (z / sqrt(2)).erf()) / 2,
    "gelu_tanh": lambda z: z * (1 + (sqrt(2 / pi) * (z + 0.044715 * z**3)).tanh()) / 2,
}
TORCH_LOSSES: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "cross_entropy": lambda z, y, _: -z.log_softmax(1).gather(1, y[:, None]).mean(),
    "binary_cross_entropy_with_logits": lambda z, y, _: (
        (z.clamp(min=0) - z * y).mean() + (-z.abs()).exp().log1p().mean()
    ),
    "mse_loss": lambda z, y, _: (z - y).square().mean(),
    "huber_loss": lambda z, y, delta: _huber(z - y, delta).mean(),
    "smooth_l1_loss": lambda z, y, delta: _huber(z - y, delta).mean() / delta,
}


@cache
def works(dtype: torch.dtype) -> bool:
    """Return whether there is a kernel for a dtype and it passes the self-check."""
    there = library.function("run", dtype, library.simd_level()) is not None
    tried = [(loss, outputs) for loss in TORCH_LOSSES for outputs in (5, 1)]
    return there and all(
        gradient_matches_torch(dtype, tuple(TORCH_ACTIVATIONS), *each) for each in tried
    )


def gradient_matches_torch(
    dtype: torch.dtype, activations: tuple[str, ...], loss: str, outputs: int = 5
) -> bool:
    """Return whether the gradient of a small network equals autograd's, up to rounding.

    The network has 53 inputs and a layer of 5 outputs for each activation, every second one with a
    LayerNorm; the last layer has `outputs`. The sizes are not multiples of a vector register, so
    that remainders are tested too. The caller's modes, such as autocast, do not matter.
    """
    draw = torch.Generator().manual_seed(0)
    X = torch.randn(21, 53, generator=draw, dtype=dtype)
    y = torch.arange(21) % outputs
    rows = torch.randperm(21, generator=draw)[:13]
    depth = len(activations)
    sizes = (53, *[5] * (depth - 1), outputs)
    eps = tuple(0.1 * (layer % 2) for layer in range(depth))
    layers = Layers(sizes, (True,) * depth, activations, loss, delta=1.5, eps=eps)
    x = torch.randn(layers.d, generator=draw, dtype=dtype)
    if loss != "cross_entropy":
        y = torch.rand(21, outputs, generator=draw, dtype=dtype)
    with (
        one_thread(),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
    ):
        z = x.clone().requires_grad_()
        a, start = X[rows], 0
        for (m, n), activation, norm in zip(pairwise(sizes), activations, eps, strict=True):
            end = start + n * m
            W, bias = z[start:end].view(n, m), z[end : end + n]
            a, start = a @ W.T + bias, end + n
            if norm:
                a = (a - a.mean(1, True)) / (a.var(1, correction=0, keepdim=True) + norm).sqrt()
                a, start = a * z[start : start + n] + z[start + n : start + 2 * n], start + 2 * n
            a = TORCH_ACTIVATIONS[activation](a)
        (expected,) = torch.autograd.grad(TORCH_LOSSES[loss](a, y[rows], layers.delta), z)
    gradient = gradients(layers, x, [(X, y, rows)])[0]
    return torch.allclose(gradient, expected, rtol=1e-3, atol=1e-5)


def _huber(e: Tensor, delta: float) -> Tensor:
    small = e.abs().clamp(max=delta)
    return small * (e.abs() - small / 2)
