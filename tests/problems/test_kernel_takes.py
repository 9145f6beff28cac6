"""Which modules and losses the compiled kernel takes, and which only look alike."""

import warnings
from copy import deepcopy
from functools import partial
from itertools import islice

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers.learning import plain_gradient, randn
from trimtab import Diverged, FedAvg, Scaffold, Supervised, simulate
from trimtab.compute import kernel
from trimtab.problems.supervised.closed_form import closed_form

pytestmark = pytest.mark.skipif(
    kernel.simd_level() is None, reason="no compiler was there at the installation"
)
bce, mse = F.binary_cross_entropy_with_logits, F.mse_loss
LOSSES = {
    "bce": nn.BCEWithLogitsLoss(),
    "mse": nn.MSELoss(),
    "huber": nn.HuberLoss(delta=0.4),
    "smooth l1": nn.SmoothL1Loss(beta=0.3),
    "F.bce": bce,
    "F.mse": mse,
    "F.huber": F.huber_loss,
    "F.smooth l1": F.smooth_l1_loss,
    "partial": partial(F.huber_loss, delta=0.4),
    "partial mean": partial(mse, reduction="mean"),
}
MODULES = {
    "linear": lambda: nn.Linear(4, 2),
    "no bias": lambda: nn.Linear(4, 2, bias=False),
    "relu": lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)),
    "tanh": lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)),
    "sigmoid": lambda: nn.Sequential(nn.Linear(4, 5), nn.Sigmoid(), nn.Linear(5, 2, bias=False)),
    "silu": lambda: nn.Sequential(nn.Linear(4, 5), nn.SiLU(), nn.Linear(5, 2)),
    "gelu": lambda: nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 2)),
    "gelu tanh": lambda: nn.Sequential(nn.Linear(4, 5), nn.GELU("tanh"), nn.Linear(5, 2)),
    "ends with tanh": lambda: nn.Sequential(nn.Linear(4, 5), nn.SiLU(), nn.Linear(5, 2), nn.Tanh()),
    "ends with relu": lambda: nn.Sequential(nn.Linear(4, 2), nn.ReLU()),
    "flatten": lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 2)),
    "norm": lambda: nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.SiLU(), nn.Linear(5, 2)),
    "norms": lambda: nn.Sequential(
        *(nn.Linear(4, 5, bias=False), nn.LayerNorm(5, eps=0.1), nn.ReLU()),
        *(nn.Linear(5, 3), nn.LayerNorm((3,)), nn.Linear(3, 2), nn.LayerNorm(2)),
    ),
}


def samples(n=9, shape=(4,), targets=(2,), dtype=torch.float64):
    return randn(n, *shape, dtype=dtype), (randn(n, *targets, seed=1, dtype=dtype) > 0).to(dtype)


def check(problem, module, loss, X, y):
    """Compare every way to a gradient and an evaluation with the plain module."""
    x = problem.x0()
    expected = plain_gradient(module, loss, X, y)
    assert problem.kernel is not None
    torch.testing.assert_close(problem.oracle(0, 0, 1)(x), expected)
    torch.testing.assert_close(problem.chunk_oracle([0], 0, 1)(x)[0], expected)
    torch.testing.assert_close(problem.client_gradient(0, x), expected)
    assert problem.evaluate(x)["loss"] == pytest.approx(loss(module(X), y).item())
    for executor in ("loop", "fused", "batched"):
        moved = next(simulate(FedAvg(eta_l=0.1, K=1), problem, executor=executor)).x
        torch.testing.assert_close(moved, x - 0.1 * expected)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
@pytest.mark.parametrize("build", MODULES.values(), ids=MODULES.keys())
def test_the_kernel_is_autograd(build, loss):
    module, (X, y) = build().double(), samples()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        problem = Supervised(module, loss, [(X, y)])
        check(problem, deepcopy(module), loss, X, y)
    assert simulate(FedAvg(eta_l=0.1, K=1), problem).executor == "batched"


@pytest.mark.parametrize("loss", [bce, mse])
def test_rounds_with_mini_batches_are_those_of_autograd(loss):
    module = MODULES["gelu"]().double()
    clients = [samples(n) for n in (9, 20, 5, 13)]
    fast, slow = (
        simulate(
            Scaffold(eta_l=0.2, K=7),
            Supervised(module, function, clients, batch=4, l2=0.01),
            seed=3,
            S=3,
        )
        for function in (loss, lambda output, y: loss(output, y))
    )
    assert (fast.executor, slow.executor) == ("batched", "loop")
    for a, b in islice(zip(fast, slow, strict=True), 4):
        torch.testing.assert_close(a.x, b.x)


@pytest.mark.parametrize("loss", [bce, mse, nn.HuberLoss()])
def test_a_single_output_may_have_the_shape_of_its_targets(loss):
    """nn.Flatten(0) makes (n, 1) outputs (n,), as targets are where nobody reshapes them."""
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1), nn.Flatten(0)).double()
    X, y = samples(targets=())
    metrics = {"largest": lambda output, y: (output * y).max()}
    problem = Supervised(module, loss, [(X, y)], metrics=metrics)
    check(problem, deepcopy(module), loss, X, y)
    assert problem.kernel.single
    expected = float((module(X) * y).max().detach())
    assert problem.evaluate(problem.x0())["largest"] == pytest.approx(expected)


def test_images_are_flattened():
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 3), nn.SiLU(), nn.Linear(3, 2)).double()
    X, y = samples(shape=(3, 2, 2))
    check(Supervised(module, bce, [(X, y)]), deepcopy(module), bce, X, y)
    labels = y[:, 0].long()
    check(
        Supervised(module, F.cross_entropy, [(X, labels)]),
        deepcopy(module),
        F.cross_entropy,
        X,
        labels,
    )


def test_accuracy_and_metrics_go_on():
    X, y = samples(60, targets=(1,))
    metrics = ["auc", "accuracy"]
    fast = Supervised(nn.Linear(4, 1).double(), bce, [(X, y)], metrics=metrics)
    slow = fast.replace(loss=lambda output, y: bce(output, y), metrics=None)
    assert fast.kernel is not None
    assert slow.kernel is None
    found = fast.evaluate(fast.x0())
    right = float(((fast.model(fast.x0(), X) > 0) == (y > 0.5)).double().mean())
    assert found["accuracy"] == right
    assert found["loss"] == pytest.approx(slow.evaluate(slow.x0())["loss"])
    assert 0 <= found["auc"] <= 1


# -- what only looks alike


class Doubled(nn.Linear):
    """A linear layer of one's own."""

    def forward(self, X):
        return 2 * super().forward(X)


class Plain(nn.Linear):
    """A subclass that changes nothing, as far as one can see today."""


class Weighted(nn.MSELoss):
    """A loss of one's own under the name of PyTorch's."""

    def forward(self, output, y):
        return ((output - y) ** 2 * (1 + y)).mean()


def tied():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer)


def frozen():
    return nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Tanh(), nn.Linear(4, 2))


def hooked():
    layer = nn.Linear(4, 2)
    layer.register_forward_hook(lambda layer, given, output: 2 * output)
    return layer


def shared():
    layer, other = nn.Linear(4, 2), nn.Linear(4, 2)
    other.weight = layer.weight
    return nn.Sequential(layer, nn.Tanh(), nn.Linear(2, 4), nn.Tanh(), other)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Doubled(4, 2),
        lambda: Plain(4, 2),
        lambda: nn.Sequential(nn.Linear(4, 2), nn.Softplus()),
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.ReLU(), nn.Linear(5, 2)),
        lambda: nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.GELU(), nn.Linear(5, 2)),
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 2)),
        lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2)),
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 2)),
        lambda: nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.LayerNorm(5), nn.Linear(5, 2)),
        lambda: nn.Sequential(nn.Linear(4, 2), nn.LayerNorm(2, elementwise_affine=False)),
        lambda: nn.Sequential(nn.Linear(4, 2), nn.LayerNorm(2, bias=False)),
        lambda: nn.Sequential(nn.Linear(4, 2), nn.LayerNorm(2, eps=0.0)),
        lambda: nn.Sequential(nn.Linear(4, 2), nn.LayerNorm((9, 2))),
        lambda: nn.Sequential(nn.Linear(4, 2), nn.LayerNorm(1)),
        lambda: nn.Sequential(nn.Linear(4, 2), nn.GroupNorm(1, 2)),
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Flatten(), nn.Linear(5, 2)),
        lambda: nn.Sequential(nn.Flatten(2), nn.Linear(4, 2)),
        lambda: nn.Sequential(nn.Flatten(0), nn.Linear(4, 2)),
        lambda: nn.Sequential(nn.Linear(4, 2), nn.Flatten(0)),
        lambda: nn.Sequential(nn.Sequential(nn.Linear(4, 5), nn.Tanh()), nn.Linear(5, 2)),
        lambda: nn.Sequential(nn.Tanh()),
        lambda: nn.Sequential(),
        tied,
        frozen,
        hooked,
        shared,
    ],
)
def test_other_modules_are_left_to_autograd(build):
    assert closed_form(build(), mse) is None


@pytest.mark.parametrize(
    "loss",
    [
        nn.MSELoss(reduction="sum"),
        partial(mse, reduction="sum"),
        partial(mse, weight=torch.ones(2)),
        nn.BCEWithLogitsLoss(weight=torch.ones(2)),
        nn.BCEWithLogitsLoss(pos_weight=torch.ones(2)),
        partial(bce, pos_weight=torch.ones(2)),
        nn.SmoothL1Loss(beta=0.0),
        partial(F.huber_loss, delta=torch.tensor(0.5)),
        nn.L1Loss(),
        nn.BCELoss(),
        Weighted(),
        lambda output, y: mse(output, y),
        partial(lambda output, y: mse(output, y)),
        mse.__call__,
    ],
)
def test_other_losses_are_left_to_autograd(loss):
    assert closed_form(nn.Linear(4, 2), loss) is None
    assert closed_form(nn.Linear(4, 2), mse) is not None


@pytest.mark.parametrize("loss", [bce, mse, nn.HuberLoss()])
def test_targets_of_another_shape_are_refused(refused, loss):
    """(n, 1) and (n,) would be compared n times n."""
    X, y = samples(targets=())
    with refused("outputs of shape (n, 1)", "targets of client 0 of shape (n,)"):
        Supervised(nn.Linear(4, 1).double(), loss, [(X, y)]).oracle(0, 0, 1)


@pytest.mark.parametrize(
    ("module", "change"),
    [
        (MODULES["gelu"], lambda module, loss: setattr(module[1], "approximate", "tanh")),
        (MODULES["flatten"], lambda module, loss: setattr(module[0], "start_dim", 2)),
        (MODULES["linear"], lambda module, loss: setattr(loss, "delta", 2.0)),
        (MODULES["linear"], lambda module, loss: setattr(loss, "reduction", "sum")),
        (MODULES["tanh"], lambda module, loss: module[1].register_forward_hook(print)),
    ],
)
def test_what_is_changed_between_two_rounds_counts(module, change):
    loss = nn.HuberLoss(delta=0.4)
    problem = Supervised(module().double(), loss, [samples()])
    sim = simulate(FedAvg(eta_l=0.1, K=2), problem)
    next(sim)
    assert problem.kernel is not None
    change(problem.model.module, loss)
    assert problem.kernel is None


@pytest.mark.parametrize("name", ["tanh", "sigmoid"])
def test_a_function_of_pytorch_that_is_replaced_counts(monkeypatch, name):
    problem = Supervised(MODULES[name]().double(), mse, [samples()])
    assert problem.kernel is not None
    monkeypatch.setattr(torch, name, lambda z: z)
    assert problem.kernel is None


def test_without_a_kernel_autograd_does_it(monkeypatch):
    module, (X, y) = MODULES["tanh"]().double(), samples()
    problem = Supervised(module, bce, [(X, y)])
    monkeypatch.setattr(kernel, "works", lambda dtype: False)
    expected = plain_gradient(deepcopy(module), bce, X, y)
    torch.testing.assert_close(problem.oracle(0, 0, 1)(problem.x0()), expected)
    assert simulate(FedAvg(eta_l=0.1, K=1), problem).executor == "loop"


# -- large numbers


def test_a_run_that_diverges_is_noticed():
    X, y = samples(dtype=torch.float32)
    for loss in (mse, bce):
        scale = 1e30 if loss is bce else 1.0
        problem = Supervised(nn.Linear(4, 2), loss, [(scale * X, y)] * 3, batch=4)
        for executor in ("batched", "loop"):
            sim = simulate(FedAvg(eta_l=1e25, K=5), problem, executor=executor)
            with pytest.raises(Diverged):
                list(islice(sim, 30))


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6, 1e-9])
@pytest.mark.parametrize("loss", [bce, mse])
def test_a_gradient_that_is_right_is_kept_whatever_the_size_of_the_data(scale, loss):
    X, _ = samples(70, dtype=torch.float32)
    module = nn.Linear(4, 2)
    with torch.no_grad():
        y = (module(scale * X) > 0).float()  # every sample is classified, and surely if X is large
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        problem = Supervised(module, loss, [(scale * X, y)])
        problem.oracle(0, 0, 1)
    assert problem.kernel is not None
