"""Any nn.Module on the data of N clients: f_i(x) is its mean loss on client i's samples."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.compute.kernel import KernelResult, Layers
from trimtab.compute.tape import Tape
from trimtab.core import Gradient, Vector
from trimtab.problems.metrics import Metric
from trimtab.problems.origin import record_step
from trimtab.problems.paths import path_of
from trimtab.problems.problem import Problem, normalised, stack_oracles
from trimtab.problems.supervised.arguments import (
    Weights,
    built,
    check_collate,
    check_groups,
    check_settings,
    described,
    device_of,
    dtype_of,
    module_of,
    numbers_of,
)
from trimtab.problems.supervised.batch_norm import ModelWithStatistics, PooledStatistics
from trimtab.problems.supervised.batches import Sampling, batch_size
from trimtab.problems.supervised.clients import (
    ClientData,
    EvaluationData,
    HeldOutView,
    check_clients,
    check_fraction,
    with_own_tests,
)
from trimtab.problems.supervised.data import Data, FirstBatch
from trimtab.problems.supervised.evaluation import (
    Evaluation,
    Measures,
    counts_of,
    functions,
    metric_standard_error,
    shares_of,
)
from trimtab.problems.supervised.fingerprint import FingerprintParts, hashes_of_code
from trimtab.problems.supervised.flat import FlatModule
from trimtab.problems.supervised.from_tables import TableConstructors
from trimtab.problems.supervised.graphs import Vectorised
from trimtab.problems.supervised.losses import Loss, OnBatch, check_loss, least_value
from trimtab.problems.supervised.mean_loss import MeanLoss
from trimtab.problems.supervised.objective import Curvature, PooledObjective, pooled
from trimtab.problems.supervised.oracles import Oracles
from trimtab.problems.supervised.reading import Collate, Reader, no_samples


class Supervised(TableConstructors, ModelWithStatistics, Problem):
    """Supervised learning over clients.

    module: an nn.Module, whose parameters are x0, or a function that builds one under the seed; it
        and the loss must return the same for the same inputs and random numbers of torch.
    loss: loss(output, target), a mean over samples, or OnBatch(f) with f(module, batch).
    clients: a sequence, possibly lazy, of pairs (X, y) or map-style Datasets of such samples; read
        and checked when first sampled. X and y are tensors or arrays, or tuples or dicts of them,
        which the module's forward gets as its arguments if it has such, else as one.
    test: data in the form of a client, for `evaluate`.
    batch: the size of a mini-batch, or a fraction of the local data; None for all of it.
    weights: positive numbers, "samples", or None for uniform ones. With unequal weights and S < N
        only SCAFFOLD aims exactly at the weighted optimum: the mean over replies is a ratio.
    sampling: "reshuffle" (a new order at each pass; the last mini-batch may be short) or "iid".
    l2: adds l2/2 |x|^2 to every client's loss, default 0.
    metrics: functions of (outputs, targets) by name, or built-in names, e.g. ["auc", "f1"].
    autocast: a dtype for torch.autocast, e.g. torch.bfloat16.
    validation: data to tune and stop on, as `test`; without them, `split` holds some out.
    tests: a test part, or None, for each client; in a list of clients also as
        (X, y, (X_test, y_test)), with tensors or arrays X and y.
    groups: a label for each client.
    collate: makes a batch of a list of samples that have no common shape.
    device: where the module, the data and all results are, e.g. "cuda".

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
        weights: Weights = None,
        sampling: Sampling = "reshuffle",
        l2: float = 0.0,
        metrics: Measures | None = None,
        autocast: torch.dtype | None = None,
        *,
        validation: Any = None,
        tests: Sequence[Any] | None = None,
        groups: Sequence[Any] | None = None,
        collate: Collate | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        self._arguments = {k: v for k, v in locals().items() if k != "self"}
        check_settings(batch, sampling, l2)
        check_clients(clients)
        check_groups(groups, len(clients))
        check_loss(loss)
        check_collate(collate)
        clients, tests = with_own_tests(clients, tests)
        self._arguments |= {"clients": clients, "tests": tests}
        # A function builds another start for each seed; a module has one.
        self._build = None if isinstance(module, nn.Module) else module
        first = module_of(module)
        self.model = FlatModule(first, dtype_of(clients), device_of(device))
        self.batch, self.l2 = batch, float(l2)
        self.sampling: Sampling = sampling
        self.metrics, self.autocast = functions(metrics, loss), autocast
        on_batch = isinstance(loss, OnBatch)
        reader = Reader(self.model.dtype, self.model.device, collate, on_batch)
        self.clients = ClientData(clients, reader, self._check)
        self._evaluation_data = EvaluationData(test, tests, validation, reader, self._check)
        self.N, self.d = len(clients), self.model.d
        self._first_batch = FirstBatch()
        self._mean_loss = MeanLoss(self.model, loss, autocast)
        self.least_loss = least_value(loss)
        self._vectorised = Vectorised(self._mean_loss)
        self._curvature = Curvature(self._mean_loss, self._vectorised)
        self.weights = normalised(numbers_of(weights, self.clients), self.N)
        self._statistics = self._mean_loss.statistics = PooledStatistics(self)
        self.groups = None if groups is None else list(groups)
        # The metric to compare by, if it is neither accuracy nor loss.
        self.metric: Metric | None = None
        # Hashed before any call: a function may record its calls in what it captured.
        self._code = hashes_of_code(loss, self.metrics, self.model, collate)

    threads = True  # oracles of several clients may be called at once

    # -- the Problem

    def x0(self, seed: int = 0) -> Vector:
        """Return the module's parameters; those of a fresh build under the seed, if it is built."""
        if self._build is None:
            return self.model.start.clone()
        return self.model.vector_of(built(self._build, seed)).to(self.model.start)

    def oracle(self, i: int, seed: int, r: int) -> Gradient:
        """Return g_i; mini-batches and dropout depend on (seed, i, r, k) alone."""
        return self._oracles.oracle(i, seed, r)

    def evaluate(self, x: Vector, client: int | None = None) -> dict[str, float]:
        """Return loss (without l2), accuracy for classifiers, and the metrics.

        On one client's own test part, or its training data if it has none; or on the test set,
        which is all clients' test parts if none was given; or, where there is none of these, the
        mean over the clients' training data, weighted by p_i (auc, balanced accuracy, f1, r2 and
        perplexity: of all their samples together).
        """
        if client is not None:
            own = self._evaluation_data.own(client)
            data = self.clients[client] if own is None else own
            return self._evaluation.on(data, x)
        if self.has_test:
            return self._evaluation.on(self.test, x)
        each = (self.clients[i] for i in range(self.N))
        return self._evaluation.over(each, self.weights.tolist(), x)

    # -- data held out

    def split(self, fraction: float = 0.1, seed: int = 0) -> "Supervised":
        """Return the problem with a part of each client's rows held out as validation data.

        Clients with fewer than five rows keep all of them. Weights do not change. The problem
        itself is returned if it has validation data, or if no client has five rows.

        fraction: the share of each client's rows, between 0 and 1; default 0.1.
        seed: decides the rows; default 0.

        >>> X, y = torch.zeros(20, 3), torch.zeros(20, dtype=torch.long)
        >>> problem = Supervised(nn.Linear(3, 2), nn.CrossEntropyLoss(), [(X, y)]).split(0.1)
        >>> problem.clients.size(0), problem.has_validation
        (18, True)
        """
        check_fraction(fraction)
        if self._evaluation_data.held_out is not None:
            return self
        given, reader = self.clients.clients, self.clients.reader
        kept, held = (HeldOutView(given, fraction, seed, held, reader) for held in (False, True))
        parted = self.replace(clients=kept, validation=held)
        made = parted if not self.clients.in_memory or parted.has_validation else self
        return record_step(self, made, "split", fraction, seed)  # type: ignore[no-any-return]

    @property
    def has_validation(self) -> bool:
        """Whether there are validation data."""
        return self._evaluation_data.has_validation

    def validate(self, x: Vector) -> dict[str, float]:
        """Return what `evaluate` returns, on the validation data of all clients together."""
        if not self.has_validation:
            raise ValueError(
                "Supervised has no validation data; pass validation=…, or call problem.split(0.1)."
            )
        return self._evaluation.on(self._evaluation_data.validation, x)

    def validation_error(self, x: Vector, metric: str) -> float | None:
        """Return the standard error of a metric of `validate` that comes from its few rows."""
        data = self._evaluation_data.validation
        return metric_standard_error(self._evaluation, data, x, metric)

    def has_own_test(self, i: int) -> bool:
        """Return whether client i has its own test part, on which it is evaluated."""
        return self._evaluation_data.has_own(i)

    # -- gradients and Hessians

    def chunk_oracle(self, clients: Sequence[int], seed: int, r: int) -> Gradient:
        """Return the oracle of several clients at once, for y of shape (d,) or (s, d)."""
        at_once = self._oracles.chunk_oracle(clients, seed, r)
        return at_once or stack_oracles([self.oracle(i, seed, r) for i in clients])

    @property
    def kernel(self) -> Layers | None:
        """The module's description for the kernel; None if the kernel cannot run it."""
        return self._oracles.layers()

    def why_no_kernel(self) -> str:
        """Return why the compiled kernel does not run this module; empty if it does."""
        return self._oracles.why_no_kernel()

    def why_not_vectorised(self) -> str:
        """Return why gradients of several clients at once gain nothing here; empty if they do."""
        return self._oracles.why_not_vectorised()

    def explain(self, S: int | None = None) -> str:
        """Return how gradients are computed in rounds of S clients (default N), and why so."""
        return str(path_of(self, self.N if S is None else S))

    def play(
        self,
        layers: Layers,
        tape: Tape,
        clients: Sequence[int],
        weights: Sequence[float],
        seed: int,
        r: int,
        inputs: Sequence[Sequence[Vector]],
        outputs: Sequence[Sequence[Vector | None]],
    ) -> KernelResult | None:
        """Run a tape for some clients in the kernel; None if their data do not fit it.

        `layers` is the value of `kernel` in this round. Returns the weighted sum of each output,
        (outputs, d), for each output the clients' |.|^2, and the number of sample gradients.
        """
        return self._oracles.play(layers, tape, clients, weights, seed, r, inputs, outputs)

    @torch.no_grad()
    def client_loss(self, i: int, x: Vector) -> float:
        """Return f_i(x), without dropout."""
        return float(self._mean_loss.value(x, self.clients[i]) + self.l2 / 2 * x.square().sum())

    def client_gradient(self, i: int, x: Vector) -> Vector:
        """Return the gradient of f_i at x on all its data, without dropout."""
        return self._oracles.gradient(x, self.clients[i], training=False, whole=True)

    def client_hvp(self, i: int, x: Vector, V: Tensor) -> Tensor:
        """Return the Hessian of f_i at x times each row of V (or times V), without dropout."""
        rows = V.reshape(-1, len(x))
        products = self._mean_loss.hessian_products(x, self.clients[i], rows)
        return products.add_(rows, alpha=self.l2).view(V.shape)

    @property
    def chunk_hvp(self) -> Callable[[Sequence[int], Vector, Tensor], Tensor] | None:
        """(clients, x, V) -> their Hessians times the rows of V; None where in turn is as fast."""

        def products(clients: Sequence[int], x: Vector, V: Tensor) -> Tensor:
            rows = V.expand(len(clients), *V.shape[-2:])
            found = self._curvature.products(x, [self.clients[i] for i in clients], rows)
            return found.add_(rows, alpha=self.l2)

        return products if self._curvature.is_faster(self.clients, self.batch) else None

    def in_one_pass(self) -> PooledObjective | None:
        """Return f and its gradient on all samples together; None where clients must be apart."""
        if not self.clients.in_memory:
            return None
        data = [self.clients[i] for i in range(self.N)]
        return pooled(self._mean_loss, data, self.weights.tolist(), self.l2)

    @property
    def client_hessian(self) -> Callable[[int, Vector], Tensor] | None:
        """(i, x) -> the Hessian of f_i at x, (d, d); None where it has no closed form."""
        whole = self._curvature.whole(self.clients)
        if whole is None:
            return None
        return lambda i, x: whole(i, x) + self.l2 * torch.eye(len(x)).to(x)

    def sample_gradient(self, x: Vector, data: Data) -> Vector:
        """Return the gradient at x of the mean loss on some samples, plus l2 x, without dropout."""
        return self._oracles.gradient(x, data, training=False)

    def sample_gradients(self, x: Vector, data: Data) -> Tensor:
        """Return the gradients at x of the losses on single samples, each plus l2 x."""
        form, each = self._mean_loss.closed_form, [data.cut(j, j + 1) for j in range(len(data))]
        if form is None or not data.fits_kernel(form.layers):
            return torch.stack([self.sample_gradient(x, one) for one in each])
        return form.gradients(x, [(one.X, one.y, None) for one in each]) + self.l2 * x

    @property
    def test(self) -> Data:
        """The test data, read and checked when first used."""
        return self._evaluation_data.test

    def class_shares(self) -> tuple[str, Tensor] | None:
        """Return the name of the labels for accuracy, and the share of each class among them.

        None if targets are not labels, or if clients would have to be read for it.
        """
        if self.has_test:
            return shares_of("test labels", self.loss_function, [self.test.y], [1.0])
        targets = self.clients.targets()
        if targets is None:
            return None
        return shares_of("clients' labels", self.loss_function, targets, self.weights.tolist())

    def label_counts(self) -> list[list[int]] | None:
        """Return how many samples of each label each client has; None as for `class_shares`."""
        targets = self.clients.targets()
        parts = None if targets is None else counts_of(self.loss_function, targets)
        return None if parts is None else [part.tolist() for part in parts]

    @property
    def weighing(self) -> str:
        """The source of the weights: uniform, samples, or own for numbers of the user."""
        given = self._arguments["weights"]
        return "uniform" if given is None else given if isinstance(given, str) else "own"

    @property
    def loss_function(self) -> Loss:
        """The loss as a function of outputs and targets."""
        return self._mean_loss.loss

    @property
    def has_test(self) -> bool:
        """Whether there are test data."""
        return self._evaluation_data.has_test

    def flatten(self, state_dict: Mapping[str, Tensor]) -> Vector:
        """Return the x whose module has this state_dict."""
        return self.model.vector_in(state_dict).to(self.model.start)

    def steps(self, epochs: float) -> int:
        """Return K for a number of epochs: the mean over clients of their steps per pass.

        >>> X, y = torch.zeros(10, 3), torch.zeros(10, dtype=torch.long)
        >>> Supervised(nn.Linear(3, 2), nn.CrossEntropyLoss(), [(X, y)], batch=0.2).steps(epochs=4)
        20
        """
        per_pass = [self.steps_in_a_pass(i) for i in range(self.N) if self.clients.size(i)]
        if not per_pass:
            raise no_samples("client 0")
        return max(1, round(epochs * sum(per_pass) / len(per_pass)))

    def steps_in_a_pass(self, i: int) -> int:
        """Return how many mini-batches make up one pass over the data of client i."""
        n = self.clients.size(i)
        return ceil(n / batch_size(self.batch, n))

    def samples(self, i: int) -> tuple[int, int]:
        """Return the number of samples of client i, and of its mini-batches."""
        n = self.clients.size(i)
        return n, batch_size(self.batch, n)

    def replace(self, **changes: Any) -> "Supervised":
        """Return the same problem with other arguments, e.g. `problem.replace(batch=32)`."""
        other = Supervised(**{**self._arguments, **changes})
        other.metric = self.metric
        # Names and columns are not arguments; they belong to the same clients only.
        names = self.names if len(self.clients) == len(other.clients) else None
        made = other._of_table(self.columns, names)
        return record_step(self, made, "replace", **changes)  # type: ignore[no-any-return]

    def with_metric(self, name: str) -> "Supervised":
        """Return the problem with another built-in metric, given by its name."""
        made = self.replace(metrics={**self.metrics, name: name})
        return record_step(self, made, "with_metric", name)  # type: ignore[no-any-return]

    @cached_property
    def fingerprint(self) -> str:
        """Text that distinguishes this problem from others in a saved run, part by part."""
        settings = {
            **{"batch": self.batch, "sampling": self.sampling},
            **{"l2": self.l2, "autocast": self.autocast},
        }
        what = (self.model, self.weights, self.clients, self._evaluation_data, self.columns)
        return FingerprintParts(settings, self._code, *what).fingerprint()

    def __repr__(self) -> str:
        return described(type(self).__name__, self.model.module, self.loss_function, self.clients)

    # -- inside

    # Built at each call, because users may assign batch, l2 and metrics.
    @property
    def _oracles(self) -> Oracles:
        return Oracles(
            self._mean_loss, self.clients, self.batch, self.sampling, self.l2, self._vectorised
        )

    @property
    def _evaluation(self) -> Evaluation:
        return Evaluation(self._mean_loss, self.metrics, self.in_target_units, self.kernel)

    def _check(self, owner: str, data: Data) -> None:
        """Raise ValueError if data do not fit the module, the loss, or the first data."""
        if not self._mean_loss.has_checked(data):
            self._first_batch.check(owner, data)
            self._mean_loss.check(owner, data)
            self._first_batch.keep(data)
