"""The closed-form gradient is autograd's, and is used only where it holds."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trimtab import Supervised
from trimtab.problems.closed_form import closed_form

MODULES = {
    "logistic": lambda: nn.Linear(6, 4),
    "no bias": lambda: nn.Linear(6, 4, bias=False),
    "mlp": lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)),
    "deep": lambda: nn.Sequential(
        nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 7, bias=False), nn.ReLU(), nn.Linear(7, 4)
    ),
    "two linear": lambda: nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4)),
    "relu first": lambda: nn.Sequential(nn.ReLU(), nn.Linear(6, 4)),
}


@pytest.mark.parametrize("build", MODULES.values(), ids=MODULES.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_equals_autograd(build, dtype):
    torch.manual_seed(0)
    X, y = torch.randn(9, 6, dtype=dtype), torch.randint(4, (9,))
    problem = Supervised(build, F.cross_entropy, [(X, y)], batch=5, l2=0.1)
    problem.model.module.to(dtype)
    slow = Supervised(
        build, lambda output, y: F.cross_entropy(output, y), [(X, y)], batch=5, l2=0.1
    )
    x = problem.x0(3)
    for k in (None, 0, 1, 2):
        expected = slow.oracle(0, 0, 1)(x, k)
        found = problem.oracle(0, 0, 1)(x, k)
        assert problem._without_autograd is not None
        assert slow._without_autograd is None
        torch.testing.assert_close(
            found, expected, rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=1e-7
        )


@pytest.mark.parametrize(
    ("module", "loss"),
    [
        (nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)), F.cross_entropy),
        (nn.Sequential(nn.Linear(6, 4), nn.ReLU()), F.cross_entropy),
        (nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 4)), F.cross_entropy),
        (nn.Linear(6, 4), F.mse_loss),
        (nn.Linear(6, 4), nn.CrossEntropyLoss(label_smoothing=0.1)),
        (nn.Linear(6, 4), nn.CrossEntropyLoss(weight=torch.ones(4))),
        (nn.Linear(6, 4), nn.CrossEntropyLoss(reduction="sum")),
        (nn.Linear(6, 4).requires_grad_(False), F.cross_entropy),
    ],
)
def test_it_leaves_other_models_to_autograd(module, loss):
    assert closed_form(module, loss) is None


def test_tied_layers_and_frozen_layers_are_left_to_autograd():
    layer = nn.Linear(4, 4)
    assert closed_form(nn.Sequential(layer, nn.ReLU(), layer), F.cross_entropy) is None
    half = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.ReLU(), nn.Linear(4, 4))
    assert closed_form(half, F.cross_entropy) is None


def test_labels_to_ignore_and_soft_labels_are_left_to_autograd():
    X = torch.randn(5, 6)
    ignored = Supervised(nn.Linear(6, 4), F.cross_entropy, [(X, torch.tensor([0, 1, -100, 2, 3]))])
    soft = Supervised(nn.Linear(6, 4), F.cross_entropy, [(X, torch.rand(5, 4))])
    for problem in (ignored, soft):
        g = problem.oracle(0, 0, 1)(problem.x0())
        x = problem.x0().requires_grad_()
        data = problem.clients[0]
        W, b = x[:24].view(4, 6), x[24:]
        (expected,) = torch.autograd.grad(F.cross_entropy(F.linear(data.X, W, b), data.y), x)
        torch.testing.assert_close(g, expected)
