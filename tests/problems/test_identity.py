"""Fingerprints: equal in another process, different where anything that counts differs."""

import logging
import subprocess
import sys
from copy import deepcopy
from enum import Enum
from functools import partial, wraps
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from tests.helpers.learning import CLASSES, FEATURES, clients, data, net, randn
from trimtab import FedAvg, OnBatch, Quadratic, Simulation, Supervised, simulate
from trimtab.problems import catalogue
from trimtab.problems.adapter import as_problem
from trimtab.problems.identity import (
    compare_fingerprints,
    hashed_code,
    hashed_tensors,
    matches_fingerprint,
)
from trimtab.problems.supervised import hugging_face

MODULE = net()
WEIGHT = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
GAMMA = 2.0
HERE = Path(__file__)


class Focal:
    """A callable object."""

    scale = 1.0

    def __init__(self, gamma):
        self.gamma = gamma

    def __call__(self, output, y):
        return self.loss(output, y)

    def loss(self, output, y):
        each = F.cross_entropy(output, y, reduction="none")
        return self.scale * ((1 - torch.exp(-each)) ** self.gamma * each).mean()


class Slotted:
    """A callable object without a __dict__."""

    __slots__ = ("gamma",)

    def __init__(self, gamma):
        self.gamma = gamma

    def __call__(self, output, y):
        return self.gamma * F.cross_entropy(output, y)


class Scaled(nn.CrossEntropyLoss):
    """A module with a parameter of its own."""

    def __init__(self, scale):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale), requires_grad=False)

    def forward(self, output, y):
        return self.scale * super().forward(output, y)


class Kind(Enum):
    ONE = 1
    TWO = 2


def captured(value):
    """Return a function that captured a value."""

    def loss(output, y):
        return _helped(F.cross_entropy(output, y), value)

    return loss


def _helped(loss, value):
    return loss if value is None else GAMMA * loss


def with_default(value):
    def loss(output, y, by=value):
        return by * F.cross_entropy(output, y)

    return loss


def with_keyword(value):
    def loss(output, y, *, by=value):
        return by * F.cross_entropy(output, y)

    return loss


def doubled(function, by):
    """Return a function that bears the name of another."""

    @wraps(function)
    def wrapped(*inputs):
        return by * function(*inputs)

    return wrapped


LOSSES = {  # pairs that differ
    "function": lambda: (F.cross_entropy, F.multi_margin_loss),
    "function and module": lambda: (nn.CrossEntropyLoss(), F.cross_entropy),
    "smoothing": lambda: (
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.CrossEntropyLoss(label_smoothing=0.5),
    ),
    "class weights": lambda: (nn.CrossEntropyLoss(WEIGHT), nn.CrossEntropyLoss(2 * WEIGHT)),
    "ignored label": lambda: (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(ignore_index=1)),
    "hook": lambda: (hooked(2), hooked(3)),
    "parameter": lambda: (Scaled(1.0), Scaled(2.0)),
    "partial": lambda: (
        partial(F.cross_entropy, label_smoothing=0.1),
        partial(F.cross_entropy, label_smoothing=0.5),
    ),
    "partial of tensors": lambda: (
        partial(F.cross_entropy, weight=WEIGHT),
        partial(F.cross_entropy, weight=WEIGHT + 1),
    ),
    "lambdas": lambda: (
        lambda output, y: F.cross_entropy(output, y),
        lambda output, y: F.multi_margin_loss(output, y),
    ),
    "constants": lambda: (
        lambda output, y: 1.0 * F.cross_entropy(output, y),
        lambda output, y: 2.0 * F.cross_entropy(output, y),
    ),
    "inner functions": lambda: (
        lambda output, y: (lambda z: 1.0 * z)(F.cross_entropy(output, y)),
        lambda output, y: (lambda z: 2.0 * z)(F.cross_entropy(output, y)),
    ),
    "captured number": lambda: (captured(1.0), captured(2.0)),
    "captured tensor": lambda: (captured(WEIGHT), captured(WEIGHT + 1)),
    "captured list": lambda: (captured([1, {"a": 2}]), captured([1, {"a": 3}])),
    "captured set": lambda: (captured({"a", "b", "c"}), captured({"a", "b", "d"})),
    "captured enum": lambda: (captured(Kind.ONE), captured(Kind.TWO)),
    "captured array": lambda: (captured(numpy.ones(2)), captured(numpy.zeros(2))),
    "captured function": lambda: (captured(torch.relu), captured(torch.tanh)),
    "captured path": lambda: (captured(Path("a")), captured(Path("b"))),
    "default": lambda: (with_default(1.0), with_default(2.0)),
    "keyword": lambda: (with_keyword(1.0), with_keyword(2.0)),
    "callable object": lambda: (Focal(1.0), Focal(2.0)),
    "slots": lambda: (Slotted(1.0), Slotted(2.0)),
    "method": lambda: (Focal(1.0).loss, Focal(2.0).loss),
    "under another name": lambda: (doubled(F.cross_entropy, 1.0), F.cross_entropy),
    "wrapped": lambda: (doubled(F.cross_entropy, 1.0), doubled(F.cross_entropy, 2.0)),
}


def hooked(by):
    loss = nn.CrossEntropyLoss()
    loss.register_forward_hook(lambda module, inputs, value: by * value)
    return loss


def problem_of(loss=F.cross_entropy, module=MODULE, **settings):
    return Supervised(module, loss, clients(5, 2), **settings)


@pytest.mark.parametrize("make", LOSSES.values(), ids=LOSSES.keys())
def test_losses_that_differ_have_other_fingerprints_and_equal_ones_the_same(make):
    one, other = (problem_of(loss) for loss in make())
    again, _ = (problem_of(loss) for loss in make())
    assert one.fingerprint == again.fingerprint
    assert "?" not in one.fingerprint
    assert matches_fingerprint(other, one.fingerprint).differs == ("the loss differs",)


def test_the_same_problem_has_the_same_fingerprint_in_another_process():
    code = (
        "from tests.problems import test_identity as t\n"
        "for make in t.LOSSES.values(): print(t.hashed_code(make()))\n"
        "print(t.hashed_code(t.Custom(), values=False))"
    )
    command = [sys.executable, "-c", code]
    words = {"cwd": HERE.parents[2], "capture_output": True, "text": True, "check": True}
    there = subprocess.run(command, **words).stdout.split()
    here = [hashed_code(make()) for make in LOSSES.values()]
    assert there == [*here, hashed_code(Custom(), values=False)]


def test_a_global_that_a_loss_uses_counts(monkeypatch):
    before = problem_of(captured(1.0)).fingerprint
    monkeypatch.setitem(globals(), "GAMMA", 3.0)
    after = problem_of(captured(1.0))
    assert matches_fingerprint(after, before).differs == ("the loss differs",)


def test_a_class_that_a_loss_is_of_counts(monkeypatch):
    before = problem_of(Focal(1.0)).fingerprint
    monkeypatch.setattr(Focal, "scale", 2.0)
    assert matches_fingerprint(problem_of(Focal(1.0)), before).differs == ("the loss differs",)


def test_a_record_that_a_loss_keeps_of_its_calls_does_not_count():
    def made():
        calls = []

        def loss(output, y):
            calls.append(len(y))
            return F.cross_entropy(output, y)

        return problem_of(loss)

    used, fresh = made(), made()
    used.gradient(used.x0())
    assert used.fingerprint == fresh.fingerprint


@pytest.mark.parametrize(
    "value",
    [torch.Generator(), logging.getLogger(__name__), object(), iter([1])],
    ids=lambda value: type(value).__name__,
)
def test_of_what_cannot_be_looked_into_nothing_is_said_but_in_a_warning(value):
    problem = problem_of(captured(value))
    found = matches_fingerprint(problem_of(captured(value)), problem.fingerprint)
    assert found.differs == ()
    assert found.unknown == ("the loss",)
    assert "nothing can be said of the loss" in found.warning
    assert matches_fingerprint(problem_of(Focal(1.0)), problem.fingerprint).differs


def test_code_of_another_python_is_not_compared():
    problem = problem_of(captured(1.0))
    stored = problem_of(captured(2.0)).fingerprint.replace("loss=py3", "loss=py2")
    assert matches_fingerprint(problem, stored).unknown == ("the loss",)
    assert matches_fingerprint(problem_of(), stored).differs == ("the loss differs",)


# -- modules and metrics


class Custom(nn.Module):
    """A module with code, an attribute and a buffer of its own."""

    def __init__(self, power=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.power = nn.Linear(FEATURES, CLASSES), power

    def forward(self, X):
        return self.layer(X) ** self.power


class CustomToo(Custom):
    def forward(self, X):
        return self.layer(X.abs()) ** self.power


CustomToo.__name__ = "Custom"  # as if its file had been edited


def hooked_module():
    module = Custom()
    module.register_forward_hook(lambda module, inputs, output: 2 * output)
    return module


@pytest.mark.parametrize(
    "build", [lambda: Custom(2.0), CustomToo, hooked_module, lambda: Custom().eval()]
)
def test_what_a_module_computes_counts(build):
    before = problem_of(module=Custom())
    assert problem_of(module=Custom()).fingerprint == before.fingerprint
    found = matches_fingerprint(problem_of(module=build()), before.fingerprint)
    assert "the module differs" in found.differs


def test_use_does_not_change_a_fingerprint():
    problem = problem_of(module=Custom(), batch=2)
    next(simulate(FedAvg(eta_l=0.1, K=2), problem))
    problem.evaluate(problem.x0())
    assert problem.fingerprint == problem_of(module=Custom(), batch=2).fingerprint


def test_metrics_count():
    before = problem_of(metrics={"half": lambda output, y: 0.5})
    after = problem_of(metrics={"half": lambda output, y: 0.6})
    assert matches_fingerprint(after, before.fingerprint).differs == ("the metrics differ",)


# -- what differs is named


def test_everything_that_differs_is_named():
    one = problem_of(batch=32)
    changed = deepcopy(clients(5, 2))
    changed[1][0][0, 0] += 1e-9
    cases = {
        "batch was 32, is now 64": one.replace(batch=64),
        "sampling was reshuffle, is now iid": one.replace(sampling="iid"),
        "l2 was 0.0, is now 0.1": one.replace(l2=0.1),
        "autocast was None, is now torch.bfloat16": one.replace(autocast=torch.bfloat16),
        "the weights of the clients differ": one.replace(weights=[1, 2]),
        "the data of the clients differ": one.replace(clients=changed),
        "the test data differ": one.replace(test=data(4)),
        "the parameters or buffers of the module differ": one.replace(module=net(seed=1)),
    }
    for words, other in cases.items():
        assert matches_fingerprint(other, one.fingerprint).differs == (words,)
    fewer = one.replace(clients=clients(5))
    assert "N was 2, is now 1" in matches_fingerprint(fewer, one.fingerprint).differs
    found = matches_fingerprint(pair(), one.fingerprint)
    assert found.differs == ("it was a Supervised, is now a Quadratic",)


def pair(**settings):
    return Quadratic([2.0, 0.5], [1.0, -1.0], **settings)


def test_a_resume_with_another_batch_size_says_so(tmp_path, refused):
    path = tmp_path / "sim"
    algorithm = FedAvg(eta_l=0.1, K=1)
    simulate(algorithm, problem_of(batch=2)).save(path)
    with refused("sim was saved with another problem: batch was 2, is now 3; pass the problem"):
        Simulation.load(path, algorithm, problem_of(batch=3))


def test_a_resume_of_what_cannot_be_compared_warns(tmp_path):
    path = tmp_path / "sim"
    algorithm, problem = FedAvg(eta_l=0.1, K=1), problem_of(captured(torch.Generator()))
    simulate(algorithm, problem).save(path)
    with pytest.warns(UserWarning, match="nothing can be said of the loss"):
        Simulation.load(path, algorithm, problem)


class Lazy(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, j):
        return randn(FEATURES), 1


def test_of_data_that_are_read_later_nothing_can_be_said():
    for given in ([Lazy()], Sequence()):
        problem = Supervised(MODULE, F.cross_entropy, given)
        assert matches_fingerprint(problem, problem.fingerprint).unknown == (
            "the data of the clients",
        )


class Sequence:
    def __len__(self):
        return 1

    def __getitem__(self, i):
        return data(4)


def test_the_tensors_of_a_tensor_dataset_count():
    one, other = (
        Supervised(MODULE, F.cross_entropy, [TensorDataset(*data(4, seed=seed))]) for seed in (0, 1)
    )
    assert matches_fingerprint(other, one.fingerprint).differs == (
        "the data of the clients differ",
    )


class Bare:
    """A problem of the user's own that has no fingerprint."""

    N, d, weights = 2, 3, torch.tensor([0.5, 0.5])
    x0 = oracle = None


def test_of_a_problem_without_a_fingerprint_only_the_sizes_are_known():
    assert matches_fingerprint(as_problem(Bare()), "Bare N=2 d=4").differs == (
        "it was Bare N=2 d=4, is now Bare N=2 d=3",
    )
    assert (
        "Bare N=2 d=3, which has no fingerprint"
        in matches_fingerprint(as_problem(Bare()), "Bare N=2 d=3").warning
    )


def test_a_part_that_one_side_does_not_have_is_unknown():
    found = compare_fingerprints("Supervised/2 N=3", "Supervised/2 N=3 colour=red")
    assert (found.differs, found.unknown) == ((), ("colour",))


# -- tensors of any layout


@pytest.mark.parametrize(
    "tensor",
    [
        randn(1, 5).T,
        randn(5, 1).T,
        randn(4, 6)[::2, ::3],
        randn(4, 6).T,
        randn(1).expand(7),
        randn(0, 3),
        torch.tensor(1.0),
        torch.tensor([True, False]),
        torch.zeros(3, 1).bfloat16().T,
        torch.zeros(3, dtype=torch.complex64).conj(),
    ],
    ids=lambda t: f"{t.dtype}{tuple(t.shape)}{t.stride()}",
)
def test_tensors_of_any_layout_are_hashed_by_their_numbers(tensor):
    assert hashed_tensors([tensor]) == hashed_tensors([tensor.clone().contiguous()])
    if tensor.numel():
        assert hashed_tensors([tensor]) != hashed_tensors([tensor.logical_not()])


def test_inputs_of_one_column_made_by_a_transposition_have_a_fingerprint():
    X = randn(1, 5).T
    problem = Supervised(nn.Linear(1, 1), F.mse_loss, [(X, X)])
    same = Supervised(problem.model.module, F.mse_loss, [(X.contiguous(), X.contiguous())])
    assert matches_fingerprint(same, problem.fingerprint).differs == ()


def test_a_fingerprint_without_named_parts_is_another_problem():
    stored = "Quadratic N=2 d=1 bc0c2d81e2bb7619"
    now = pair().fingerprint
    assert matches_fingerprint(pair(), stored).differs == (f"it was {stored}, is now {now}",)


@pytest.mark.parametrize(
    ("moved", "saved"),
    [
        (catalogue._Block, "66da54354837a931"),
        (OnBatch, "e4f5635672394313"),
        (hugging_face.SplitBatches, "52b45d0e1f4f65ae"),
    ],
)
def test_a_class_that_moved_has_the_hash_of_saved_runs(moved, saved):
    assert hashed_code(moved) == saved
