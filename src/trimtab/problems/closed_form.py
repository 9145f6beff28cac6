"""Gradients without autograd for classifiers made of Linear and ReLU, with cross-entropy.

The same numbers as autograd's (tested), several times faster on small mini-batches, where the time
goes into bookkeeping.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trimtab.core import Vector

Gradient = Callable[[Vector, Tensor, Tensor], Vector]
"""gradient(x, X, y): of the mean cross-entropy at the flat vector x."""


def closed_form(module: nn.Module, loss: object) -> Gradient | None:
    """Return the gradient of such a module, or None for another."""
    layers = list(module) if type(module) is nn.Sequential else [module]
    known = all(type(layer) in (nn.Linear, nn.ReLU) for layer in layers)
    known = known and not any(_hooked(m) for m in module.modules())
    linear = [layer for layer in layers if type(layer) is nn.Linear]
    parameters = [p for layer in linear for p in layer.parameters()]
    distinct = len({id(p) for p in parameters}) == len(parameters)
    trainable = all(p.requires_grad for p in parameters)
    ends = bool(layers) and type(layers[-1]) is nn.Linear
    if not (known and ends and distinct and trainable and _is_plain(loss)):
        return None
    shapes = [layer.weight.shape if isinstance(layer, nn.Linear) else None for layer in layers]
    biased = [isinstance(layer, nn.Linear) and layer.bias is not None for layer in layers]

    def gradient(x: Vector, X: Tensor, y: Tensor) -> Vector:
        out = torch.empty_like(x)
        weights, gradients = _views(x, shapes, biased), _views(out, shapes, biased)
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
            torch.mm(G.T, inputs[j], out=dW)
            if db is not None:
                torch.sum(G, dim=0, out=db)
            if j:
                G = G @ W
        return out

    return gradient


def suits(X: Tensor, y: Tensor) -> bool:
    """Tell whether these are samples with one label each, none of them to be ignored."""
    return X.dim() == 2 and y.dim() == 1 and not y.is_floating_point() and int(y.min()) >= 0


def _is_plain(loss: object) -> bool:
    """Tell whether a loss is cross-entropy without weights, smoothing or another reduction."""
    if isinstance(loss, nn.CrossEntropyLoss):
        plain = loss.weight is None and not loss.label_smoothing and loss.reduction == "mean"
        return plain and loss.ignore_index == -100 and not _hooked(loss)
    return loss is F.cross_entropy


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


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
