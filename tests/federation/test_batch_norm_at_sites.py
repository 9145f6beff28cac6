"""BatchNorm in a federation: the pooled statistics of a simulation, in the model that leaves."""

from itertools import islice

import pytest
import torch
from safetensors.torch import load_file

import trimtab
from tests.helpers.command import trimtab as command
from tests.helpers.federation_in_process import Federation, names, quadratic, unsynced  # noqa: F401
from trimtab import Scaffold, Supervised, simulate
from trimtab.federation.message import Message
from trimtab.federation.protocol.coordinator import Coordinator
from trimtab.federation.protocol.site import Site
from trimtab.federation.protocol.statistics import FILE, Layers, saved
from trimtab.federation.setup.operator import Federation as Operator
from trimtab.federation.storage.ledger import read

FILE_TEXT = """
import torch
from torch import nn
from torch.nn import functional as F


def model():
    layers = [nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5), nn.BatchNorm1d(5)]
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(5, 2)).double(), F.cross_entropy


def silo(data):
    X, y, X_test, y_test = torch.load(data)
    return (X, y), (X_test, y_test)
"""
ALGORITHM, R = Scaffold(eta_l=0.3, K=4), 6


def part(i, n=12):
    draw = torch.Generator().manual_seed(i)
    X = torch.randn(2 * n, 4, generator=draw, dtype=torch.float64)
    y = (X[:, 0] > 0).long()
    X = (1 + i) * X + 10 + 3 * i
    return X[:n], y[:n], X[n:], y[n:]


def problem_of(file):
    clients = [part(i)[:2] for i in range(3)]
    tests = [part(i)[2:] for i in range(3)]
    _, loss = file._built()
    return Supervised(lambda: file._built()[0], loss, clients, batch=4, tests=tests)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FILE_TEXT)
    words = ("--sites", ",".join(names(3)), "--problem", "mine.py")
    assert command(capsys, "federate", "init", "made", *words)[0] == 0
    for i, site in enumerate(names(3)):
        torch.save(part(i), tmp_path / f"{site}.pt")
    file = Operator.read(tmp_path / "made").problem

    class Own(Federation):
        file = None

        def site(self, name):
            own = self.file.site_problem(tmp_path / f"{name}.pt", 4)
            return Site(self.folder / "sites" / name, name, own)

    Own.file = file
    server = file.server_problem()
    (tmp_path / "made" / "state").mkdir(exist_ok=True)
    made = Own(tmp_path, ALGORITHM, server, N=3, R=R, seed=7, norms=Layers.of(server))
    yield made
    made.close()


@pytest.fixture
def ended(run):
    """Return a federation whose rounds are over, in the operator's folder."""
    run.server.close()
    run.folder = run.folder / "made"
    run.server = Coordinator(run.folder / "state", ALGORITHM, run.names, **run.options)
    run.run()
    return run


def test_x_and_the_statistics_are_those_of_a_simulation(ended):
    problem = problem_of(ended.file)
    sim = simulate(ALGORITHM, problem, seed=7, x=problem.x0(), executor="loop")
    *_, end = islice(sim, R)
    x = ended.server.standing.server.x
    assert torch.equal(x, end.x)
    found, expected = read(ended.folder / "state" / FILE), problem.statistics(x)
    assert found["r"] == R
    assert set(found.arrays) == {name for name in expected if "tracked" not in name}
    for name, tensor in found.arrays.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-12, atol=1e-12)
    metrics = ended.server.outcome.metrics
    assert metrics["accuracy"] == pytest.approx(problem.evaluate(x)["accuracy"], rel=5e-3)
    assert metrics["loss"] == pytest.approx(problem.evaluate(x)["loss"], rel=5e-3)


def test_the_saved_model_has_the_accuracy_of_the_report(ended, capsys):
    code, out, _ = command(capsys, "federate", "model", "made", "out")
    assert (code, out.split(":")[0]) == (0, f"Model of round {R}")
    model = trimtab.load("out")
    X, y = (torch.cat([part(i)[j] for i in range(3)]) for j in (2, 3))
    right = float((torch.from_numpy(model.predict(X)) == y).double().mean())
    reported = ended.server.outcome.metrics["accuracy"]
    assert right == pytest.approx(reported, rel=5e-3)
    assert model.card.metrics["accuracy"] == reported
    assert right > 0.7
    model.module[1].reset_running_stats()
    assert float((torch.from_numpy(model.predict(X)) == y).double().mean()) < right - 0.1
    assert not torch.equal(load_file("out/model.safetensors")["1.running_mean"], torch.zeros(6))


def test_a_model_of_rounds_that_go_on_has_no_statistics_yet(ended, refused):
    problem = ended.file.server_problem()
    with refused("no statistics of BatchNorm after round 5", "resume it with -R 5"):
        saved(ended.folder / "state", problem, 5)


CLAIMS = {
    "a negative variance": lambda arrays: arrays | {"2": -arrays["2"]},
    "a count that is none": lambda arrays: arrays | {"0": arrays["0"] + 0.5},
    "too few channels": lambda arrays: arrays | {"1": arrays["1"][:2]},
    "infinity": lambda arrays: arrays | {"1": arrays["1"] / 0},
    "another array": lambda arrays: arrays | {"9": arrays["1"]},
    "a mean out of all proportion": lambda arrays: arrays | {"1": 1e3 * arrays["1"]},
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_site_whose_statistics_cannot_be_sits_out(run, name):
    def ask(requests, timeout):
        for site, reply in run.ask(requests, timeout):
            wrong = reply.header["kind"] == "statistics" and site == "site1"
            yield site, Message(reply.header, CLAIMS[name](reply.arrays)) if wrong else reply

    run.run(ask)
    problem = problem_of(run.file)
    x = run.server.standing.server.x
    found = read(run.folder / "server" / FILE).arrays["1.running_mean"]
    own = [problem.statistics(x, client=i)["1.running_mean"] for i in (0, 2)]
    torch.testing.assert_close(found, sum(own) / 2)


def test_fewer_statistics_than_sites_are_needed_are_asked_for_again(run):
    run.restart_server(min_sites=3)
    asked = []

    def ask(requests, timeout):
        first = {request.header["kind"] for request in requests.values()} == {"statistics"}
        asked.append(first)
        for site, reply in run.ask(requests, timeout):
            if not (first and sum(asked) == 1 and site == "site1"):
                yield site, reply

    run.run(ask)
    assert sum(asked) == 2
    assert run.server.outcome.r == R


def test_other_problems_are_asked_for_no_statistics(tmp_path):
    made = Federation(tmp_path, ALGORITHM, quadratic(), R=2, norms=Layers.of(quadratic()))
    kinds = set()

    def ask(requests, timeout):
        kinds.update(request.header["kind"] for request in requests.values())
        return made.ask(requests, timeout)

    made.run(ask)
    assert kinds == {"hello", "work", "evaluate"}
    assert not (tmp_path / "server" / FILE).exists()
    made.close()
