"""Second derivatives of a linear model without autograd: a second copy of its loss.

A layer without activation has outputs Z linear in x, so Hess V = X'(loss''(Z) (X V)), and the
derivatives of losses that are common are known. Tests compare them with autograd.
"""

import torch
from torch import Tensor

from trimtab.compute.kernel import Layers
from trimtab.core import Vector

_LOSSES = ("cross_entropy", "binary_cross_entropy_with_logits", "mse_loss")


def is_linear(layers: Layers) -> bool:
    """Tell whether a model is one layer with a loss that is known here."""
    return layers.activations == ("none",) and layers.loss in _LOSSES


def linear_products(layers: Layers, x: Vector, X: Tensor, V: Tensor) -> Tensor:
    """Return the Hessian of the mean loss on X at x times each row of V.

    >>> layers = Layers((1, 1), (False,), ("none",), "mse_loss")
    >>> linear_products(layers, torch.zeros(1), torch.tensor([[3.0]]), torch.tensor([[1.0]]))
    tensor([[18.]])
    """
    inputs, C, biased = layers.sizes[0], layers.sizes[1], layers.biased[0]
    X = X.flatten(1)
    W, b = _parts(x[None], C, inputs, biased)
    D, e = _parts(V, C, inputs, biased)
    Z, moved = X @ W[0].T, X @ D.mT  # of shape (n, C), and (m, n, C)
    if b is not None and e is not None:
        Z, moved = Z + b[0], moved + e[:, None]
    slopes = _curved(layers.loss, Z, moved) / len(X)
    into = (slopes.mT @ X).flatten(1)
    return torch.cat([into, slopes.sum(1)], 1) if biased else into


def linear_hessian(layers: Layers, x: Vector, X: Tensor) -> Tensor:
    """Return the whole Hessian of the mean loss on X at x: a block for each pair of outputs."""
    inputs, C, biased = layers.sizes[0], layers.sizes[1], layers.biased[0]
    X = X.flatten(1)
    W, b = _parts(x[None], C, inputs, biased)
    Z = X @ W[0].T if b is None else X @ W[0].T + b[0]
    every = torch.cat([X, torch.ones_like(X[:, :1])], 1) if biased else X
    q = every.shape[1]
    H = x.new_zeros(C, q, C, q)
    for c in range(C):
        unit = torch.zeros_like(Z)
        unit[:, c] = 1
        curved = _curved(layers.loss, Z, unit[None])[0] / len(X)  # of each output with output c
        rows = (curved[:, :, None] * every[:, None]).flatten(1)
        H[c] = (every.T @ rows).view(q, C, q)
    H = H.view(C * q, C * q)
    order = torch.arange(C * q).view(C, q)
    if biased:  # In x, all biases come after all weights.
        order = torch.cat([order[:, :-1].flatten(), order[:, -1]])
        H = H[order][:, order]
    return H


def _parts(V: Tensor, C: int, inputs: int, biased: bool) -> tuple[Tensor, Tensor | None]:
    """Return the weights and the biases in rows of vectors."""
    return V[:, : C * inputs].view(-1, C, inputs), V[:, C * inputs :] if biased else None


def _curved(loss: str, Z: Tensor, moved: Tensor) -> Tensor:
    """Return loss''(Z) times how far the outputs move, for each sample."""
    if loss == "cross_entropy":
        p = torch.softmax(Z, 1)
        part = p * moved
        return part - p * part.sum(-1, keepdim=True)
    if loss == "mse_loss":
        return moved * (2 / Z.shape[1])
    p = torch.sigmoid(Z)
    return moved * (p * (1 - p) / Z.shape[1])
