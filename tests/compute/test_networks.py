"""Every loss and activation of the kernels: autograd's gradients, no overflow, no hidden NaN."""

from itertools import product
from math import isnan

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trimtab.compute import kernel
from trimtab.compute.kernel import EncodedProgram, Layers, calls, library

pytestmark = pytest.mark.skipif(
    kernel.simd_level() is None, reason="no compiler was there at the installation"
)
DTYPES = [torch.float32, torch.float64]
DELTA = 0.7
ACTIVATIONS = {
    "none": nn.Identity(),
    "relu": nn.ReLU(),
    "tanh": nn.Tanh(),
    "sigmoid": nn.Sigmoid(),
    "silu": nn.SiLU(),
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU(approximate="tanh"),
}
LOSSES = {
    "cross_entropy": F.cross_entropy,
    "binary_cross_entropy_with_logits": F.binary_cross_entropy_with_logits,
    "mse_loss": F.mse_loss,
    "huber_loss": lambda z, y: F.huber_loss(z, y, delta=DELTA),
    "smooth_l1_loss": lambda z, y: F.smooth_l1_loss(z, y, beta=DELTA),
}
NUMBERS = [loss for loss in LOSSES if loss != "cross_entropy"]


@pytest.fixture(params=range(kernel.simd_level() or 0, -1, -1), ids=lambda level: f"level {level}")
def level(request, monkeypatch):
    """Every variant that this machine can run."""
    monkeypatch.setattr(library, "simd_level", lambda: request.param)
    return request.param


class Net:
    """A network with random parameters, as layers for the kernels and as plain tensors."""

    def __init__(self, sizes, activations, loss, dtype, bias=True, scale=0.5, eps=()):
        biased = (bias,) * len(activations)
        self.layers = Layers(sizes, biased, activations, loss, DELTA, eps=eps)
        self.x = scale * torch.randn(self.layers.d, dtype=dtype)

    def outputs(self, x, X):
        start = 0
        layers = self.layers
        each = (layers.biased, layers.activations, layers.norms)
        for m, n, biased, name, eps in zip(layers.sizes[1:], layers.sizes, *each, strict=False):
            W, start = x[start : start + m * n].view(m, n), start + m * n
            b, start = (x[start : start + m], start + m) if biased else (None, start)
            X = F.linear(X, W, b)
            if eps:
                X = F.layer_norm(X, (m,), *x[start : start + 2 * m].view(2, m), eps)
                start += 2 * m
            X = ACTIVATIONS[name](X)
        return X

    def gradient(self, X, y, x=None):
        x = (self.x if x is None else x).clone().requires_grad_()
        value = LOSSES[self.layers.loss](self.outputs(x, X), y)
        return torch.autograd.grad(value, x)[0]

    def targets(self, n):
        if self.layers.loss == "cross_entropy":
            return torch.randint(self.layers.sizes[-1], (n,))
        return torch.rand(n, self.layers.sizes[-1], dtype=self.x.dtype)


def close(found, expected):
    exact = expected.dtype == torch.float64
    scale = float(expected.abs().max())
    bound = (1e-12 if exact else 2e-5) * scale
    torch.testing.assert_close(found, expected, rtol=1e-9 if exact else 1e-3, atol=bound)


def test_the_tables_of_python_and_c_have_the_same_names():
    library_names = {
        what: library._names(library._loaded(), what) for what in ("losses", "activations")
    }
    assert library_names == {
        "losses": list(kernel.LOSSES),
        "activations": list(kernel.ACTIVATIONS),
    }
    for table in (ACTIVATIONS, calls.TORCH_ACTIVATIONS):
        assert tuple(table) == kernel.ACTIVATIONS
    for table in (LOSSES, calls.TORCH_LOSSES):
        assert tuple(table) == kernel.LOSSES


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_self_check_passes_for_every_loss_and_activation(level, dtype):
    for activation, loss in product(kernel.ACTIVATIONS, kernel.LOSSES):
        for activations in ((activation, "none"), ("none", activation)):
            assert calls.gradient_matches_torch(dtype, activations, loss), (activations, loss)


@pytest.mark.parametrize("wrong", ["relu", "mse_loss"])
def test_the_self_check_finds_a_function_that_differs(monkeypatch, wrong):
    table = calls.TORCH_ACTIVATIONS if wrong == "relu" else calls.TORCH_LOSSES
    right = table[wrong]
    monkeypatch.setitem(table, wrong, lambda *given: 1.01 * right(*given))
    kernel.works.cache_clear()
    try:
        assert not kernel.works(torch.float32)
    finally:
        kernel.works.cache_clear()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_are_autograds(level, dtype, activation, loss):
    outputs = (1, 3) if loss in NUMBERS else (3,)
    for n, C, last, bias in product((1, 5, 50, 530), outputs, ("none", activation), (True, False)):
        net = Net((7, 18, C), (activation, last), loss, dtype, bias)
        X, y = torch.randn(540, 7, dtype=dtype), net.targets(540)
        rows = torch.randperm(540)[:n]
        found = kernel.gradients(net.layers, net.x, [(X, y, rows), (X[:n], y[:n], None)])
        close(found[0], net.gradient(X[rows], y[rows]))
        close(found[1], net.gradient(X[:n], y[:n]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("loss", NUMBERS)
@pytest.mark.parametrize("d", [1, 9, 27, 784])
def test_gradients_of_linear_models_are_autograds(level, dtype, loss, d):
    for n, C in product((1, 4, 21, 60, 600), (1, 2, 40)):
        net = Net((d, C), ("none",), loss, dtype)
        X, y = torch.randn(n, d, dtype=dtype), net.targets(n)
        close(kernel.gradients(net.layers, net.x, [(X, y, None)])[0], net.gradient(X, y))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("loss", ["cross_entropy", "huber_loss"])
@pytest.mark.parametrize("activation", ["none", "relu", "silu"])
def test_gradients_through_layer_norm_are_autograds(level, dtype, activation, loss):
    """Every layer with one, or the first or the last alone; one output has no variance."""
    some = ((0.1, 1e-2, 1.0), (0.1, 0.0, 0.0), (0.0, 0.0, 0.3))
    outputs = (1, 3) if loss in NUMBERS else (3,)
    for n, eps, C, bias in product((1, 5, 50, 530), some, outputs, (True, False)):
        net = Net((7, 18, 33, C), (activation,) * 3, loss, dtype, bias, eps=eps)
        X, y = torch.randn(540, 7, dtype=dtype), net.targets(540)
        rows = torch.randperm(540)[:n]
        found = kernel.gradients(net.layers, net.x, [(X, y, rows), (X[:n], y[:n], None)])
        close(found[0], net.gradient(X[rows], y[rows]))
        close(found[1], net.gradient(X[:n], y[:n]))
        close(kernel.outputs(net.layers, net.x, X), net.outputs(net.x, X))


@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm_hides_no_nan(level, dtype):
    net = Net((3, 4, 2), ("none", "none"), "mse_loss", dtype, eps=(1e-5, 0.0))
    X, y = torch.randn(6, 3, dtype=dtype), net.targets(6)
    X[2, 1] = torch.nan
    assert not kernel.gradients(net.layers, net.x, [(X, y, None)]).isfinite().any()
    assert kernel.outputs(net.layers, net.x, X).isnan().any(1).tolist() == [
        i == 2 for i in range(6)
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_outputs_are_the_networks(level, dtype, activation):
    for n, last in product((1, 40, 700), ("none", activation)):
        net = Net((7, 18, 3), (activation, last), "mse_loss", dtype)
        X = torch.randn(n, 7, dtype=dtype)
        close(kernel.outputs(net.layers, net.x, X), net.outputs(net.x, X))


@pytest.mark.parametrize("dtype", DTYPES)
def test_tanh_is_exact_where_it_is_nearly_linear(level, dtype):
    """1 - 2 / (exp(2 z) + 1) would have an error of the size of epsilon, whatever the size of z."""
    layers = Layers((1, 1), (False,), ("tanh",), "mse_loss")
    X = torch.logspace(-12, 0, 40, dtype=dtype)[:, None]
    found = kernel.outputs(layers, torch.ones(1, dtype=dtype), X)
    torch.testing.assert_close(found, X.tanh(), rtol=4 * torch.finfo(dtype).eps, atol=0.0)


# -- what is large, and what is no number


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [20.0, 90.0, 800.0, 1e4, 1e15])
@pytest.mark.parametrize("loss", NUMBERS)
def test_large_outputs_have_autograds_gradient(level, dtype, size, loss):
    net = Net((2, 1), ("none",), loss, dtype)
    net.x = torch.tensor([size, -size, 0.0], dtype=dtype)
    X = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]], dtype=dtype)
    y = torch.tensor([[1.0], [1.0], [0.0], [0.0]], dtype=dtype)
    found, expected = kernel.gradients(net.layers, net.x, [(X, y, None)])[0], net.gradient(X, y)
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("loss", NUMBERS)
def test_huge_residuals_have_autograds_gradient(level, loss):
    """The square of such a residual is infinite; its gradient is not."""
    net = Net((1, 1), ("none",), loss, torch.float32)
    net.x = torch.tensor([1e30, 0.0])
    X, y = torch.ones(3, 1), torch.zeros(3, 1)
    found = kernel.gradients(net.layers, net.x, [(X, y, None)])[0]
    torch.testing.assert_close(found, net.gradient(X, y))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [20.0, 90.0, 1e4])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_of_large_numbers_are_autograds(level, dtype, size, activation):
    net = Net((1, 2, 1), (activation, "none"), "mse_loss", dtype)
    net.x = torch.tensor([size, -size, 0.5, -0.5, 1.0, 1.0, 0.0], dtype=dtype)
    X, y = torch.tensor([[1.0], [-1.0], [0.3]], dtype=dtype), torch.zeros(3, 1, dtype=dtype)
    found = kernel.gradients(net.layers, net.x, [(X, y, None)])[0]
    assert torch.isfinite(found).all()
    close(found, net.gradient(X, y))
    close(kernel.outputs(net.layers, net.x, X), net.outputs(net.x, X))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("n", [1, 3, 70])
def test_what_is_not_finite_is_not_swallowed(level, dtype, bad, n):
    """A step from such a point is not finite either, nor is a gradient on samples of NaN."""
    code = EncodedProgram(1, 1, [(1, 0, 0)], [[(1.0, 0), (-0.1, 1)]])
    for activation, loss in product(ACTIVATIONS, LOSSES):
        net = Net((3, 4, 2), (activation, "none"), loss, dtype)
        X, y = torch.ones(n, 3, dtype=dtype), net.targets(n)
        wrong = net.x.clone()
        wrong[0] = bad
        sums, *_ = kernel.run(net.layers, 0.0, code, [(X, y)], [[None]], [[wrong]], [[None]], [1.0])
        assert not torch.isfinite(sums).all(), (activation, loss)
        if isnan(bad) and activation != "relu":
            found = kernel.gradients(net.layers, net.x, [(bad * X, y, None)])[0]
            assert not torch.isfinite(found).all(), (activation, loss)


# -- programs


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("loss", LOSSES)
def test_several_steps_on_several_batches_are_those_of_autograd(level, dtype, loss):
    net, l2, eta = Net((5, 9, 4, 2), ("gelu", "tanh", "none"), loss, dtype), 0.1, 0.3
    data = [(torch.randn(n, 5, dtype=dtype), net.targets(n)) for n in (6, 55, 9, 530, 7)]
    rows = [[torch.randperm(len(y))[:4], torch.randperm(len(y))[: len(y) - 1], None]
            for _, y in data]  # fmt: skip
    step = [(2, [(1.0, 2), (-eta, 3)])]
    steps = [(2, [(1.0, 0)]), (3, 2, 0), *step, (3, 2, 1), *step, (3, 2, 2), *step]
    code = EncodedProgram(1, 3, [(1, [(0.5, 0)]), *steps], [[(1.0, 2), (-1.0, 0)], [(2.0, 1)]])
    weights = [0.1, 0.2, 0.3, 0.15, 0.25]
    outputs = [[None, torch.empty_like(net.x)] for _ in data]
    found = [
        kernel.run(net.layers, l2, code, data, rows, [[net.x]] * 5, outputs, weights,
                   block=block, threads=threads)
        for block, threads in ((2, 1), (2, 3))
    ]  # fmt: skip
    assert torch.equal(found[0][0], found[1][0])
    total = torch.zeros_like(net.x)
    for weight, (X, y), some in zip(weights, data, rows, strict=True):
        v = net.x
        for part in some:
            A, b = (X, y) if part is None else (X[part], y[part])
            v = v - eta * (net.gradient(A, b, v) + l2 * v)
        total += weight * (v - net.x)
    close(found[0][0][0], total)
    assert all(torch.equal(kept, net.x) for _, kept in outputs)


# -- data of another kind


@pytest.mark.parametrize(
    "y",
    [
        torch.zeros(5),
        torch.zeros(5, 3),
        torch.zeros(4, 2),
        torch.zeros(5, 2).double(),
        torch.zeros(5, dtype=torch.long),
        torch.zeros(5, 2, dtype=torch.long),
        torch.zeros(2, 5).T,
    ],
)
def test_targets_of_another_kind_are_refused(refused, y):
    net = Net((3, 2), ("none",), "mse_loss", torch.float32)
    with refused("a client has inputs of shape (5, 3)", "new problem"):
        kernel.gradients(net.layers, net.x, [(torch.ones(5, 3), y, None)])


def test_a_row_that_is_not_there_is_refused(level, refused):
    net = Net((3, 1), ("none",), "mse_loss", torch.float32)
    with refused("no sample 5 ", "but 5"):
        batch = (torch.ones(5, 3), torch.zeros(5, 1), torch.tensor([0, 5]))
        kernel.gradients(net.layers, net.x, [batch])


def test_samples_of_any_shape_are_taken_only_where_they_are_flattened(refused):
    x, X, y = torch.randn(6), torch.randn(5, 2, 3), torch.randn(5, 1)
    flat = Layers((6, 1), (False,), ("none",), "mse_loss")
    images = Layers((6, 1), (False,), ("none",), "mse_loss", flattens=True)
    expected = kernel.gradients(flat, x, [(X.flatten(1), y, None)])
    assert torch.equal(kernel.gradients(images, x, [(X, y, None)]), expected)
    assert torch.equal(kernel.outputs(images, x, X), kernel.outputs(flat, x, X.flatten(1)))
    with refused("inputs of shape (5, 2, 3)"):
        kernel.gradients(flat, x, [(X, y, None)])
    with refused("X has shape (5, 2, 3)"):
        kernel.outputs(flat, x, X)
