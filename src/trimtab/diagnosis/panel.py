"""Who is measured, and on how much data: all clients on all data, unless that takes too long."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import inf

import torch
from torch import Tensor

from trimtab.core import Gradient, Vector
from trimtab.core.streams import PARTITION, stream
from trimtab.diagnosis.budget import Budget, OutOfTime
from trimtab.diagnosis.rules import RULES
from trimtab.problems.problem import OnePass, Problem
from trimtab.problems.quadratic import Quadratic
from trimtab.problems.supervised.batches import batch_size
from trimtab.problems.supervised.problem import Supervised

WORTH_A_GRAPH = 4  # a cohort of S >= 4 clients is worth a captured graph


def weighted(p: Tensor, t: Tensor) -> Tensor:
    """Return the sum of p_i t_i."""
    mean: Tensor = torch.tensordot(p.to(t), t, dims=1)
    return mean


def orthonormal(Q: Tensor, V: Tensor) -> Tensor:
    """Return orthonormal rows for what the rows of V add to the orthonormal rows of Q."""
    m = len(Q)
    for v in V / V.norm(dim=1, keepdim=True).clamp_min(1e-30):
        for _ in range(2):  # Twice is enough (Kahan, Parlett).
            v = v - (Q @ v) @ Q
        if float(v.norm()) > 1e-3:
            Q = torch.cat([Q, v[None] / v.norm()])
    return Q[m:]


@dataclass(frozen=True)
class Thinned:
    """Some samples of every client, and the same samples in disjoint folds."""

    folds: tuple[Supervised, ...]
    shares: Tensor  # of each client's samples in each fold, (clients, folds); rows sum to 1
    known: Tensor  # the share of each client's samples that is measured, (clients,)
    noise: tuple[Supervised, ...]  # the folds in mini-batches that are smaller than they are
    scale: Tensor  # the variance of the true mini-batches over that of `noise`, (clients, folds)

    def mean(self, parts: Tensor, clients: Sequence[int] | None = None) -> Tensor:
        """Return what the folds have measured together; parts: (clients, folds, ...)."""
        return (self._shares(parts, clients) * parts).sum(1)

    def deviations(
        self, parts: Tensor, clients: Sequence[int] | None = None, *, equal: bool = False
    ) -> Tensor:
        """Return draws of a mean's error: with normal z_f, sum z_f deviation_f has its covariance.

        The error is that of a mean over a share `known` of finitely many samples. clients: whose
        parts these are; None: all. equal: the mean is that of folds with equal shares.
        """
        shares, known = self._shares(parts, clients), self.known
        shares = torch.full_like(shares, 1 / len(self.folds)) if equal else shares
        known = known if clients is None else known[list(clients)]
        unknown = (1 - known).clamp_min(0.0).to(parts).view(-1, *[1] * (parts.dim() - 1))
        away = parts - (shares * parts).sum(1, keepdim=True)
        return away * (shares * unknown / (len(self.folds) - 1)).sqrt()

    def _shares(self, parts: Tensor, clients: Sequence[int] | None) -> Tensor:
        shares = self.shares if clients is None else self.shares[list(clients)]
        return shares.to(parts).view(*shares.shape, *[1] * (parts.dim() - 2))


@dataclass(frozen=True)
class Panel:
    """Some clients of a problem, as a problem of their own."""

    problem: Problem
    clients: tuple[int, ...]  # the clients' numbers in the whole problem
    thinned: "Thinned | None" = None  # None: all samples of these clients are measured

    @cached_property
    def fold_panels(self) -> tuple["Panel", ...]:
        """The same clients with one fold of their samples each; this panel if all are measured."""
        if self.thinned is None:
            return (self,)
        return tuple(Panel(fold, self.clients) for fold in self.thinned.folds)

    @property
    def p(self) -> Tensor:
        """The weights of the clients, in float64."""
        return self.problem.weights

    # -- what the problem offers; some of it is costly to find out, so it is kept

    @property
    def closed_forms(self) -> Quadratic | None:
        """The problem itself if its losses are quadratic, so that B and the noise are known."""
        return self.problem if isinstance(self.problem, Quadratic) else None

    @property
    def samples(self) -> Supervised | None:
        """The problem itself if its clients hold samples, of which some can be taken."""
        return self.problem if isinstance(self.problem, Supervised) else None

    @property
    def steps_in_a_pass(self) -> int | None:
        """The number of mini-batches in a pass when they are reshuffled; None when i.i.d."""
        steps, reshuffles = self.problem.steps, self.problem.sampling == "reshuffle"
        return steps(1) if reshuffles and steps is not None else None

    def executor(self, S: int) -> str:
        """Return what runs many rounds of S clients fastest: a graph pays sooner than in a few."""
        return "batched" if self._vectorised and S >= WORTH_A_GRAPH else "auto"

    @cached_property
    def _one_pass(self) -> OnePass | None:
        return self.problem.in_one_pass()

    @cached_property
    def _products_at_once(self) -> Callable[[Sequence[int], Vector, Tensor], Tensor] | None:
        return self.problem.chunk_hvp

    @cached_property
    def gradients_at_once(self) -> Callable[[Sequence[int], int, int], Gradient] | None:
        """(clients, seed, r) -> the oracle of several clients, where a kernel computes them."""
        return None if self.problem.kernel is None else self.problem.chunk_oracle

    @cached_property
    def _batches_at_once(self) -> Callable[[Sequence[int], int, int], Gradient] | None:
        """(clients, seed, r) -> the same for mini-batches, by a kernel or a captured graph."""
        return self.problem.chunk_oracle if self._vectorised else self.gradients_at_once

    @cached_property
    def _vectorised(self) -> bool:
        """Whether a captured graph computes several clients at once, since no kernel does."""
        why_not = self.problem.why_not_vectorised
        return self.problem.kernel is None and why_not is not None and not why_not()

    # -- f

    def loss(self, x: Vector) -> float:
        """Return f(x)."""
        return (self._one_pass or self.problem).loss(x)

    def loss_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        """Return f(x) and its gradient, in one pass where that can be."""
        if self._one_pass is not None:
            return self._one_pass.loss_and_gradient(x)
        return self.loss(x), self.gradient(x).detach()

    def gradient(self, x: Vector) -> Vector:
        """Return the gradient of f at x, on all data."""
        if self._one_pass is not None:
            return self._one_pass.loss_and_gradient(x)[1]
        if self.gradients_at_once is None:
            return self.problem.gradient(x)
        return weighted(self.p, self.gradients(x))

    # -- the clients' gradients and Hessians

    def products(self, i: int, x: Vector, V: Tensor) -> Tensor:
        """Return Hess_i at x times each row of V."""
        return self._products([i], x, V)[0]

    def all_products(
        self,
        x: Vector,
        V: Tensor,
        out_of_time: OutOfTime = lambda: False,
        clients: Sequence[int] | None = None,
    ) -> Iterator[Tensor]:
        """Yield Hess_i at x times each row of V for one client after the other.

        V: rows for all clients, (m, d), or for each its own, (N, m, d). The first come whatever the
        time is; after that, there are no more when it is over. clients: all, or these in turn.
        """
        every = torch.tensor(range(self.problem.N) if clients is None else clients)
        at_once = 1 if self._products_at_once is None else RULES.step
        at_once = max(1, min(at_once, RULES.at_once // (V.shape[-2] * V.shape[-1])))
        begun = False
        for some in torch.split(every, at_once):
            products: list[Tensor] = []
            own = V if V.dim() == 2 else V.index_select(0, some.to(V.device))
            for rows in torch.split(own, RULES.step, dim=-2):
                if begun and out_of_time():
                    return
                products.append(self._products(some.tolist(), x, rows))
                begun = True
            yield from torch.cat(products, 1)

    def _products(self, clients: list[int], x: Vector, V: Tensor) -> Tensor:
        """Return the Hessians of some clients times rows, (m, d) for all or (s, m, d)."""
        at_once = self._products_at_once
        if at_once is not None:
            with suppress(RuntimeError):  # One after the other there are other ways.
                return at_once(clients, x, V).detach()
        rows = V.expand(len(clients), *V.shape[-2:])
        pairs = zip(clients, rows, strict=True)
        return torch.stack([client_products(self.problem, i, x, own) for i, own in pairs])

    def mean_products(self, x: Vector, V: Tensor) -> Tensor:
        """Return Hess at x times each row of V (or times V)."""
        rows = V.view(-1, self.problem.d)
        total = torch.zeros_like(rows)
        for p, products in zip(self.p.tolist(), self.all_products(x, rows), strict=True):
            total.add_(products, alpha=p)
        return total.view(V.shape)

    def gradients(self, x: Vector) -> Tensor:
        """Return the gradients of all clients, one in each row."""
        parts = torch.split(torch.arange(self.problem.N), RULES.step)
        return torch.cat(
            [self.gradients_of(some.tolist(), x.expand(len(some), -1)) for some in parts]
        )

    def gradients_of(self, clients: list[int], points: Tensor) -> Tensor:
        """Return the gradients of some clients, each at a point of its own."""
        at_once = self.gradients_at_once
        if at_once is not None:
            return at_once(clients, 0, 1)(points)
        pairs = zip(clients, points, strict=True)
        return torch.stack([self.problem.client_gradient(i, y).detach() for i, y in pairs])

    def batch_gradients(
        self, x: Vector, seed: int, r: int, out_of_time: OutOfTime
    ) -> Tensor | None:
        """Return a mini-batch gradient of each client; None if the time is over before the end."""
        at_once, rows = self._batches_at_once, list[Tensor]()
        for some in torch.split(torch.arange(self.problem.N), RULES.step if at_once else 1):
            if out_of_time():
                return None
            clients = some.tolist()
            if at_once is not None:
                rows.append(at_once(clients, seed, r)(x, 0))
            else:
                rows.append(self.problem.oracle(clients[0], seed, r)(x, 0).detach()[None])
        return torch.cat(rows)


def client_products(problem: Problem, i: int, x: Vector, V: Tensor) -> Tensor:
    """Return Hess_i at x times each row of V (or times V).

    The default of `Problem` serves where a problem's own products raise RuntimeError, since not
    every operation of torch can be differentiated twice.
    """
    try:
        return problem.client_hvp(i, x, V).detach()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return Problem.client_hvp(problem, i, x, V)


def choose_panel(problem: Problem, seed: int, budget: Budget) -> Panel:
    """Choose clients and samples so that the time suffices; note what was left out."""
    return panel_with(problem, *choose(problem, seed, budget), seed, budget)


def choose(problem: Problem, seed: int, budget: Budget) -> tuple[tuple[int, ...], int | None]:
    """Return which clients to measure, and how many samples of each; None for all of them."""
    clients = tuple(range(problem.N))
    most = max(2, min(RULES.clients, RULES.stored // problem.d))
    if most < problem.N:
        drawn = torch.randperm(problem.N, generator=stream(seed, PARTITION))[:most]
        clients = tuple(sorted(drawn.tolist()))
    return clients, _samples(problem, clients, budget) if isinstance(problem, Supervised) else None


def panel_with(
    problem: Problem, clients: tuple[int, ...], rows: int | None, seed: int, budget: Budget
) -> Panel:
    """Return the panel of these clients with so many samples of each, and note what is left out."""
    if len(clients) < problem.N:
        some = f"{len(clients)} of the {problem.N} clients, drawn at random,"
        budget.note(f"{some} were measured, and the runs used those alone.")
    if rows is None or not isinstance(problem, Supervised):
        return panel_of(problem, clients)
    return thinned(problem, clients, rows, seed, budget)


def panel_of(problem: Problem, clients: tuple[int, ...]) -> Panel:
    """Return a panel of some clients on all their data."""
    return Panel(problem if len(clients) == problem.N else _Some(problem, clients), clients)


def _samples(problem: Supervised, clients: Sequence[int], budget: Budget) -> int | None:
    """Return how many samples of each client to measure; None for all of them."""
    x, sizes = problem.x0(0), [problem.clients.size(i) for i in clients]
    largest = clients[max(range(len(clients)), key=lambda j: sizes[j])]
    data = problem.clients[largest]
    each = inf
    for few in (
        2,
        RULES.samples,
        *[8 * RULES.samples] * 8,
    ):  # The first is slow, and others use the machine too.
        some = data.cut(0, few)
        started = budget.spent
        problem.sample_gradient(x, some)
        took = budget.spent - started
        each = took / len(some) if few <= RULES.samples else min(each, took / len(some))
        if took * RULES.short > budget.seconds:
            break
    room = budget.seconds / RULES.passes / each  # This counts the samples of all clients together.
    if room >= sum(sizes):
        return None
    rows = max(RULES.samples, int(room / len(clients)))
    return rows if rows < max(sizes) else None


def thinned(
    problem: Supervised, clients: tuple[int, ...], rows: int, seed: int, budget: Budget
) -> Panel:
    """Return a panel of at most this many samples of each client, drawn at random."""
    kept = []
    for i in clients:
        data = problem.clients[i]
        draw = stream(seed, PARTITION, i)
        order = torch.randperm(len(data), generator=draw)[:rows].to(data.device)
        kept.append(data.take(order))
    p = problem.weights[list(clients)]
    some = f"At most {rows} samples of each client"
    budget.note(f"{some} were measured, and the runs used those alone.")
    edges = [_edges(len(data)) for data in kept]
    folds = [
        [data.cut(*ends[f]) for data, ends in zip(kept, edges, strict=True)]
        for f in range(RULES.folds)
    ]
    whole, *parts = (problem.replace(clients=part, weights=p, test=None) for part in (kept, *folds))
    sizes = [[end - start for start, end in ends] for ends in edges]
    full = [problem.clients.size(i) for i in clients]
    known = torch.tensor([len(data) / n for data, n in zip(kept, full, strict=True)])
    noise = [
        _smaller_batches(part, column)
        for part, column in zip(parts, zip(*sizes, strict=True), strict=True)
    ]
    scale = [
        [
            _variance(problem, n) / (_variance(part, size) or 1.0)
            for part, size in zip(noise, row, strict=True)
        ]
        for n, row in zip(full, sizes, strict=True)
    ]
    shares = torch.tensor(sizes, dtype=torch.float64)
    folded = Thinned(
        tuple(parts),
        shares / shares.sum(1, keepdim=True),
        known.double(),
        tuple(noise),
        torch.tensor(scale, dtype=torch.float64),
    )
    return Panel(whole, clients, folded)


def _edges(n: int) -> list[tuple[int, int]]:
    """Return where the folds of n samples start and end; fewer samples than folds are in each."""
    if n < RULES.folds:
        return [(0, n)] * RULES.folds
    cuts = [round(f * n / RULES.folds) for f in range(RULES.folds + 1)]
    return list(pairwise(cuts))


def _smaller_batches(fold: Supervised, sizes: Sequence[int]) -> Supervised:
    """Return a fold in mini-batches of half its samples, where those of the problem are all of it.

    A mini-batch of all samples that are measured has no noise, though it has some among all.
    """
    if fold.batch is None or fold.sampling == "iid":
        return fold
    too_large = any(batch_size(fold.batch, n) >= n > 1 for n in sizes)
    return fold.replace(batch=0.5) if too_large else fold


def _variance(problem: Supervised, n: int) -> float:
    """Return the variance of the mean of a mini-batch of n samples, in units of the samples'."""
    size = batch_size(problem.batch, n)
    if problem.batch is None:
        return 0.0
    return (1 - (1 if problem.sampling == "iid" else size) / n) / size


class _Some(Problem):
    """Some clients of a problem as a problem."""

    def __init__(self, problem: Problem, clients: Sequence[int]) -> None:
        self.whole, self.clients = problem, list(clients)
        self.N, self.d = len(clients), problem.d
        p = problem.weights[self.clients]
        self.weights = p / p.sum()
        self.symmetric = problem.symmetric
        self.constant_hessians = problem.constant_hessians

    def x0(self, seed: int = 0) -> Vector:
        return self.whole.x0(seed)

    def oracle(self, i: int, seed: int, r: int) -> Gradient:
        return self.whole.oracle(self.clients[i], seed, r)

    def client_gradient(self, i: int, x: Vector) -> Vector:
        return self.whole.client_gradient(self.clients[i], x)

    def client_loss(self, i: int, x: Vector) -> float:
        return self.whole.client_loss(self.clients[i], x)

    def client_hvp(self, i: int, x: Vector, V: Tensor) -> Tensor:
        return self.whole.client_hvp(self.clients[i], x, V)

    @property
    def chunk_hvp(self) -> Callable[[Sequence[int], Vector, Tensor], Tensor] | None:
        at_once = self.whole.chunk_hvp
        if at_once is None:
            return None
        return lambda some, x, V: at_once([self.clients[i] for i in some], x, V)

    def evaluate(self, x: Vector, client: int | None = None) -> dict[str, float]:
        if client is not None:
            return self.whole.evaluate(x, self.clients[client])
        return {"loss": self.loss(x)}
