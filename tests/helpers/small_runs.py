"""Every algorithm with its messages by hand, a small noisy quadratic, and clients that rest."""

from itertools import islice
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from trimtab import (
    Adagrad,
    Adam,
    FedAvg,
    FedOpt,
    FedProx,
    Mime,
    MimeLite,
    Momentum,
    Quadratic,
    RichardsonRomberg,
    Scaffold,
    ServerOnly,
    Sgd,
    Supervised,
    Yogi,
    simulate,
)
from trimtab.core import leaves

N, D = 6, 3


class Exchanges(NamedTuple):
    """Vectors of length d to and from a client, one pair for each exchange of a round."""

    down: tuple[int, ...]
    up: tuple[int, ...]


# What an engine sends: counted by hand from the tables in the papers, not from the code.
ALGORITHMS = {
    Sgd(eta=0.1): Exchanges((1,), (1,)),
    FedAvg(eta_l=0.1, K=3): Exchanges((1,), (1,)),
    FedProx(eta_l=0.1, K=3): Exchanges((1,), (1,)),
    Scaffold(eta_l=0.1, K=3): Exchanges((2,), (2,)),
    Scaffold(eta_l=0.1, K=3, option="I"): Exchanges((2,), (2,)),
    Scaffold(eta_l=0.1, K=3, lean=True): Exchanges((2,), (1,)),
    FedOpt(eta_l=0.1, K=3, base=Momentum(), eta_g=0.1): Exchanges((1,), (1,)),
    FedOpt(eta_l=0.1, K=3, base=Yogi(), eta_g=0.1): Exchanges((1,), (1,)),
    MimeLite(eta=0.01, K=3, base=Momentum()): Exchanges((1 + 1,), (2,)),
    MimeLite(eta=0.01, K=3, base=Adam()): Exchanges((1 + 2,), (2,)),
    Mime(eta=0.01, K=3, base=Momentum()): Exchanges((1, 1 + 1 + 1), (1, 1)),
    Mime(eta=0.01, K=3, base=Adam()): Exchanges((1, 1 + 2 + 1), (1, 1)),
    ServerOnly(eta=0.01, base=Adagrad()): Exchanges((1,), (1,)),
    ServerOnly(eta=0.01, base=Adam()): Exchanges((1,), (1,)),
    RichardsonRomberg(FedAvg(eta_l=0.1, K=3)): Exchanges((2,), (2,)),
}
SCAFFOLD = Scaffold(eta_l=0.1, K=3)
FEDAVG = FedAvg(eta_l=0.1, K=3)


def quadratic(dtype=torch.float64, sigma=0.5, weights=(1, 2, 3, 4, 5, 6), kind=Quadratic):
    draw = torch.Generator().manual_seed(0)
    A = 0.5 + torch.rand(N, D, generator=draw, dtype=torch.float64)
    b = torch.randn(N, D, generator=draw, dtype=torch.float64)
    return kind(A.to(dtype), b.to(dtype), sigma, weights)


SIZES = (4, 13, 5, 9, 20, 7)  # of the clients of `supervised`


def supervised(build=lambda: nn.Linear(4, 3), **settings):
    """Return clients of unequal size, in mini-batches of 4 of which the last one may be short."""
    draw = torch.Generator().manual_seed(1)
    clients = [
        (
            torch.randn(n, 4, generator=draw, dtype=torch.float64),
            torch.randint(3, (n,), generator=draw),
        )
        for n in SIZES
    ]
    return Supervised(build, F.cross_entropy, clients, **{"batch": 4, **settings})


def linear():
    """Return a problem that the kernel can play."""
    return supervised()


class Watched(Quadratic):
    """A quadratic that notes whom it computes for, one list for each exchange of each round."""

    def oracle(self, i, seed, r):
        exchanges = self.__dict__.setdefault("computed", {}).setdefault(r, [[]])
        if exchanges[-1] and i <= exchanges[-1][-1]:
            exchanges.append([])
        exchanges[-1].append(i)
        return super().oracle(i, seed, r)


class Resting:
    """N clients in R^1 that cost next to nothing."""

    d = 1

    def __init__(self, N):
        self.N = N
        self.weights = torch.full((1,), 1 / N, dtype=torch.float64).expand(N)

    def x0(self, seed=0):
        return torch.zeros(1)

    def oracle(self, i, seed, r):
        return lambda y, k=None: torch.zeros_like(y)


def run(algorithm, problem, R, **settings):
    """Return the simulation and its first R rounds."""
    sim = simulate(algorithm, problem, **settings)
    return sim, list(islice(sim, R))


def same(a, b):
    """Tell whether two states have the same bits."""
    ours, theirs = leaves(a), leaves(b)
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


def whole(sim):
    """Return all that a simulation remembers: the server's state and the clients'."""
    return sim.r, sim.server, {i: sim.states[i] for i in sim.states}


def same_simulation(a, b):
    (r, server, states), (r2, server2, states2) = whole(a), whole(b)
    return (
        r == r2
        and same(server, server2)
        and list(states) == list(states2)
        and all(same(states[i], states2[i]) for i in states)
    )


def history(rounds):
    """Return what rounds tell, without the time they took."""
    return [(r.r, r.cohort, r.bytes_down, r.bytes_up, r.x.tolist()) for r in rounds]
