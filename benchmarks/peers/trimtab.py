"""trimtab: ours, with the executor it chooses; `--compile`: a module compiled by torch.compile."""

import sys

import torch
from protocol import Array, Turns, torch_clients, torch_loss, torch_model

from trimtab import FedAvg, Scaffold, Supervised, simulate

turns = Turns()
work = turns.work
model = torch_model(work)
if "--compile" in sys.argv:
    model = torch.compile(model, dynamic=False)
problem = Supervised(model, torch_loss(work), torch_clients(turns.clients), batch=work.b)
for i in range(problem.N):
    problem.clients[i]  # read and checked before the clock runs
kind = {"fedavg": FedAvg, "scaffold": Scaffold}[work.algorithm]
sim = simulate(kind(eta_l=work.eta, K=work.K), problem, S=work.S)
x = problem.x0()


def weights() -> list[Array]:
    """Return the parameters, without the buffers."""
    now = problem.unflatten(x)
    return [now[name].numpy() for name, _ in model.named_parameters()]


turns.begin(weights, "trimtab", "torch")
for done in sim:
    x = done.x
    turns.done()
