"""f and the f_i on all data: f on the samples of all clients in one pass, Hessians times vectors.

A layer without activation has outputs Z linear in x, so Hess V = X'(loss''(Z) (X V)), and the
derivatives of common losses are known. For other small modules vmap runs the derivative of a
gradient over clients and vectors. It is compared with autograd once for each module, since the
batched second derivatives of some operators are wrong.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import grad, vjp, vmap

from trimtab.compute.captured import disable_vmap_fallback
from trimtab.compute.kernel import Layers
from trimtab.core import Vector
from trimtab.core.streams import seeded
from trimtab.problems.supervised.clients import ClientData
from trimtab.problems.supervised.data import Data
from trimtab.problems.supervised.flat import FunctionOfVector
from trimtab.problems.supervised.graphs import FEWEST, Vectorised, distance, rounding
from trimtab.problems.supervised.losses import OnBatch, shares
from trimtab.problems.supervised.mean_loss import GENERATORS, MeanLoss, rowwise

# Bytes of inputs up to which samples are pooled, as for pieces in `mean_loss`.
_BYTES = 1 << 22
# Samples of the check whether the module computes each sample by itself.
_ROWS = 64
# Weights are those of the pooled loss if they differ by rounding in float64 alone.
_SAME = 1e-12


class PooledObjective:
    """The mean of the clients' losses with weights p_i, plus l2/2 |x|^2, without dropout."""

    def __init__(
        self, mean_loss: MeanLoss, data: Sequence[Data], weights: Sequence[float], l2: float
    ) -> None:
        self._mean_loss, self._l2 = mean_loss, l2
        self._all = Data(
            torch.cat([each.X for each in data]),
            torch.cat([each.y for each in data]),
            "the clients' samples",
        )
        own = shares(mean_loss.loss, [each.y for each in data])
        is_one_mean = own is not None and all(
            abs(p - q) <= _SAME for p, q in zip(weights, own, strict=True)
        )
        # If the weights are those of the pooled loss, one call of the loss is enough.
        self._parts = [self._all] if is_one_mean else list(data)
        self._weights = [1.0] if is_one_mean else list(weights)

    @torch.no_grad()
    def loss(self, x: Vector) -> float:
        """Return f(x)."""
        return float(self._recorded(x)) + self._l2 / 2 * float(x.square().sum())

    def loss_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        """Return f(x) and its gradient."""
        with torch.enable_grad():
            loss = self._recorded(x)
            gradient = self._mean_loss.thread_model.gradient(loss)
        value = float(loss.detach()) + self._l2 / 2 * float(x.square().sum())
        return value, gradient + self._l2 * x

    def _recorded(self, x: Vector) -> Tensor:
        mean, start = self._mean_loss, 0
        with mean.precision(x):
            outputs = mean.outputs(x, self._all)
            total = torch.zeros((), dtype=x.dtype, device=x.device)
            for p, part in zip(self._weights, self._parts, strict=True):
                own = outputs[start : start + len(part)]
                total = total + p * mean.of_outputs(own, part)
                start += len(part)
        return total


def pooled(
    mean_loss: MeanLoss, data: Sequence[Data], weights: Sequence[float], l2: float
) -> PooledObjective | None:
    """Return the objective on all samples in one pass; None if it differs or takes much memory."""
    if isinstance(mean_loss.loss, OnBatch) or not all(each.plain for each in data):
        return None
    if sum(len(each) * each.row_bytes for each in data) > _BYTES or not all(map(len, data)):
        return None
    if len({(each.X.shape[1:], each.X.dtype, each.y.shape[1:], each.y.dtype) for each in data}) > 1:
        return None
    every = PooledObjective(mean_loss, data, weights, l2)
    few = every._all.cut(0, _ROWS)
    with GENERATORS, seeded(0, mean_loss.model.device), torch.no_grad():
        model = mean_loss.thread_model
        output = model(model.start, few.X)
        if not isinstance(output, Tensor) or output.shape[:1] != (len(few),):
            return None
        return every if rowwise(model, few, training=False) else None


# -- Hessians

_LOSSES = ("cross_entropy", "binary_cross_entropy_with_logits", "mse_loss")
# Numbers in the products of one call of vmap: 80 MB in float32.
_NUMBERS = 20_000_000


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
    return V[:, : C * inputs].view(-1, C, inputs), V[:, C * inputs :] if biased else None


def _curved(loss: str, Z: Tensor, moved: Tensor) -> Tensor:
    """Return loss''(Z) times the change of the outputs, for each sample."""
    if loss == "cross_entropy":
        p = torch.softmax(Z, 1)
        part = p * moved
        return part - p * part.sum(-1, keepdim=True)
    if loss == "mse_loss":
        return moved * (2 / Z.shape[1])
    p = torch.sigmoid(Z)
    return moved * (p * (1 - p) / Z.shape[1])


class Curvature:
    """Hess_i V for several clients: in closed form, by vmap, or one client after the other."""

    def __init__(self, mean_loss: MeanLoss, vectorised: Vectorised) -> None:
        self._mean_loss, self._vectorised = mean_loss, vectorised
        self._function: FunctionOfVector | None = None
        # Whether vmap agrees with autograd; None before the comparison.
        self._right: bool | None = None

    def is_faster(self, clients: ClientData, batch: int | float | None) -> bool:
        """Return whether several clients at once are faster than one after the other."""
        linear = self._linear is not None
        return linear or (self._right is not False and not self._vectorised.why_not(clients, batch))

    @property
    def _linear(self) -> Layers | None:
        """The layer of a linear model; None if it is not linear, or was changed."""
        layers = self._mean_loss.known_layers
        plain = layers is not None and layers.activations == ("none",) and not layers.eps
        if layers is None or not plain or layers.loss not in _LOSSES:
            return None
        return layers

    def products(self, x: Vector, data: Sequence[Data], V: Tensor) -> Tensor:
        """Return the Hessian on each client's data times its rows of V, of shape (s, m, d)."""
        layers = self._linear
        if layers is not None and all(each.fits_kernel(layers) for each in data):
            pairs = zip(data, V, strict=True)
            return torch.stack([linear_products(layers, x, each.X, rows) for each, rows in pairs])
        found = torch.empty_like(V)
        same_size: dict[int, list[int]] = {}
        for j, each in enumerate(data):
            same_size.setdefault(len(each), []).append(j)
        for n, rows in same_size.items():
            clients_per_call = max(
                1, _NUMBERS // max(1, V[0].numel() + len(V[0]) * data[rows[0]].X.numel())
            )
            for some in torch.split(torch.tensor(rows), clients_per_call):
                chosen = some.tolist()
                found[chosen] = self._of_one_size(x, [data[j] for j in chosen], V[chosen], n)
        return found

    def whole(self, clients: ClientData) -> Callable[[int, Vector], Tensor] | None:
        """Return (i, x) -> the Hessian on the data of client i, for linear models alone.

        None also if the data of some client do not fit the model's layer.
        """
        layers = self._linear
        if layers is None or not clients.in_memory:
            return None
        if not all(clients[i].fits_kernel(layers) for i in range(len(clients))):
            return None
        return lambda i, x: linear_hessian(layers, x, clients[i].X)

    def _of_one_size(self, x: Vector, data: Sequence[Data], V: Tensor, n: int) -> Tensor:
        """Return the products of clients that have n samples each."""
        if self._right is not False and len(data) >= FEWEST and self._vectorised.worth_graph(n):
            try:
                if self._right is None:
                    self._right = self._matches_autograd(x, data, V)
                if self._right:
                    return self._at_once(x, data, V)
            except (RuntimeError, IndexError, NotImplementedError):
                self._right = False  # Some operator has no batched second derivative.
        return self._in_turn(x, data, V)

    def _matches_autograd(self, x: Vector, data: Sequence[Data], V: Tensor) -> bool:
        """Return whether vmap and autograd agree for the first vector of each client."""
        first = V[:FEWEST, :1].contiguous()
        few = data[:FEWEST]
        apart = distance(self._at_once(x, few, first), self._in_turn(x, few, first))
        return apart <= rounding(x.dtype)

    def _in_turn(self, x: Vector, data: Sequence[Data], V: Tensor) -> Tensor:
        products = self._mean_loss.hessian_products
        return torch.stack([products(x, each, v) for each, v in zip(data, V, strict=True)])

    @torch.no_grad()
    def _at_once(self, x: Vector, data: Sequence[Data], V: Tensor) -> Tensor:
        with GENERATORS, disable_vmap_fallback():
            if self._function is None:
                self._function = FunctionOfVector(self._mean_loss.model)
            model = self._function.model
            if model.norms:
                model.use(self._mean_loss.statistics(x))
            value = self._function.loss(self._mean_loss.loss, training=False)

            def products(X: Tensor, y: Tensor, V: Tensor) -> Tensor:
                # vjp gives V' Hess, which is Hess V because the Hessian is symmetric.
                pulled: Callable[[Vector], tuple[Vector]]
                pulled = vjp(lambda at: grad(value)(at, X, y), x)[1]
                found: Tensor = vmap(lambda v: pulled(v)[0])(V)
                return found

            X, y = (torch.stack(parts) for parts in zip(*((d.X, d.y) for d in data), strict=True))
            return vmap(products)(X, y, V)
