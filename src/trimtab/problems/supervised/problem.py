"""Any nn.Module on the data of N clients: f_i(x) is its mean loss on client i's samples."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from math import ceil
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from trimtab.compute import kernel
from trimtab.compute.tape import Tape
from trimtab.core import Gradient, Vector
from trimtab.core.streams import FORWARD, mix, seeded
from trimtab.core.threads import KEEPS_CORES_BUSY, WORTH_A_THREAD, one_thread
from trimtab.problems.fingerprint import hashed_code, hashed_tensors, line, update
from trimtab.problems.metric import Metric
from trimtab.problems.problem import normalised, side_by_side
from trimtab.problems.supervised.closed_form import ClosedForm
from trimtab.problems.supervised.flat import FlatModule, check_module, first_line, version
from trimtab.problems.supervised.losses import Loss, check_loss, correct
from trimtab.problems.supervised.mean_loss import GENERATORS, MeanLoss
from trimtab.problems.supervised.samples import (
    Batches,
    ClientData,
    Data,
    as_tensor,
    batch_size,
    check_batch,
    check_clients,
    check_data,
    hashed_items,
    no_samples,
    read,
    size,
)

Measure = Callable[[Tensor, Tensor], Tensor | float]

_BLOCKS = 24  # parts of a cohort that threads share out


class Supervised:
    """Supervised learning over clients.

    module: an nn.Module (x0 is its own parameters) or a function that builds one (called under the
    seed). loss(output, target) is a mean over samples. clients: a sequence of (X, y) tensors or
    map-style Datasets, possibly lazy: a client is read, and checked, when it is first sampled.
    batch: None is all local data, a whole number a size, a fraction a part of the local data.
    sampling: "reshuffle" (a fresh order at each pass; the last mini-batch may be short) or "iid".
    weights: positive numbers, None for uniform ones, or "samples". With unequal weights and
    S < N only SCAFFOLD aims exactly at the weighted optimum: the mean over those that replied is a
    ratio. l2 adds l2/2 |x|^2 to every client's loss. metrics: functions of (outputs, targets).
    autocast: a dtype for torch.autocast, e.g. torch.bfloat16.

    >>> X, y = torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 1, 0])
    >>> clients = [(X[:4], y[:4]), (X[4:], y[4:])]
    >>> problem = Supervised(nn.Linear(3, 2), nn.CrossEntropyLoss(), clients, batch=2)
    >>> problem.N, problem.d, sorted(problem.evaluate(problem.x0()))
    (2, 8, ['accuracy', 'loss'])
    """

    def __init__(
        self,
        module: nn.Module | Callable[[], nn.Module],
        loss: Loss,
        clients: Sequence[Any],
        test: Any = None,
        batch: int | float | None = None,
        weights: Sequence[float] | Tensor | Literal["samples"] | None = None,
        sampling: Literal["reshuffle", "iid"] = "reshuffle",
        l2: float = 0.0,
        metrics: Mapping[str, Measure] | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        self._arguments = {k: v for k, v in locals().items() if k != "self"}
        check_batch(batch)
        if sampling not in ("reshuffle", "iid"):
            raise ValueError(f"sampling={sampling!r}; pass 'reshuffle' or 'iid'.")
        if not l2 >= 0:
            raise ValueError(f"l2={l2}; pass a number that is zero or positive.")
        check_clients(clients)
        check_loss(loss)
        if not callable(module):
            raise ValueError(f"Supervised: {module!r} is no module; pass one, or what builds one.")
        self._build = None if isinstance(module, nn.Module) else module
        first = module if isinstance(module, nn.Module) else _built(module, seed=0)
        check_module(first)
        self.model = FlatModule(first, _dtype(clients))
        self.batch, self.l2 = batch, float(l2)
        self.sampling: Literal["reshuffle", "iid"] = sampling
        self.metrics, self.autocast = dict(metrics or {}), autocast
        self.clients = ClientData(clients, self.model.dtype, self.model.device, self._check)
        self.N, self.d = len(clients), self.model.d
        self._shape: torch.Size | None = None
        self._mean_loss = MeanLoss(self.model, loss, autocast)
        if isinstance(weights, str):
            if weights != "samples":
                raise ValueError(f"weights={weights!r}; pass N numbers, 'samples' or None.")
            weights = [float(self.clients.size(i)) for i in range(self.N)]
            if 0 in weights:
                raise no_samples(f"client {weights.index(0)}")
        self.weights = normalised(weights, self.N)
        self.metric: Metric | None = None  # what it is judged by, if not by accuracy or loss
        self._test = test
        modes = [m.training for m in self.model.module.modules()]
        # These are hashed now: what a function captured may be the record of its own calls.
        self._code = {
            "loss": hashed_code(loss),
            "metrics": hashed_code(self.metrics),
            "module": hashed_code((modes, self.model.module), values=False),
        }

    threads = True  # oracles of several clients may be called at once

    # -- the Problem

    def x0(self, seed: int = 0) -> Vector:
        """Return the module's parameters; those of a fresh build under the seed, if it is built."""
        if self._build is None:
            return self.model.start.clone()
        return self.model.vector_of(_built(self._build, seed)).to(self.model.start)

    def oracle(self, i: int, seed: int, r: int) -> Gradient:
        """Return g_i; mini-batches and dropout depend on (seed, i, r, k) alone."""
        data = self.clients[i]
        form = self._mean_loss.closed_form if data.labelled else None
        if form is not None:
            chunk = self._direct(form, [i], [data], seed, r)
            return lambda y, k=None: chunk(y, k)[0]
        batches = Batches(data, self.batch, self.sampling, (seed, i, r))

        def g(y: Vector, k: int | None = None) -> Vector:
            samples = data if k is None else batches[k]
            if not self.model.draws:
                return self._gradient(y, samples, whole=samples is data)
            with (
                GENERATORS,
                seeded(mix(seed, FORWARD, i, r, -1 if k is None else k), self.model.device),
            ):
                return self._gradient(y, samples, whole=samples is data)

        return g

    def chunk_oracle(self, clients: Sequence[int], seed: int, r: int) -> Gradient:
        """Return the oracle of several clients at once, for y of shape (d,) or (s, d)."""
        every = [self.clients[i] for i in clients]
        form = self._mean_loss.closed_form
        if form is None or not all(data.labelled for data in every):
            return side_by_side([self.oracle(i, seed, r) for i in clients])
        return self._direct(form, clients, every, seed, r)

    def _direct(
        self, form: ClosedForm, clients: Sequence[int], every: list[Data], seed: int, r: int
    ) -> Gradient:
        cut = self._cut(clients, every, seed, r)

        def g(y: Vector, k: int | None = None) -> Vector:
            rows = [None if k is None else batches.rows(k) for batches in cut]
            now = [(data.X, data.y, some) for data, some in zip(every, rows, strict=True)]
            gradients = form.gradients(y, now)
            return gradients + self.l2 * y if self.l2 else gradients

        return g

    @property
    def kernel(self) -> kernel.Layers | None:
        """What a compiled kernel needs to know of the module; None if it cannot run it."""
        form = self._mean_loss.closed_form
        fits = self.model.device.type == "cpu" and kernel.works(self.model.dtype)
        return form.layers if fits and form is not None else None

    def play(
        self,
        tape: Tape,
        clients: Sequence[int],
        seed: int,
        r: int,
        inputs: Sequence[Sequence[Vector]],
        outputs: Sequence[Sequence[Vector | None]],
    ) -> tuple[Vector, list[list[float]]] | None:
        """Run a tape for some clients through the kernel, if there is one and their data suit it.

        Returns the sum of p_i times each output, (outputs, d), and their |.|^2 for each client.
        """
        every = [self.clients[i] for i in clients]
        layers, like = self.kernel, self.model.start
        vectors = (vector for row in inputs for vector in row)
        plain = all(v.dtype == like.dtype and v.is_contiguous() and v.is_cpu for v in vectors)
        if layers is None or not plain or not all(data.labelled for data in every):
            return None
        cut = self._cut(clients, every, seed, r)
        return kernel.run(
            layers,
            self.l2,
            tape.code,
            [(data.X, data.y) for data in every],
            [[None if k is None else batches.rows(k) for k in tape.batches] for batches in cut],
            inputs,
            outputs,
            [float(self.weights[i]) for i in clients],
            block=ceil(len(clients) / _BLOCKS),
        )

    def _cut(self, clients: Sequence[int], every: list[Data], seed: int, r: int) -> list[Batches]:
        return [
            Batches(data, self.batch, self.sampling, (seed, i, r))
            for i, data in zip(clients, every, strict=True)
        ]

    @torch.no_grad()
    def client_loss(self, i: int, x: Vector) -> float:
        """Return f_i(x), without dropout."""
        loss = self._mean_loss.value(x, self.clients[i])
        return float(loss + self.l2 / 2 * x.square().sum())

    def client_gradient(self, i: int, x: Vector) -> Vector:
        """Return the gradient of f_i at x on all its data, without dropout."""
        return self._gradient(x, self.clients[i], training=False, whole=True)

    def client_hvp(self, i: int, x: Vector, V: Tensor) -> Tensor:
        """Return the Hessian of f_i at x times each row of V (or times V), without dropout."""
        rows = V.reshape(-1, self.d)
        products = self._mean_loss.hessian_products(x, self.clients[i], rows)
        return products.add_(rows, alpha=self.l2).view(V.shape)

    def loss(self, x: Vector) -> float:
        """Return f(x), over all clients."""
        return sum(float(self.weights[i]) * self.client_loss(i, x) for i in range(self.N))

    def gradient(self, x: Vector) -> Vector:
        """Return the gradient of f at x, over all clients."""
        total = torch.zeros_like(x)
        for i in range(self.N):
            total.add_(self.client_gradient(i, x), alpha=float(self.weights[i]))
        return total

    def evaluate(self, x: Vector, client: int | None = None) -> dict[str, float]:
        """Return loss (without l2), accuracy for classifiers, and the user's metrics.

        On one client's data; or on the test data; or, where there is none, the mean over the
        clients, weighted by p_i.
        """
        if client is not None:
            return self._measure(x, self.clients[client])
        if self._test is not None:
            return self._measure(x, self.test)
        every = [self._measure(x, self.clients[i]) for i in range(self.N)]
        p = self.weights.tolist()
        return {
            name: sum(p_i * row[name] for p_i, row in zip(p, every, strict=True))
            for name in every[0]
        }

    # -- beyond the Problem

    @cached_property
    def test(self) -> Data:
        """The test data, read and checked when first used."""
        data = read("the test set", self._test, self.model.dtype, self.model.device)
        check_data("the test set", data)
        self._check("the test set", data)
        return data

    @property
    def loss_function(self) -> Loss:
        """The loss as a function of outputs and targets."""
        return self._mean_loss.loss

    @property
    def has_test(self) -> bool:
        """Whether there are test data."""
        return self._test is not None

    def unflatten(self, x: Vector) -> dict[str, Tensor]:
        """Return the module's whole state_dict at x, frozen parts and buffers included."""
        return self.model.state_dict(x)

    def steps(self, epochs: float) -> int:
        """Return K for a number of epochs: the mean over clients of their steps per pass.

        >>> X, y = torch.zeros(10, 3), torch.zeros(10, dtype=torch.long)
        >>> Supervised(nn.Linear(3, 2), nn.CrossEntropyLoss(), [(X, y)], batch=0.2).steps(epochs=4)
        20
        """
        sizes = [self.clients.size(i) for i in range(self.N)]
        per_pass = [ceil(n / batch_size(self.batch, n)) for n in sizes if n]
        return max(1, round(epochs * sum(per_pass) / len(per_pass)))

    def replace(self, **changes: Any) -> "Supervised":
        """Return the same problem with other arguments, e.g. `problem.replace(batch=32)`."""
        return Supervised(**{**self._arguments, **changes})

    @cached_property
    def fingerprint(self) -> str:
        """Tell this problem from others in a saved run, part by part."""
        settings = {
            **{"N": self.N, "d": self.d, "batch": self.batch, "sampling": self.sampling},
            **{"l2": self.l2, "autocast": self.autocast},
        }
        uniform = self.weights.stride() == (0,)
        items = self.clients.clients if self.clients.in_memory else None
        hashes = {
            "start": hashed_tensors(list(self.model.state_dict(self.model.start).values())),
            "weights": "uniform" if uniform else hashed_tensors([self.weights]),
            "data": "?" if items is None else hashed_items(items),
            "test": None if self._test is None else hashed_items([self._test]),
        }
        return line("Supervised", settings | self._code | hashes)

    def old_fingerprint(self) -> str:
        """Return what version 0.1.0 called the fingerprint; with ? where that was an address."""
        digest, loss = sha256(), _named(self.loss_function)
        settings = (self.batch, self.sampling, self.l2, self.autocast, loss)
        for text in (settings, self.model.module, self.weights.tolist() if self.N < 1e5 else ""):
            digest.update(repr(text).encode())
        for tensor in self.model.state_dict(self.model.start).values():
            update(digest, tensor)
        items = self.clients.clients if self.clients.in_memory else ()
        for item in (*items, *(() if self._test is None else (self._test,))):
            digest.update(repr(size(item)).encode())
            for part in item if isinstance(item, tuple | list) else ():
                update(digest, _as_0_1_0(part))
        end = "?" if " at 0x" in loss else digest.hexdigest()[:16]
        return f"Supervised N={self.N} d={self.d} {end}"

    # -- inside

    def _gradient(
        self, x: Vector, data: Data, training: bool = True, whole: bool = False
    ) -> Vector:
        """Return the gradient on samples, plus l2 x; on `whole` data, if large, in pieces."""
        mean = self._mean_loss
        gradient = (mean.full_gradient if whole else mean.gradient)(x, data, training)
        return gradient + self.l2 * x if self.l2 else gradient

    @torch.no_grad()
    def _measure(self, x: Vector, data: Data) -> dict[str, float]:
        mean, layers = self._mean_loss, self.kernel if data.labelled else None
        large = layers is None and self.d >= KEEPS_CORES_BUSY
        with mean.precision(x), one_thread(when=not large):
            if layers is not None:
                output = kernel.outputs(layers, x.to(data.X.dtype), data.X)
            elif not large and self.d >= WORTH_A_THREAD and len(mean.pieces(data)) > 1:
                output = mean.outputs_on_threads(x, data)
            else:
                output = mean.outputs(x, data)
            found = {"loss": float(mean.of_outputs(output, data))}
            right = correct(self.loss_function, output, data.y)
            if right is not None:
                found["accuracy"] = float(right.double().mean())
            for name, metric in self.metrics.items():
                found[name] = _measured(name, metric, output, data.y)
            return found

    def _check(self, who: str, data: Data) -> None:
        """Refuse data that do not fit the module, the loss, or the clients read before."""
        shape = data.X.shape[1:]
        if self._shape is not None and shape != self._shape:
            raise ValueError(
                f"{who} has inputs of shape {tuple(shape)}, others of {tuple(self._shape)}; "
                "give all clients the same features."
            )
        self._mean_loss.check(who, data)
        self._shape = shape


def _built(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    with seeded(mix(seed, FORWARD), torch.device("cpu")):
        try:
            module = build()
        except TypeError as error:
            raise ValueError(
                f"the module cannot be built ({first_line(error)}); pass a module, or a function "
                "without arguments that returns one."
            ) from error
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"the function that builds the module returned a {type(module).__name__}; return an "
            "nn.Module."
        )
    return module


def _measured(name: str, metric: Measure, output: Tensor, y: Tensor) -> float:
    """Return a metric of the user's as a number, and refuse one that changes the data."""
    before = version(output), version(y)
    value = metric(output, y)
    if (version(output), version(y)) != before:
        raise ValueError(
            f"metric '{name}' changes outputs or targets in place; let it work on copies."
        )
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"metric '{name}' returns no number ({first_line(error)}); return one."
        ) from error


def _dtype(clients: Sequence[Any]) -> torch.dtype | None:
    """Return float64 if that is what the clients' tensors are; else leave it to the module."""
    first = clients[0] if isinstance(clients, list | tuple) else None
    first = first.tensors if isinstance(first, TensorDataset) else first
    X = first[0] if isinstance(first, tuple | list) and len(first) == 2 else None
    return torch.float64 if str(getattr(X, "dtype", "")).endswith("float64") else None


def _named(f: Any) -> str:
    return getattr(f, "__qualname__", None) or repr(f)


def _as_0_1_0(part: Any) -> Tensor:
    """Return data as version 0.1.0 hashed them: lists of floats in the default dtype."""
    found = as_tensor("the data", part)
    narrow = isinstance(part, list | tuple) and found.dtype == torch.float64
    return found.to(torch.get_default_dtype()) if narrow else found
