"""Gradients without autograd for classifiers made of Linear and ReLU, with cross-entropy.

The same numbers as autograd's (tested), several times faster on small mini-batches, where the time
goes into bookkeeping. Through the compiled kernel, where there is one.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trimtab.compute import kernel
from trimtab.core import Vector
from trimtab.core.streams import stream
from trimtab.problems.supervised.flat import FlatModule
from trimtab.problems.supervised.losses import Loss, recognise
from trimtab.problems.supervised.untouched import nothing_global, ordinary, untouched

_FORWARDS: dict[type[nn.Module], Callable[..., Tensor]] = {
    cls: cls.forward for cls in (nn.Linear, nn.ReLU, nn.Sequential)
}
_ROWS = 64  # a closed form is compared with autograd on <= 64 samples


@dataclass(frozen=True)
class ClosedForm:
    """The gradient of such a classifier; `layers` is what a kernel needs to know, if it can."""

    gradient: Callable[[Vector, Tensor, Tensor], Vector]  # at x, of the mean over samples X, y
    layers: kernel.Layers | None
    module: nn.Module
    parts: Sequence[nn.Module]
    loss: Loss

    def holds(self) -> bool:
        """Tell whether module and loss still do what this was derived from; asked every round."""
        return (
            nothing_global()
            and is_plain(self.loss)
            and _layers(self.module) == self.parts
            and not torch.is_autocast_enabled("cpu")
        )

    def gradients(self, x: Vector, batches: Sequence[kernel.Batch]) -> Vector:
        """Return the gradients of s mini-batches, (s, d), at x of (d,) or (s, d)."""
        dtype = batches[0][0].dtype
        x = x.to(dtype)
        if self.layers is not None and x.device.type == "cpu" and kernel.works(dtype):
            return kernel.gradients(self.layers, x, batches)
        points = x.expand(len(batches), x.shape[-1])
        rows = [(X, y) if part is None else (X[part], y[part]) for X, y, part in batches]
        for place, (_, y) in enumerate(rows):
            self._check_labels(place, y)
        each = [self.gradient(point, *both) for point, both in zip(points, rows, strict=True)]
        return torch.stack(each)

    def _check_labels(self, place: int, y: Tensor) -> None:
        """Refuse labels that were changed after they were read: -1 would be the last class."""
        classes = int(self.parts[-1].out_features)  # type: ignore[arg-type]
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= classes:
            label = low if low < 0 else high
            raise kernel.BadDataError(place, f"label {label}, of {classes} classes")


def closed_form(module: nn.Module, loss: Loss) -> ClosedForm | None:
    """Return the gradient of such a module, or None for another."""
    layers = _layers(module)
    if layers is None or not nothing_global() or not is_plain(loss):
        return None
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    shapes = [layer.weight.shape if isinstance(layer, nn.Linear) else None for layer in layers]
    biased = [isinstance(layer, nn.Linear) and layer.bias is not None for layer in layers]

    def gradient(x: Vector, X: Tensor, y: Tensor) -> Vector:
        out = torch.empty_like(x)
        weights, gradients = _views(x, shapes, biased), _views(out, shapes, biased)
        last, C = len(shapes) - 1, linear[-1].out_features
        weights[last] = _padded(*weights[last])
        inputs, a = [], X
        for W, b in weights:  # forward
            inputs.append(a)
            a = F.relu(a) if W is None else F.linear(a, W, b)
        G = torch.softmax(a, dim=1)  # the gradient with respect to the logits
        G[torch.arange(len(y), device=y.device), y] -= 1
        G /= len(y)
        for j in reversed(range(len(shapes))):  # backward
            W, _ = weights[j]
            dW, db = gradients[j]
            if W is None or dW is None:
                G = G * (inputs[j] > 0)
                continue
            if j == last:
                dW.copy_(torch.mm(G.T, inputs[j])[:C])
            else:
                torch.mm(G.T, inputs[j], out=dW)
            if db is not None:
                db.copy_(G.sum(0)[: len(db)])
            if j:
                G = G @ W
        return out

    return ClosedForm(gradient, _for_kernel(layers), module, layers, loss)


def difference(form: ClosedForm, start: Vector, X: Tensor, y: Tensor) -> float:
    """Return how far a closed form is from autograd at a random point near `start`, relatively.

    In float64, where rounding is no excuse.
    """
    model = FlatModule(deepcopy(form.module).cpu(), torch.float64)
    noise = torch.randn(model.d, generator=stream(0), dtype=torch.float64)
    x, X, y = start.cpu().double() + 0.1 * noise, X[:_ROWS].cpu().double(), y[:_ROWS].cpu()
    with torch.enable_grad():
        expected = model.gradient(form.loss(model(x, X), y))
    gradient = form.gradients(x, [(X, y, None)])[0]
    return float((gradient - expected).norm() / expected.norm().clamp_min(1e-300))


def _layers(module: nn.Module) -> list[nn.Module] | None:
    """Return the layers of a module that is just Linear and ReLU and ends with a Linear."""
    layers = [module]
    if type(module) is nn.Sequential:
        if not untouched(module, _FORWARDS[nn.Sequential]):
            return None
        layers = list(module._modules.values())
    seen = set[int]()
    for layer in layers:
        if type(layer) not in (nn.Linear, nn.ReLU) or not untouched(layer, _FORWARDS[type(layer)]):
            return None
        for parameter in layer._parameters.values():
            if parameter is None:
                continue
            if id(parameter) in seen or not ordinary(parameter):
                return None
            seen.add(id(parameter))
    return layers if layers and type(layers[-1]) is nn.Linear else None


def _for_kernel(layers: Sequence[nn.Module]) -> kernel.Layers | None:
    """Return what a kernel needs to know; it has no ReLU before the first layer."""
    at = [j for j, layer in enumerate(layers) if isinstance(layer, nn.Linear)]
    if at[0] > 0:
        return None
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    sizes = (linear[0].in_features, *(layer.out_features for layer in linear))
    biased = tuple(layer.bias is not None for layer in linear)
    followed = tuple(j + 1 < len(layers) and j + 1 not in at for j in at)
    return kernel.Layers(sizes, biased, followed)


def _padded(W: Tensor | None, b: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the last layer with classes added up to a multiple of 16, which products like.

    A class that is added has logit -1e30 and so probability 0.
    """
    assert W is not None
    more = -len(W) % 16
    bias = torch.zeros_like(W[:, 0]) if b is None else b
    return F.pad(W, (0, 0, 0, more)), F.pad(bias, (0, more), value=-1e30)


def is_plain(loss: Loss) -> bool:
    """Tell whether a loss is cross-entropy without weights, smoothing or another reduction."""
    known = recognise(loss)
    return known is not None and known.plain_cross_entropy


Views = list[tuple[Tensor | None, Tensor | None]]


def _views(x: Vector, shapes: list[torch.Size | None], biased: list[bool]) -> Views:
    """Return (weight, bias) of each layer as views of a flat vector."""
    views: Views = []
    start = 0
    for shape, has_bias in zip(shapes, biased, strict=True):
        if shape is None:
            views.append((None, None))
            continue
        end = start + shape.numel()
        last = end + (shape[0] if has_bias else 0)
        views.append((x[start:end].view(shape), x[end:last] if has_bias else None))
        start = last
    return views
