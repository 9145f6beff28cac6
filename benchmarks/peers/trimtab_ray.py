"""trimtab on Ray: two actors on nodes of their own, with one CPU each."""

from pathlib import Path

from cluster import cluster
from protocol import Array, Turns, torch_model

from trimtab import FedAvg, Ray, Scaffold, load_problem, simulate

turns = Turns()
work = turns.work
model = torch_model(work)
file = Path(__file__).parents[1] / "cluster_problems.py"
problem = load_problem(f"{file}:workload", name=work.name)
kind = {"fedavg": FedAvg, "scaffold": Scaffold}[work.algorithm]
x = problem.x0()


def weights() -> list[Array]:
    """Return the parameters, without the buffers."""
    now = problem.unflatten(x)
    return [now[name].numpy() for name, _ in model.named_parameters()]


with cluster(2):
    sim = simulate(kind(eta_l=work.eta, K=work.K), problem, S=work.S, executor=Ray(actors=2))
    turns.begin(weights, "trimtab", "ray", "torch")
    for done in sim:
        x = done.x
        turns.done()
