"""Losses: what is a mean, over what, in pieces as in one; and which of them are refused."""

import re
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers.learning import CLASSES, FEATURES, data, net, plain_gradient, randn
from trimtab import FedAvg, Supervised, simulate
from trimtab.problems.supervised import mean_loss
from trimtab.problems.supervised.losses import loss_kind, shares

N = 150
X, Y = data(N)
SORTED = Y.sort().values  # so that pieces have other classes than the whole
IGNORED = torch.where(torch.arange(N) < 70, -100, Y)  # the first piece counts for nothing
WEIGHT = torch.tensor([1.0, 20.0, 0.1], dtype=torch.float64)
REAL = randn(N, CLASSES, seed=3)
PROBABLE = REAL.softmax(1)


def named(loss):
    """Return a name that is the same in every process."""
    return re.sub(r" at 0x\w+", "", str(loss))


def contrastive(output, y):
    """Return a loss over all pairs of samples."""
    near = output @ output.T / output.shape[1]
    return F.binary_cross_entropy_with_logits(near, (y[:, None] == y).double())


def normalised(output, y):
    """Return a loss of outputs that are normalised over the batch."""
    return F.cross_entropy((output - output.mean(0)) / output.std(0), y)


LOSSES = {
    "plain": (F.cross_entropy, Y),
    "sorted": (F.cross_entropy, SORTED),
    "class weights": (nn.CrossEntropyLoss(weight=WEIGHT), SORTED),
    "class weights, partial": (partial(F.cross_entropy, weight=WEIGHT), SORTED),
    "ignored labels": (F.cross_entropy, IGNORED),
    "another ignored label": (nn.CrossEntropyLoss(ignore_index=0), SORTED),
    "smoothing, weights, ignored": (
        nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.2),
        IGNORED,
    ),
    "smoothing": (nn.CrossEntropyLoss(label_smoothing=0.2), IGNORED),
    "probabilities": (nn.CrossEntropyLoss(weight=WEIGHT), PROBABLE),
    "nll": (nn.NLLLoss(weight=WEIGHT), SORTED),
    "margin": (nn.MultiMarginLoss(weight=WEIGHT), SORTED),
    "squares": (F.mse_loss, REAL),
    "absolute": (nn.L1Loss(), REAL),
    "smooth": (nn.SmoothL1Loss(), REAL),
    "huber": (nn.HuberLoss(), REAL),
    "poisson": (nn.PoissonNLLLoss(), REAL.abs()),
    "gaussian": (partial(F.gaussian_nll_loss, var=2.0), REAL),
    "soft margin": (nn.SoftMarginLoss(), REAL.sign()),
    "kl": (partial(F.kl_div, reduction="batchmean"), PROBABLE),
    "kl, module": (nn.KLDivLoss(reduction="batchmean", log_target=True), PROBABLE.log()),
    "positive weights": (nn.BCEWithLogitsLoss(pos_weight=WEIGHT), PROBABLE),
    "weights of classes": (nn.BCEWithLogitsLoss(weight=WEIGHT), PROBABLE),
    "several labels": (nn.MultiLabelSoftMarginLoss(weight=WEIGHT), PROBABLE.round()),
    "of one's own": (lambda output, y: F.cross_entropy(output, y, WEIGHT), SORTED),
    "contrastive": (contrastive, Y),
    "normalised": (normalised, Y),
}
every_loss = pytest.mark.parametrize(("loss", "y"), LOSSES.values(), ids=LOSSES.keys())
MODULES = {
    "net": net,
    "linear": lambda: nn.Linear(FEATURES, CLASSES),
    "batch norm": lambda: net(nn.BatchNorm1d(5, track_running_stats=False)),
}


@every_loss
@pytest.mark.parametrize("build", MODULES.values(), ids=MODULES.keys())
def test_every_loss_is_the_same_in_pieces_and_in_one(monkeypatch, build, loss, y):
    torch.manual_seed(0)
    module = build().double()
    expected = plain_gradient(module, loss, X, y)
    value = loss(module(X), y).item()
    V = randn(2, len(expected), seed=5)
    whole = Supervised(module, loss, [(X, y)], l2=0.1)
    x = whole.x0()
    monkeypatch.setattr(mean_loss, "_CHUNK", 1)
    pieces = Supervised(module, loss, [(X, y)], l2=0.1)
    for k in (None, 3):
        torch.testing.assert_close(pieces.oracle(0, 0, 1)(x, k), expected + 0.1 * x)
    torch.testing.assert_close(pieces.gradient(x), expected + 0.1 * x)
    assert pieces.evaluate(x)["loss"] == pytest.approx(value)
    assert pieces.loss(x) == pytest.approx(value + 0.05 * float(x @ x))
    if not isinstance(loss, nn.MultiMarginLoss):  # whose second derivative PyTorch does not have
        torch.testing.assert_close(pieces.client_hvp(0, x, V), whole.client_hvp(0, x, V))


def test_a_weight_for_each_sample_is_not_cut(monkeypatch):
    monkeypatch.setattr(mean_loss, "_CHUNK", 1)
    loss = nn.BCEWithLogitsLoss(weight=torch.rand(N, 1, dtype=torch.float64))
    assert shares(loss, [PROBABLE[:64], PROBABLE[64:]]) is None


def test_large_inputs_with_a_loss_of_ones_own_go_through_the_module_in_pieces(monkeypatch):
    monkeypatch.setattr(mean_loss, "_CHUNK", 1)
    sizes = []

    class Spy(nn.Linear):
        def forward(self, X):
            sizes.append(len(X))
            return super().forward(X)

    problem = Supervised(Spy(FEATURES, CLASSES).double(), normalised, [(X, Y)])
    g = problem.oracle(0, 0, 1)
    g(problem.x0())
    sizes.clear()
    g(problem.x0())
    assert sizes == [64, 64, 22] * 2


def test_a_module_with_dropout_and_a_loss_of_ones_own_is_not_cut(monkeypatch):
    monkeypatch.setattr(mean_loss, "_CHUNK", 1)
    problem = Supervised(net(nn.Dropout(0.5)), normalised, [(X, Y)])
    x = problem.x0()
    assert torch.equal(problem.oracle(0, 0, 1)(x, 0), problem.oracle(0, 0, 1)(x, 0))
    assert torch.isfinite(problem.oracle(0, 0, 1)(x, 0)).all()


# -- what is known


class Own(nn.MSELoss):
    """A subclass."""


def test_only_pytorchs_own_losses_are_recognised():
    assert loss_kind(nn.MSELoss()).name == loss_kind(F.mse_loss).name == "mse_loss"
    assert loss_kind(partial(F.mse_loss, reduction="sum")).reduction == "sum"
    assert loss_kind(partial(F.mse_loss, size_average=False)).reduction == "sum"
    assert loss_kind(partial(F.mse_loss, reduce=False)).reduction == "none"
    hooked = nn.MSELoss()
    hooked.register_forward_hook(lambda *_: None)
    for other in (Own(), hooked, lambda output, y: 0, partial(F.mse_loss, X), len, nn.Linear(1, 1)):
        assert loss_kind(other) is None


# -- refusals


@pytest.mark.parametrize("reduction", ["sum", "none"])
@pytest.mark.parametrize(
    "make",
    [
        lambda r: nn.CrossEntropyLoss(reduction=r),
        lambda r: nn.MSELoss(reduction=r),
        lambda r: nn.HuberLoss(reduction=r),
        lambda r: partial(F.cross_entropy, reduction=r),
        lambda r: partial(F.mse_loss, size_average=False, reduce=r != "none"),
    ],
    ids=["cross-entropy", "mse", "huber", "partial", "legacy"],
)
def test_another_reduction_than_the_mean_is_refused_at_once(refused, make, reduction):
    with refused(f"reduction='{reduction}'", "pass reduction='mean'"):
        Supervised(net(), make(reduction), [(X, Y)])


class Summed(nn.CrossEntropyLoss):
    def forward(self, output, y):
        return F.cross_entropy(output, y, reduction="sum")


@pytest.mark.parametrize(
    "loss",
    [
        lambda output, y: F.cross_entropy(output, y, reduction="sum"),
        lambda output, y: ((output - F.one_hot(y, CLASSES)) ** 2).sum(),
        Summed(),
    ],
    ids=["lambda", "by hand", "subclass"],
)
def test_a_sum_is_refused(refused, loss):
    problem = Supervised(net(), loss, [(X, Y)])
    with refused("it is a sum", "pass the mean"):
        problem.oracle(0, 0, 1)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda output, y: F.cross_entropy(output, y, reduction="none"), ["(2,)", "one number"]),
        (lambda output, y: F.cross_entropy(output, y).item(), ["float", "without item()"]),
        (lambda output, y: None, ["NoneType", "return a tensor"]),
        (lambda output, y: F.cross_entropy(output.detach(), y), ["no gradient", "detach()"]),
        (torch.no_grad()(lambda output, y: F.cross_entropy(output, y)), ["no gradient"]),
        (lambda output, y: (output.argmax(1) == y).double().mean(), ["no gradient"]),
        (lambda output: output.mean(), ["the loss cannot take", "client 0"]),
    ],
    ids=["vector", "item", "nothing", "detached", "no_grad", "accuracy", "one argument"],
)
def test_a_loss_that_cannot_be_differentiated_is_refused(refused, loss, words):
    problem = Supervised(net(), loss, [(X, Y)])
    with refused(*words):
        problem.oracle(0, 0, 1)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (nn.CrossEntropyLoss, ["CrossEntropyLoss()", "instance"]),
        ("mse", ["'mse'", "function"]),
        (None, ["None", "function"]),
    ],
    ids=["class", "text", "nothing"],
)
def test_what_is_no_loss_is_refused(refused, loss, words):
    with refused(*words):
        Supervised(net(), loss, [(X, Y)])


ELEMENTWISE = [
    *(F.mse_loss, nn.MSELoss(), nn.L1Loss(), nn.SmoothL1Loss(), nn.HuberLoss(), nn.BCELoss()),
    *(nn.BCEWithLogitsLoss(), nn.PoissonNLLLoss(), nn.KLDivLoss(reduction="batchmean")),
    *(nn.SoftMarginLoss(), partial(F.mse_loss, reduction="mean")),
    partial(F.gaussian_nll_loss, var=1.0),
]


@pytest.mark.parametrize("loss", ELEMENTWISE, ids=named)
@pytest.mark.parametrize("shapes", [((N,), 1), ((N, 1), 2), ((N, 2), 1)], ids=str)
def test_an_elementwise_loss_needs_outputs_and_targets_of_one_shape(refused, loss, shapes):
    shape, outputs = shapes
    module = nn.Sequential(nn.Linear(FEATURES, outputs), nn.Sigmoid()).double()
    problem = Supervised(module, loss, [(X, randn(*shape).sigmoid())])
    with refused(f"(n, {outputs})", "client 0", "the same shape"):
        problem.oracle(0, 0, 1)


def test_pytorchs_warning_about_sizes_is_a_refusal_for_any_other_loss(refused):
    problem = Supervised(
        nn.Linear(FEATURES, 1).double(),
        lambda output, y: 2 * F.mse_loss(output, y),
        [(X, randn(N))],
    )
    with refused("(2, 1)", "(2,)", "broadcasts", "the same shape"):
        problem.oracle(0, 0, 1)


def test_other_warnings_of_a_loss_are_passed_on():
    problem = Supervised(net().double(), nn.KLDivLoss(), [(X, PROBABLE)])
    with pytest.warns(UserWarning, match="batchmean"):
        problem.oracle(0, 0, 1)


class Broken(torch.autograd.Function):
    """A function without a derivative."""

    @staticmethod
    def forward(ctx, output):
        return output.mean()

    @staticmethod
    def backward(ctx, slope):
        raise RuntimeError("not implemented")


def test_a_loss_whose_derivative_fails_is_refused(refused):
    problem = Supervised(net(), lambda output, y: Broken.apply(output), [(X, Y)])
    with refused("client 0", "no gradient", "not implemented", "int64", "float64"):
        problem.oracle(0, 0, 1)


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (Y[:, None], ["(n, 1)", "y.flatten()"]),
        (F.one_hot(Y), ["(n, 3)", "y.argmax(1)", "y.float()"]),
    ],
    ids=["column", "one-hot"],
)
def test_labels_of_two_dimensions_are_refused_in_a_sentence_that_helps(refused, y, words):
    problem = Supervised(net(), F.cross_entropy, [(X, y)])
    with refused("client 0", *words):
        problem.oracle(0, 0, 1)


# -- changes in place


class InPlace(nn.Module):
    """Scale the inputs where they are: always, in one mode only, or for some samples only."""

    def __init__(self, when):
        super().__init__()
        self.layer, self.when = nn.Linear(FEATURES, CLASSES), when

    def forward(self, X):
        if self.when(self, X):
            X /= 2
        return self.layer(X)


IN_PLACE = {
    "always": InPlace(lambda m, X: True),
    "in training": InPlace(lambda m, X: m.training),
    "in evaluation": InPlace(lambda m, X: not m.training),
    "first ReLU": nn.Sequential(nn.ReLU(inplace=True), nn.Linear(FEATURES, CLASSES)),
}


@pytest.mark.parametrize("module", IN_PLACE.values(), ids=IN_PLACE.keys())
def test_a_module_that_changes_its_inputs_is_refused_and_the_data_stay(refused, module):
    given = X.clone()
    problem = Supervised(module, F.cross_entropy, [(given, Y)])
    with refused("changes its inputs in place", "x = x / 255", "inplace=False"):
        problem.evaluate(problem.x0())
    assert torch.equal(given, X)


def test_a_module_that_changes_only_later_inputs_is_refused_when_it_does(refused):
    module = InPlace(lambda m, X: len(X) > 10)
    problem = Supervised(module, F.cross_entropy, [(X.clone(), Y)])
    with refused("changes its inputs in place"):
        problem.evaluate(problem.x0())


def test_a_relu_in_place_between_layers_is_fine():
    module = nn.Sequential(nn.Linear(FEATURES, 5), nn.ReLU(inplace=True), nn.Linear(5, CLASSES))
    problem = Supervised(module, F.cross_entropy, [(X, Y)])
    assert problem.evaluate(problem.x0()) == problem.evaluate(problem.x0())


@pytest.mark.parametrize("many", [False, True], ids=["always", "later"])
def test_a_loss_that_changes_the_targets_is_refused(refused, many):
    def loss(output, y):
        if not many or len(y) > 10:
            y.clamp_(max=1)
        return F.cross_entropy(output, y)

    given = Y.clone()
    problem = Supervised(net(), loss, [(X, given)])
    with refused("the loss changes the targets in place"):
        problem.evaluate(problem.x0())
    assert many or torch.equal(given, Y)


def test_a_metric_that_changes_outputs_or_returns_no_number_is_refused(refused):
    metrics = {"halved": lambda output, y: output.mul_(0.5).mean()}
    problem = Supervised(net(), F.cross_entropy, [(X, Y)], metrics=metrics)
    with refused("metric 'halved'", "in place"):
        problem.evaluate(problem.x0())
    with refused("metric 'each'", "not return a number"):
        problem.replace(metrics={"each": lambda output, y: output}).evaluate(problem.x0())


def test_the_users_tensors_are_the_same_after_a_run():
    given, targets = X.clone(), Y.clone()
    problem = Supervised(net(), F.cross_entropy, [(given, targets)], (given, targets), batch=10)
    next(simulate(FedAvg(eta_l=0.1, K=3), problem))
    problem.evaluate(problem.x0())
    assert torch.equal(given, X)
    assert torch.equal(targets, Y)


@pytest.mark.parametrize("outside", [1, None])
def test_a_square_of_ones_own_does_not_broadcast(refused, outside):
    """(n, 1) - (n,) is (n, n), without a word from PyTorch."""

    def square(output, y):
        return ((output - y) ** 2).mean()

    y = REAL[:, 0]
    module = nn.Linear(FEATURES, 1) if outside else nn.Sequential(nn.Linear(FEATURES, 1), _Flat())
    good, bad = (y[:, None], y) if outside else (y, y[:, None])
    with refused("broadcasts", "the same shape"):
        _ = Supervised(module, square, [(X, bad)]).clients[0]
    _ = Supervised(module, square, [(X, good)]).clients[0]
    both = Supervised(module, lambda out, y: square(out.flatten(), y.flatten()), [(X, bad)])
    _ = both.clients[0]


class _Flat(nn.Module):
    def forward(self, x):
        return x.flatten()
