"""The gradient of one mini-batch by torch.compile, for those who ask for it."""

import warnings
from collections.abc import Callable
from threading import RLock
from typing import Any

import torch
from torch import Tensor
from torch.func import grad

from trimtab.compute.captured import Graph, capture, compiled
from trimtab.core import Vector
from trimtab.core.streams import stream
from trimtab.problems.supervised.data import Data
from trimtab.problems.supervised.flat import FlatModule, FunctionOfVector, first_line
from trimtab.problems.supervised.losses import Loss, hooked
from trimtab.problems.supervised.rounding import distance, rounding


class Compiled:
    """A compiled graph for each size of mini-batch; none any more once one has failed."""

    def __init__(
        self,
        model: FlatModule,
        loss: Loss,
        autocast: torch.dtype | None,
        autograd: Callable[[Vector, Data], Vector],
    ) -> None:
        self._model, self._loss = model, loss
        self._autocast, self._autograd = autocast, autograd
        self._graphs: dict[tuple[Any, ...], Graph] = {}
        self._lock = RLock()  # Executors may ask from several threads.
        self.failed = ""  # why nothing is compiled any more

    @torch.no_grad()
    def gradient(self, x: Vector, data: Data) -> Vector | None:
        """Return the gradient in training mode; None if that is left to autograd."""
        if self.failed:
            return None
        inputs = (x.detach(), data.X, data.y)
        # What inductor makes of a sum depends on the threads that it may use.
        key = (*(tensor.shape for tensor in inputs), torch.get_num_threads())
        if key not in self._graphs:
            with self._lock:
                self._add(key, data)
        return None if self.failed else self._graphs[key].replay(*inputs)

    def of_rows(self, graph: Graph, inputs: tuple[Tensor, ...]) -> Graph:
        """Return the graph of several clients, compiled if it can be."""
        try:
            return graph if self.failed else compiled(graph, inputs)
        except Exception as error:
            self._give_up(first_line(error))
            return graph

    def _add(self, key: tuple[Any, ...], data: Data) -> None:
        """Compile the gradient for mini-batches of this size, if it is right there."""
        if key in self._graphs or self.failed:
            return
        model, where = self._model, hooked(self._model.module)
        if model.draws or where:
            drawing = "it draws random numbers, as dropout does"
            self._give_up(f"a hook is set on {where}" if where else drawing)
            return
        x = model.start + 0.1 * torch.randn(model.d, generator=stream(0), dtype=model.dtype).to(
            model.device
        )
        inputs = (x, data.X, data.y)
        try:
            graph = compiled(capture(grad(self._function()), inputs), inputs)
            apart = distance(graph.replay(*inputs), self._autograd(x, data))
        except Exception as error:
            self._give_up(first_line(error))
            return
        if not apart <= rounding(self._autocast or model.dtype):
            self._give_up(f"its gradient differs from autograd's by {apart:.2g} of its length")
        self._graphs[key] = graph

    def _function(self) -> Callable[[Vector, Tensor, Tensor], Tensor]:
        """Return the loss, in the precision asked for."""
        function = FunctionOfVector(self._model).loss(self._loss)

        def value(x: Vector, X: Tensor, y: Tensor) -> Tensor:
            with torch.autocast(x.device.type, self._autocast, enabled=self._autocast is not None):
                return function(x, X, y)

        return value

    def _give_up(self, why: str) -> None:
        self.failed = why
        warnings.warn(
            f"compile=True: this module cannot be compiled ({why}); it runs as it is.", stacklevel=2
        )
