"""Structured data, tables and data sets in a federation: the simulation of the same."""

from importlib.util import find_spec
from itertools import islice

import pytest
import torch

from tests.helpers.federation_in_process import Federation, names, unsynced  # noqa: F401
from trimtab import Scaffold, Supervised, simulate
from trimtab.federation.protocol.site import Site
from trimtab.federation.setup.problem_file import ProblemFile

START = """
import torch
from torch import nn
from torch.nn import functional as F
from trimtab import Columns, Fields, OnBatch

class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 2), nn.Linear(1, 2)

    def forward(self, left, right):
        return {"logits": self.left(left) + self.right(right)}

def of_logits(output, y):
    return F.cross_entropy(output["logits"], y)

def on_batch(module, batch):
    return of_logits(module(batch["left"], batch["right"]), batch["y"])
"""
NAMED = """
def model():
    return Towers(), of_logits

def silo(data):
    left, right, y = torch.load(data)
    X = {"left": left.numpy(), "right": right.numpy()}
    return (X, y.numpy()), (X, y.numpy())
"""
BATCHES = """
def model():
    return Towers(), OnBatch(on_batch)

def silo(data):
    left, right, y = torch.load(data)
    return [{"left": left, "right": right, "y": y}] * 2
"""
LOOSE = """
def collate(samples):
    left, right, y = zip(*samples)
    return {"left": torch.tensor(left), "right": torch.tensor(right)}, torch.tensor(y)

def model():
    return Towers(), of_logits

def silo(data):
    left, right, y = torch.load(data)
    return [list(zip(left.tolist(), right.tolist(), y.tolist()))] * 2
"""
FRAME = """
import pandas

columns = Columns(numbers=dict.fromkeys("abc", (0.5, 2.0)), categories={}, target="y")

def model():
    return nn.Linear(3, 2), F.cross_entropy

def silo(data):
    left, right, y = torch.load(data)
    return [pandas.DataFrame(left.numpy(), columns=list("abc")).assign(y=y.numpy())] * 2
"""
DATASET = """
import datasets

columns = Fields(inputs=["left", "right"], target="y")

def model():
    return Towers(), of_logits

def silo(data):
    left, right, y = torch.load(data)
    rows = {"left": left.tolist(), "right": right.tolist(), "y": y.tolist()}
    return [datasets.Dataset.from_dict(rows)] * 2
"""


def parts(i):
    draw = torch.Generator().manual_seed(i)
    left = torch.randn(9 + i, 3, generator=draw)
    return left, left[:, :1] ** 2, torch.arange(9 + i) % 2


def named(i):
    left, right, y = parts(i)
    return {"left": left, "right": right}, y


FILES = {
    "named": (NAMED, None),
    "batches": (BATCHES, None),
    "collate": (LOOSE, None),
    "frame": (FRAME, "pandas"),
    "dataset": (DATASET, "datasets"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_federation_is_the_simulation(tmp_path, name):
    text, package = FILES[name]
    if package is not None and find_spec(package) is None:
        pytest.skip(f"pip install 'trimtab[{package}]'")
    (tmp_path / "problem.py").write_text(START + text)
    file = ProblemFile(tmp_path / "problem.py")
    for i, site in enumerate(names(3)):
        torch.save(parts(i), tmp_path / f"{site}.pt")

    class Own(Federation):
        def site(self, name):
            return Site(self.folder / name, name, file.site_problem(tmp_path / f"{name}.pt", 4))

    algorithm = Scaffold(eta_l=0.2, K=3)
    run = Own(tmp_path, algorithm, file.server_problem(), N=3, R=4, seed=7)
    done = run.run()
    _, loss = file._built()
    if name == "frame":
        clients = [((parts(i)[0] - 0.5) / 2, parts(i)[2]) for i in range(3)]
    elif name == "batches":
        clients = [{**named(i)[0], "y": named(i)[1]} for i in range(3)]
    else:
        clients = [named(i) for i in range(3)]
    problem = Supervised(lambda: file._built()[0], loss, clients, batch=4)
    rounds = simulate(algorithm, problem, seed=7, x=problem.x0(), executor="loop")
    *_, end = islice(rounds, 4)
    torch.testing.assert_close(run.server.standing.server.x, end.x, rtol=1e-5, atol=1e-6)
    assert set(done[-1].metrics) >= {"loss"} | (set() if name == "batches" else {"accuracy"})
    run.close()
