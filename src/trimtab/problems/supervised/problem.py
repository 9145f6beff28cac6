"""Any nn.Module on the data of N clients: f_i(x) is its mean loss on client i's samples."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import ceil
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from trimtab.compute import kernel
from trimtab.compute.tape import Tape
from trimtab.core import Gradient, Vector
from trimtab.core.streams import FORWARD, mix, seeded
from trimtab.problems.metric import Metric
from trimtab.problems.problem import normalised, side_by_side
from trimtab.problems.supervised.batches import Sampling, batch_size, check_batch
from trimtab.problems.supervised.client_data import (
    ClientData,
    check_clients,
    check_data,
    no_samples,
)
from trimtab.problems.supervised.evaluation import Evaluation, Measure, weighted_mean
from trimtab.problems.supervised.fingerprint import Identity, hashes_of_code
from trimtab.problems.supervised.flat import FlatModule, check_module, first_line
from trimtab.problems.supervised.losses import Loss, check_loss
from trimtab.problems.supervised.mean_loss import MeanLoss
from trimtab.problems.supervised.oracles import Oracles
from trimtab.problems.supervised.samples import Data, read


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
        sampling: Sampling = "reshuffle",
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
        self.sampling: Sampling = sampling
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
        # These are hashed now: what a function captured may be the record of its own calls.
        self._code = hashes_of_code(loss, self.metrics, self.model)

    threads = True  # oracles of several clients may be called at once

    # -- the Problem

    def x0(self, seed: int = 0) -> Vector:
        """Return the module's parameters; those of a fresh build under the seed, if it is built."""
        if self._build is None:
            return self.model.start.clone()
        return self.model.vector_of(_built(self._build, seed)).to(self.model.start)

    def oracle(self, i: int, seed: int, r: int) -> Gradient:
        """Return g_i; mini-batches and dropout depend on (seed, i, r, k) alone."""
        return self._oracles.oracle(i, seed, r)

    def evaluate(self, x: Vector, client: int | None = None) -> dict[str, float]:
        """Return loss (without l2), accuracy for classifiers, and the user's metrics.

        On one client's data; or on the test data; or, where there is none, the mean over the
        clients, weighted by p_i.
        """
        if client is not None:
            return self._evaluation.on(self.clients[client], x, self.kernel)
        if self._test is not None:
            return self._evaluation.on(self.test, x, self.kernel)
        rows = [self._evaluation.on(self.clients[i], x, self.kernel) for i in range(self.N)]
        return weighted_mean(rows, self.weights.tolist())

    # -- what it can do besides

    def chunk_oracle(self, clients: Sequence[int], seed: int, r: int) -> Gradient:
        """Return the oracle of several clients at once, for y of shape (d,) or (s, d)."""
        at_once = self._oracles.chunk_oracle(clients, seed, r)
        return at_once or side_by_side([self.oracle(i, seed, r) for i in clients])

    @property
    def kernel(self) -> kernel.Layers | None:
        """What a compiled kernel needs to know of the module; None if it cannot run it."""
        return self._oracles.layers()

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
        p = [float(self.weights[i]) for i in clients]
        return self._oracles.play(self.kernel, tape, clients, p, seed, r, inputs, outputs)

    @torch.no_grad()
    def client_loss(self, i: int, x: Vector) -> float:
        """Return f_i(x), without dropout."""
        loss = self._mean_loss.value(x, self.clients[i])
        return float(loss + self.l2 / 2 * x.square().sum())

    def client_gradient(self, i: int, x: Vector) -> Vector:
        """Return the gradient of f_i at x on all its data, without dropout."""
        return self._oracles.gradient(x, self.clients[i], training=False, whole=True)

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

    def sample_gradient(self, x: Vector, data: Data) -> Vector:
        """Return the gradient at x of the mean loss on some samples, plus l2 x, without dropout."""
        return self._oracles.gradient(x, data, training=False)

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
        return self._identity().fingerprint()

    def old_fingerprint(self) -> str:
        """Return what version 0.1.0 called the fingerprint; with ? where that was an address."""
        return self._identity().old_fingerprint()

    # -- inside

    @property
    def _oracles(self) -> Oracles:
        """Its gradients, with the settings that it has now."""
        return Oracles(self._mean_loss, self.clients, self.batch, self.sampling, self.l2)

    @property
    def _evaluation(self) -> Evaluation:
        """What it measures, with the metrics that it has now."""
        return Evaluation(self._mean_loss, self.metrics)

    def _identity(self) -> Identity:
        settings = {
            **{"batch": self.batch, "sampling": self.sampling},
            **{"l2": self.l2, "autocast": self.autocast},
        }
        items = self.clients.clients if self.clients.in_memory else None
        return Identity(
            settings, self._code, self.model, self.loss_function, self.weights, items, self._test
        )

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


def _dtype(clients: Sequence[Any]) -> torch.dtype | None:
    """Return float64 if that is what the clients' tensors are; else leave it to the module."""
    first = clients[0] if isinstance(clients, list | tuple) else None
    first = first.tensors if isinstance(first, TensorDataset) else first
    X = first[0] if isinstance(first, tuple | list) and len(first) == 2 else None
    return torch.float64 if str(getattr(X, "dtype", "")).endswith("float64") else None
