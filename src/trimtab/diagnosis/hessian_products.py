"""Hessians by products with vectors: all of them in one common subspace (Rayleigh and Ritz).

What is said of Hess, of each Hess_i and of each Hess_i - Hess belongs to the same few directions,
in which Hess is exactly the mean of the Hess_i. So no two numbers contradict each other, however
early the time is over. A direction costs a product with every client's Hessian; the next ones are
where the clients that seem steepest and most different, and Hess, leave the subspace (Davidson).
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from math import inf, nan

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.core.streams import NOISE, PARTITION, stream
from trimtab.core.task import Progress
from trimtab.diagnosis.budget import Budget, OutOfTime
from trimtab.diagnosis.hessians import Hessians, Restricted, root_mean
from trimtab.diagnosis.lanczos import Spectrum
from trimtab.diagnosis.measure import Sampled
from trimtab.diagnosis.panel import Panel
from trimtab.diagnosis.rules import RULES
from trimtab.diagnosis.theory import weighted

PROBES = 4  # 4 random vectors rank the clients


def by_products(
    panel: Panel,
    x: Vector,
    seed: int,
    budget: Budget,
    out_of_time: OutOfTime,
    worst: int = RULES.followed,
    share: float | None = None,
) -> Generator[Progress, None, Hessians]:
    """Rank the clients by random vectors, and follow Hess and the worst of them."""
    yield Progress("random vectors through every Hessian", share)
    space = _Subspace(panel, x, seed, out_of_time)
    if space.seen < panel.problem.N:
        budget.note(
            f"Only {space.seen} of {panel.problem.N} Hessians, drawn at random, were looked at."
        )
    most = max(
        PROBES,
        min(RULES.directions, panel.problem.d, RULES.stored // (panel.problem.d * (3 + worst))),
    )
    followed: dict[int, None] = {}
    late = False
    while len(space.Q) < most:
        ends = space.ends(followed, worst)
        if not ends:
            break
        late = out_of_time()
        if late:
            break
        yield Progress(f"Hessians in {len(space.Q)} directions", share)
        if not space.add(torch.stack(ends[: most - len(space.Q)])):
            late = late or out_of_time()
            break
    if late:
        budget.note(f"The Hessians were looked at in {len(space.Q)} directions only.")
    return space.conclude(tuple(followed))


@dataclass(frozen=True)
class _Ritz:
    """The Ritz value of largest size of a matrix in the subspace, and what the matrix adds."""

    value: float
    residual: float
    away: Vector  # M v - value v for the Ritz vector v: the direction to look at next


class _Subspace:
    """Orthonormal directions Q, and what every client's Hessian does in them."""

    def __init__(self, panel: Panel, x: Vector, seed: int, out_of_time: OutOfTime) -> None:
        d = panel.problem.d
        self.panel, self.x, self.out_of_time = panel, x, out_of_time
        # Those that there is time for are drawn at random, so that they stand for all.
        order = torch.randperm(panel.problem.N, generator=stream(seed, PARTITION, 8))
        self.clients: list[int] = order.tolist()
        self.Q = x.new_zeros(0, d)
        self.HQ = x.new_zeros(0, d)  # Hess times each direction
        self.images: dict[int, Tensor] = {}  # Hess_i times each direction, of those followed
        self.seen = panel.problem.N
        self.parts = self._no_parts()  # Hess_i in the directions by folds: (clients, folds, m, m)
        draw = torch.randn(min(PROBES, d), d, generator=stream(seed, NOISE, 1), dtype=torch.float64)
        self.frobenius = torch.zeros(self.seen, 2, dtype=torch.float64)
        self._first(self._fresh(draw.to(x)))

    @property
    def p(self) -> Tensor:
        """The weights of the clients that were looked at, which sum to 1."""
        p = self.panel.p[self.clients]
        return p / p.sum()

    # -- directions

    def _fresh(self, V: Tensor) -> Tensor:
        """Return V without what lies in the subspace, orthonormal; what is left of it."""
        V = V / V.norm(dim=1, keepdim=True).clamp_min(1e-30)
        kept: list[Vector] = []
        for v in V:
            Q = torch.cat([self.Q, *(k[None] for k in kept)])
            for _ in range(2):  # Twice is enough (Kahan, Parlett).
                v = v - (Q @ v) @ Q
            if float(v.norm()) > 1e-3:
                kept.append(v / v.norm())
        return torch.stack(kept) if kept else V[:0]

    def _first(self, V: Tensor) -> None:
        """Look at the first directions, at as many clients as there is time for."""
        each = dict(zip(self.clients, self._all_products(V), strict=False))
        self.clients = sorted(each)
        products = torch.stack([each[i] for i in self.clients])
        self.seen = len(products)
        both = self._mean(products)
        mean = weighted(self.p, both)
        scale = (self.panel.problem.d / len(V)) ** 0.5  # V spans so small a part of all directions.
        self.frobenius = (
            torch.stack([norms.square().sum((1, 2)).sqrt() for norms in (both, both - mean)], 1)
            .cpu()
            .double()
            * scale
        )
        self.parts = self._no_parts()
        self._grow(V, products, mean)

    def add(self, V: Tensor) -> bool:
        """Look at further directions; False if there are none, or the time is over before."""
        V = self._fresh(V)
        if not len(V):
            return False
        products, mean = [], torch.zeros_like(V)
        wide = torch.cat([self.Q, V])
        images = {}
        for i, folds in enumerate(self._all_products(V)):
            both = self._mean(folds[None], [i])[0]
            mean.add_(both, alpha=float(self.p[i]))
            if i in self.images:
                images[i] = both
            # Only what is seen of it in the subspace is kept, since there may be many clients.
            products.append(folds @ wide.T)
        if len(products) < self.seen:
            return False
        for i, image in images.items():
            self.images[i] = torch.cat([self.images[i], image])
        self._grow(V, torch.stack(products), mean, inside=True)
        return True

    def _no_parts(self) -> Tensor:
        return torch.zeros(self.seen, len(self.panel.fold_panels), 0, 0, dtype=torch.float64)

    def _mean(self, parts: Tensor, some: Sequence[int] | None = None) -> Tensor:
        """Return what the folds have together; some: which of the clients these are."""
        if self.panel.thinned is None:
            return parts[:, 0]
        numbers = self.clients if some is None else [self.clients[i] for i in some]
        return self.panel.thinned.mean(parts, numbers)

    def _all_products(self, V: Tensor) -> Iterator[Tensor]:
        """Yield Hess_i V on each fold for one client after the other, until the time is over."""
        how = (self.x, V, self.out_of_time, self.clients)
        folds = (panel.all_products(*how) for panel in self.panel.fold_panels)
        for products in zip(*folds, strict=False):
            yield torch.stack(products)

    def _grow(self, V: Tensor, products: Tensor, mean: Tensor, inside: bool = False) -> None:
        """Add the directions V, with Hess_i V by folds (`inside`: in the subspace) and Hess V."""
        m, k = len(self.Q), len(V)
        self.Q, self.HQ = torch.cat([self.Q, V]), torch.cat([self.HQ, mean])
        rows = (products if inside else products @ self.Q.T).cpu().double()
        rows[..., m:] = (rows[..., m:] + rows[..., m:].mT) / 2
        parts = rows.new_zeros(*rows.shape[:2], m + k, m + k)
        parts[..., :m, :m] = self.parts
        parts[..., m:, :] = rows
        parts[..., :, m:] = rows.mT
        self.parts, self.A = parts, self._mean(parts)  # A: Hess_i in the directions

    # -- where the subspace is left

    @property
    def mean(self) -> Tensor:
        """Hess in the subspace."""
        return weighted(self.p, self.A)

    def image(self, i: int) -> Tensor:
        """Return Hess_i times each direction."""
        if i not in self.images:
            number = self.clients[i]
            folds = [fold.products(number, self.x, self.Q) for fold in self.panel.fold_panels]
            self.images[i] = self._mean(torch.stack(folds)[None], [i])[0]
        return self.images[i]

    def _ritz(self, M: Tensor, image: Tensor, *, least: bool = False) -> _Ritz:
        """Return the Ritz pair of largest size, or the least one, of the matrix with this image."""
        values, U = torch.linalg.eigh(M)
        j = 0 if least else int(values.abs().argmax())
        u = U[:, j].to(image)
        value = float(values[j])
        away = u @ image - value * (u @ self.Q)
        return _Ritz(value, float(away.norm()), away)

    def of_mean(self, *, least: bool = False) -> _Ritz:
        """Return the Ritz pair of largest size of Hess, or its least one."""
        return self._ritz(self.mean, self.HQ, least=least)

    def of_client(self, i: int) -> tuple[_Ritz, _Ritz]:
        """Return the Ritz pairs of largest size of Hess_i, and of Hess_i - Hess."""
        image = self.image(i)
        return (
            self._ritz(self.A[i], image),
            self._ritz(self.A[i] - self.mean, image - self.HQ),
        )

    def ends(self, followed: dict[int, None], worst: int) -> list[Vector]:
        """Return where Hess and the worst clients leave the subspace, if they have not settled."""
        mean = self.of_mean()
        size = max(abs(mean.value), 1e-30)
        away = [mean.away] if mean.residual > RULES.residual * size else []
        least = self.of_mean(least=True)
        away += [least.away] if least.residual > RULES.residual * size else []
        open_ = 0
        for i in self._suspects():
            if i not in followed and len(followed) >= worst:
                continue
            followed[i] = None
            for ritz in self.of_client(i):
                if ritz.residual > RULES.residual * max(abs(ritz.value), 1e-30):
                    away.append(ritz.away)
                    open_ += 1
            if open_:  # The others wait until this one has settled.
                break
        # The least eigenvalue alone is not worth a pass: it settles late, or never.
        return away if open_ or (away and mean.residual > RULES.residual * size) else []

    def _suspects(self) -> list[int]:
        """Return the clients that may be steepest or most different, the likeliest first."""
        own, apart = self.norms()
        found: list[int] = []
        for values, by_chance in ((apart, self.frobenius[:, 1]), (own, self.frobenius[:, 0])):
            top = float(values.max())
            guess = torch.maximum(values, RULES.unlikely * _estimated(values, by_chance))
            order = guess.argsort(descending=True).tolist()
            found += [i for i in order if float(guess[i]) >= top and values[i] > 0]
        return list(dict.fromkeys(found))

    def norms(self) -> tuple[Tensor, Tensor]:
        """Return |Hess_i| and |Hess_i - Hess| of each client, in the subspace."""
        own, apart = (torch.linalg.eigvalsh(M).abs().amax(1) for M in (self.A, self.A - self.mean))
        return own, apart

    # -- what follows

    def conclude(self, followed: tuple[int, ...]) -> Hessians:
        """Return what is known of all clients."""
        N, mean = self.panel.problem.N, self.mean
        all_seen = self.seen == N
        values = torch.linalg.eigvalsh(mean)
        own = torch.linalg.eigvalsh(self.A)
        steep, apart = self.norms()
        delta = float(apart.max())
        guess = _estimated(apart, self.frobenius[:, 1]).clamp_max(delta)
        known = tuple(float(apart[i] if i in followed else guess[i]) for i in range(self.seen))
        second = root_mean(self.p, known)
        residuals = self._residuals(followed)
        sizes = {"L": float(own.abs().max()), "delta": delta, "mu": float(values.abs().max())}
        settled = {
            name: residuals[name] <= RULES.residual * max(sizes[name], 1e-30) for name in sizes
        }
        errors = self._errors(residuals, steep, apart, values, followed)
        at_least = root_mean(self.p, tuple(apart.tolist()))
        errors["second"] = second - at_least + residuals["delta"]
        width, deviations = mean.shape[0], None
        if self.panel.thinned is not None:
            deviations = self.panel.thinned.deviations(self.parts, self.clients)
        return Hessians(
            L=sizes["L"],
            mu=float(values[0]),
            delta=delta,
            weak=min(0.0, float(own.min())),
            second=second,
            apart=tuple(dict(zip(self.clients, known, strict=True)).get(i, nan) for i in range(N)),
            measured=tuple(i in {self.clients[j] for j in followed} for i in range(N)),
            spectra={
                self.clients[i]: Spectrum(
                    tuple(torch.linalg.eigvalsh(self.A[i] - mean).tolist()), (1 / width,) * width
                )
                for i in followed
            },
            norm=float(values.abs().max()),
            exact=len(followed) == N and settled["L"] and settled["delta"],
            mu_exact=settled["mu"] and all_seen,
            rough=not (settled["L"] and settled["delta"]),
            errors=errors,
            restricted=Restricted(
                Sampled(self.A, deviations), self.p.cpu().double(), self.Q, tuple(self.clients)
            ),
        )

    def _residuals(self, followed: tuple[int, ...]) -> dict[str, float]:
        """Return within which distance of L, delta, mu and |Hess| an eigenvalue lies."""
        whole = len(self.Q) >= self.panel.problem.d
        if whole or not followed:
            return dict.fromkeys(("L", "delta", "mu", "norm"), 0.0 if whole else inf)
        looks = [self.of_client(i) for i in followed]
        own, apart = (max(pair, key=lambda r: abs(r.value)) for pair in zip(*looks, strict=True))
        least, mean = self.of_mean(least=True), self.of_mean()
        return {
            "L": own.residual,
            "delta": apart.residual,
            "mu": least.residual,
            "norm": mean.residual,
        }

    def _errors(
        self,
        residuals: dict[str, float],
        steep: Tensor,
        apart: Tensor,
        values: Tensor,
        followed: tuple[int, ...],
    ) -> dict[str, float]:
        """Return what the iteration may have left out of L, delta, mu and |Hess|.

        The largest may be that of a client that was not followed, whose own residual counts; others
        that were not may exceed it; and the next directions may move mu and |Hess| on.
        """
        if len(self.Q) >= self.panel.problem.d:
            return dict(residuals)
        own, differing = residuals["L"], residuals["delta"]
        if not self.out_of_time():
            own = self.of_client(int(steep.argmax()))[0].residual
            differing = self.of_client(int(apart.argmax()))[1].residual
        least, norm = self._moved_late(values)
        return {
            "L": max(own, _beyond(steep, self.frobenius[:, 0], followed)),
            "delta": max(differing, _beyond(apart, self.frobenius[:, 1], followed)),
            "mu": residuals["mu"] + least,
            "norm": residuals["norm"] + norm,
        }

    def _moved_late(self, values: Tensor) -> tuple[float, float]:
        """Return by how much the last quarter of the directions still moved mu and |Hess|.

        That an eigenvalue is near does not say that it is the outermost: there may be one beyond,
        to which the next directions would have moved as the last ones did.
        """
        k = max(1, 3 * len(self.Q) // 4)
        earlier = torch.linalg.eigvalsh(self.mean[:k, :k])
        norm = float(values.abs().max() - earlier.abs().max())
        return float(earlier[0] - values[0]), norm


def _estimated(values: Tensor, by_chance: Tensor) -> Tensor:
    """Return what random vectors suggest for each client, where no client has more than that."""
    return float((values / by_chance.clamp_min(1e-30)).max()) * by_chance


def _beyond(values: Tensor, by_chance: Tensor, followed: tuple[int, ...]) -> float:
    """Return by how much one who should have been followed, and was not, may exceed the largest."""
    others = [i for i in range(len(values)) if i not in followed]
    most = RULES.unlikely * float(_estimated(values, by_chance)[others].max()) if others else 0.0
    return max(0.0, most - float(values.max()))
