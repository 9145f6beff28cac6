"""Hessians by products with vectors: random ones rank the clients, Lanczos looks at the worst."""

from collections.abc import Generator
from dataclasses import dataclass
from math import nan

import torch
from torch import Tensor

from trimtab.core import Vector
from trimtab.core.streams import NOISE, stream
from trimtab.core.task import Progress
from trimtab.diagnosis.budget import Budget, OutOfTime
from trimtab.diagnosis.hessians import Hessians, consistent, root_mean
from trimtab.diagnosis.lanczos import Product, Spectrum, lanczos
from trimtab.diagnosis.panel import Panel
from trimtab.diagnosis.theory import weighted

PROBES, LARGE, FEW_PROBES = 8, 100_000, 2  # 8 random vectors rank the clients, 2 if d > 100,000
WORST = 12  # Lanczos looks at the Hessians of >= 12 clients
SAFETY = 1.2  # a client is left out if 1.2 x its estimated norm < the largest norm seen


def by_products(
    panel: Panel,
    x: Vector,
    seed: int,
    budget: Budget,
    out_of_time: OutOfTime,
    worst: int = WORST,
    share: float | None = None,
) -> Generator[Progress, None, Hessians]:
    """Rank the clients by random vectors, and run Lanczos on the worst."""
    yield Progress("random vectors through every Hessian", share)
    ranking = _rank(panel, x, seed, budget, out_of_time)
    products = _Products(panel, x, ranking.longest)
    yield Progress("Lanczos on the mean Hessian", share)
    of_f = lanczos(
        products.of_mean,
        ranking.start,
        most=60,
        ends=True,
        tolerance=1e-3,
        out_of_time=out_of_time,
    )
    looks: dict[int, _Look] = {}
    for i in ranking.order():
        if len(looks) >= worst and _cannot_be_worst(ranking, looks, i):
            continue
        if out_of_time() and looks:
            budget.note(
                f"Lanczos looked at the Hessians of {len(looks)} of {ranking.seen} clients."
            )
            break
        yield Progress(f"Lanczos on the Hessian of client {panel.clients[i]}", share)
        own = lanczos(
            products.of_client(i), ranking.start, most=40, ends=True, out_of_time=out_of_time
        )
        apart = lanczos(products.apart(i), ranking.start, most=40, out_of_time=out_of_time)
        looks[i] = _Look(own, apart)
    return consistent(_conclude(panel, ranking, products, of_f, looks))


@dataclass(frozen=True)
class _Ranking:
    """What a few random vectors say of every client's Hessian."""

    start: Vector  # one of the random vectors
    seen: int  # the clients 0, ..., seen - 1 were looked at
    p: Tensor  # their weights, which sum to 1
    own: Tensor  # about the Frobenius norm of each Hess_i
    apart: Tensor  # about the Frobenius norm of each Hess_i - Hess
    longest: float  # the largest |Hess_i v| for |v| = 1

    def order(self) -> list[int]:
        """Return the clients, those first whose Hess_i - Hess or Hess_i are large."""
        ranked = (sizes.argsort(descending=True).tolist() for sizes in (self.apart, self.own))
        return list(dict.fromkeys(i for pair in zip(*ranked, strict=True) for i in pair))


def _rank(panel: Panel, x: Vector, seed: int, budget: Budget, out_of_time: OutOfTime) -> _Ranking:
    """Send a few random vectors through every client's Hessian."""
    p, N, d = panel.p, panel.problem.N, panel.problem.d
    probes = FEW_PROBES if d > LARGE else PROBES
    V = torch.randn(probes, d, generator=stream(seed, NOISE, 1), dtype=torch.float64).to(x)
    HV = torch.zeros(N, probes, d, dtype=x.dtype, device=x.device)
    seen = N
    for i in range(N):
        HV[i] = panel.products(i, x, V)
        if out_of_time():
            seen = i + 1
            break
    if seen < N:
        budget.note(f"Only {seen} of {N} Hessians were looked at.")
    q, HV = p[:seen] / p[:seen].sum(), HV[:seen]
    return _Ranking(
        start=V[0],
        seen=seen,
        p=q,
        own=HV.square().sum(2).mean(1).sqrt(),
        apart=(HV - weighted(q, HV)).square().sum(2).mean(1).sqrt().double().cpu(),
        longest=float((HV.norm(dim=2) / V.norm(dim=1)).max()),
    )


class _Products:
    """Products with Hess_i, Hess and Hess_i - Hess, of which those of the last are watched.

    For |v| = 1, |Hess_i v| <= |Hess_i| and |Hess v| <= |Hess|.
    """

    def __init__(self, panel: Panel, x: Vector, longest: float) -> None:
        self.panel, self.x = panel, x
        self.longest = longest  # the largest |Hess_i v| that was seen
        self.longest_of_mean = 0.0  # the largest |Hess v| that was seen

    def of_mean(self, v: Vector) -> Vector:
        """Return Hess v."""
        return self.panel.mean_products(self.x, v)

    def of_client(self, i: int) -> Product:
        """Return v -> Hess_i v."""
        return lambda v: self.panel.products(i, self.x, v)

    def apart(self, i: int) -> Product:
        """Return v -> (Hess_i - Hess) v."""

        def product(v: Vector) -> Vector:
            H_i, H = self.panel.products(i, self.x, v), self.of_mean(v)
            self.longest = max(self.longest, float(H_i.norm()))
            self.longest_of_mean = max(self.longest_of_mean, float(H.norm()))
            return H_i - H

        return product


@dataclass(frozen=True)
class _Look:
    """What Lanczos found of one client."""

    own: Spectrum  # the spectrum of Hess_i
    apart: Spectrum  # the spectrum of Hess_i - Hess


def _norm_per_frobenius(ranking: _Ranking, looks: dict[int, _Look]) -> float:
    """Return the largest ratio of spectral norm and Frobenius norm among the clients seen."""
    ratios = (look.apart.norm / max(float(ranking.apart[i]), 1e-30) for i, look in looks.items())
    return max(ratios, default=0.0)


def _cannot_be_worst(ranking: _Ranking, looks: dict[int, _Look], i: int) -> bool:
    """Tell whether client i differs less than the worst, as far as random vectors can tell."""
    top = max((look.apart.norm for look in looks.values()), default=0.0)
    return SAFETY * _norm_per_frobenius(ranking, looks) * float(ranking.apart[i]) < top


def _conclude(
    panel: Panel,
    ranking: _Ranking,
    products: _Products,
    of_f: Spectrum,
    looks: dict[int, _Look],
) -> Hessians:
    """Return what follows for all clients from those that Lanczos looked at."""
    N, factor = panel.problem.N, _norm_per_frobenius(ranking, looks)
    known = tuple(
        looks[i].apart.norm if i in looks else factor * float(ranking.apart[i])
        for i in range(ranking.seen)
    )
    own = [look.own for look in looks.values()]
    apart = [look.apart for look in looks.values()]
    settled = all(spectrum.settled for spectrum in (of_f, *own, *apart))
    return Hessians(
        L=max(products.longest, *(s.norm for s in own)),
        mu=of_f.least,
        delta=max(s.norm for s in apart),
        weak=min(0.0, *(s.least for s in own)),
        second=root_mean(ranking.p, known),
        apart=known + (nan,) * (N - ranking.seen),
        measured=tuple(i in looks for i in range(N)),
        spectra={i: look.apart for i, look in looks.items()},
        norm=max(of_f.norm, products.longest_of_mean),
        exact=len(looks) == N and settled,
        mu_exact=of_f.settled,
        rough=not settled,
    )
