"""The gradients of several clients at once, for any module: vmap(grad), captured and replayed.

Size, operators and data of a module decide whether a graph is used, never a clock: the same
problem takes the same path, and gives the same bits, on a busy machine as well.
"""

from collections.abc import Sequence
from threading import RLock
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils.flop_counter import FlopCounterMode

from trimtab._importing import describe_error
from trimtab.compute.captured import Graph, capture, disable_vmap_fallback
from trimtab.core import Vector
from trimtab.core.streams import seeded, stream
from trimtab.problems.supervised.batches import batch_size
from trimtab.problems.supervised.clients import ClientData
from trimtab.problems.supervised.data import Data
from trimtab.problems.supervised.flat import FunctionOfVector
from trimtab.problems.supervised.losses import OnBatch, hooked
from trimtab.problems.supervised.mean_loss import GENERATORS, MeanLoss

# The limits of this path are in the table of docs/performance.md. With fewer than 4 clients with
# mini-batches of one size a graph saves no time. A gradient of d > 50,000 parameters, of more than
# 6,000,000 operations in products or of 500,000 intermediate numbers spends its time in products,
# and not in Python.
FEWEST = 4
LARGEST = 50_000
OPERATIONS = 6_000_000
_NUMBERS = 500_000
# The sizes of mini-batches are compared for the first 32 clients; all clients may be millions.
_LOOKED_AT = 32
# Characters of an error of PyTorch that a message shows; they can be very long.
_LONGEST = 160
# Graphs in memory; the oldest one is removed first.
_KEPT = 256
# Roundings by which sums in two orders may differ.
_ROUNDINGS = 2_000


class Vectorised:
    """A graph for each size of mini-batch and number of clients, and why there may be none."""

    def __init__(self, mean_loss: MeanLoss) -> None:
        self._mean_loss, self._loss = mean_loss, mean_loss.loss
        self._graphs: dict[tuple[Any, ...], Graph] = {}
        self._function: FunctionOfVector | None = None  # what is captured
        self._lock = RLock()  # Executors may call it from several threads.
        self._found: str | None = None  # why not, once compared; empty if graphs are used
        self._rows = 0  # the largest mini-batch that is worth a graph

    # -- whether

    def why_not(self, clients: ClientData, batch: int | float | None) -> str:
        """Return why gradients of several clients at once would be wrong or slow; empty if not.

        The first call reads client 0 and compares a graph with autograd on its samples.
        """
        changing = self._changing()
        if changing:
            return changing
        with self._lock:
            if self._found is None:
                self._found = self._unfit(clients, batch) or self._probe(clients, batch)
            return self._found

    def worth_graph(self, rows: int) -> bool:
        """Return whether a graph is faster for mini-batches of this many samples."""
        return rows <= self._rows

    def _changing(self) -> str:
        """Return the change since the graph was compared; empty if there is none."""
        mean = self._mean_loss
        if mean.loss is not self._loss:
            return "the loss was replaced"
        where = hooked(mean.model.module)
        return f"a hook is set on {where}, which a graph would call only once" if where else ""

    def _unfit(self, clients: ClientData, batch: int | float | None) -> str:
        """Return why a graph is not worth it, as far as sizes show; empty if it may be."""
        model = self._mean_loss.model
        if model.device.type != "cpu":
            return f"the module is on {model.device.type}"
        if self._mean_loss.autocast:
            return f"autocast={self._mean_loss.autocast} is on"
        if model.d > LARGEST:
            return f"d = {model.d:,} is more than {LARGEST:,}: its products take the time"
        looked_at = range(min(len(clients), _LOOKED_AT) if clients.in_memory else 0)
        sizes = [batch_size(batch, clients.size(i)) for i in looked_at if clients.size(i)]
        if sizes and max(map(sizes.count, sizes)) < FEWEST:
            return (
                f"fewer than {FEWEST} clients have mini-batches of one size; pass batch= as a "
                "number that all of them have"
            )
        return ""

    def _probe(self, clients: ClientData, batch: int | float | None) -> str:
        """Capture a graph on samples of client 0; return why it is wrong or slow, empty if not.

        The comparison depends on the problem alone, and not on the rounds before it.
        """
        try:
            data = clients[0]
        except (ValueError, OSError) as error:
            return f"client 0 cannot be read ({describe_error(error)})"
        if not data.plain or isinstance(self._loss, OnBatch):
            return "its inputs and targets are not one tensor each"
        if self._mean_loss.model.draws:
            return "the module draws random numbers, as dropout does; call eval() on that layer"
        try:
            return self._compare(data, batch_size(batch, len(data)))
        except Exception as error:
            text = describe_error(error)
            return f"it cannot be captured ({text[:_LONGEST]}{'…' * (len(text) > _LONGEST)})"

    def _compare(self, data: Data, b: int) -> str:
        """Return why a graph for mini-batches of b samples would be slow or wrong."""
        model, autograd = self._mean_loss.model, self._mean_loss.autograd
        noise = torch.randn(FEWEST, model.d, generator=stream(0), dtype=model.dtype)
        points = model.start + 0.1 * noise
        starts = [(j * (len(data) - b)) // (FEWEST - 1) for j in range(FEWEST)]
        parts = [Data(data.X[j : j + b], data.y[j : j + b], data.owner) for j in starts]
        with FlopCounterMode(display=False) as counter:
            autograd(points[0], parts[0])
        operations = counter.get_total_flops()
        if operations > OPERATIONS:
            return f"a gradient takes {operations:,} operations in products, which take the time"
        # Captured at other points and samples, it cannot hold constants of the comparison.
        self.gradients(model.start.expand_as(noise), parts[::-1])
        numbers = next(reversed(self._graphs.values())).numbers // FEWEST
        if numbers > _NUMBERS:
            return f"a gradient computes {numbers:,} numbers, which take the time"
        each = [autograd(x, part) for x, part in zip(points, parts, strict=True)]
        apart = distance(self.gradients(points, parts), torch.stack(each))
        if not apart <= rounding(model.dtype):
            return f"captured gradients differ from autograd's by {apart:.2g} of their length"
        self._rows = int(b / max(operations / OPERATIONS, numbers / _NUMBERS))
        return ""

    # -- gradients

    @torch.no_grad()
    def gradients(self, points: Vector, parts: Sequence[Data], all_of_them: bool = True) -> Vector:
        """Return the gradients, (s, d), at s points on s mini-batches of one size.

        If they are not all of a chunk, their number may be another in each step: then some are
        computed twice, so that there are few graphs.
        """
        points = points.to(self._mean_loss.model.dtype)
        more = 0 if all_of_them else _rounded(len(parts)) - len(parts)
        rows = [*parts, *(parts[-1] for _ in range(more))]
        inputs = (
            torch.cat([points, points[-1:].expand(more, -1)]) if more else points.contiguous(),
            torch.stack([part.X for part in rows]),
            torch.stack([part.y for part in rows]),
        )
        return self._graph(inputs).replay(*inputs)[: len(parts)]

    def _graph(self, inputs: tuple[Tensor, ...]) -> Graph:
        key = tuple((tensor.shape, tensor.dtype) for tensor in inputs)
        graph = self._graphs.get(key)
        if graph is not None:
            return graph
        with self._lock, GENERATORS, disable_vmap_fallback():
            if self._function is None:
                self._function = FunctionOfVector(self._mean_loss.model)
            each = vmap(grad(self._function.loss(self._loss)))
            with seeded(0, self._mean_loss.model.device):
                graph = capture(each, inputs)
            if len(self._graphs) >= _KEPT:
                self._graphs.pop(next(iter(self._graphs)))
            self._graphs[key] = graph
        return graph


def _rounded(s: int) -> int:
    """Return the number of rows of the graph for s clients: few graphs, and little padding.

    >>> [_rounded(s) for s in (1, 4, 5, 7, 9, 20, 25, 31)]
    [4, 4, 6, 8, 12, 20, 28, 32]
    """
    step = 2 if s <= 8 else 4 if s <= 32 else 8
    return max(FEWEST, -(-s // step) * step)


def distance(found: Vector, expected: Vector) -> float:
    """Return the distance of gradients, relative to their length."""
    return float((found - expected).norm() / expected.norm().clamp_min(1e-300))


def rounding(dtype: torch.dtype) -> float:
    """Return the largest distance that rounding in a dtype explains.

    >>> round(rounding(torch.float32), 5)
    0.00024
    """
    return _ROUNDINGS * torch.finfo(dtype).eps
