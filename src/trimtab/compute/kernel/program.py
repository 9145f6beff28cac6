"""Networks and programs for the kernels, and the structures of the C code."""

import ctypes
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

_POINTER, _LONG, _DOUBLE = ctypes.c_void_p, ctypes.c_long, ctypes.c_double
_COMBINE, _GRADIENT = 0, 1

LOSSES = (
    "cross_entropy",
    "binary_cross_entropy_with_logits",
    "mse_loss",
    "huber_loss",
    "smooth_l1_loss",
)
"""The losses of the kernels, by the names of PyTorch's functions, in the order of kernels.c."""

ACTIVATIONS = ("none", "relu", "tanh", "sigmoid", "silu", "gelu", "gelu_tanh")
"""The activations of the kernels, in the order of kernels.c."""

Terms = Sequence[tuple[float, Tensor]]
"""A sum of factors times tensors of one shape."""

Batch = tuple[Tensor, Tensor, Tensor | None]
"""X, y and the rows of a mini-batch (None: all)."""


@dataclass(frozen=True)
class Layers:
    """A network of linear layers and its loss."""

    sizes: tuple[int, ...]  # of the input and of each layer's output
    biased: tuple[bool, ...]  # by layer
    activations: tuple[str, ...]  # by layer, each one of ACTIVATIONS
    loss: str = "cross_entropy"  # one of LOSSES
    delta: float = 1.0  # where a Huber or smooth L1 loss becomes linear
    flattens: bool = False  # whether samples may have any shape with sizes[0] elements
    single: bool = False  # whether outputs and targets have shape (n,) instead of (n, 1)
    eps: tuple[float, ...] = ()  # by layer, of a LayerNorm before the activation; 0 for none

    def __hash__(self) -> int:
        """Return the hash of the sizes only: every round computes it several times."""
        return hash(self.sizes)

    def output_shape(self, n: int) -> tuple[int, ...]:
        """Return the shape of the outputs for n samples."""
        return (n,) if self.single else (n, self.sizes[-1])

    @cached_property
    def d(self) -> int:
        """The number of parameters."""
        each = zip(self.sizes, self.sizes[1:], self.biased, self.norms, strict=False)
        return sum((a + biased + 2 * (eps > 0)) * b for a, b, biased, eps in each)

    @property
    def norms(self) -> tuple[float, ...]:
        """The eps of every layer."""
        return self.eps or (0.0,) * len(self.biased)

    def takes(self, X: Tensor) -> bool:
        """Return whether these are samples of the right shape."""
        shape = X.shape[1:]
        return shape == (self.sizes[0],) or (self.flattens and shape.numel() == self.sizes[0])

    def check(self, x: Tensor) -> None:
        """Raise ValueError if x has another length: a kernel would read beyond it."""
        if x.shape != (self.d,):
            raise ValueError(f"x has shape {tuple(x.shape)}; pass a vector of length d={self.d}.")


@dataclass(frozen=True)
class EncodedProgram:
    """A program on numbered values: its inputs, then registers.

    inputs, registers: their numbers; values are numbered in this order.
    steps: (dest, [(factor, value), ...]) for a combination, of which only the first term may be
        dest itself, and (dest, point, batch) for a gradient.
    outputs: the combinations that the program returns.
    """

    inputs: int
    registers: int
    steps: Sequence[tuple[int, list[tuple[float, int]]] | tuple[int, int, int]]
    outputs: Sequence[list[tuple[float, int]]]

    @cached_property
    def batches(self) -> list[int]:
        """The mini-batches of the gradients, in order."""
        return [step[2] for step in self.steps if len(step) == 3]

    @cached_property
    def program(self) -> "ProgramStruct":
        """The structure for the kernels; its addresses are valid as long as this object."""
        steps, numbers, ends = self._encoded
        places = steps.buffer_info()[0], numbers.buffer_info()[0]
        return ProgramStruct(self.inputs, self.registers, len(self.outputs), *ends, *places)

    @cached_property
    def _encoded(self) -> "tuple[array[int], array[float], tuple[int, int, int, int]]":
        """Code and factors as arrays, and their lengths without and with the outputs."""
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
        return int64_array(steps), array("d", numbers), (*ends, len(steps), len(numbers))


class ModelStruct(ctypes.Structure):
    """The C structure of `Layers`."""

    _fields_ = (
        ("layers", _LONG),
        ("sizes", _POINTER),
        ("biased", _POINTER),
        ("activation", _POINTER),
        ("eps", _POINTER),
        ("loss", _LONG),
        ("delta", _DOUBLE),
        ("l2", _DOUBLE),
    )


class ProgramStruct(ctypes.Structure):
    """The C structure of an `EncodedProgram`."""

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


class ClientsStruct(ctypes.Structure):
    """The C structure of several clients: data, mini-batches and vectors."""

    _fields_ = (
        ("count", _LONG),
        ("batches", _LONG),
        ("block", _LONG),
        ("slots", _LONG),
        ("X", _POINTER),
        ("y", _POINTER),
        ("lengths", _POINTER),
        ("rows", _POINTER),
        ("sizes", _POINTER),
        ("inputs", _POINTER),
        ("outputs", _POINTER),
        ("weights", _POINTER),
    )


class DrawsStruct(ctypes.Structure):
    """The C structure of a `BatchPlan` with the seed of a round."""

    _fields_ = (
        ("seed", ctypes.c_uint64),
        ("use", ctypes.c_uint64),
        ("round", ctypes.c_uint64),
        ("independent", _LONG),
        ("count", _LONG),
        ("batches", _LONG),
        ("clients", _POINTER),
        ("lengths", _POINTER),
        ("sizes", _POINTER),
        ("numbers", _POINTER),
    )


class TroubleStruct(ctypes.Structure):
    """The C structure of an error: its kind and where it was found."""

    _fields_ = (("what", _LONG), ("client", _LONG), ("sample", _LONG), ("value", _LONG))


def encoded_model(layers: Layers, l2: float = 0.0) -> tuple[ModelStruct, Any]:
    """Return a network for the kernels, and the arrays it points to, which must be kept alive."""
    activations = map(ACTIVATIONS.index, layers.activations)
    arrays = (
        *(int64_array(layers.sizes), array("i", layers.biased)),
        *(array("i", activations), array("d", layers.norms)),
    )
    places = (part.buffer_info()[0] for part in arrays)
    loss = LOSSES.index(layers.loss)
    return ModelStruct(len(layers.biased), *places, loss, layers.delta, l2), arrays


def int64_array(numbers: Iterable[int]) -> "array[int]":
    """Return integers as an array of C longs."""
    return array("l", numbers)


def addresses(tensors: Sequence[Tensor | None]) -> "array[int]":
    """Return the addresses of tensors; 0 for None."""
    return array("Q", [0 if tensor is None else tensor.data_ptr() for tensor in tensors])
