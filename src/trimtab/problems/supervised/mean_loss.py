"""The mean loss of a module on data, its gradient and its curvature; large inputs in pieces."""

import warnings
from contextlib import AbstractContextManager, nullcontext
from threading import RLock, current_thread, local, main_thread
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from trimtab._importing import told
from trimtab.compute.kernel import library
from trimtab.core import Vector
from trimtab.core.streams import seeded
from trimtab.core.threads import pool
from trimtab.problems.supervised.checks import changes_targets, check_fit, check_mean, rowwise
from trimtab.problems.supervised.closed_form import ClosedForm, closed_form, difference
from trimtab.problems.supervised.compiled import Compiled
from trimtab.problems.supervised.flat import FlatModule, version
from trimtab.problems.supervised.losses import Loss, shares
from trimtab.problems.supervised.samples import Data

GENERATORS = RLock()  # torch's global generators serve one thread at a time
_CHUNK = 1 << 22  # a piece of a full gradient or an evaluation has inputs of <= 2^22 bytes
_TOLERANCE = 1e-4  # a closed form is right if it differs by <= 1e-4 x the gradient


class MeanLoss:
    """What is differentiated: the closed form where it holds, else autograd."""

    def __init__(
        self,
        model: FlatModule,
        loss: Loss,
        autocast: torch.dtype | None,
        compile: bool = False,
    ) -> None:
        self.model, self.loss, self.autocast = model, loss, autocast
        self.compiled = Compiled(model, loss, autocast, self.autograd) if compile else None
        self._closed_form = None if autocast else closed_form(model.module, loss)
        self._closed_form_checked = self._loss_checked = False
        self._rowwise: bool | None = None  # whether the module treats each sample by itself
        self._threads = local()

    @property
    def closed_form(self) -> ClosedForm | None:
        """The closed form, if it holds at this moment: the only way to it and to the kernel."""
        form = self._closed_form
        return form if form is not None and form.loss is self.loss and form.holds() else None

    def check(self, who: str, data: Data) -> None:
        """Refuse data that do not fit the module or the loss; once, a loss that is no mean."""
        with GENERATORS:
            check_fit(who, data, self.model, self.loss)
            if not self._loss_checked:
                check_mean(who, data, self.model, self.loss)
                self._loss_checked = True
            form = self._closed_form
            if form is not None and not self._closed_form_checked and data.suits(form.layers):
                self._check_closed_form(form, data)

    def _check_closed_form(self, form: ClosedForm, data: Data) -> None:
        """Compare the closed form with autograd, once; do without it if they differ."""
        if not form.holds():
            return
        self._closed_form_checked = True
        apart = difference(form, self.model.start, data.X, data.y)
        if not apart <= _TOLERANCE:
            self._closed_form = None
            warnings.warn(
                f"the fast gradient of this module differs from autograd's by {apart:.2g} of its "
                "length; autograd is used instead.",
                stacklevel=2,
            )

    # -- values

    def precision(self, x: Vector) -> AbstractContextManager[Any]:
        """Return the context that outputs and losses are computed in."""
        return torch.autocast(x.device.type, self.autocast) if self.autocast else nullcontext()

    def outputs(self, x: Vector, data: Data, training: bool = False) -> Tensor:
        """Return the module's outputs for all samples."""
        model = self.thread_model
        model.mode(training)
        with _Naming(data.who):
            return torch.cat([model(x, piece.X) for piece in self.pieces(data)])

    def outputs_on_threads(self, x: Vector, data: Data) -> Tensor:
        """Return the outputs without dropout, piece by piece on all cores: the same bits on any."""

        def of_piece(piece: Data) -> Tensor:
            with torch.no_grad(), self.precision(x):
                model = self.thread_model
                model.mode(training=False)
                return model(x, piece.X)

        with _Naming(data.who):
            return torch.cat(list(pool(library.cores()).map(of_piece, self.pieces(data))))

    def of_outputs(self, output: Tensor, data: Data) -> Tensor:
        """Return the loss of outputs, and refuse one that changes the targets."""
        with _Naming(data.who):
            return self._of_outputs(output, data.y)

    def _of_outputs(self, output: Tensor, y: Tensor) -> Tensor:
        before = version(y)
        loss = self.loss(output, y)
        if version(y) != before:
            raise ValueError(changes_targets("the loss"))
        return loss

    @torch.no_grad()
    def value(self, x: Vector, data: Data) -> Tensor:
        """Return the mean loss, without dropout."""
        with self.precision(x):
            return self.of_outputs(self.outputs(x, data), data)

    # -- derivatives

    def gradient(self, x: Vector, data: Data, training: bool) -> Vector:
        """Return the gradient on all these samples at once."""
        form = self.closed_form
        if form is not None and data.suits(form.layers):
            return form.gradients(x, [(data.X, data.y, None)])[0]
        found = self.compiled.gradient(x, data) if self.compiled and training else None
        return self.autograd(x, data, training) if found is None else found

    def autograd(self, x: Vector, data: Data, training: bool = True) -> Vector:
        """Return the gradient by autograd, on the calling thread's own module."""
        model = self.thread_model
        with torch.enable_grad():
            return model.gradient(self._recorded(model, x, data, training))

    def full_gradient(self, x: Vector, data: Data, training: bool) -> Vector:
        """Return the same, for large inputs piece by piece."""
        pieces = self.pieces(data)
        if len(pieces) == 1:
            return self.gradient(x, data, training)
        parts = shares(self.loss, [piece.y for piece in pieces])
        # A second pass would draw other random numbers.
        if parts is None and training and self.model.draws:
            return self.gradient(x, data, training)
        if parts is None:
            return self._through_outputs(x, data, pieces, training)
        total = torch.zeros_like(x)
        for piece, share in zip(pieces, parts, strict=True):
            if share:
                total.add_(self.gradient(x, piece, training), alpha=share)
        return total

    def hessian_products(self, x: Vector, data: Data, V: Tensor) -> Tensor:
        """Return the Hessian times each row of V, without dropout."""
        pieces = self.pieces(data)
        parts = shares(self.loss, [piece.y for piece in pieces]) if len(pieces) > 1 else None
        if parts is None:
            pieces, parts = [data], [1.0]
        model, total = self.thread_model, torch.zeros_like(V)
        with torch.enable_grad():
            for piece, share in zip(pieces, parts, strict=True):
                if share:
                    loss = self._recorded(model, x, piece, training=False)
                    total.add_(model.hessian_products(loss, V), alpha=share)
        return total

    def _recorded(self, model: FlatModule, x: Vector, data: Data, training: bool) -> Tensor:
        """Return the loss as autograd records it."""
        model.mode(training)
        with self.precision(x), _Naming(data.who):
            return self._of_outputs(model(x, data.X), data.y)

    def _through_outputs(self, x: Vector, data: Data, pieces: list[Data], training: bool) -> Vector:
        """Return the gradient of a loss that is not known to be a mean: that of all outputs first.

        Memory is needed for one piece only; the price is a second forward pass.
        """
        model, total, start = self.thread_model, torch.zeros_like(x), 0
        with self.precision(x):
            with torch.no_grad():
                outputs = self.outputs(x, data, training)
            with torch.enable_grad():
                outputs.requires_grad_()
                (slope,) = torch.autograd.grad(self.of_outputs(outputs, data), outputs)
                for piece in pieces:
                    output = model(x, piece.X)
                    part = slope[start : start + len(output)]
                    total += model.gradient((output * part).sum())
                    start += len(output)
        return total

    # -- inside

    def pieces(self, data: Data) -> list[Data]:
        """Cut large inputs, if the module treats each sample by itself."""
        row = data.X[0].numel() * data.X.element_size()
        rows = max(64, _CHUNK // max(1, row))
        if len(data) <= rows:
            return [data]
        if self._rowwise is None:
            with GENERATORS, seeded(0, self.model.device):
                self._rowwise = rowwise(self.thread_model, data.X[:64])
        if not self._rowwise:
            return [data]
        parts = zip(torch.split(data.X, rows), torch.split(data.y, rows), strict=True)
        return [Data(X, y, data.who) for X, y in parts]

    @property
    def thread_model(self) -> FlatModule:
        """The calling thread's model copy of the model, whose parameters change all the time."""
        if current_thread() is main_thread():
            return self.model
        if not hasattr(self._threads, "model"):
            self._threads.model = self.model.twin()
        model: FlatModule = self._threads.model
        return model


class _Naming:
    """Say whose data it is that a module or a loss fails on."""

    __slots__ = ("who",)

    def __init__(self, who: str) -> None:
        self.who = who

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        known = isinstance(error, IndexError | RuntimeError)
        if known and error is not None and not isinstance(error, torch.OutOfMemoryError):
            raise ValueError(
                f"the module or the loss fails on {self.who} ({told(error)}); look for a "
                "sample unlike the others there."
            ) from error
