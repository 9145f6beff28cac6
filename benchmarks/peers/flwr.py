"""Flower: its simulation on Ray, one actor on each core, the loop of its PyTorch quickstart.

Flower has FedAvg but no SCAFFOLD; the one here is written where Flower wants such things written:
a Strategy that treats c in aggregate_train, and c_i in the client's Context.state.
"""

import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

from collections.abc import Iterable

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from protocol import Turns, torch_clients, torch_model, torch_weights
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

State = dict[str, Tensor]
turns = Turns()
work = turns.work
model = torch_model(work)
names = list(model.state_dict())


def zeros() -> State:
    """Return a control variate to start from."""
    return {name: torch.zeros_like(p) for name, p in model.state_dict().items()}


def part(arrays: ArrayRecord, prefix: str) -> State:
    """Return x or c of a record that holds both."""
    state = arrays.to_torch_state_dict()
    return {name: state[prefix + name] for name in names}


def both(x: State, c: State) -> ArrayRecord:
    """Return x, and for SCAFFOLD c, as one record."""
    pairs = {"x": x} if work.algorithm == "fedavg" else {"x": x, "c": c}
    return ArrayRecord({f"{p}{name}": state[name] for p, state in pairs.items() for name in names})


client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train on one client, as in Flower's quickstart; for SCAFFOLD with its correction."""
    scaffold = work.algorithm == "scaffold"
    arrays = message.content["arrays"]
    x = part(arrays, "x")
    net = torch_model(work)
    net.load_state_dict(x)
    if scaffold:
        c = part(arrays, "c")
        kept = context.state.get("c_i")
        c_i = kept.to_torch_state_dict() if kept else zeros()
    mine = work.clients()[int(context.node_config["partition-id"])]
    data = TensorDataset(*torch_clients([mine])[0])
    loader = DataLoader(data, batch_size=work.b, shuffle=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=work.eta)
    for _ in range(work.epochs):
        for X, target in loader:
            optimizer.zero_grad()
            F.cross_entropy(net(X), target).backward()
            if scaffold:
                for name, p in net.named_parameters():
                    p.grad += c[name] - c_i[name]
            optimizer.step()
    y, dc = net.state_dict(), zeros()
    if scaffold:
        steps = work.epochs * len(loader) * work.eta
        dc = {name: (x[name] - y[name]) / steps - c[name] for name in names}
        context.state["c_i"] = ArrayRecord({name: c_i[name] + dc[name] for name in names})
    metrics = MetricRecord({"num-examples": len(data)})
    content = RecordDict({"arrays": both(y, dc), "metrics": metrics})
    return Message(content=content, reply_to=message)


class Scaffold(FedAvg):
    """FedAvg of x; c moves by S/N of the mean change of c_i."""

    c = zeros()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average as FedAvg does, then put the new c in place of its mean change."""
        mean, metrics = super().aggregate_train(server_round, replies)
        dc = part(mean, "c")
        self.c = {name: self.c[name] + work.S / work.N * dc[name] for name in names}
        return both(part(mean, "x"), self.c), metrics


def evaluate(server_round: int, arrays: ArrayRecord) -> None:
    """Take turns: Flower calls this before the first round and after each."""
    model.load_state_dict(part(arrays, "x"))
    if server_round:
        turns.done()
    else:
        turns.begin(lambda: torch_weights(model), "flwr", "ray", "torch")


server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run rounds until told to stop."""
    kind = Scaffold if work.algorithm == "scaffold" else FedAvg
    strategy = kind(
        fraction_train=work.S / work.N,
        fraction_evaluate=0.0,
        min_train_nodes=work.S,
        min_available_nodes=work.N,
    )
    start = both(model.state_dict(), zeros())
    strategy.start(grid, start, num_rounds=10**9, evaluate_fn=evaluate, timeout=None)


run_simulation(
    server_app,
    client_app,
    num_supernodes=work.N,
    backend_config={"client_resources": {"num_cpus": 1}},
)
