"""Over the protocol, x and every c_i are those of the simulator's loop, bit for bit in float64."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers.federation_in_process import Federation, unsynced  # noqa: F401
from tests.helpers.learning import drawn_clients
from trimtab import (
    Adam,
    Dane,
    Epochs,
    FedAvg,
    FedDyn,
    FedNova,
    FedOpt,
    FedProx,
    Mime,
    MimeLite,
    MimeLiteMvr,
    MimeMvr,
    Momentum,
    RichardsonRomberg,
    Scaffnew,
    Scaffold,
    ScaffoldM,
    ScaffoldOpt,
    Scallion,
    ServerMvr,
    ServerOnly,
    Sgd,
    Supervised,
    Yogi,
    simulate,
)
from trimtab.core import leaves

ALGORITHMS = [
    Scaffold(eta_l=0.05, K=7, option="I"),
    Scaffold(eta_l=0.05, K=7, eta_g=0.7),
    Scaffold(eta_l=0.05, K=7, lean=True),
    Scaffold(eta_l=0.05, K=Epochs(2)),
    FedNova(eta_l=0.05, K=Epochs(1)),
    FedAvg(eta_l=0.05, K=7),
    FedProx(eta_l=0.05, K=7, mu=0.3),
    MimeLite(eta=0.02, K=5, base=Momentum()),
    Mime(eta=0.02, K=5, base=Adam()),
    FedOpt(eta_l=0.05, K=5, base=Yogi(), eta_g=0.1),
    Sgd(eta=0.2),
    ServerOnly(eta=0.1, base=Momentum()),
    RichardsonRomberg(FedAvg(eta_l=0.05, K=3)),
    Dane(eta_l=0.05, K=5, mu=0.3),
    MimeMvr(eta=0.05, K=5, a=0.3),
    MimeLiteMvr(eta=0.05, K=5, a=0.3),
    ServerMvr(eta=0.1, a=0.3),
    ScaffoldOpt(eta_l=0.02, K=5, base=Adam()),
    FedNova(eta_l=0.05, K=7),
    Scallion(eta_l=0.05, K=7, alpha=0.5),
    Scaffnew(eta_l=0.05, p=0.2),
    FedDyn(eta_l=0.05, K=7, alpha=0.5),
    ScaffoldM(eta_l=0.05, K=7, a=0.3),
]
SIZES = (23, 11, 40)


def clients():
    return drawn_clients(SIZES, 6, 4, seed=5)


def module():
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(5, 4))


def supervised(data, weights=None):
    return Supervised(module, F.cross_entropy, data, batch=8, weights=weights)


def assert_same(federation, sim, rounds, exact=True):
    for done in rounds:
        expected = next(sim)
        pairs = zip(leaves(done.server), leaves(expected.server), strict=True)
        assert all(torch.equal(ours, theirs) for ours, theirs in pairs), f"round {done.r}"
        assert (done.bytes_up, done.drift) == pytest.approx(
            (expected.bytes_up, expected.drift), nan_ok=True
        )
    if sim.states:
        for i, name in enumerate(federation.names):
            assert torch.equal(federation.control(name), sim.states[i])


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_ten_rounds_are_those_of_the_simulator(tmp_path, algorithm, weights):
    data = clients()
    whole = supervised(data, weights="samples" if weights == "samples" else None)
    x = supervised(data[:1]).x0(3).float()  # as a server has it that has no data
    federation = Federation(tmp_path, algorithm, whole, weights=weights, x=x)
    for i, name in enumerate(federation.names):  # each site has its own data only
        federation.sites[name].problem = supervised([data[i]] * len(data))
    rounds = federation.run()
    assert [done.r for done in rounds] == list(range(1, 11))
    sim = simulate(algorithm, whole, seed=3, executor="loop")
    assert_same(federation, sim, rounds)
    federation.close()
