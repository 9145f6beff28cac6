"""The problems of benchmarks/cluster.py, which every actor makes for itself."""

from collections.abc import Callable

import torch
from torch import Tensor

from trimtab import Supervised
from trimtab.problems.problem import normalised
from trimtab_papers.bench import WORKLOADS
from trimtab_papers.bench.measurement import problem_of


def workload(name: str) -> Supervised:
    """Return a workload of `trimtab bench`."""
    work = WORKLOADS[name]
    return problem_of(work, work.clients())


class Numbered:
    """N clients with f_i(x) = |x - b_i|^2 / 2, each b_i a function of the client's number."""

    def __init__(self, N: int, d: int) -> None:
        self.N, self.d = N, d
        self.weights = normalised(None, N)
        self.fingerprint = f"Numbered/2 N={N} d={d}"
        self._steps = torch.linspace(-1.0, 1.0, d)

    def x0(self, seed: int = 0) -> Tensor:
        """Return zero."""
        return torch.zeros(self.d)

    def oracle(self, i: int, seed: int, r: int) -> Callable[..., Tensor]:
        """Return y - b_i."""
        b = self._steps * (1 + i % 97)
        return lambda y, k=None: y - b

    def evaluate(self, x: Tensor, client: int | None = None) -> dict[str, float]:
        """Return |x|^2 / 2, which is enough for a benchmark."""
        return {"loss": float(x.square().sum()) / 2}


def numbered(N: int, d: int) -> Numbered:
    """Return such clients."""
    return Numbered(N, d)
