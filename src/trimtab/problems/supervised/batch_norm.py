"""BatchNorm: its running statistics are no parameters, but estimates, made at x when needed.

In training a layer normalises by the mini-batch; its buffers are neither read nor changed. Whatever
evaluates or keeps a model uses the mean and the variance over the training data of all clients.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from trimtab.core import Vector
from trimtab.problems.supervised.batches import Sampling, batch_size, one_pass

if TYPE_CHECKING:
    from trimtab.problems.supervised.clients import ClientData
    from trimtab.problems.supervised.flat import FlatModule
    from trimtab.problems.supervised.mean_loss import MeanLoss

Statistics = Mapping[str, Tensor]
"""BatchNorm's buffers by their names in a state_dict."""


# -- their inputs


@dataclass(frozen=True)
class Moments:
    """The mean and the variance of each channel of a layer's inputs.

    weight: of these values in a mean with others.
    count: how many values a channel has.
    """

    weight: float
    count: int
    mean: Tensor
    variance: Tensor

    @classmethod
    def of(cls, X: Tensor) -> "Moments":
        """Return those of a layer's inputs, (n, C, …), in float64."""
        # In float32 the mean square less the square of the mean lost a sixth of a variance.
        values = X.detach().double().transpose(0, 1).flatten(1)
        variance, mean = torch.var_mean(values, 1, correction=0)
        n = values.shape[1]
        return cls(n, n, mean.cpu(), variance.cpu())

    def merged(self, other: "Moments") -> "Moments":
        """Return those of both, by their weights: centred squares, to which the means' add."""
        weight = self.weight + other.weight
        share, apart = other.weight / weight, other.mean - self.mean
        return Moments(
            weight,
            self.count + other.count,
            self.mean + share * apart,
            (1 - share) * self.variance
            + share * other.variance
            + share * (1 - share) * apart.square(),
        )


Found = dict[str, Moments]
"""The moments of layers by their names."""


@contextmanager
def observed(norms: Mapping[str, _BatchNorm]) -> Iterator[Found]:
    """Let layers normalise by their mini-batch, and return the moments of all that they get."""
    found: Found = {}

    def watch(name: str, layer: _BatchNorm) -> Any:
        def look(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            new = Moments.of(given[0])
            found[name] = found[name].merged(new) if name in found else new

        return layer.register_forward_pre_hook(look)

    hooks = [watch(name, layer) for name, layer in norms.items()]
    for layer in norms.values():
        layer.training = True
    try:
        yield found
    finally:
        for hook, layer in zip(hooks, norms.values(), strict=True):
            hook.remove()
            layer.training = False


def pooled(clients: Iterable[tuple[float, Found]]) -> Found:
    """Return the moments of all clients together, each with its weight p_i.

    >>> a, b = (Moments.of(torch.tensor([[1.0], [3.0]]) + shift) for shift in (0, 4))
    >>> both = pooled([(0.5, {"": a}), (0.5, {"": b})])[""]
    >>> both.mean.item(), both.variance.item(), both.count
    (4.0, 5.0, 4)
    """
    total: Found = {}
    for p, found in clients:
        for name, own in found.items():
            new = Moments(p, own.count, own.mean, own.variance)
            total[name] = total[name].merged(new) if name in total else new
    return total


def buffers_of(found: Found) -> dict[str, Tensor]:
    """Return the buffers that PyTorch sets from these moments, in float64."""
    buffers = {}
    for name, own in found.items():
        start = f"{name}." if name else ""
        # As PyTorch does, where a batch of one value cannot occur.
        buffers[f"{start}running_mean"] = own.mean
        buffers[f"{start}running_var"] = own.variance * (own.count / max(1, own.count - 1))
        buffers[f"{start}num_batches_tracked"] = torch.tensor(1)
    return buffers


class PooledStatistics:
    """The statistics of the clients' training data at a point; the last ones are kept."""

    def __init__(self, problem: "ModelWithStatistics") -> None:
        self._problem = problem
        self.given: Statistics | None = None  # in place of those at x
        self._last: tuple[Vector, Any, Statistics] | None = None
        self._lock = RLock()  # Pieces of an evaluation may run on several threads.

    def __call__(self, x: Vector) -> Statistics:
        """Return the statistics at x, pooled over all clients."""
        if self.given is not None:
            return self.given
        batch = self._problem.batch
        with self._lock:
            if self._last is None or self._last[1] != batch or not torch.equal(self._last[0], x):
                given, p = self._problem.clients.clients, self._problem.weights.tolist()
                places: dict[int, list[int]] = {}
                for i in range(len(p)):
                    # A federation's site has its own data in the place of every client.
                    key = id(given[i]) if isinstance(given, list | tuple) else i
                    places.setdefault(key, []).append(i)
                each = (
                    (sum(p[i] for i in same), self.found(x, same[0])) for same in places.values()
                )
                self._last = x.clone(), batch, buffers_of(pooled(each))
            return self._last[2]

    def own(self, x: Vector, client: int) -> Statistics:
        """Return the statistics at x of one client's training data."""
        return buffers_of(self.found(x, client))

    def found(self, x: Vector, client: int) -> Found:
        """Return the moments at x of one client's training data."""
        problem = self._problem
        mean_loss, data = problem._mean_loss, problem.clients[client]
        least = 1 + mean_loss.model.needs_two
        return mean_loss.moments(x, data.owner, one_pass(data, problem.batch, least))


# -- what a problem does with them


class ModelWithStatistics:
    """The members of Supervised that depend on BatchNorm's statistics."""

    model: "FlatModule"
    clients: "ClientData"
    batch: int | float | None
    sampling: Sampling
    weights: Tensor
    N: int
    _mean_loss: "MeanLoss"
    _statistics: PooledStatistics

    if TYPE_CHECKING:

        def evaluate(self, x: Vector, client: int | None = None) -> dict[str, float]:
            """Return the metrics at x."""

    def module_at(self, x: Vector) -> nn.Module:
        """Return a copy of the module at x, in evaluation mode, with the statistics at x."""
        module = self.model.released()
        module.load_state_dict(self.unflatten(x))
        return module.eval()

    def statistics(self, x: Vector, client: int | None = None) -> dict[str, Tensor]:
        """Return the statistics of BatchNorm layers at x by their names, in float64.

        Those of all clients, pooled by p_i; or those of one client's training data alone.
        """
        if not self.model.norms:
            return {}
        found = self._statistics(x) if client is None else self._statistics.own(x, client)
        return {name: tensor.clone() for name, tensor in found.items()}

    def moments(self, x: Vector, client: int) -> Found:
        """Return means and variances of what BatchNorm layers get from one client at x."""
        return self._statistics.found(x, client)

    def evaluate_own(self, x: Vector, client: int) -> dict[str, float]:
        """Return `evaluate` of a client with its own statistics in place of the pooled ones.

        Where this is better, the clients' features differ; where it is worse, their labels do.
        """
        with self.normalised_by(self._statistics.own(x, client)):
            return self.evaluate(x, client)

    @contextmanager
    def normalised_by(self, statistics: Statistics) -> Iterator[None]:
        """Evaluate and save by these statistics in place of those at x."""
        before, self._statistics.given = self._statistics.given, statistics
        try:
            yield
        finally:
            self._statistics.given = before

    def unflatten(self, x: Vector) -> dict[str, Tensor]:
        """Return the module's whole state_dict at x, frozen parts and statistics at x included."""
        return self.model.state_dict(x, self._statistics(x) if self.model.norms else None)

    def check_start(self) -> None:
        """Raise ValueError if a mini-batch has one value per channel, which has no variance."""
        if not self.model.norms:
            return
        _ = self.clients[0]  # Its check finds out whether one sample is enough.
        if not self.model.needs_two:
            return
        for i in range(self.N):
            n = self.clients.size(i)
            b = batch_size(self.batch, n)
            if (b if self.sampling == "iid" else n % b or b) > 1:
                continue
            layer = next(iter(self.model.norms))
            what, remedy = f"has mini-batches of {b} sample", "pass a larger batch"
            if n == 1:
                what, remedy = "has one sample", "leave it out"
            elif b > 1:
                what = f"trains on {n} samples, of which {n // b} mini-batches of {b} leave one"
                remedy = "pass another batch, or sampling='iid'"
            raise ValueError(
                f"client {i} {what}, and BatchNorm in layer '{layer}' has no variance of one value "
                f"per channel; {remedy}, or freeze the layer with .eval()."
            )
