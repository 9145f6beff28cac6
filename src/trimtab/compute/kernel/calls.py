"""The calls of the kernels: programs for each client, gradients, outputs, linear combinations."""

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

_LONG_VECTOR = 1 << 20  # threads pay for vectors of >= 2^20 numbers
_MIN_THREADED_WORK = 500_000  # threads pay for >= 500,000 multiplications, about 100 us
_MAX_SUM_BYTES = 1 << 26  # the sums of blocks take <= 64 MB, unless there are fewer than threads
_FULL_LAYER_COST = 16  # a layer of 2 to 15 outputs takes as long as one of 16,
_SINGLE_OUTPUT_COST = 4  # one of a single output, which has products of its own, as long as 4
_ONE_GRADIENT = EncodedProgram(inputs=1, registers=1, steps=[(1, 0, 0)], outputs=[[(1.0, 1)]])


class ClientVectors(Sequence[Sequence[Tensor | None]]):
    """A row of vectors for each client, all of length d and one type, in the processor's memory.

    `at` are their addresses, row by row, 0 where there is none. `row` makes the vectors of a
    client, for those that want tensors, and keeps alive what lies there.
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
    """What came of a program."""

    sums: Tensor  # over the clients, of weight times output, (outputs, d); empty without weights
    squares: list[list[float]]  # for each output, its |.|^2 of each client
    work: int  # how many gradients of one sample that took


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
    """Run a program for each client, on all cores where that pays.

    rows[i][j] are the samples of client i in batch j (None: all), or all of them were drawn by a
    `BatchPlan`. Outputs are written where outputs[i] says (None: nowhere). Clients are added up in
    blocks of `block`, and blocks in their order, so that the number of threads changes no bit; nor
    does that of `slots`, in which the sums of blocks wait.
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
    there = range(drawn.batches)  # The kernel refuses other ones.
    work = sum(drawn.samples_per_batch[batch] for batch in code.batches if batch in there)
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
    """Return room for the sums of several blocks, of at least so many numbers.

    It is used again by the next call of this thread: given back, it would leave a hole in the heap
    that something small makes useless.
    """
    if count * dtype.itemsize > _MAX_SUM_BYTES:
        return torch.empty(count, dtype=dtype)
    kept: Tensor | None = getattr(_BUFFERS, "kept", None)
    if kept is None or kept.dtype != dtype or len(kept) < count:
        kept = _BUFFERS.kept = torch.empty(count, dtype=dtype)
    return kept


def _vector_dtype(vectors: Sequence[Sequence[Tensor | None]]) -> torch.dtype:
    """Return the type of the numbers in the vectors of clients."""
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
    """Return where the vectors of clients lie, of the right number, length and type."""
    if isinstance(vectors, ClientVectors) and (vectors.d, vectors.dtype) == (layers.d, dtype):
        if len(vectors.addresses) != rows * columns:
            raise wrong_vector_count(rows, columns)
        return vectors.addresses
    check_vectors(layers, dtype, vectors, rows, columns)
    return addresses([vector for row in vectors for vector in row])


def _worth_threads(layers: Layers, code: EncodedProgram, work: int, clients: int) -> bool:
    """Tell whether a run is worth the start of threads; how many there are changes no bit."""
    sample = sum(
        inside * (_SINGLE_OUTPUT_COST if outside == 1 else max(outside, _FULL_LAYER_COST))
        for inside, outside in pairwise(layers.sizes)
    )
    steps = clients * len(code.steps) * layers.d
    return work * sample + steps >= _MIN_THREADED_WORK


@lru_cache(maxsize=64)
def _model(layers: Layers, l2: float) -> tuple[ModelStruct, Any]:
    """Return what `encoded_model` returns, the same in every round."""
    return encoded_model(layers, l2)


def _check_samples(
    layers: Layers, dtype: torch.dtype, data: Sequence[Samples | tuple[Tensor, Tensor]]
) -> ClientSamples:
    """Return the samples of each client, checked."""
    return ClientSamples(
        [
            given if isinstance(given, Samples) else Samples(layers, dtype, *given, place)
            for place, given in enumerate(data)
        ]
    )


def _as_drawn_batches(
    lengths: Sequence[int], rows: Sequence[Sequence[Tensor | None]]
) -> DrawnBatches:
    """Return mini-batches that were drawn elsewhere, as kernels read them."""
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
    """Return what a network says of each sample of X, on all cores."""
    return outputs_of_each(layers, x, [X])


def outputs_of_each(layers: Layers, x: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """Return the outputs for the samples of several inputs, one after the other in one tensor."""
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
    """Return the sum of the terms, in one pass where there is a kernel.

    Long ones use as many threads as PyTorch would here.
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


# -- whether the kernels may be used

# What kernels compute, in methods of tensors: PyTorch's functions may have been replaced.
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
    """Tell whether there are kernels for a number type that pass their check."""
    there = library.function("run", dtype, library.simd_level()) is not None
    tried = [(loss, outputs) for loss in TORCH_LOSSES for outputs in (5, 1)]
    return there and all(
        gradient_matches_torch(dtype, tuple(TORCH_ACTIVATIONS), *each) for each in tried
    )


def gradient_matches_torch(
    dtype: torch.dtype, activations: tuple[str, ...], loss: str, outputs: int = 5
) -> bool:
    """Compare the gradient of a network with PyTorch's, whatever modes and replacements there are.

    It has 53 inputs and a layer of 5 for each activation, the last one with so many outputs.
    """
    draw = torch.Generator().manual_seed(0)
    X = torch.randn(21, 53, generator=draw, dtype=dtype)
    y = torch.arange(21) % outputs
    rows = torch.randperm(21, generator=draw)[:13]
    depth = len(activations)
    sizes = (53, *[5] * (depth - 1), outputs)
    layers = Layers(sizes, (True,) * depth, activations, loss, delta=1.5)
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
        for (inside, outside), activation in zip(pairwise(sizes), activations, strict=True):
            end = start + outside * inside
            W, bias = z[start:end].view(outside, inside), z[end : end + outside]
            a = TORCH_ACTIVATIONS[activation](a @ W.T + bias)
            start = end + outside
        (expected,) = torch.autograd.grad(TORCH_LOSSES[loss](a, y[rows], layers.delta), z)
    gradient = gradients(layers, x, [(X, y, rows)])[0]
    return torch.allclose(gradient, expected, rtol=1e-3, atol=1e-5)


def _huber(e: Tensor, delta: float) -> Tensor:
    small = e.abs().clamp(max=delta)
    return small * (e.abs() - small / 2)
