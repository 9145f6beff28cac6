"""Whether the kernels may be used: they are compared with PyTorch once, before their first use."""

from functools import cache

import torch

from trimtab.compute.kernel import library
from trimtab.compute.kernel.calls import gradients
from trimtab.compute.kernel.program import Layers


@cache
def works(dtype: torch.dtype) -> bool:
    """Tell whether there are kernels for a number type that pass their check."""
    return library.function("run", dtype, library.level()) is not None and _is_right(dtype)


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
    gradient = gradients(layers, x, [(X, y, rows)])[0]
    return torch.allclose(gradient, expected, rtol=1e-3, atol=1e-5)
