"""Recognise modules whose gradient the compiled kernel can compute: linear layers, known losses.

The kernel gives the numbers of autograd up to rounding (tested), several times faster on small
mini-batches, where autograd spends its time on bookkeeping.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.compute import kernel
from trimtab.core import Vector
from trimtab.core.streams import stream
from trimtab.problems.supervised.flat import FlatModule
from trimtab.problems.supervised.losses import (
    Loss,
    is_plain_parameter,
    is_unpatched,
    loss_kind,
    no_global_hooks,
)

_ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.Tanh: "tanh",
    nn.Sigmoid: "sigmoid",
    nn.SiLU: "silu",
    nn.GELU: "gelu",
}
_KNOWN: tuple[type[nn.Module], ...] = (
    *(nn.Linear, nn.LayerNorm, nn.Flatten, nn.Sequential),
    *_ACTIVATIONS,
)
_FORWARDS: dict[type[nn.Module], Callable[..., Tensor]] = {cls: cls.forward for cls in _KNOWN}
# Samples on which a closed form is compared with autograd, once for each problem.
_ROWS = 64
# A row of equal numbers is divided by the root of eps, which float32 must not round to 0.
_LEAST_EPS = 1e-12
# Relative to the inputs; a smaller gradient may be rounding, in float64 too.
_NOISE = 1e-9

Layer = tuple[nn.Module, str]
"""A module and its kind: linear, norm, flatten, flatten all, or an activation."""


@dataclass(frozen=True)
class ClosedForm:
    """A module and a loss as the kernel knows them, as long as neither is changed."""

    layers: kernel.Layers
    module: nn.Module
    parts: Sequence[Layer]
    loss: Loss
    device: torch.device
    dtype: torch.dtype

    def is_unchanged(self) -> bool:
        """Return whether module and loss are as when this was derived; called every round."""
        # Users may add hooks, freeze layers or replace the loss between two rounds.
        return (
            no_global_hooks()
            and _loss_for_kernel(self.loss) == (self.layers.loss, self.layers.delta)
            and _parts(self.module) == self.parts
            and not torch.is_autocast_enabled("cpu")
        )

    def is_applicable(self) -> bool:
        """Return whether the kernel works for these numbers, and for those it is checked in."""
        works = kernel.works(self.dtype) and kernel.works(torch.float64)
        return self.device.type == "cpu" and works and self.is_unchanged()

    def gradients(self, x: Vector, batches: Sequence[kernel.Batch]) -> Vector:
        """Return the gradients of s mini-batches, (s, d), at x of (d,) or (s, d)."""
        return kernel.gradients(self.layers, x.to(batches[0][0].dtype), batches)


def closed_form(module: nn.Module, loss: Loss) -> ClosedForm | None:
    """Return the closed form of a module and a loss that the kernel knows, else None."""
    parts, known = _parts(module), _loss_for_kernel(loss)
    if parts is None or known is None or not no_global_hooks():
        return None
    layers = _for_kernel(parts, *known)
    if layers is None:
        return None
    weight = next(layer.weight for layer, what in parts if what == "linear")
    assert isinstance(weight, Tensor)
    return ClosedForm(layers, module, parts, loss, weight.device, weight.dtype)


def difference(form: ClosedForm, start: Vector, X: Tensor, y: Tensor) -> float:
    """Return the relative difference of a closed form and autograd at a random point near `start`.

    In float64, where rounding cannot explain a difference.
    """
    model = FlatModule(deepcopy(form.module).cpu(), torch.float64)
    noise = torch.randn(model.d, generator=stream(0), dtype=torch.float64)
    x, X, y = start.cpu().double() + 0.1 * noise, X[:_ROWS].cpu().double(), y[:_ROWS].cpu()
    y = y.double() if y.is_floating_point() else y
    with torch.enable_grad():
        expected = model.gradient(form.loss(model(x, X), y))
    gradient = form.gradients(x, [(X, y, None)])[0]
    noise = _NOISE * float(X.norm()) / len(X) ** 0.5
    return float((gradient - expected).norm() / expected.norm().clamp_min(max(noise, 1e-300)))


def _parts(module: nn.Module) -> list[Layer] | None:
    """Return the layers of a module with their kinds; None if one of them is unknown."""
    # Exact types: a subclass of nn.Linear may compute anything.
    layers = [module]
    if type(module) is nn.Sequential:
        if not is_unpatched(module, _FORWARDS[nn.Sequential]):
            return None
        layers = list(module._modules.values())
    seen = set[int]()
    parts = list[Layer]()
    for layer in layers:
        kind = type(layer)
        if kind not in _FORWARDS or not is_unpatched(layer, _FORWARDS[kind]):
            return None
        what = "linear" if kind is nn.Linear else _ACTIVATIONS.get(kind) or _other(layer)
        if isinstance(layer, nn.GELU) and layer.approximate == "tanh":
            what = "gelu_tanh"
        parts.append((layer, what))
        for parameter in layer._parameters.values():
            if parameter is None:
                continue
            # A parameter in two layers has one gradient, the sum of both.
            if id(parameter) in seen or not is_plain_parameter(parameter):
                return None
            seen.add(id(parameter))
    return parts


def _other(layer: Any) -> str:
    """Return the kind of a layer that is neither linear nor an activation."""
    if type(layer) is nn.LayerNorm:
        one = len(layer.normalized_shape) == 1 and layer.eps >= _LEAST_EPS
        return f"norm {layer.eps}" if one and layer.bias is not None else "unknown"
    if type(layer) is not nn.Flatten or layer.end_dim != -1 or layer.start_dim not in (0, 1):
        return "unknown"
    return "flatten" if layer.start_dim else "flatten all"


def _for_kernel(parts: Sequence[Layer], loss: str, delta: float) -> kernel.Layers | None:
    """Return the description of a module for the kernel; None if it cannot compute it.

    It has linear layers, each followed by at most one LayerNorm and then at most one activation,
    Flatten before the first one, and, for a single output of shape (n,), nn.Flatten(0) at the end.
    """
    kinds = [what for _, what in parts]
    flattens = kinds[:1] == ["flatten"]
    single = kinds[-1:] == ["flatten all"] and loss != "cross_entropy"
    linear, activations, eps = list[Any](), list[str](), list[float]()
    for layer, what in parts[flattens : len(parts) - single]:
        if what == "linear":
            linear.append(layer)
            activations.append("none")
            eps.append(0.0)
        elif isinstance(layer, nn.LayerNorm) and what != "unknown":
            if not eps or eps[-1] or activations[-1] != "none":
                return None
            if layer.normalized_shape[0] != linear[-1].out_features:
                return None
            eps[-1] = layer.eps
        elif not activations or what not in kernel.ACTIVATIONS:
            return None
        elif activations[-1] == "none":
            activations[-1] = what
        elif not activations[-1] == what == "relu":  # A ReLU of a ReLU is that ReLU.
            return None
    if not linear or (single and linear[-1].out_features > 1):
        return None
    sizes = (linear[0].in_features, *(layer.out_features for layer in linear))
    biased = tuple(layer.bias is not None for layer in linear)
    norms = tuple(eps) if any(eps) else ()
    return kernel.Layers(sizes, biased, tuple(activations), loss, delta, flattens, single, norms)


def _loss_for_kernel(loss: Loss) -> tuple[str, float] | None:
    """Return the name and Huber delta of a loss that kernels know, if it is a plain mean."""
    known = loss_kind(loss)
    if (
        known is None
        or not known.plain
        or known.name not in kernel.LOSSES
        or not known.huber_delta > 0
    ):
        return None
    return known.name, known.huber_delta
