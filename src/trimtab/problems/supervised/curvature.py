"""Hessians of several clients at once, times vectors: the same numbers as one after the other.

Linear models have a closed form. For other small modules it is vmap over clients and vectors of
what differentiates a gradient; whether that is right for this module is found out once, by
comparison with autograd, since not every operator's batched second derivative is.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import grad, vjp, vmap

from trimtab.compute.captured import without_slow_vmap
from trimtab.compute.kernel import Layers
from trimtab.core import Vector
from trimtab.problems.supervised.client_data import ClientData
from trimtab.problems.supervised.flat import FunctionOfVector
from trimtab.problems.supervised.linear_hessian import (
    is_linear,
    linear_hessian,
    linear_products,
)
from trimtab.problems.supervised.mean_loss import GENERATORS, MeanLoss
from trimtab.problems.supervised.rounding import distance, rounding
from trimtab.problems.supervised.samples import Data
from trimtab.problems.supervised.vectorised import FEWEST, Vectorised

_NUMBERS = 20_000_000  # the products that are computed together hold <= 20,000,000 numbers


class Curvature:
    """What computes Hess_i V for several clients; None where one after the other is as good."""

    def __init__(self, mean_loss: MeanLoss, vectorised: Vectorised) -> None:
        self._mean_loss, self._vectorised = mean_loss, vectorised
        self._function: FunctionOfVector | None = None
        self._right: bool | None = None  # whether vmap gives what autograd gives, if it was asked

    def pays(self, clients: ClientData, batch: int | float | None) -> bool:
        """Tell whether several clients at once are faster than one after the other."""
        linear = self._linear is not None
        return linear or (self._right is not False and not self._vectorised.why_not(clients, batch))

    @property
    def _linear(self) -> Layers | None:
        """The one layer of a linear model, if it holds at this moment."""
        form = self._mean_loss.closed_form
        return form.layers if form is not None and is_linear(form.layers) else None

    def products(self, x: Vector, data: Sequence[Data], V: Tensor) -> Tensor:
        """Return the Hessian on each client's data times its rows of V, of shape (s, m, d)."""
        layers = self._linear
        if layers is not None and all(each.suits(layers) for each in data):
            pairs = zip(data, V, strict=True)
            return torch.stack([linear_products(layers, x, each.X, rows) for each, rows in pairs])
        found = torch.empty_like(V)
        alike: dict[int, list[int]] = {}
        for j, each in enumerate(data):
            alike.setdefault(len(each), []).append(j)
        for n, rows in alike.items():
            room = max(1, _NUMBERS // max(1, V[0].numel() + len(V[0]) * data[rows[0]].X.numel()))
            for some in torch.split(torch.tensor(rows), room):
                chosen = some.tolist()
                found[chosen] = self._of_alike(x, [data[j] for j in chosen], V[chosen], n)
        return found

    def whole(self, clients: ClientData) -> Callable[[int, Vector], Tensor] | None:
        """Return (i, x) -> the Hessian on the data of client i, for linear models alone."""
        layers = self._linear_for(clients)
        return None if layers is None else lambda i, x: linear_hessian(layers, x, clients[i].X)

    def _linear_for(self, clients: ClientData) -> Layers | None:
        """Return the one layer of a linear model, if it holds for the data of all clients."""
        layers = self._linear
        if layers is None or not clients.in_memory:
            return None
        suits = all(clients[i].suits(layers) for i in range(len(clients)))
        return layers if suits else None

    def _of_alike(self, x: Vector, data: Sequence[Data], V: Tensor, n: int) -> Tensor:
        """Return the products of clients with as many samples each."""
        if self._right is not False and len(data) >= FEWEST and self._vectorised.takes(n):
            try:
                if self._right is None:
                    self._right = self._compared(x, data, V)
                if self._right:
                    return self._at_once(x, data, V)
            except (RuntimeError, IndexError, NotImplementedError):
                self._right = False  # An operator has no derivative of this kind.
        return self._in_turn(x, data, V)

    def _compared(self, x: Vector, data: Sequence[Data], V: Tensor) -> bool:
        """Tell whether both ways agree for the first vector of each client, up to rounding."""
        first = V[:FEWEST, :1].contiguous()
        few = data[:FEWEST]
        apart = distance(self._at_once(x, few, first), self._in_turn(x, few, first))
        return apart <= rounding(x.dtype)

    def _in_turn(self, x: Vector, data: Sequence[Data], V: Tensor) -> Tensor:
        products = self._mean_loss.hessian_products
        return torch.stack([products(x, each, v) for each, v in zip(data, V, strict=True)])

    @torch.no_grad()
    def _at_once(self, x: Vector, data: Sequence[Data], V: Tensor) -> Tensor:
        with GENERATORS, without_slow_vmap():
            if self._function is None:
                self._function = FunctionOfVector(self._mean_loss.model)
            value = self._function.loss(self._mean_loss.loss, training=False)

            def products(X: Tensor, y: Tensor, V: Tensor) -> Tensor:
                """Return the Hessian times each row of V: that is symmetric, so either way."""
                pulled: Callable[[Vector], tuple[Vector]]
                pulled = vjp(lambda at: grad(value)(at, X, y), x)[1]
                found: Tensor = vmap(lambda v: pulled(v)[0])(V)
                return found

            X, y = (torch.stack(parts) for parts in zip(*((d.X, d.y) for d in data), strict=True))
            return vmap(products)(X, y, V)
