"""Whatever leaves as a model has the statistics that its report was measured with."""

import json
from importlib.util import find_spec

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

import trimtab
from tests.helpers.command import trimtab as command
from trimtab import FedAvg, Scaffold, Supervised, compare, load_problem
from trimtab.problems.clients import STATISTICS
from trimtab.report import write_page
from trimtab.simulation import Simulation, simulate
from trimtab.studies.holdout import read_model
from trimtab.studies.run import run

FILE = """
import torch
from torch import nn
from torch.nn import functional as F

from trimtab import Supervised


def module():
    layers = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5), nn.BatchNorm1d(5)]
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(5, 2))


def part(i, n):
    draw = torch.Generator().manual_seed(i)
    X = torch.randn(n, 6, generator=draw)
    return 3 * X + 20 + i, (X[:, 0] > 0).long()


def problem():
    clients = [part(i, 20 + 4 * i) for i in range(4)]
    return Supervised(module, F.cross_entropy, clients, part(1, 60), batch=0.5)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("problem") / "mine.py"
    path.write_text(FILE)
    return path


def accuracy(model, problem):
    """Return the accuracy of a plain module or a loaded model on the test data."""
    X, y = problem.test.X, problem.test.y
    predicted = model(X).argmax(1) if isinstance(model, nn.Module) else model.predict(X)
    return float((torch.as_tensor(predicted) == y).double().mean())


def by_initial_buffers(problem, x):
    """Return the accuracy of the wrong model: with buffers as they were in the beginning."""
    module = problem.module_at(x)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm1d):
            layer.reset_running_stats()
    return accuracy(module, problem)


def test_run_leaves_a_model_with_the_accuracy_of_its_record(tmp_path, file, capsys):
    problem = load_problem(f"{file}:problem")
    done = run(Scaffold(eta_l=0.5, K=5), problem, R=20, name="mine", out=tmp_path)
    model = trimtab.load(tmp_path)
    reported = done.entries[0].curve[done.chosen.round - 1].metrics["accuracy"]
    assert reported > 0.8
    assert accuracy(model, problem) == accuracy(model.module, problem) == reported
    assert model.card.metrics["accuracy"] == reported
    x = problem.flatten(model.module.state_dict())
    assert by_initial_buffers(problem, x) < reported - 0.1
    assert accuracy(problem.module_at(x), problem) == reported
    best = load_file(next(tmp_path.glob("**/best.safetensors")))
    for name, tensor in problem.unflatten(x).items():
        assert torch.equal(best[name], tensor), name
    assert (
        STATISTICS in json.loads((tmp_path / "run.json").read_text())["outcome"]["about"]["notes"]
    )
    assert STATISTICS in model.card.notes
    # The model starts another run, which estimates its statistics again.
    assert torch.equal(read_model(next(tmp_path.glob("**/best.safetensors")), problem), x)
    layer = model.module[1]
    model.module.train()(problem.test.X)
    assert int(layer.num_batches_tracked) == 2  # It keeps statistics again.


def test_compare_leaves_models_with_the_accuracy_of_their_reports(tmp_path, file):
    problem = load_problem(f"{file}:problem")
    settings = {"R": 4, "K": 3, "seeds": 1, "budget": 2e4, "metric": "loss"}
    found = compare(f"{file}:problem", ["sgd", "scaffold"], **settings, out=tmp_path / "one")
    for entry in found.entries:
        model = trimtab.load(tmp_path / "one", algorithm=entry.name)
        assert accuracy(model, problem) == model.card.metrics["accuracy"]
    page = write_page(found, tmp_path / "report.html").read_text()
    assert "mean (pooled / own statistics)" in page
    workers = compare(
        f"{file}:problem", ["sgd", "scaffold"], **settings, out=tmp_path / "two", jobs=2
    )
    assert [(e.settings, e.best, e.tests, e.per_client) for e in workers.entries] == [
        (e.settings, e.best, e.tests, e.per_client) for e in found.entries
    ]


@pytest.mark.skipif(
    not all(map(find_spec, ("onnxscript", "onnxruntime"))), reason="pip install 'trimtab[onnx]'"
)
def test_onnx_has_the_statistics(tmp_path, file, capsys):
    import onnxruntime

    problem = load_problem(f"{file}:problem")
    run(FedAvg(eta_l=0.2, K=5), problem, R=8, name="mine", out=tmp_path)
    code, _, _ = command(capsys, "export", tmp_path, "--to", "onnx")
    assert code == 0
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    p = torch.from_numpy(session.run(None, {"inputs": problem.test.X.numpy()})[0])
    right = (p.argmax(1) == problem.test.y).double().mean()
    assert float(right) == trimtab.load(tmp_path).card.metrics["accuracy"]


@pytest.mark.parametrize("executor", ["loop", "batched", "threads", "tree-2"])
def test_a_run_that_is_resumed_goes_on_bit_for_bit(tmp_path, file, executor):
    problem = load_problem(f"{file}:problem")
    sims = [simulate(Scaffold(eta_l=0.2, K=5), problem, executor=executor) for _ in range(2)]
    for _ in range(2):
        next(sims[0])
    next(sims[1])
    problem.evaluate(sims[1].server.x)
    sims[1].save(tmp_path / "checkpoint.safetensors")
    fresh = load_problem(f"{file}:problem")
    again = Simulation.load(tmp_path / "checkpoint.safetensors", sims[1].algorithm, fresh)
    next(again)
    assert torch.equal(again.server.x, sims[0].server.x)
    assert torch.equal(again.server.c, sims[0].server.c)


# -- ResNet-18 as it is


class Block(nn.Module):
    """The basic block of ResNet (He et al., 2016)."""

    def __init__(self, inside, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = None
        if stride != 1 or inside != width:
            self.downsample = nn.Sequential(
                nn.Conv2d(inside, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, X):
        around = X if self.downsample is None else self.downsample(X)
        X = F.relu(self.bn1(self.conv1(X)))
        return F.relu(self.bn2(self.conv2(X)) + around)


class ResNet18(nn.Module):
    """ResNet-18 with the stem and the head of its paper."""

    def __init__(self, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1, self.maxpool = nn.BatchNorm2d(64), nn.MaxPool2d(3, stride=2, padding=1)
        widths = ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
        self.layers = nn.Sequential(
            *(layer for i, w, s in widths for layer in (Block(i, w, s), Block(w, w, 1)))
        )
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(512, classes)

    def forward(self, X):
        X = self.maxpool(F.relu(self.bn1(self.conv1(X))))
        return self.fc(self.avgpool(self.layers(X)).flatten(1))


def test_resnet18_with_batch_norm_runs_three_rounds_as_it_is():
    draw = torch.Generator().manual_seed(0)
    pairs = [(torch.randn(6, 3, 32, 32, generator=draw), torch.arange(6) % 10) for _ in range(3)]
    problem = Supervised(ResNet18, F.cross_entropy, pairs[:2], pairs[2], batch=3)
    assert problem.d == 11_181_642  # of torchvision's resnet18 with ten classes
    assert len(problem.model.norms) == 20
    sim = simulate(Scaffold(eta_l=0.01, K=2), problem)
    for done in sim:
        if done.r == 3:
            break
    assert len(done.server.c) == problem.d
    module = problem.module_at(done.x)
    with torch.no_grad():
        loss = F.cross_entropy(module(pairs[2][0]), pairs[2][1]).item()
    assert problem.evaluate(done.x)["loss"] == pytest.approx(loss, rel=1e-4)
    assert sim.audit() < 1e-4
