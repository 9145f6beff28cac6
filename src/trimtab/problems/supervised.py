"""Any nn.Module on the data of N clients: f_i(x) is its mean loss on client i's samples."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from hashlib import sha256
from math import ceil
from threading import Lock, current_thread, local, main_thread
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from trimtab import native
from trimtab.core import Oracle, Vector
from trimtab.problems.checks import Loss, check_fit
from trimtab.problems.clients import (
    Batches,
    ClientData,
    Data,
    batch_size,
    check_batch,
    check_data,
    no_samples,
    read,
    size,
)
from trimtab.problems.closed_form import closed_form
from trimtab.problems.flat import FlatModule
from trimtab.problems.problem import normalised, side_by_side
from trimtab.streams import FORWARD, mix, seeded
from trimtab.tape import Tape
from trimtab.threads import one_thread

Metric = Callable[[Tensor, Tensor], Tensor | float]

_GENERATORS = Lock()  # torch's global generators serve one thread at a time
_BLOCKS = 24  # parts of a cohort that threads share out
_CHUNK = 1 << 22  # bytes of input in one piece of a full gradient or an evaluation


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
    >>> problem = Supervised(nn.Linear(3, 2), F.cross_entropy, clients, batch=2)
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
        metrics: Mapping[str, Metric] | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        self._arguments = {k: v for k, v in locals().items() if k != "self"}
        check_batch(batch)
        if sampling not in ("reshuffle", "iid"):
            raise ValueError(f"sampling={sampling!r}; pass 'reshuffle' or 'iid'.")
        if not l2 >= 0:
            raise ValueError(f"l2={l2}; pass a number that is zero or positive.")
        if len(clients) == 0:
            raise ValueError("Supervised: there are no clients; pass at least one.")
        if not callable(module):
            raise ValueError(f"Supervised: {module!r} is no module; pass one, or what builds one.")
        self._build = None if isinstance(module, nn.Module) else module
        first = module if isinstance(module, nn.Module) else _built(module, seed=0)
        self.model = FlatModule(first, _dtype(clients))
        self.loss_function, self.batch, self.l2 = loss, batch, float(l2)
        self.sampling: Literal["reshuffle", "iid"] = sampling
        self.metrics, self.autocast = dict(metrics or {}), autocast
        self.clients = ClientData(clients, self.model.dtype, self.model.device, self._check)
        self.N, self.d = len(clients), self.model.d
        self._shape: torch.Size | None = None
        self._without_autograd = None if autocast else closed_form(self.model.module, loss)
        if isinstance(weights, str):
            if weights != "samples":
                raise ValueError(f"weights={weights!r}; pass N numbers, 'samples' or None.")
            weights = [float(self.clients.size(i)) for i in range(self.N)]
            if 0 in weights:
                raise no_samples(f"client {weights.index(0)}")
        self.weights = normalised(weights, self.N)
        self._test = test
        self._threads = local()

    # -- the Problem

    def x0(self, seed: int = 0) -> Vector:
        """Return the module's parameters; those of a fresh build under the seed, if it is built."""
        if self._build is None:
            return self.model.start.clone()
        return self.model.vector_of(_built(self._build, seed)).to(self.model.start)

    def oracle(self, i: int, seed: int, r: int) -> Oracle:
        """Return g_i; mini-batches and dropout depend on (seed, i, r, k) alone."""
        data = self.clients[i]
        if self._without_autograd is not None and data.labelled:
            chunk = self.chunk_oracle([i], seed, r)
            return lambda y, k=None: chunk(y, k)[0]
        batches = Batches(data, self.batch, self.sampling, (seed, i, r))

        def g(y: Vector, k: int | None = None) -> Vector:
            samples = data if k is None else batches[k]
            pieces = _pieces(data) if k is None or samples is data else [samples]
            if not self.model.draws:
                return self._gradient(y, pieces, training=True)
            with (
                _GENERATORS,
                seeded(mix(seed, FORWARD, i, r, -1 if k is None else k), self.model.device),
            ):
                return self._gradient(y, pieces, training=True)

        return g

    def chunk_oracle(self, clients: Sequence[int], seed: int, r: int) -> Oracle:
        """Return the oracle of several clients at once, for y of shape (d,) or (s, d)."""
        every = [self.clients[i] for i in clients]
        direct = self._without_autograd
        if direct is None or not all(data.labelled for data in every):
            return side_by_side([self.oracle(i, seed, r) for i in clients])
        cut = self._cut(clients, every, seed, r)

        def g(y: Vector, k: int | None = None) -> Vector:
            rows = [None if k is None else batches.rows(k) for batches in cut]
            now = [(data.X, data.y, some) for data, some in zip(every, rows, strict=True)]
            gradients = direct.gradients(y, now)
            return gradients + self.l2 * y if self.l2 else gradients

        return g

    @property
    def kernel(self) -> native.Layers | None:
        """What a compiled kernel needs to know of the module; None if it cannot run it."""
        layers = self._without_autograd.layers if self._without_autograd is not None else None
        fits = self.model.device.type == "cpu" and native.works(self.model.dtype)
        return layers if fits else None

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
        return native.run(
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
        data = self.clients[i]
        loss = sum(self._loss(x, piece) * (len(piece) / len(data)) for piece in _pieces(data))
        return float(loss + self.l2 / 2 * x.square().sum())

    def client_gradient(self, i: int, x: Vector) -> Vector:
        """Return the gradient of f_i at x on all its data, without dropout."""
        return self._gradient(x, _pieces(self.clients[i]), training=False)

    def client_hvp(self, i: int, x: Vector, V: Tensor) -> Tensor:
        """Return the Hessian of f_i at x times each row of V (or times V), without dropout."""
        rows = V.reshape(-1, self.d)
        data, total = self.clients[i], self.l2 * rows
        with torch.enable_grad():
            for piece in _pieces(data):
                products = self._own.hessian_products(self._loss(x, piece), rows)
                total = total.add_(products, alpha=len(piece) / len(data))
        return total.view(V.shape)

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
        data = read(self._test, self.model.dtype, self.model.device)
        check_data("the test set", data)
        self._check("the test set", data)
        return data

    @property
    def has_test(self) -> bool:
        """Whether there are test data."""
        return self._test is not None

    def unflatten(self, x: Vector) -> dict[str, Tensor]:
        """Return the module's whole state_dict at x, frozen parts and buffers included."""
        return self.model.state_dict(x)

    @property
    def executor(self) -> str:
        """Which executor suits this problem (measured; see `simulation/executors.py`).

        A classifier that the compiled kernel can run: batched, the kernel itself uses all cores.
        Large modules keep all cores busy by themselves: wide. Middling ones: workers. Small ones
        spend their time in Python, where threads only wait for each other: loop.
        """
        if self.kernel is not None:
            return "batched"
        if self.d >= 2_000_000:
            return "wide"
        return "workers" if self.d >= 10_000 else "loop"

    def steps(self, epochs: float) -> int:
        """Return K for a number of epochs: the mean over clients of their steps per pass.

        >>> X, y = torch.zeros(10, 3), torch.zeros(10, dtype=torch.long)
        >>> Supervised(nn.Linear(3, 2), F.cross_entropy, [(X, y)], batch=0.2).steps(epochs=4)
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
        """Tell this problem from others in a saved run; of lazy clients only what is cheap."""
        digest = sha256()
        settings = (self.batch, self.sampling, self.l2, self.autocast, _named(self.loss_function))
        for text in (settings, self.model.module, self.weights.tolist() if self.N < 1e5 else ""):
            digest.update(repr(text).encode())
        for tensor in self.model.state_dict(self.model.start).values():
            _update(digest, tensor)
        items = self.clients.clients if self.clients.in_memory else ()
        for item in (*items, *(() if self._test is None else (self._test,))):
            digest.update(repr(size(item)).encode())
            for part in item if isinstance(item, tuple | list) else ():
                _update(digest, torch.as_tensor(part))
        return f"Supervised N={self.N} d={self.d} {digest.hexdigest()[:16]}"

    # -- inside

    @property
    def _own(self) -> FlatModule:
        """The calling thread's own copy of the model, whose parameters change all the time."""
        if current_thread() is main_thread():
            return self.model
        if not hasattr(self._threads, "model"):
            self._threads.model = self.model.twin()
        own: FlatModule = self._threads.model
        return own

    def _loss(self, x: Vector, data: Data, training: bool = False) -> Tensor:
        self._own.mode(training)
        with self._precision(x):
            return self.loss_function(self._own(x, data.X), data.y)

    def _gradient_of(self, x: Vector, data: Data, training: bool) -> Vector:
        if self._without_autograd is not None and data.labelled:
            return self._without_autograd.gradients(x, [(data.X, data.y, None)])[0]
        with torch.enable_grad():
            return self._own.gradient(self._loss(x, data, training))

    def _precision(self, x: Vector) -> AbstractContextManager[Any]:
        return torch.autocast(x.device.type, self.autocast) if self.autocast else nullcontext()

    def _gradient(self, x: Vector, pieces: Sequence[Data], training: bool) -> Vector:
        """Return the gradient of the mean loss over the pieces, plus l2 x."""
        if len(pieces) == 1:
            gradient = self._gradient_of(x, pieces[0], training)
            return gradient + self.l2 * x if self.l2 else gradient
        n = sum(len(piece) for piece in pieces)
        total = self.l2 * x if self.l2 else torch.zeros_like(x)
        for piece in pieces:
            total.add_(self._gradient_of(x, piece, training), alpha=len(piece) / n)
        return total

    @torch.no_grad()
    def _measure(self, x: Vector, data: Data) -> dict[str, float]:
        pieces, layers = _pieces(data), self.kernel if data.labelled else None
        with self._precision(x), one_thread(when=layers is not None or len(pieces) == 1):
            if layers is not None:
                output = native.outputs(layers, x.to(data.X.dtype), data.X)
            else:
                self.model.mode(training=False)
                output = torch.cat([self.model(x, piece.X) for piece in pieces])
            found = {"loss": float(self.loss_function(output, data.y))}
            correct = _correct(self.loss_function, output, data.y)
            if correct is not None:
                found["accuracy"] = float(correct.double().mean())
            return found | {name: float(f(output, data.y)) for name, f in self.metrics.items()}

    def _check(self, who: str, data: Data) -> None:
        """Refuse data that do not fit the module, the loss, or the clients read before."""
        shape = data.X.shape[1:]
        if self._shape is not None and shape != self._shape:
            raise ValueError(
                f"{who} has inputs of shape {tuple(shape)}, others of {tuple(self._shape)}; "
                "give all clients the same features."
            )
        with _GENERATORS:
            check_fit(who, data, self.model, self.loss_function)
        self._shape = shape


def _built(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    with seeded(mix(seed, FORWARD), torch.device("cpu")):
        return build()


def _dtype(clients: Sequence[Any]) -> torch.dtype | None:
    """Return float64 if that is what the clients' tensors are; else leave it to the module."""
    first = clients[0] if isinstance(clients, list | tuple) else None
    first = first.tensors if isinstance(first, TensorDataset) else first
    X = first[0] if isinstance(first, tuple | list) and len(first) == 2 else None
    return torch.float64 if str(getattr(X, "dtype", "")).endswith("float64") else None


def _pieces(data: Data) -> list[Data]:
    row = data.X[0].numel() * data.X.element_size()
    rows = max(64, _CHUNK // max(1, row))
    if len(data) <= rows:
        return [data]
    parts = zip(torch.split(data.X, rows), torch.split(data.y, rows), strict=True)
    return [Data(X, y) for X, y in parts]


def _correct(loss: Loss, output: Tensor, y: Tensor) -> Tensor | None:
    """Return which predictions are right, or None where that means nothing."""
    if loss is F.binary_cross_entropy_with_logits or isinstance(loss, nn.BCEWithLogitsLoss):
        return (output > 0) == (y > 0.5)
    if y.is_floating_point() or output.dim() < 2 or output.shape[1] < 2:
        return None
    predicted = output.argmax(1)
    if predicted.shape != y.shape:
        return None
    return (predicted == y)[y != getattr(loss, "ignore_index", -100)]


def _named(f: Any) -> str:
    return getattr(f, "__qualname__", None) or repr(f)


def _update(digest: Any, t: Tensor) -> None:
    t = t.detach().cpu().contiguous()
    digest.update(repr((t.dtype, tuple(t.shape))).encode())
    digest.update(t.view(torch.uint8).numpy().data if t.numel() else b"")
