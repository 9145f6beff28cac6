"""How many gradients each of N clients computes until E|x - x*|^2 is small, the step tuned."""

from itertools import islice
from math import ceil, log
from typing import Any

from trimtab.core.task import Progress
from trimtab.simulation import simulate
from trimtab_papers import many_runs
from trimtab_papers.mangold2025.speedup.cells import quadratics
from trimtab_papers.many_runs import Chains
from trimtab_papers.names import build
from trimtab_papers.numbers import rounded
from trimtab_papers.reproduction import Computing

H = 10
EPS2 = 3e-4  # the target: E|x - x*|^2 <= 3e-4
SIZES = (2, 4, 8, 16, 32)
FINE = 2**0.5  # the ratio of neighbouring step sizes


def gradients_to_target(seed: int, quick: bool) -> Computing:
    """Run both with steps around the one whose stationary variance is half the target."""
    M, found = 100 if quick else 300, []
    for N in SIZES[::2] if quick else SIZES:
        model = quadratics(N)
        many, x_star = Chains(model, M), many_runs.optimum(model)
        of_one = float(many_runs.stationary_covariance(model, x_star, 1.0).trace())
        top = 1 / (H * model.quadratic.L)
        steps = [EPS2 / (2 * of_one) * FINE**j for j in ((1,) if quick else (-1, 0, 1, 2))]
        row: dict[str, Any] = {"N": N, "largest step": top}
        for name in ("fedavg", "scaffold"):
            counts = {}
            for gamma in (step for step in steps if step <= top):
                yield Progress(f"{name} with N = {N}, gamma = {gamma:.2g}")
                R = ceil(1.5 * log(9 / EPS2) / (2 * gamma * H * model.quadratic.mu))
                runs = simulate(
                    build(name, gamma, H), many, x=many.start(x_star + 3**0.5), seed=seed
                )
                errors = (many.rows(done.x) - x_star for done in islice(runs, R))
                small = (float(e.square().sum(1).mean()) <= EPS2 for e in errors)
                rounds = next((r for r, there in enumerate(small, start=1) if there), None)
                counts[f"{gamma:.3g}"] = None if rounds is None else H * rounds
            there = [count for count in counts.values() if count is not None]
            row[name] = {"gradients": min(there, default=None), "by step": counts}
        found.append(row)
    settings = {"kind": "gradients", "seed": seed, "H": H, "chains": M, "eps^2": EPS2}
    return rounded({"settings": settings, "rows": found})
