"""The models of the papers."""

import pytest
import torch
from torch.nn import functional as F

from trimtab import Supervised
from trimtab.problems.catalogue import logistic, mlp, resnet18


def size(module):
    return sum(p.numel() for p in module.parameters())


def test_logistic_regression_starts_at_zero_so_that_all_classes_are_equally_likely():
    module = logistic(5, 4)
    assert size(module) == 5 * 4 + 4
    assert torch.equal(module(torch.randn(3, 5)), torch.zeros(3, 4))


def test_mlp_has_one_hidden_layer():
    module = mlp(5, 7, 4)
    assert size(module) == (5 * 7 + 7) + (7 * 4 + 4)
    assert module(torch.randn(3, 5)).shape == (3, 4)
    assert any(p.abs().max() > 0 for p in module.parameters())


@pytest.mark.parametrize("classes", [10, 100])
def test_resnet18_has_the_size_of_the_usual_cifar_variant(classes):
    assert size(resnet18(classes)) == 11_173_962 + (classes - 10) * 513


def test_resnet18_halves_the_image_three_times_and_keeps_no_running_statistics():
    module = resnet18()
    assert list(module.buffers()) == []
    assert not any("BatchNorm" in type(m).__name__ for m in module.modules())
    sizes = []
    for layer in module:
        layer.register_forward_hook(lambda m, _, out: sizes.append(tuple(out.shape[1:])))
    X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        together = module(X)
        alone = torch.cat([module(X[:1]), module(X[1:])])
    assert together.shape == (2, 10)
    blocks = [(64, 32, 32)] * 2 + [(128, 16, 16)] * 2 + [(256, 8, 8)] * 2 + [(512, 4, 4)] * 2
    assert sizes[3:11] == blocks
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)  # samples do not mix


def test_every_model_is_a_problem():
    y = torch.tensor([0, 1])
    image = torch.randn(2, 3, 32, 32)
    for module, X in (
        (logistic(4, 2), image.mean((1, 2))[:, :4]),
        (mlp(4, 3, 2), image[:, 0, 0, :4]),
    ):
        problem = Supervised(module, F.cross_entropy, [(X, y)])
        assert problem.gradient(problem.x0()).shape == (size(module),)
