"""The gradients of Supervised: oracles of one client and of several, and tapes for the kernel."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import nn

from trimtab.compute import kernel
from trimtab.compute.tape import Tape
from trimtab.core import Gradient, Vector
from trimtab.core.streams import FORWARD, mix
from trimtab.problems.supervised.batches import Batches, Sampling, drawn, one_pass
from trimtab.problems.supervised.clients import ClientData
from trimtab.problems.supervised.closed_form import ClosedForm, closed_form
from trimtab.problems.supervised.data import Data
from trimtab.problems.supervised.graphs import FEWEST, Vectorised
from trimtab.problems.supervised.losses import Loss, hooked
from trimtab.problems.supervised.mean_loss import MeanLoss

# The kernel adds up clients in at most 24 blocks, which threads share. The number is fixed, because
# it decides the order of the sums, and must not depend on the number of threads.
_BLOCKS = 24


@dataclass
class Oracles:
    """The gradients of clients: the loss, the data, and how they are cut into mini-batches."""

    mean_loss: MeanLoss
    clients: ClientData
    batch: int | float | None
    sampling: Sampling
    l2: float
    vectorised: Vectorised

    def gradient(self, x: Vector, data: Data, training: bool = True, whole: bool = False) -> Vector:
        """Return the gradient on samples, plus l2 x; on `whole` data, if large, in pieces."""
        mean = self.mean_loss
        if whole and training and mean.model.norms:
            return self._over_one_pass(x, data) + self.l2 * x
        gradient = (mean.full_gradient if whole else mean.gradient)(x, data, training)
        return gradient + self.l2 * x if self.l2 else gradient

    def _over_one_pass(self, x: Vector, data: Data) -> Vector:
        """Return the gradient on all data, each mini-batch normalised by itself."""
        total, least = torch.zeros_like(x), 1 + self.mean_loss.model.needs_two
        for part in one_pass(data, self.batch, least):
            gradient = self.mean_loss.gradient(x, part, training=True)
            total.add_(gradient, alpha=len(part) / len(data))
        return total

    def oracle(self, i: int, seed: int, r: int) -> Gradient:
        """Return g_i, by the kernel where it can, else by autograd."""
        data = self.clients[i]
        form = self.mean_loss.closed_form
        if form is not None and data.fits_kernel(form.layers):
            chunk = self._by_kernel(form, [i], [data], seed, r)
            return lambda y, k=None: chunk(y, k)[0]
        batches = Batches(data, self.batch, self.sampling, (seed, i, r))
        model = self.mean_loss.model

        def g(y: Vector, k: int | None = None) -> Vector:
            samples = data if k is None else batches[k]
            if not model.draws:
                return self.gradient(y, samples, whole=samples is data)
            number = mix(seed, FORWARD, i, r, -1 if k is None else k)
            whole = samples is data
            return self.mean_loss.drawing(number, lambda: self.gradient(y, samples, whole=whole))

        return g

    def chunk_oracle(self, clients: Sequence[int], seed: int, r: int) -> Gradient | None:
        """Return the oracle of several clients at once: by the kernel, or else by a graph.

        None where neither can compute it.
        """
        data = self.clients.several(clients)
        form = self.mean_loss.closed_form
        if form is not None and all(each.fits_kernel(form.layers) for each in data):
            return self._by_kernel(form, clients, data, seed, r)
        return None if self.why_not_vectorised() else self._by_graph(clients, data, seed, r)

    def why_not_vectorised(self) -> str:
        """Return why gradients are not computed for several clients at once; empty if they are."""
        return self.vectorised.why_not(self.clients, self.batch)

    def _by_graph(self, clients: Sequence[int], data: list[Data], seed: int, r: int) -> Gradient:
        """Return the oracle of several clients; mini-batches of one size share a graph."""
        pairs = list(zip(data, self._cut(clients, data, seed, r), strict=True))

        def g(y: Vector, k: int | None = None) -> Vector:
            if k is None and self.mean_loss.model.norms:
                both = zip(y.expand(len(data), y.shape[-1]), data, strict=True)
                return torch.stack([self.gradient(x, each, whole=True) for x, each in both])
            parts = [each if k is None else batches[k] for each, batches in pairs]
            same_size: dict[int, list[int]] = {}
            for j, part in enumerate(parts):
                same_size.setdefault(len(part), []).append(j)
            points = y.expand(len(parts), y.shape[-1])
            if len(same_size) == 1:
                return self._of_one_size(points, parts, data, all_of_them=True)
            gradients = torch.empty_like(points)
            for rows in same_size.values():
                some = [parts[j] for j in rows]
                whole = [data[j] for j in rows]
                gradients[rows] = self._of_one_size(points[rows], some, whole, all_of_them=False)
            return gradients

        return g

    def _of_one_size(
        self, points: Vector, parts: list[Data], data: list[Data], all_of_them: bool
    ) -> Vector:
        """Return the gradients on mini-batches of one size; one by one where a graph cannot."""
        if len(parts) >= FEWEST and self.vectorised.worth_graph(len(parts[0])):
            try:
                gradients = self.vectorised.gradients(points, parts, all_of_them)
                return gradients + self.l2 * points if self.l2 else gradients
            except (RuntimeError, IndexError):
                pass  # Autograd raises the same error with the name of the client.
        whole = [part is each for part, each in zip(parts, data, strict=True)]
        each = zip(points, parts, whole, strict=True)
        return torch.stack([self.gradient(x, part, whole=all_of_it) for x, part, all_of_it in each])

    def _by_kernel(
        self, form: ClosedForm, clients: Sequence[int], data: list[Data], seed: int, r: int
    ) -> Gradient:
        cut = self._cut(clients, data, seed, r)

        def g(y: Vector, k: int | None = None) -> Vector:
            rows = [None if k is None else batches.rows(k) for batches in cut]
            parts = [(each.X, each.y, part) for each, part in zip(data, rows, strict=True)]
            gradients = form.gradients(y, parts)
            return gradients + self.l2 * y if self.l2 else gradients

        return g

    def layers(self) -> kernel.Layers | None:
        """Return the module's description for the kernel; None if the kernel cannot run it."""
        form = self.mean_loss.closed_form
        return None if form is None else form.layers

    def why_no_kernel(self) -> str:
        """Return why the compiled kernel does not run this module; empty if it does."""
        return why_no_kernel(self.mean_loss) if self.layers() is None else ""

    def play(
        self,
        layers: kernel.Layers,
        tape: Tape,
        clients: Sequence[int],
        weights: Sequence[float],
        seed: int,
        r: int,
        inputs: Sequence[Sequence[Vector]],
        outputs: Sequence[Sequence[Vector | None]],
    ) -> kernel.KernelResult | None:
        """Run a tape for some clients in the kernel; None if vectors or data do not fit it."""
        dtype = self.mean_loss.model.dtype
        if not _readable(inputs, dtype):
            return None
        samples = self.clients.for_kernel(clients, layers, dtype)
        if samples is None:
            return None
        cut = (self.batch, self.sampling, seed, r, tape.batches)
        rows: Any = drawn(clients, samples, *cut)
        # The kernel draws only if it reproduces the numbers of this PyTorch.
        if rows is None:
            batches = self._cut(clients, self.clients.several(clients), seed, r)
            rows = [[None if k is None else own.rows(k) for k in tape.batches] for own in batches]
        return kernel.run(
            layers,
            self.l2,
            tape.code,
            samples,
            rows,
            inputs,
            outputs,
            weights,
            block=ceil(len(clients) / _BLOCKS),
        )

    def _cut(self, clients: Sequence[int], data: list[Data], seed: int, r: int) -> list[Batches]:
        return [
            Batches(each, self.batch, self.sampling, (seed, i, r))
            for i, each in zip(clients, data, strict=True)
        ]


def _readable(vectors: Sequence[Sequence[Vector]], dtype: torch.dtype) -> bool:
    """Return whether the kernel can read the vectors of clients from where they are in memory."""
    if isinstance(vectors, kernel.ClientVectors):
        return vectors.dtype == dtype
    each = {id(vector): vector for row in vectors for vector in row}.values()
    return all(kernel.readable(vector, dtype) for vector in each)


def why_no_kernel(mean_loss: MeanLoss) -> str:
    """Return which setting, loss or layer the kernel does not know."""
    model, loss = mean_loss.model, mean_loss.loss
    if mean_loss.autocast:
        return f"autocast={mean_loss.autocast} is on"
    if model.device.type != "cpu" or not kernel.works(model.dtype):
        where = f"{model.dtype} on {model.device.type}".replace("torch.", "")
        return f"it does not run {where} here; trimtab is built with it where there is a C compiler"
    if closed_form(nn.Linear(2, 2), loss) is None:
        return f"{_shown(loss)}, as it is passed, is not among its losses"
    return _of_module(model.module, loss)


def _of_module(module: nn.Module, loss: Loss) -> str:
    """Return the first layer that the kernel takes in no position among plain layers."""
    if type(module) is not nn.Sequential:
        return f"{_shown(module)} is not an nn.Sequential of layers that it knows"
    # A layer is tried alone, first and between others, since an activation cannot be first.
    for name, layer in module.named_children():
        n = layer.normalized_shape[-1] if isinstance(layer, nn.LayerNorm) else 2
        places = ([layer], [layer, nn.Linear(2, 2)], [nn.Linear(2, n), layer, nn.Linear(n, 2)])
        if all(closed_form(nn.Sequential(*place), loss) is None for place in places):
            touched = hooked(layer) or any(not p.requires_grad for p in layer.parameters())
            what = "frozen, hooked or changed" if touched else "not among its layers"
            return f"layer '{name}', {_shown(layer)}, is {what}"
    return "its layers do not follow each other as it needs, or the data are not of its kind"


def _shown(thing: object) -> str:
    kind = type(thing)
    if isinstance(thing, nn.Module):
        own = kind.__module__.startswith("torch.nn.")
        return f"nn.{kind.__name__}" if own else kind.__name__
    return str(getattr(thing, "__name__", kind.__name__))
