"""Change the step size between rounds, stop in the middle, and go on bit for bit.

Ten quadratics with noisy gradients. At a constant step SCAFFOLD comes near x* and then hovers about
it, at a distance that noise and step size set; halving eta_l every 50 rounds goes on. There is no
scheduler: `sim.algorithm` may be replaced by any algorithm with the same states. The second run is
saved after round 120 and loaded again. Takes about 7 s and prints

    mean |x - x*| over rounds   constant     halved
             1 to 50               0.567      0.567
            51 to 100              0.348      0.238
           101 to 150              0.350      0.180
           151 to 200              0.349      0.118
    changes: round 50, round 100, round 150
    loaded run equals the other, bit for bit: True
"""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from trimtab import Quadratic, Scaffold, Simulation, simulate
from trimtab.problems.catalogue import quadratic_problem

R, HALVE, STOP = 200, 50, 120


def advance(sim: Simulation, to: int, halve: int | None = None) -> list[float]:
    """Run until round `to`, halving eta_l after every `halve` rounds; return distances to x*."""
    distances = []
    for round in islice(sim, to - sim.r):
        distances.append(sim.problem.evaluate(round.x)["distance"])
        if halve and round.r % halve == 0 and round.r < R:
            sim.algorithm = replace(sim.algorithm, eta_l=sim.algorithm.eta_l / 2)
    return distances


def main() -> None:
    problem: Quadratic = quadratic_problem(sigma=1.0)
    algorithm = Scaffold(eta_l=0.2, K=10)
    constant = advance(simulate(algorithm, problem, S=5), R)

    sim = simulate(algorithm, problem, S=5)
    halved = advance(sim, STOP, HALVE)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.safetensors"
        sim.save(path)
        loaded = Simulation.load(path, sim.algorithm, problem)  # with the algorithm of that moment
    halved += advance(sim, R, HALVE)
    advance(loaded, R, HALVE)

    print("mean |x - x*| over rounds   constant     halved")
    for r in range(0, R, HALVE):
        means = (sum(run[r : r + HALVE]) / HALVE for run in (constant, halved))
        print(f"{r + 1:>10} to {r + HALVE:<11}", *(f"{mean:10.3f}" for mean in means))
    print("changes:", ", ".join(f"round {r}" for r, _ in sim.changes))
    print("loaded run equals the other, bit for bit:", torch.equal(loaded.server.x, sim.server.x))


if __name__ == "__main__":
    main()
