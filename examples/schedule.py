"""Change the step size from round to round, stop in the middle, and go on bit for bit.

Ten quadratics with noisy gradients. At a constant step SCAFFOLD comes near x* and then hovers about
it, at a distance that noise and step size set; halving eta_l every 50 rounds goes on. A schedule is
a factor on a field of the algorithm that it wraps: tuning eta_l tunes all of it. The second run is
saved after round 120 and loaded again. Takes about 7 s and prints

    mean |x - x*| over rounds   constant     halved
             1 to 50               0.567      0.567
            51 to 100              0.348      0.238
           101 to 150              0.350      0.180
           151 to 200              0.349      0.118
    loaded run equals the other, bit for bit: True
"""

from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from trimtab import Piecewise, Quadratic, Scaffold, Scheduled, Simulation, simulate
from trimtab.problems.catalogue import quadratic_problem

R, HALVE, STOP = 200, 50, 120


def advance(sim: Simulation, to: int) -> list[float]:
    """Run until round `to`; return distances to x*."""
    return [sim.problem.evaluate(round.x)["distance"] for round in islice(sim, to - sim.r)]


def main() -> None:
    problem: Quadratic = quadratic_problem(sigma=1.0)
    algorithm = Scaffold(eta_l=0.2, K=10)
    constant = advance(simulate(algorithm, problem, S=5), R)

    halving = Scheduled(algorithm, eta_l=Piecewise(((51, 0.5), (101, 0.25), (151, 0.125))))
    sim = simulate(halving, problem, S=5)
    halved = advance(sim, STOP)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.safetensors"
        sim.save(path)
        loaded = Simulation.load(path, halving, problem)
    halved += advance(sim, R)
    advance(loaded, R)

    print("mean |x - x*| over rounds   constant     halved")
    for r in range(0, R, HALVE):
        means = (sum(run[r : r + HALVE]) / HALVE for run in (constant, halved))
        print(f"{r + 1:>10} to {r + HALVE:<11}", *(f"{mean:10.3f}" for mean in means))
    print("loaded run equals the other, bit for bit:", torch.equal(loaded.server.x, sim.server.x))


if __name__ == "__main__":
    main()
