"""A module as one vector of its trainable parameters; what is frozen, tied or random in it."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers.learning import CLASSES, FEATURES, data, net, plain_gradient, randn
from trimtab import FedAvg, Scaffold, Supervised, simulate

X, Y = data(7)


class Tied(nn.Module):
    """Two layers that share a weight."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(FEATURES, FEATURES)
        self.two = nn.Linear(FEATURES, FEATURES, bias=False)
        self.two.weight = self.one.weight

    def forward(self, X):
        return self.two(torch.tanh(self.one(X)))


class Lora(nn.Module):
    """A frozen layer with a trainable change of low rank."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(FEATURES, CLASSES).requires_grad_(False)
        self.A = nn.Parameter(randn(1, FEATURES, dtype=torch.float32))
        self.B = nn.Parameter(torch.zeros(CLASSES, 1))

    def forward(self, X):
        return self.base(X) + X @ self.A.T @ self.B.T


class Recurrent(nn.Module):
    """An LSTM over the features, one after the other."""

    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(1, 3, batch_first=True), nn.Linear(3, CLASSES)

    def forward(self, X):
        return self.head(self.lstm(X[..., None])[0][:, -1])


def frozen():
    module = net()
    module[0].requires_grad_(False)
    return module


def masked():
    module = net()
    module.register_buffer("mask", torch.tensor([1.0, 0.0]))
    return module


MODULES = {
    "linear": lambda: nn.Linear(FEATURES, CLASSES),
    "net": net,
    "tied": Tied,
    "lora": Lora,
    "frozen": frozen,
    "group norm": lambda: net(nn.GroupNorm(1, 5)),
    "buffer": masked,
    "lstm": Recurrent,
    "attention": lambda: nn.Sequential(
        nn.TransformerEncoderLayer(FEATURES, 2, 5, dropout=0.0), nn.Linear(FEATURES, CLASSES)
    ),
}
every_module = pytest.mark.parametrize("build", MODULES.values(), ids=MODULES.keys())


def problem_of(module, **settings):
    return Supervised(module, F.cross_entropy, [(X, Y)], **settings)


# -- the vector and the module


@every_module
def test_the_vector_loads_into_the_module_and_gives_the_same_outputs(build):
    module = build().double()
    problem = problem_of(module)
    x = problem.x0() + randn(problem.d)
    fresh = build().double()
    fresh.load_state_dict(problem.unflatten(x), strict=True)
    trainable = torch.cat([p.reshape(-1) for p in fresh.parameters() if p.requires_grad])
    assert torch.equal(trainable, x)
    assert problem.evaluate(x)["loss"] == pytest.approx(F.cross_entropy(fresh(X), Y).item())
    assert torch.equal(problem_of(fresh).x0(), x)


@every_module
def test_gradients_are_autograds_on_the_plain_module(build):
    problem = problem_of(build().double())
    x = problem.x0() + randn(problem.d)
    module = build().double()
    module.load_state_dict(problem.unflatten(x))
    expected = plain_gradient(module, F.cross_entropy, X, Y)
    for found in (
        problem.oracle(0, 0, 1)(x),
        problem.oracle(0, 0, 1)(x, 3),
        problem.client_gradient(0, x),
        problem.gradient(x),
    ):
        torch.testing.assert_close(found, expected)


def test_x0_is_the_modules_own_parameters():
    module = net().double()
    expected = nn.utils.parameters_to_vector(module.parameters())
    assert torch.equal(problem_of(module).x0(), expected)
    assert torch.equal(problem_of(module).x0(seed=5), expected)


def test_a_tied_weight_is_in_the_vector_once_and_in_the_state_dict_twice():
    problem = problem_of(Tied().double())
    assert problem.d == FEATURES * FEATURES + FEATURES
    state = problem.unflatten(randn(problem.d))
    assert torch.equal(state["one.weight"], state["two.weight"])


@pytest.mark.parametrize(
    ("build", "names", "d"),
    [
        (frozen, ["0.weight", "0.bias"], 5 * CLASSES + CLASSES),
        (Lora, ["base.weight", "base.bias"], FEATURES + CLASSES),
    ],
    ids=["frozen", "lora"],
)
def test_frozen_layers_stay_put_and_are_not_in_the_vector(build, names, d):
    module = build().double()
    before = deepcopy(module.state_dict())
    problem = problem_of(module)
    assert problem.d == d
    after = problem.unflatten(next(simulate(Scaffold(eta_l=0.5, K=3), problem)).x)
    assert set(after) == set(before)
    for name in before:
        assert torch.equal(after[name], before[name]) == (name in names), name


@every_module
def test_the_users_module_is_never_changed(build):
    module = build()
    before, flags = deepcopy(module.state_dict()), [m.training for m in module.modules()]
    wanted = [p.requires_grad for p in module.parameters()]
    problem = problem_of(module, batch=2)
    x = next(simulate(FedAvg(eta_l=0.5, K=3), problem)).x
    problem.evaluate(x)
    assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items())
    assert [m.training for m in module.modules()] == flags
    assert [p.requires_grad for p in module.parameters()] == wanted
    assert all(p.grad is None for p in module.parameters())
    assert next(module.parameters()).dtype == torch.float32


def test_what_unflatten_gave_does_not_change_later():
    problem = problem_of(net().double())
    x = problem.x0()
    state = problem.unflatten(x)
    before = deepcopy(state)
    problem.evaluate(x + 1)
    problem.unflatten(x + 2)
    assert all(torch.equal(state[name], before[name]) for name in before)


@pytest.mark.parametrize("module", [nn.Linear, nn.Sequential], ids=["frozen", "empty"])
def test_a_module_without_trainable_parameters_is_refused(refused, module):
    given = nn.Linear(4, 3).requires_grad_(False) if module is nn.Linear else nn.Sequential()
    with refused("no trainable parameters", "unfreeze"):
        problem_of(given)


def test_a_module_of_two_dtypes_is_refused(refused):
    module = net()
    module[0].double()
    with refused("dtypes"):
        Supervised(module, F.cross_entropy, [(X.float(), Y)])


# -- a function that builds the module


@pytest.mark.usefixtures("same_global_rng")
def test_a_builder_is_called_under_the_seed():
    problem = problem_of(lambda: nn.Linear(FEATURES, CLASSES))
    again = problem_of(lambda: nn.Linear(FEATURES, CLASSES))
    assert torch.equal(problem.x0(0), problem.x0(0))
    assert torch.equal(problem.x0(0), again.x0(0))
    assert not torch.equal(problem.x0(0), problem.x0(1))
    assert problem.x0(1).dtype == torch.float64


def test_a_simulation_starts_where_the_builder_starts_under_its_seed():
    problem = problem_of(lambda: nn.Linear(FEATURES, CLASSES))
    for seed in (0, 1):
        sim = simulate(FedAvg(eta_l=0.1, K=1), problem, seed=seed)
        assert torch.equal(sim.server.x, problem.x0(seed))


# -- running statistics


class Counter(nn.Module):
    """A hand-written module that counts in its forward pass."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, X):
        if self.training:
            self.calls += 1
        return self.layer(X)


class OwnNorm(nn.BatchNorm1d):
    """BatchNorm with a forward of its own, which may do anything with its buffers."""

    def forward(self, X):
        return super().forward(X) + self.running_mean


@pytest.mark.parametrize(
    "layer",
    [OwnNorm(5), nn.InstanceNorm1d(5, track_running_stats=True)],
    ids=lambda layer: type(layer).__name__,
)
def test_running_statistics_are_refused_in_a_sentence_that_names_the_layer(refused, layer):
    with refused("'2'", type(layer).__name__, "GroupNorm", ".eval()"):
        problem_of(net(layer))


def test_running_statistics_deep_inside_are_named_by_their_path(refused):
    block = nn.Sequential(nn.Identity(), OwnNorm(5))
    with refused("'2.1'", "OwnNorm"):
        problem_of(net(block))


def test_a_builder_of_running_statistics_is_refused_too(refused):
    with refused("OwnNorm", "GroupNorm"):
        problem_of(lambda: net(OwnNorm(5)))


def test_batch_norm_without_running_statistics_is_accepted():
    problem = problem_of(net(nn.BatchNorm1d(5, track_running_stats=False)))
    assert torch.isfinite(problem.gradient(problem.x0())).all()


def test_frozen_batch_norm_is_accepted_and_its_statistics_stay():
    norm = nn.BatchNorm1d(5).eval()
    norm.running_mean += 3
    problem = problem_of(net(norm), batch=2)
    x = next(simulate(FedAvg(eta_l=0.5, K=4), problem)).x
    problem.evaluate(x)
    state = problem.unflatten(x)
    assert torch.equal(state["2.running_mean"], torch.full((5,), 3.0).double())
    assert torch.equal(state["2.running_var"], torch.ones(5).double())
    assert int(state["2.num_batches_tracked"]) == 0
    module = net(deepcopy(norm)).double()
    module.load_state_dict(problem.unflatten(problem.x0()))
    expected = plain_gradient(module, F.cross_entropy, X, Y)  # in .eval(), as given
    torch.testing.assert_close(problem.oracle(0, 0, 1)(problem.x0()), expected)


def test_a_module_that_changes_a_buffer_in_its_forward_pass_is_refused(refused):
    problem = problem_of(Counter())
    with refused("'calls'", "GroupNorm", ".eval()"):
        problem.oracle(0, 0, 1)


def test_such_a_module_is_accepted_in_evaluation_mode():
    problem = problem_of(Counter().eval())
    x = next(simulate(FedAvg(eta_l=0.5, K=4), problem)).x
    assert problem.unflatten(x)["calls"] == 0


# -- dropout


class Functional(nn.Module):
    """Dropout that no submodule gives away."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, X):
        return self.layer(F.dropout(X, 0.5, self.training))


with_dropout = pytest.mark.parametrize(
    "module",
    [net(nn.Dropout(0.5)), Functional(), net(nn.RReLU(0.1, 0.9))],
    ids=["Dropout", "functional", "RReLU"],
)


@with_dropout
@pytest.mark.usefixtures("same_global_rng")
def test_dropout_draws_from_seed_client_round_and_k_alone(module):
    problem = Supervised(module, F.cross_entropy, [(X, Y), (X, Y)])
    x = problem.x0()

    def g(seed=0, i=0, r=1, k=0):
        return problem.oracle(i, seed, r)(x, k)

    first = g()
    for other in ({"seed": 1}, {"i": 1}, {"r": 2}, {"k": 1}, {"k": None}):
        assert not torch.equal(g(**other), first)
    assert torch.equal(g(), first)


def test_one_k_is_one_mask_at_every_point():
    problem = Supervised(
        nn.Sequential(nn.Linear(FEATURES, 6, bias=False), nn.Dropout(0.5)),
        lambda output, y: output.mean(),
        [(X, Y)],
    )
    g, x = problem.oracle(0, 0, 1), problem.x0()
    assert torch.equal(g(x, 0), g(x + 1, 0))  # this gradient depends on the mask only
    assert not torch.equal(g(x, 0), g(x, 1))


@with_dropout
@pytest.mark.usefixtures("same_global_rng")
def test_evaluation_and_full_gradients_are_without_dropout(module):
    problem = problem_of(module)
    x = problem.x0()
    problem.oracle(0, 0, 1)(x, 0)
    plain = deepcopy(module).double().eval()
    assert problem.evaluate(x)["loss"] == pytest.approx(F.cross_entropy(plain(X), Y).item())
    assert problem.loss(x) == pytest.approx(F.cross_entropy(plain(X), Y).item())
    expected = plain_gradient(plain, F.cross_entropy, X, Y)
    torch.testing.assert_close(problem.client_gradient(0, x), expected)


def test_a_module_given_in_evaluation_mode_drops_nothing():
    module = net(nn.Dropout(0.5)).eval()
    problem = problem_of(module)
    g, x = problem.oracle(0, 0, 1), problem.x0()
    assert torch.equal(g(x, 0), g(x, 1))
