"""Apps of Flower with `trimtab.flower` go through the points of the simulator."""

import pytest
import torch
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.app import Message as Reply
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn import functional as F

import trimtab.flower
from tests.helpers.flower_grid import Nodes
from trimtab import Momentum, ScaffoldOpt, Supervised, simulate
from trimtab import Scaffold as Simulated
from trimtab.commit import States
from trimtab.flower import Control, Scaffold

N, K = 10, 4


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labelled(sizes):
    clients = []
    for i, size in enumerate(sizes):
        X = normal(size, 4, seed=i) + normal(4, seed=50 + i) / 2
        clients.append((X, (X @ normal(4, 3, seed=100 + i)).argmax(1)))
    return clients


def net():
    torch.manual_seed(3)
    return nn.Linear(4, 3).double()


def sgd(parameters, **more):
    return torch.optim.SGD(parameters, lr=0.1, **more)


def app_of(clients, folder, *, make=net, optimizer=sgd, outer=(), inner=(), rows=None, **kept):
    app = ClientApp(mods=[*outer, Control(folder, **kept), *inner])

    @app.train()
    def train(msg, context):
        model = make()
        model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        X, y = clients[context.node_config["partition-id"]]
        step = optimizer(model.parameters())
        controls = trimtab.flower.controls(model, step)
        for _ in range(K):
            step.zero_grad()
            F.cross_entropy(model(X), y).backward()
            controls.correct()
            step.step()
        metrics = MetricRecord({"num-examples": len(y) if rows is None else rows(msg, context)})
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
        return Reply(RecordDict(content), reply_to=msg)

    return app


def strategy(S=N, **options):
    quiet = {"fraction_evaluate": 0.0, "min_available_nodes": N, "min_train_nodes": 1}
    return Scaffold(clients=N, fraction_train=S / N, **quiet, **options)


def flat(named):
    return torch.cat([value.reshape(-1) for value in named.values()])


def counted(scaffold, folder):
    """Return sum p_i c_i of the states that the server has accepted, from the clients' folders."""
    total = dict.fromkeys(scaffold.c, 0.0)
    shares = scaffold.sizes if len(scaffold.sizes) == N else dict.fromkeys(scaffold.sizes, 1)
    whole = sum(shares.values()) if len(scaffold.sizes) == N else N
    for name, accepted in scaffold.accepted.items():
        c_i, digest = States(folder / scaffold.experiment / name).load(accepted.tag)
        assert digest == accepted.digest
        total = {n: total[n] + shares[name] / whole * c_i[n] for n in total}
    return total


def audit(scaffold, folder):
    return float((flat(scaffold.c) - flat(counted(scaffold, folder))).abs().max())


EQUAL, UNEQUAL = [24] * N, [6 + 5 * i for i in range(N)]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("sizes", "S"), [(EQUAL, 10), (EQUAL, 3), (UNEQUAL, 10), (UNEQUAL, 3)])
def test_an_app_goes_through_the_points_of_the_simulator(sizes, S, momentum, tmp_path):
    clients = labelled(sizes)
    weights = dict(enumerate(sizes)) if sizes is UNEQUAL and S < N else None
    rows = (lambda *_: 7) if weights else None  # what a client reports does not count then
    app = app_of(clients, tmp_path, optimizer=lambda p: sgd(p, momentum=momentum), rows=rows)
    lossy = sizes is EQUAL or S < N
    nodes = Nodes(app, N, lost=lambda r, i: lossy and r > 1 and (7 * i + 3 * r) % 5 == 0)
    scaffold, seen = strategy(S, weights=weights), []

    def evaluate(r, arrays):
        seen.append((flat(arrays.to_torch_state_dict()), scaffold.c))
        assert not scaffold.c or audit(scaffold, tmp_path) < 1e-12

    scaffold.start(nodes, ArrayRecord(net().state_dict()), 12, evaluate_fn=evaluate)
    assert nodes.errors == []
    kind = {0.0: Simulated(eta_l=0.1, K=K)}.get(
        momentum, ScaffoldOpt(eta_l=0.1, K=K, base=Momentum(0.9))
    )
    problem = Supervised(net(), F.cross_entropy, clients, weights=sizes)
    rounds = simulate(kind, problem, cohorts=nodes.cohorts)
    assert len(nodes.cohorts) == 12
    for (x, c), expected in zip(seen[1:], rounds, strict=False):
        assert (x - expected.x).abs().max() < 1e-12
        assert (flat(c) - expected.server.c).abs().max() < 1e-12


def gradient(clients, sizes, x):
    """Return |grad f| at x."""
    model = net()
    model.load_state_dict(x)
    for (X, y), size in zip(clients, sizes, strict=True):
        (F.cross_entropy(model(X), y) * size / sum(sizes)).backward()
    return float(flat({name: p.grad for name, p in model.named_parameters()}).norm())


def test_adamw_keeps_c_and_reaches_the_stationary_point(tmp_path):
    clients = labelled(UNEQUAL)
    adamw = lambda p: torch.optim.AdamW(p, lr=0.1, eps=0.3, weight_decay=0.0)  # noqa: E731
    nodes = Nodes(app_of(clients, tmp_path, optimizer=adamw), N)
    scaffold, audits = strategy(), []
    result = scaffold.start(
        nodes,
        ArrayRecord(net().state_dict()),
        150,
        evaluate_fn=lambda r, _: audits.append(audit(scaffold, tmp_path) if r else 0.0),
    )
    assert len(audits) == 151
    assert max(audits) < 1e-12
    assert gradient(clients, UNEQUAL, result.arrays.to_torch_state_dict()) < 1e-6


class WithBuffers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.norm, self.out = nn.BatchNorm1d(4).double(), nn.Linear(4, 3).double()

    def forward(self, X):
        return self.out(self.norm(X))


def test_buffers_are_averaged_with_x_and_are_not_in_c(tmp_path):
    clients = labelled(EQUAL)
    model = WithBuffers()
    scaffold = strategy()
    nodes = Nodes(app_of(clients, tmp_path, make=WithBuffers), N)
    result = scaffold.start(nodes, ArrayRecord(model.state_dict()), 3)
    assert nodes.errors == []
    assert scaffold.c.keys() == dict(model.named_parameters()).keys()
    assert audit(scaffold, tmp_path) < 1e-12
    found = result.arrays.to_torch_state_dict()
    assert list(found) == list(model.state_dict())
    means = [WithBuffers() for _ in range(N)]
    for own, (X, _) in zip(means, clients, strict=True):
        for _ in range(3 * K):
            own.norm(X)
    expected = torch.stack([own.norm.running_mean for own in means]).mean(0)
    assert (found["norm.running_mean"] - expected).abs().max() < 1e-12
