"""The closed-form gradient is autograd's, and is used only where it holds."""

import warnings
from copy import deepcopy
from itertools import islice
from types import MethodType

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrizations

from tests.helpers.learning import CLASSES, FEATURES, data, plain_gradient
from trimtab import FedAvg, Supervised, simulate
from trimtab.compute import kernel
from trimtab.problems.supervised import losses
from trimtab.problems.supervised.closed_form import closed_form

MODULES = {
    "logistic": lambda: nn.Linear(6, 4),
    "no bias": lambda: nn.Linear(6, 4, bias=False),
    "mlp": lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)),
    "deep": lambda: nn.Sequential(
        nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 7, bias=False), nn.ReLU(), nn.Linear(7, 4)
    ),
    "two linear": lambda: nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4)),
    "flattened": lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 4)),
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
        assert problem._mean_loss.closed_form is not None
        assert slow._mean_loss.closed_form is None
        torch.testing.assert_close(
            found, expected, rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=1e-7
        )


@pytest.mark.parametrize(
    ("module", "loss"),
    [
        (nn.Sequential(nn.Linear(6, 5), nn.Softplus(), nn.Linear(5, 4)), F.cross_entropy),
        (nn.Sequential(nn.ReLU(), nn.Linear(6, 4)), F.cross_entropy),
        (nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 4)), F.cross_entropy),
        (nn.Linear(6, 4), F.l1_loss),
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


# -- where something has been hooked, replaced or changed


class Focal(nn.CrossEntropyLoss):
    """A loss of one's own under the name of PyTorch's."""

    def forward(self, output, y):
        each = F.cross_entropy(output, y, reduction="none")
        return ((1 - torch.exp(-each)) ** 2 * each).mean()


class Weight(nn.Parameter):
    """A parameter of another kind."""


def mlp():
    torch.manual_seed(0)
    first, last = nn.Linear(FEATURES, 5), nn.Linear(5, CLASSES)
    return nn.Sequential(first, nn.ReLU(), last).double()


def halved(*arguments):
    """Return half of what a hook is given last, but whole labels."""
    last = arguments[-1]
    if isinstance(last, tuple):
        return tuple(part / 2 if part.is_floating_point() else part for part in last)
    return last / 2


def shadowed(module):
    """Assign a forward on the instance."""
    forward = type(module).forward
    module.forward = MethodType(lambda self, *inputs: 0.5 * forward(self, *inputs), module)


TOUCHED = {
    "forward of the module": lambda module, loss: shadowed(module),
    "forward of a layer": lambda module, loss: shadowed(module[0]),
    "forward of a ReLU": lambda module, loss: shadowed(module[1]),
    "forward of the loss": lambda module, loss: shadowed(loss),
    "forward hook": lambda module, loss: module[2].register_forward_hook(halved),
    "forward hook of the loss": lambda module, loss: loss.register_forward_hook(halved),
    "forward pre-hook": lambda module, loss: module[0].register_forward_pre_hook(halved),
    "backward hook": lambda module, loss: module[2].register_full_backward_hook(
        lambda layer, inside, outside: (inside[0] / 2,)
    ),
    "backward pre-hook": lambda module, loss: module[2].register_full_backward_pre_hook(halved),
    "backward pre-hook of the loss": lambda module, loss: loss.register_full_backward_pre_hook(
        halved
    ),
    "hook of a parameter": lambda module, loss: module[0].weight.register_hook(halved),
    "parametrisation": lambda module, loss: parametrizations.weight_norm(module[0]),
    "label smoothing": lambda module, loss: setattr(loss, "label_smoothing", 0.3),
    "class weights": lambda module, loss: setattr(
        loss, "weight", torch.arange(1.0, 1 + CLASSES).double()
    ),
    "ignored label": lambda module, loss: setattr(loss, "ignore_index", 0),
    "another layer": lambda module, loss: module.append(nn.Softplus()),
}


def check(problem, module, loss, X, y):
    """Compare every way to a gradient and an evaluation with the plain module."""
    x = problem.x0()
    expected = plain_gradient(module, loss, X, y)
    torch.testing.assert_close(problem.oracle(0, 0, 1)(x), expected)
    torch.testing.assert_close(problem.chunk_oracle([0], 0, 1)(x)[0], expected)
    torch.testing.assert_close(problem.client_gradient(0, x), expected)
    assert problem.evaluate(x)["loss"] == pytest.approx(loss(module(X), y).item())
    for executor in ("loop", "fused", "batched"):
        moved = next(simulate(FedAvg(eta_l=0.1, K=1), problem, executor=executor)).x
        torch.testing.assert_close(moved, x - 0.1 * expected)


@pytest.mark.parametrize("touch", TOUCHED.values(), ids=TOUCHED.keys())
def test_what_is_hooked_or_changed_before_counts(touch):
    module, loss, (X, y) = mlp(), nn.CrossEntropyLoss(), data(9)
    touch(module, loss)
    plain = deepcopy(module)
    if module[0].weight._backward_hooks:
        plain[0].weight.register_hook(halved)
    check(Supervised(module, loss, [(X, y)]), plain, loss, X, y)


@pytest.mark.parametrize(
    "name", [name for name in TOUCHED if name not in ("parametrisation", "another layer")]
)
def test_what_is_hooked_or_changed_between_two_rounds_counts(name):
    module, loss, (X, y) = mlp(), nn.CrossEntropyLoss(), data(9)
    problem = Supervised(module, loss, [(X, y)])
    check(problem, module, loss, X, y)
    assert problem._mean_loss.closed_form is not None
    TOUCHED[name](problem.model.module, loss)
    assert problem._mean_loss.closed_form is None
    assert problem._mean_loss.closed_form is None
    plain = problem.model.copy_for_thread()
    plain(problem.x0(), X)
    check(problem, plain.module, loss, X, y)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
def test_a_hook_on_all_modules_counts_while_it_is_there(kind):
    module, loss, (X, y) = mlp(), nn.CrossEntropyLoss(), data(9)
    problem = Supervised(module, loss, [(X, y)])
    for hooked in (False, True, False):
        if hooked:
            register = getattr(torch_module, f"register_module_{kind}_hook")
            own = (lambda layer, inside, outside: inside) if kind == "full_backward" else halved
            handle = register(own)
        try:
            assert (problem._mean_loss.closed_form is None) == hooked
            check(problem, module, loss, X, y)
        finally:
            if hooked:
                handle.remove()


@pytest.mark.parametrize("layer", [nn.Linear, nn.ReLU, nn.Sequential, nn.CrossEntropyLoss])
def test_a_class_whose_forward_is_replaced_is_left_to_autograd(layer, monkeypatch):
    module, loss, (X, y) = mlp(), nn.CrossEntropyLoss(), data(9)
    problem = Supervised(module, loss, [(X, y)])
    check(problem, module, loss, X, y)
    forward = layer.forward
    monkeypatch.setattr(layer, "forward", lambda self, *inputs: 0.5 * forward(self, *inputs))
    check(problem, module, loss, X, y)


@pytest.mark.parametrize("name", ["linear", "relu", "cross_entropy"])
def test_a_function_of_pytorch_that_is_replaced_counts(name, monkeypatch):
    module, loss, (X, y) = mlp(), nn.CrossEntropyLoss(), data(9)
    problem = Supervised(module, loss, [(X, y)])
    original = getattr(F, name)
    monkeypatch.setattr(F, name, lambda *a, **k: 0.5 * original(*a, **k))
    check(problem, module, loss, X, y)


def test_a_forward_that_calls_the_original_and_not_its_copy_is_refused(refused):
    module, (X, y) = mlp(), data(9)
    original = module[0].forward
    module[0].forward = lambda X: 0.5 * original(X)
    with refused("not among the module's parameters", "types.MethodType"):
        Supervised(module, F.cross_entropy, [(X, y)]).oracle(0, 0, 1)


def test_a_loss_with_parameters_of_its_own_is_refused(refused):
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    problem = Supervised(mlp(), lambda output, y: F.cross_entropy(scale * output, y), [data(9)])
    with refused("not among the module's parameters", "requires_grad_(False)"):
        problem.oracle(0, 0, 1)


def test_a_subclass_of_a_loss_is_left_to_autograd():
    module, (X, y) = mlp(), data(9)
    check(Supervised(module, Focal(), [(X, y)]), module, Focal(), X, y)


def test_a_parameter_of_another_kind_is_left_to_autograd():
    module = mlp()
    module[0].weight = Weight(module[0].weight.detach())
    assert closed_form(module, F.cross_entropy) is None


def test_autocast_around_a_run_is_left_to_autograd():
    module, (X, y) = mlp().float(), data(9, dtype=torch.float32)
    problem = Supervised(module, F.cross_entropy, [(X, y)])
    with torch.autocast("cpu", torch.bfloat16):
        assert problem._mean_loss.closed_form is None


def test_known_types_have_no_attributes_that_hide_those_of_their_class():
    for made in (nn.Linear(1, 1), nn.ReLU(), nn.Sequential(), nn.CrossEntropyLoss(), nn.MSELoss()):
        assert losses.is_unpatched(made, type(made).forward), made


def test_a_closed_form_that_differs_from_autograd_is_dropped_with_a_warning(monkeypatch):
    """The last resort, should something change a gradient that no look can see."""
    monkeypatch.setattr(losses, "_ORIGINALS", ())
    linear = F.linear
    monkeypatch.setattr(F, "linear", lambda X, W, b=None: linear(X, 2 * W, b))
    module, (X, y) = mlp(), data(9)
    problem = Supervised(module, F.cross_entropy, [(X, y)])
    assert problem._mean_loss.closed_form is not None
    with pytest.warns(UserWarning, match="differs from autograd's .* autograd is used instead"):
        problem.oracle(0, 0, 1)
    assert problem._mean_loss.closed_form is None
    check(problem, module, F.cross_entropy, X, y)


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6, 1e-9])
def test_a_closed_form_that_is_right_is_kept_whatever_the_size_of_the_data(scale):
    X, y = data(70, dtype=torch.float32)
    problem = Supervised(mlp().float(), F.cross_entropy, [(scale * X, y)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(islice(simulate(FedAvg(eta_l=1e-9, K=1), problem), 2))
    assert problem._mean_loss.closed_form is not None


@pytest.mark.parametrize("label", [-1, 3])
def test_without_a_kernel_a_label_that_was_changed_is_refused_too(refused, monkeypatch, label):
    monkeypatch.setattr(kernel, "works", lambda dtype: False)
    X, y = data(20)
    problem = Supervised(mlp(), F.cross_entropy, [(X, y)])
    sim = simulate(FedAvg(eta_l=0.1, K=2), problem)
    next(sim)
    y[7] = label
    with refused("client 0", f"Target {label} is out of bounds"):
        next(sim)
