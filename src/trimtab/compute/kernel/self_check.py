"""Whether the kernels may be used: they are compared with PyTorch once, before their first use."""

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from math import pi, sqrt

import torch
from torch import Tensor

from trimtab.compute.kernel import library
from trimtab.compute.kernel.calls import gradients
from trimtab.compute.kernel.program import Layers
from trimtab.core.threads import one_thread

# What kernels compute, in methods of tensors: PyTorch's functions may have been replaced.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda z: z,
    "relu": lambda z: z.clamp(min=0),
    "tanh": lambda z: z.tanh(),
    "sigmoid": lambda z: z.sigmoid(),
    "silu": lambda z: z * z.sigmoid(),
    "gelu": lambda z: z * (1 + (z / sqrt(2)).erf()) / 2,
    "gelu_tanh": lambda z: z * (1 + (sqrt(2 / pi) * (z + 0.044715 * z**3)).tanh()) / 2,
}
LOSSES: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
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
    there = library.function("run", dtype, library.level()) is not None
    tried = [(loss, outputs) for loss in LOSSES for outputs in (5, 1)]
    return there and all(is_right(dtype, tuple(ACTIVATIONS), *each) for each in tried)


def is_right(dtype: torch.dtype, activations: tuple[str, ...], loss: str, outputs: int = 5) -> bool:
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
            a = ACTIVATIONS[activation](a @ W.T + bias)
            start = end + outside
        (expected,) = torch.autograd.grad(LOSSES[loss](a, y[rows], layers.delta), z)
    gradient = gradients(layers, x, [(X, y, rows)])[0]
    return torch.allclose(gradient, expected, rtol=1e-3, atol=1e-5)


def _huber(e: Tensor, delta: float) -> Tensor:
    small = e.abs().clamp(max=delta)
    return small * (e.abs() - small / 2)
