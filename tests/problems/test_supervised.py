"""Supervised: losses, gradients and measures on clients' data, and what it refuses."""

from copy import deepcopy
from itertools import islice

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from tests.helpers.learning import (
    CLASSES,
    FEATURES,
    classifier,
    clients,
    data,
    net,
    plain_gradient,
    randn,
)
from trimtab import FedAvg, Scaffold, Supervised, simulate
from trimtab.problems.catalogue import logistic, mlp
from trimtab.problems.supervised import mean_loss
from trimtab.simulation.executors import choose

SIZES = (5, 2, 9)


def module_at(problem, x):
    module = net().double()
    module.load_state_dict(problem.unflatten(x))
    return module


def losses(problem, x):
    """Return the clients' losses by the plain module, without l2."""
    module = module_at(problem, x)
    return [F.cross_entropy(module(X), y).item() for X, y in clients(*SIZES)]


# -- losses and gradients


@pytest.mark.parametrize("l2", [0, 0.3])
@pytest.mark.parametrize("weights", [None, [1, 2, 3], torch.tensor([4.0, 1.0, 1.0]), "samples"])
def test_f_is_the_weighted_mean_of_the_clients_losses(weights, l2):
    problem = classifier(*SIZES, weights=weights, l2=l2)
    expected = {"samples": [5, 2, 9]}.get(weights) if isinstance(weights, str) else weights
    p = torch.as_tensor([1.0] * 3 if expected is None else expected, dtype=torch.float64)
    p = p / p.sum()
    torch.testing.assert_close(problem.weights.contiguous(), p)

    x = problem.x0() + randn(problem.d)
    ridge = l2 / 2 * float(x @ x)
    found = [problem.client_loss(i, x) for i in range(3)]
    assert found == pytest.approx([loss + ridge for loss in losses(problem, x)])
    assert problem.loss(x) == pytest.approx(float(p @ torch.tensor(found).double()))

    module = module_at(problem, x)
    gradients = [plain_gradient(module, F.cross_entropy, X, y) + l2 * x for X, y in clients(*SIZES)]
    torch.testing.assert_close(problem.gradient(x), p @ torch.stack(gradients))
    for i in range(3):
        torch.testing.assert_close(problem.oracle(i, 0, 1)(x), gradients[i])
        torch.testing.assert_close(problem.client_gradient(i, x), gradients[i])


def test_losses_build_no_graph():
    problem = classifier(*SIZES, l2=0.1)
    torch.set_warn_always(True)
    try:
        problem.loss(problem.x0())  # float() of what has a graph warns
    finally:
        torch.set_warn_always(False)


@pytest.mark.parametrize("module", [net(), nn.Linear(FEATURES, CLASSES)], ids=["net", "linear"])
def test_the_full_gradient_is_the_mean_over_all_data_also_in_pieces(monkeypatch, module):
    sizes = []

    def loss(output, y):
        sizes.append(len(y))
        return F.cross_entropy(output, y)

    whole = classifier(150, module=module)
    x = whole.x0() + randn(whole.d)
    expected, value = whole.oracle(0, 0, 1)(x), whole.loss(x)
    monkeypatch.setattr(mean_loss, "_CHUNK", 1)
    for f in (loss, F.cross_entropy):
        pieces = Supervised(module, f, clients(150), batch=None)
        for k in (None, 2):
            torch.testing.assert_close(pieces.oracle(0, 0, 1)(x, k), expected)
        torch.testing.assert_close(pieces.client_gradient(0, x), expected)
        assert pieces.loss(x) == pytest.approx(value)
    assert set(sizes) == {2, 4, 6, 150}  # a trial when the client is read, and all of it


def test_a_label_that_the_loss_ignores_has_no_gradient():
    X, y = data(8)
    keep = y != 0
    loss = nn.CrossEntropyLoss(ignore_index=0)
    for module in (nn.Linear(FEATURES, CLASSES).double(), net().double()):
        problem = Supervised(module, loss, [(X, y)])
        expected = plain_gradient(module, F.cross_entropy, X[keep], y[keep])
        torch.testing.assert_close(problem.gradient(problem.x0()), expected)


def test_a_gradient_does_not_depend_on_which_clients_were_read_before():
    X, y = data(8)
    ignored = torch.where(torch.arange(8) < 2, -100, y)
    given = [(X, y), (X, ignored)]
    fresh, used = (Supervised(logistic(4, 3), F.cross_entropy, given, batch=3) for _ in range(2))
    x = fresh.x0() + randn(fresh.d)
    used.evaluate(x)
    assert torch.equal(fresh.oracle(0, 0, 1)(x, 0), used.oracle(0, 0, 1)(x, 0))


@pytest.mark.parametrize("module", [net(), nn.Linear(FEATURES, CLASSES)], ids=["net", "linear"])
def test_a_forward_hook_is_part_of_the_module(module):
    module = deepcopy(module)
    module.register_forward_hook(lambda m, inputs, output: 0 * output)
    problem = classifier(*SIZES, module=module)
    assert problem.gradient(problem.x0()).abs().max() == 0


@pytest.mark.parametrize("module", [net(), nn.Linear(FEATURES, CLASSES)], ids=["net", "linear"])
def test_x_may_be_float64_where_the_module_is_float32(module):
    problem = classifier(*SIZES, module=module, dtype=torch.float32)
    x = problem.x0().double()
    round = next(simulate(FedAvg(eta_l=0.1, K=2), problem, x=x))
    assert round.x.dtype == torch.float64
    torch.testing.assert_close(
        round.x.float(), next(simulate(FedAvg(eta_l=0.1, K=2), problem, x=x.float())).x
    )


def test_gradients_are_plain_tensors_inside_and_outside_of_no_grad():
    problem = classifier(*SIZES)
    x = problem.x0()
    with torch.no_grad():
        inside = problem.oracle(0, 0, 1)(x)
    outside = problem.oracle(0, 0, 1)(x)
    assert torch.equal(inside, outside)
    assert not outside.requires_grad
    assert not x.requires_grad


# -- evaluation


def test_without_test_data_evaluate_is_the_weighted_mean_over_clients():
    problem = classifier(*SIZES, weights="samples", l2=0.7)
    x = problem.x0()
    alone = [problem.evaluate(x, client=i) for i in range(3)]
    assert [row["loss"] for row in alone] == pytest.approx(losses(problem, x))  # no l2
    module = module_at(problem, x)
    right = [(module(X).argmax(1) == y).double().mean().item() for X, y in clients(*SIZES)]
    assert [row["accuracy"] for row in alone] == right
    for name in ("loss", "accuracy"):
        mean = sum(n * row[name] for n, row in zip(SIZES, alone, strict=True)) / sum(SIZES)
        assert problem.evaluate(x)[name] == pytest.approx(mean)


@pytest.mark.parametrize("module", [mlp(FEATURES, 7, CLASSES), logistic(FEATURES, CLASSES)])
def test_all_clients_at_once_are_each_by_itself(monkeypatch, module):
    monkeypatch.setattr("trimtab.problems.supervised.evaluation._AT_ONCE", 3)
    problem = Supervised(module, F.cross_entropy, clients(5, 9, 1, 7, 12), weights=[1, 2, 3, 4, 5])
    x = problem.x0() + randn(problem.d)
    each = [problem.evaluate(x, client=i) for i in range(5)]
    mean = {
        name: sum(float(p) * row[name] for p, row in zip(problem.weights, each, strict=True))
        for name in each[0]
    }
    assert problem.evaluate(x) == pytest.approx(mean, rel=1e-6)  # float32, added up in float64


def test_a_label_that_was_changed_is_refused_by_an_evaluation(refused):
    parts = clients(5, 9, 4, 7)
    problem = Supervised(nn.Linear(FEATURES, CLASSES), F.cross_entropy, parts)
    problem.evaluate(problem.x0())
    parts[2][1][0] = CLASSES
    with refused("client 2"):
        problem.evaluate(problem.x0())


def test_with_test_data_evaluate_uses_them():
    X, y = data(30, seed=9)
    for test in ((X, y), TensorDataset(X, y)):
        problem = classifier(*SIZES, test=test)
        x = problem.x0()
        output = module_at(problem, x)(X)
        assert problem.evaluate(x) == pytest.approx(
            {
                "loss": F.cross_entropy(output, y).item(),
                "accuracy": (output.argmax(1) == y).double().mean().item(),
            }
        )
        assert problem.evaluate(x, client=1)["loss"] == pytest.approx(losses(problem, x)[1])


def macro_recall(output, y):
    hit = output.argmax(1) == y
    return torch.stack([hit[y == c].double().mean() for c in y.unique()]).mean()


def test_the_users_metrics_are_computed_on_the_whole_set_also_in_pieces(monkeypatch):
    monkeypatch.setattr(mean_loss, "_CHUNK", 1)
    X, y = data(200, seed=9)
    y = y.sort().values  # so that pieces have other classes than the whole
    metrics = {"recall": macro_recall, "count": lambda output, y: len(y)}
    problem = classifier(*SIZES, test=(X, y), metrics=metrics)
    x = problem.x0()
    found = problem.evaluate(x)
    assert list(found) == ["loss", "accuracy", "recall", "count"]
    assert found["count"] == 200
    assert found["recall"] == pytest.approx(macro_recall(module_at(problem, x)(X), y).item())
    assert found["loss"] == pytest.approx(F.cross_entropy(module_at(problem, x)(X), y).item())
    assert problem.evaluate(x, client=2)["count"] == 9


@pytest.mark.parametrize("loss", [F.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss()])
@pytest.mark.parametrize("shape", [(6, 1), (6,)])
def test_binary_cross_entropy_counts_the_sign_of_the_output(loss, shape):
    X = torch.tensor([[2.0], [1.0], [-1.0], [-2.0], [3.0], [-3.0]])
    y = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.0]).view(shape)
    module = nn.Linear(1, 1, bias=False)
    module = module if y.dim() == 2 else nn.Sequential(module, nn.Flatten(0))
    problem = Supervised(module, loss, [(X, y)])
    assert problem.evaluate(torch.ones(1))["accuracy"] == pytest.approx(4 / 6)
    assert torch.isfinite(problem.gradient(torch.ones(1))).all()


@pytest.mark.parametrize("outputs", [1, 2])
def test_regression_has_a_loss_and_no_accuracy(outputs):
    X, y = randn(8, 2), randn(8, outputs, seed=1)
    problem = Supervised(nn.Linear(2, outputs), F.mse_loss, [(X, y)])
    assert set(problem.evaluate(problem.x0())) == {"loss"}
    linear = nn.Linear(2, outputs).double()
    linear.load_state_dict(problem.unflatten(problem.x0()))
    expected = plain_gradient(linear, F.mse_loss, X, y)
    torch.testing.assert_close(problem.gradient(problem.x0()), expected)


def test_a_model_of_sequences_can_be_evaluated():
    tokens = torch.randint(5, (6, 7), generator=torch.Generator().manual_seed(0))

    def loss(output, y):
        return F.cross_entropy(output.flatten(0, 1), y.flatten())

    module = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5))
    problem = Supervised(module, loss, [(tokens[:, :-1], tokens[:, 1:])])
    x = next(simulate(FedAvg(eta_l=0.1, K=2), problem)).x
    assert problem.evaluate(x)["loss"] > 0


def test_images_are_classified_pixel_by_pixel_if_the_module_says_so():
    X, y = randn(4, 1, 3, 3, dtype=torch.float32), torch.zeros(4, 3, 3, dtype=torch.long)
    problem = Supervised(nn.Conv2d(1, 2, 1), F.cross_entropy, [(X, y)])
    output = problem.model(problem.x0(), X)
    expected = (output.argmax(1) == y).double().mean().item()
    assert problem.evaluate(problem.x0())["accuracy"] == expected


# -- dtypes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("module", [net(), net().double()], ids=["float32", "float64"])
def test_all_is_float64_where_the_tensors_or_the_module_are(dtype, module):
    problem = classifier(*SIZES, module=module, dtype=dtype, l2=0.1)
    wide = dtype == torch.float64 or module[0].weight.dtype == torch.float64
    expected = torch.float64 if wide else torch.float32
    sim = simulate(Scaffold(eta_l=0.1, K=2), problem)
    server = next(sim).server
    found = {t.dtype for t in (*server, sim.states[0], problem.gradient(server.x))}
    assert found == {expected}


def test_autocast_computes_in_bfloat16_and_keeps_x_in_float32():
    settings = {"dtype": torch.float32, "test": data(50, dtype=torch.float32)}
    full = classifier(*SIZES, **settings)
    half = classifier(*SIZES, **settings, autocast=torch.bfloat16)
    a, b = (list(islice(simulate(FedAvg(eta_l=0.1, K=3), p), 3))[-1].x for p in (full, half))
    assert b.dtype == half.gradient(b).dtype == torch.float32
    assert not torch.equal(a, b)
    torch.testing.assert_close(a, b, rtol=0, atol=0.02)
    assert half.evaluate(a)["loss"] == pytest.approx(full.evaluate(a)["loss"], abs=0.02)


# -- settings


def test_epochs_become_steps_by_the_mean_steps_of_a_pass():
    assert classifier(10, batch=0.2).steps(epochs=4) == 20
    assert classifier(10, batch=3).steps(1) == 4
    assert classifier(10, 2, 9, batch=3).steps(2) == 5  # 2 (4 + 1 + 3) / 3 = 5.33
    assert classifier(10).steps(3) == 3
    assert classifier(10).steps(0.1) == 1


def test_replace_changes_an_argument_and_keeps_the_others():
    metrics = {"count": lambda output, y: len(y)}
    problem = classifier(*SIZES, batch=3, l2=0.1, weights=[1, 2, 3], metrics=metrics)
    other = problem.replace(batch=2)
    assert (other.batch, problem.batch, other.l2) == (2, 3, 0.1)
    assert torch.equal(other.weights, problem.weights)
    assert torch.equal(other.x0(), problem.x0())
    assert "count" in other.evaluate(other.x0())
    assert other.replace(batch=3).fingerprint == problem.fingerprint


def frozen(seed):
    module = net(seed=0)
    module[0] = net(seed=seed)[0].requires_grad_(False)
    return module


def test_the_fingerprint_tells_problems_apart():
    one = classifier(*SIZES, module=frozen(0))
    changed = deepcopy(clients(*SIZES))
    changed[1][0][0, 0] += 1e-9
    relabelled = deepcopy(clients(*SIZES))
    relabelled[2][1][0] = (relabelled[2][1][0] + 1) % CLASSES
    others = {
        "batch": one.replace(batch=2),
        "sampling": one.replace(sampling="iid"),
        "l2": one.replace(l2=0.1),
        "weights": one.replace(weights=[1, 2, 3]),
        "loss": one.replace(loss=F.multi_margin_loss),
        "inputs": one.replace(clients=changed),
        "labels": one.replace(clients=relabelled),
        "fewer clients": one.replace(clients=clients(*SIZES)[:2]),
        "test": one.replace(test=data(4)),
        "autocast": one.replace(autocast=torch.bfloat16),
        "start": one.replace(module=net(seed=1)),
        "frozen layer": one.replace(module=frozen(1)),
    }
    assert one.fingerprint == classifier(*SIZES, module=frozen(0)).fingerprint
    assert [name for name, p in others.items() if p.fingerprint == one.fingerprint] == []


# -- bad input


def bad(X, y, i=1):
    """Return a problem whose second client is this one."""
    given = clients(*SIZES)
    given[i] = (X, y)
    return Supervised(net(), F.cross_entropy, given)


X, Y = data(4)
NAN = torch.where(torch.arange(4)[:, None] == 2, torch.nan, X)


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ((X[:0], Y[:0]), ["client 1", "no samples"]),
        ((NAN, Y), ["client 1", "NaN", "inputs", "sample 2"]),
        ((X / 0, Y), ["client 1", "infinity", "inputs", "sample 0"]),
        ((X, Y + 1), ["client 1", "labels", "3 outputs", "from 0 to 2"]),
        ((X, Y - 1), ["client 1", "labels", "from -1", "from 0 to 2"]),
        ((X[:, :3], Y), ["client 1", "shape (3,)", "(4,)", "same features"]),
        ((X, Y[:3]), ["client 1", "4 inputs", "3 targets"]),
        ((X, Y[0]), ["client 1", "4 inputs", "0 targets"]),
    ],
    ids=["empty", "NaN", "infinity", "above", "below", "features", "lengths", "scalar"],
)
def test_bad_data_are_refused_when_the_client_is_first_used(refused, pair, words):
    problem = bad(*pair)
    sim = simulate(FedAvg(eta_l=0.1, K=1), problem, cohorts=[[0, 2], [0, 1]])
    next(sim)
    with refused(*words):
        next(sim)


@pytest.mark.parametrize("weights", [None, "samples"])
def test_an_empty_client_is_called_empty(refused, weights):
    given = clients(*SIZES)
    given[1] = (X[:0], Y[:0])
    with refused("client 1", "no samples"):
        problem = Supervised(net(), F.cross_entropy, given, weights=weights)
        problem.oracle(1, 0, 1)


def test_an_empty_dataset_is_an_empty_client(refused):
    problem = Supervised(net(), F.cross_entropy, [TensorDataset(X[:0], Y[:0])])
    with refused("client 0", "no samples"):
        problem.oracle(0, 0, 1)


def test_nan_in_targets_is_refused(refused):
    y = torch.tensor([[0.0], [torch.nan]])
    problem = Supervised(nn.Linear(4, 1), F.mse_loss, [(X[:2].float(), y)])
    with refused("client 0", "NaN", "targets", "sample 1"):
        problem.loss(problem.x0())


@pytest.mark.parametrize("loss", [F.cross_entropy, nn.CrossEntropyLoss(), F.nll_loss, nn.NLLLoss()])
def test_labels_out_of_range_are_refused_for_every_loss_that_takes_labels(refused, loss):
    problem = Supervised(nn.Sequential(net(), nn.LogSoftmax(1)), loss, [(X, torch.full((4,), 7))])
    with refused("client 0", "7", "3 outputs"):
        problem.gradient(problem.x0())


def test_inputs_of_the_wrong_width_are_refused(refused):
    problem = Supervised(net(), F.cross_entropy, [(X[:, :3], Y)])
    with refused("client 0", "(2, 3)"):
        problem.oracle(0, 0, 1)


@pytest.mark.parametrize(
    ("test", "words"),
    [((X[:0], Y[:0]), ["no samples"]), ((NAN, Y), ["NaN"]), ((X, Y + 1), ["labels"])],
    ids=["empty", "NaN", "labels"],
)
def test_bad_test_data_are_refused(refused, test, words):
    problem = classifier(*SIZES, test=test)
    with refused("the test set", *words):
        problem.evaluate(problem.x0())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        *(
            ({"batch": batch}, [f"batch={batch!r}", "fraction", "without batch"])
            for batch in (0, -1, 0.0, 1.5, True, "all", float("nan"))
        ),
        ({"sampling": "random"}, ["sampling='random'", "'reshuffle'", "'iid'"]),
        *(
            ({"weights": weights}, ["weights"])
            for weights in ([1, 2], [1, 2, 0], [1, -2, 3], [1, 2, float("nan")], "sizes")
        ),
        *(({"l2": l2}, ["l2", "zero or positive"]) for l2 in (-0.1, float("nan"))),
        *(({"clients": none}, ["no clients", "at least one"]) for none in ([], ())),
    ],
    ids=str,
)
def test_a_bad_argument_is_refused(refused, arguments, words):
    with refused(*words):
        Supervised(net(), F.cross_entropy, **{"clients": clients(*SIZES)} | arguments)


def test_a_loss_that_cannot_take_the_targets_is_refused(refused):
    y = torch.tensor([[0], [1], [1], [0]])
    problem = Supervised(nn.Linear(4, 1), F.binary_cross_entropy_with_logits, [(X.float(), y)])
    with refused("the loss cannot take", "client 0"):
        problem.oracle(0, 0, 1)


def test_ignored_labels_do_not_count_in_the_accuracy():
    y = torch.tensor([0, 1, -100, -100])
    problem = Supervised(nn.Linear(4, 2), F.cross_entropy, [(X.float(), y)])
    predicted = problem.model(problem.x0(), X.float()).argmax(1)[:2]
    assert problem.evaluate(problem.x0())["accuracy"] == (predicted == y[:2]).double().mean()


@pytest.mark.parametrize("wrap", [lambda X, y: TensorDataset(X, y), lambda X, y: (X.numpy(), y)])
def test_float64_is_kept_where_the_tensors_are(wrap):
    problem = Supervised(nn.Linear(4, 3), F.cross_entropy, [wrap(X.double(), Y)])
    assert problem.oracle(0, 0, 1)(problem.x0()).dtype == torch.float64


def test_what_is_no_module_is_refused(refused):
    with refused("'linear' is not a module"):
        Supervised("linear", F.cross_entropy, [(X, Y)])


def test_x_of_another_length_is_refused(refused):
    problem = Supervised(nn.Linear(4, 3), F.cross_entropy, [(X.float(), Y)])
    with refused("pass a vector of length d=15"):
        problem.evaluate(torch.zeros(1))


def test_an_evaluation_has_the_same_bits_on_any_number_of_cores(monkeypatch):
    draw = torch.Generator().manual_seed(0)
    X, y = torch.randn(700, 2000, generator=draw), torch.randint(10, (700,), generator=draw)
    module = nn.Sequential(nn.Linear(2000, 10), nn.Softplus(), nn.Linear(10, 10))
    problem = Supervised(module, F.cross_entropy, [(X[:9], y[:9])], test=(X, y))
    assert choose(problem, S=2).name == "threads"
    found = []
    for cores in (1, 2, 3):
        monkeypatch.setattr("trimtab.compute.kernel.library.cores", lambda cores=cores: cores)
        found.append(problem.evaluate(problem.x0()))
    assert found[0] == found[1] == found[2]
    with torch.no_grad():
        assert found[0]["loss"] == pytest.approx(float(F.cross_entropy(module(X), y)), rel=1e-5)
