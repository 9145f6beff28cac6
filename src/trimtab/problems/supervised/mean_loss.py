"""The mean loss of a module on data, its gradient and its curvature; large inputs in pieces."""

import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from threading import RLock, current_thread, local, main_thread
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from trimtab._importing import describe_error
from trimtab.compute.kernel import Layers, library
from trimtab.core import Vector
from trimtab.core.streams import OwnGenerator, global_state, seeded
from trimtab.core.threads import pool
from trimtab.problems.supervised.batch_norm import Found, Statistics, observed
from trimtab.problems.supervised.checks import (
    SAME,
    changes_batch,
    changes_targets,
    check_first,
    check_on_two_samples,
)
from trimtab.problems.supervised.closed_form import ClosedForm, closed_form, difference
from trimtab.problems.supervised.data import Data, PassedValues
from trimtab.problems.supervised.flat import FlatModule, Tree, join, leaves, versions
from trimtab.problems.supervised.losses import Loss, OnBatch, shares

GENERATORS = RLock()  # held while torch's global generators are seeded for one client
# Bytes of inputs per piece of a full gradient or an evaluation; it bounds memory, since the results
# of layers may be many times as large.
_CHUNK = 1 << 22
# Largest relative difference of two ways to compute the same numbers, as `checks.SAME`.
_TOLERANCE = 1e-4


class MeanLoss:
    """The mean loss and its derivatives, by the kernel if it knows the module, else by autograd.

    model: the module as a function of a vector.
    loss: the mean over samples.
    autocast: the dtype of `torch.autocast`; None for none.
    """

    def __init__(
        self,
        model: FlatModule,
        loss: Loss,
        autocast: torch.dtype | None,
    ) -> None:
        self.model, self.loss, self.autocast = model, loss, autocast
        self._closed_form = None if autocast else closed_form(model.module, loss)
        self._closed_form_checked = self._loss_checked = False
        self._passed: dict[Any, PassedValues] = {}  # by the kind of data
        # Whether random numbers may come from a generator of each call, with the same bits.
        self._draws_apart = False
        # Whether large data may be computed in pieces, in training and in evaluation.
        self._cuttable: dict[bool, bool] = {}
        # x -> the statistics of BatchNorm in evaluation; those of all clients, set by the problem.
        self.statistics: Callable[[Vector], Statistics] = lambda x: {}
        self._threads = local()

    @property
    def closed_form(self) -> ClosedForm | None:
        """The closed form, if module and loss are unchanged and the kernel works."""
        form = self._closed_form
        applicable = form is not None and form.loss is self.loss and form.is_applicable()
        return form if applicable else None

    @property
    def known_layers(self) -> Layers | None:
        """The layers, if the module consists of known, unchanged ones; the kernel need not work."""
        form = self._closed_form
        known = form is not None and form.loss is self.loss and form.is_unchanged()
        return form.layers if form is not None and known else None

    def has_checked(self, data: Data) -> bool:
        """Return whether data of the same kind passed, so that `check` would find nothing."""
        passed = self._passed.get(data.kind)
        if passed is None or passed.loss is not self.loss or not passed.allow(data):
            return False
        form = None if self._closed_form_checked else self.closed_form
        return form is None or not data.fits_kernel(form.layers)

    def check(self, owner: str, data: Data) -> None:
        """Raise ValueError if data, module and loss do not fit; the first data get all checks."""
        with GENERATORS:
            check = check_on_two_samples if self._loss_checked else check_first
            output = check(owner, data, self.model, self.loss)
            if data.kind is not None:
                found = PassedValues(self.loss, output, data, self._passed.get(data.kind))
                self._passed[data.kind] = found
            if self.model.norms and not self._loss_checked:
                self.model.needs_two = self._refuses_one(data.cut(0, 1).copy())
            if self.model.draws and not self._loss_checked:
                self._draws_apart = self._can_draw_apart(data.cut(0, 2).copy())
            self._loss_checked = True
            form = self._closed_form
            if form is not None and not self._closed_form_checked and data.fits_kernel(form.layers):
                self._check_closed_form(form, data)

    def _check_closed_form(self, form: ClosedForm, data: Data) -> None:
        """Compare the closed form with autograd once, and drop it if they differ."""
        if not form.is_applicable():
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

    def _can_draw_apart(self, data: Data) -> bool:
        """Return whether an own generator gives the same gradient, and all of its numbers.

        It does not where PyTorch draws inside of an operation, as attention with dropout does.
        """
        x, number, device = self.model.start, 1, self.model.device
        if device.type != "cpu":
            return False
        with seeded(number, device):
            expected, (end,) = self.autograd(x, data), global_state(device)
        with seeded(number, device):
            (start,) = global_state(device)
            try:
                with OwnGenerator(number) as own:
                    found = self.autograd(x, data)
            except (RuntimeError, TypeError, ValueError):
                return False
            (after,) = global_state(device)
        pairs = (found, expected), (own.generator.get_state(), end), (after, start)
        return all(torch.equal(one, other) for one, other in pairs)

    def drawing(self, number: int, compute: Callable[[], Vector]) -> Vector:
        """Return a gradient whose random numbers depend on this seed of 64 bits alone."""
        # It costs 50 us more than the lock does where no other thread wants it.
        if self._draws_apart and current_thread() is not main_thread():
            with OwnGenerator(number) as own:
                gradient = compute()
            if not own.drew_globally():
                return gradient
            self._draws_apart = False  # The module does not draw alike for all data.
            with GENERATORS:
                torch.set_rng_state(own.before)
        with GENERATORS, seeded(number, self.model.device):  # All threads share the generators.
            return compute()

    @torch.no_grad()
    def _refuses_one(self, data: Data) -> bool:
        """Return whether BatchNorm refuses a mini-batch of one sample; one with space may pass."""
        self.model.mode(training=True)
        try:
            with seeded(0, self.model.device):
                self._called(self.model, self.model.start, data)
        except ValueError as error:
            return "more than 1 value per channel" in str(error)
        except RuntimeError:
            pass  # The module itself may want several samples.
        return False

    def _called(self, model: FlatModule, x: Vector, data: Data) -> Any:
        """Return the module's output, or the value of a loss of module and batch."""
        on_batch = isinstance(self.loss, OnBatch)
        return self.loss(model.at(x), data.batch) if on_batch else model(x, data.X)

    @torch.no_grad()
    def moments(self, x: Vector, owner: str, mini_batches: Iterable[Data]) -> Found:
        """Return the moments of what layers of BatchNorm get, without dropout."""
        model = self.thread_model
        model.mode(training=False)
        with self.precision(x), _Naming(owner), observed(model.norms) as found:
            for part in mini_batches:
                self._called(model, x, part)
        return found

    def _model_in(self, training: bool, x: Vector) -> FlatModule:
        """Return the calling thread's model for training, or for evaluation at x."""
        model = self.thread_model
        statistics = None if training or not model.norms else self.statistics(x)
        model.mode(training)
        if statistics is not None:
            model.use(statistics)
        return model

    # -- values

    def precision(self, x: Vector) -> AbstractContextManager[Any]:
        """Return the context that outputs and losses are computed in."""
        return torch.autocast(x.device.type, self.autocast) if self.autocast else nullcontext()

    def outputs(self, x: Vector, data: Data, training: bool = False) -> Tree:
        """Return the module's outputs for all samples."""
        with _Naming(data.owner):
            pieces = self.output_pieces(data, training)
            model = self._model_in(training, x)
            # Outputs without a row per sample, such as one number, cannot be concatenated.
            if len(pieces) == 1:
                return model(x, data.X)
            return join([model(x, piece.X) for piece in pieces])

    def outputs_on_threads(self, x: Vector, data: Data) -> Tree:
        """Return the outputs without dropout, piece by piece on all cores: the same bits on any."""

        def of_piece(piece: Data) -> Tree:
            with torch.no_grad(), self.precision(x):
                return self._model_in(False, x)(x, piece.X)

        with _Naming(data.owner):
            pieces = self.output_pieces(data)
            self._model_in(False, x)  # Statistics are estimated once, here.
            return join(list(pool(library.cores()).map(of_piece, pieces)))

    def of_outputs(self, output: Tree, data: Data) -> Tensor:
        """Return the loss of outputs; raise ValueError if it changes the targets."""
        before = versions(data.y)
        with _Naming(data.owner):
            loss = self.loss(output, data.y)
        if versions(data.y) != before:
            raise ValueError(changes_targets("the loss"))
        return loss

    def _on_batch(self, function: OnBatch, what: str, x: Vector, data: Data) -> Any:
        """Return the value of a function of module and batch, which must not change the batch."""
        model, batch = self.thread_model, data.batch
        before = versions(batch)
        value = function(model.at(x), batch)
        if versions(batch) != before:
            raise ValueError(changes_batch(what))
        return value

    @torch.no_grad()
    def value(self, x: Vector, data: Data) -> Tensor:
        """Return the mean loss, without dropout."""
        with self.precision(x):
            if not isinstance(self.loss, OnBatch):
                return self.of_outputs(self.outputs(x, data), data)
            pieces = self.pieces(data)
            each = zip(pieces, self._shares(pieces) or [1.0], strict=True)
            losses = [s * self._recorded(x, p, False) for p, s in each]
            return torch.stack(losses).sum()

    @torch.no_grad()
    def measured(self, function: OnBatch, name: str, x: Vector, data: Data) -> Any:
        """Return a metric of module and batch, without dropout, on all samples at once."""
        self._model_in(False, x)
        with self.precision(x), _Naming(data.owner):
            return self._on_batch(function, f"metric '{name}'", x, data)

    # -- derivatives

    def gradient(self, x: Vector, data: Data, training: bool) -> Vector:
        """Return the gradient on all these samples at once."""
        form = self.closed_form
        if form is not None and data.fits_kernel(form.layers):
            return form.gradients(x, [(data.X, data.y, None)])[0]
        return self.autograd(x, data, training)

    def autograd(self, x: Vector, data: Data, training: bool = True) -> Vector:
        """Return the gradient by autograd, on the calling thread's own module."""
        with torch.enable_grad():
            return self.thread_model.gradient(self._recorded(x, data, training))

    def full_gradient(self, x: Vector, data: Data, training: bool) -> Vector:
        """Return the gradient on all data, for large inputs in pieces."""
        pieces = self.pieces(data, training)
        if len(pieces) == 1:
            return self.gradient(x, data, training)
        parts = self._shares(pieces)
        # The second forward pass of _through_outputs would draw other random numbers.
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
        parts = self._shares(pieces) if len(pieces) > 1 else None
        if parts is None:
            pieces, parts = [data], [1.0]
        model, total = self.thread_model, torch.zeros_like(V)
        with torch.enable_grad():
            for piece, share in zip(pieces, parts, strict=True):
                if share:
                    loss = self._recorded(x, piece, training=False)
                    total.add_(model.hessian_products(loss, V), alpha=share)
        return total

    def _recorded(self, x: Vector, data: Data, training: bool) -> Tensor:
        model = self._model_in(training, x)
        with self.precision(x), _Naming(data.owner):
            if isinstance(self.loss, OnBatch):
                loss: Tensor = self._on_batch(self.loss, "the loss", x, data)
                return loss
            return self.of_outputs(model(x, data.X), data)

    def _through_outputs(self, x: Vector, data: Data, pieces: list[Data], training: bool) -> Vector:
        """Return the gradient of a loss that may not be a mean, by way of all outputs.

        Memory is needed for one piece only; the price is a second forward pass.
        """
        model, total, start = self.thread_model, torch.zeros_like(x), 0
        with self.precision(x):
            with torch.no_grad():
                outputs = self.outputs(x, data, training)
            with torch.enable_grad():
                real = [leaf for leaf in leaves(outputs) if leaf.is_floating_point()]
                for leaf in real:
                    leaf.requires_grad_()
                loss = self.of_outputs(outputs, data)
                slopes = torch.autograd.grad(loss, real, materialize_grads=True)
                for piece in pieces:
                    found = [t for t in leaves(model(x, piece.X)) if t.is_floating_point()]
                    part = [slope[start : start + len(piece)] for slope in slopes]
                    both = zip(found, part, strict=True)
                    total += model.gradient(torch.stack([(t * s).sum() for t, s in both]).sum())
                    start += len(piece)
        return total

    # -- inside

    def pieces(self, data: Data, training: bool = False) -> list[Data]:
        """Cut large inputs, if the module treats each sample by itself, or the loss is a mean."""
        rows = max(64, _CHUNK // max(1, data.row_bytes))
        if len(data) <= rows:
            return [data]
        if training not in self._cuttable:
            few = data.cut(0, 64)
            with GENERATORS, seeded(0, self.model.device):
                by_losses = isinstance(self.loss, OnBatch) or data.samples is not None
                model = self.thread_model
                cuttable = self._adds_up(few) if by_losses else rowwise(model, few, training)
                self._cuttable[training] = cuttable
        if not self._cuttable[training]:
            return [data]
        return [data.cut(start, start + rows) for start in range(0, len(data), rows)]

    def output_pieces(self, data: Data, training: bool = False) -> list[Data]:
        """Cut large inputs, if outputs of the pieces have one shape and may be joined."""
        return [data] if data.samples is not None else self.pieces(data, training)

    def _shares(self, pieces: list[Data]) -> list[float] | None:
        """Return the weights with which the losses of pieces add up to the loss of all samples."""
        by_losses = isinstance(self.loss, OnBatch) or pieces[0].samples is not None
        known = shares(self.loss, [piece.y for piece in pieces])
        n = sum(len(piece) for piece in pieces)
        return [len(piece) / n for piece in pieces] if by_losses and known is None else known

    @torch.no_grad()
    def _adds_up(self, data: Data) -> bool:
        """Return whether the loss of samples is the weighted mean of the losses of two parts."""
        # Parts of different sizes: with equal ones, weights by the wrong counts would add up too.
        third = max(1, len(data) // 3)
        pieces = [data.cut(0, third), data.cut(third, len(data))]
        parts, start = self._shares(pieces) or [], self.model.start
        try:
            whole, *each = (
                float(self._recorded(start, part, training=False)) for part in (data, *pieces)
            )
        except (RuntimeError, ValueError, IndexError, TypeError):
            return False
        mean = sum(share * value for share, value in zip(parts, each, strict=True))
        return abs(mean - whole) <= _TOLERANCE * abs(whole)

    @property
    def thread_model(self) -> FlatModule:
        """The model of the calling thread; every call replaces its parameters."""
        if current_thread() is main_thread():
            return self.model
        if not hasattr(self._threads, "model"):
            self._threads.model = self.model.copy_for_thread()
        model: FlatModule = self._threads.model
        return model


@torch.no_grad()
def rowwise(model: FlatModule, data: Data, training: bool) -> bool:
    """Return whether the module computes each sample by itself, so that inputs can be cut."""
    half = len(data) // 2
    model.mode(training and not model.draws)
    try:
        whole = model(model.start, data.X)
        halves = (data.cut(0, half), data.cut(half, len(data)))
        joined = join([model(model.start, part.X) for part in halves])
    except (RuntimeError, ValueError, IndexError, TypeError):
        return False
    both = zip(leaves(whole), leaves(joined), strict=True)
    return all(
        one.shape == other.shape and bool((one - other).norm() <= SAME * one.norm())
        for one, other in both
    )


class _Naming:
    """A context that adds the owner of the data to errors of a module or a loss."""

    __slots__ = ("owner",)

    def __init__(self, owner: str) -> None:
        self.owner = owner

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
                f"the module or the loss fails on {self.owner} ({describe_error(error)}); search "
                "its data for a sample unlike the others."
            ) from error
