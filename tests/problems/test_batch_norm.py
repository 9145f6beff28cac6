"""BatchNorm: batch statistics in training, pooled statistics at x wherever a model is used."""

from itertools import islice

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers.learning import CLASSES, FEATURES, data, plain_gradient, randn
from trimtab import FedAvg, OnBatch, Scaffold, Supervised, diagnose, simulate
from trimtab.problems.clients import STATISTICS, per_client, problem_notes
from trimtab.problems.metrics import ACCURACY, LOSS
from trimtab.problems.supervised import batch_norm
from trimtab.studies.baselines import local
from trimtab.studies.holdout import HeldOutProblem

SIZES = (12, 8, 20, 8)


def build(seed=0, *between):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            *(nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Softsign(), *between),
            *(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Softsign(), nn.Linear(5, CLASSES)),
        ).double()


def clients(sizes=SIZES, apart=2.0):
    """Return clients whose features have different means and deviations."""
    pairs = [data(n, seed) for seed, n in enumerate(sizes)]
    return [(apart * i + (1 + i) * X, y) for i, (X, y) in enumerate(pairs)]


def problem_of(module=None, sizes=SIZES, **settings):
    settings = {"batch": 4, "weights": "samples"} | settings
    return Supervised(module or build(), F.cross_entropy, clients(sizes), **settings)


def trained(problem, R=3, **settings):
    return next(islice(simulate(Scaffold(eta_l=0.1, K=3), problem, **settings), R - 1, None))


def apart(one, other):
    return float((one - other).abs().max())


# -- training


@pytest.mark.parametrize("executor", ["loop", "batched", "threads", "tree-2"])
def test_training_does_not_depend_on_the_buffers(executor):
    random = build()
    for buffer in random.buffers():
        buffer.random_(1, 9)
    ends = [trained(problem_of(m), executor=executor).x for m in (build(), random)]
    assert torch.equal(*ends)
    assert not torch.equal(ends[0], problem_of().x0())


@pytest.mark.parametrize("executor", ["batched", "threads", "tree-2"])
def test_every_executor_takes_the_steps_of_the_loop(executor):
    problem = problem_of()
    assert problem.why_not_vectorised() == ""  # batched captures one graph for several clients
    expected = trained(problem, executor="loop")
    found = trained(problem, executor=executor)
    torch.testing.assert_close(found.x, expected.x, rtol=0, atol=1e-13)
    torch.testing.assert_close(found.server.c, expected.server.c, rtol=0, atol=1e-13)


def test_a_step_is_that_of_plain_torch_in_training_mode():
    problem, module = problem_of(batch=None), build()
    x, (X, y) = problem.x0(), clients()[1]
    expected = plain_gradient(module.train(), F.cross_entropy, X, y)
    torch.testing.assert_close(problem.oracle(1, 0, 1)(x, 0), expected)
    torch.testing.assert_close(problem.oracle(1, 0, 1)(x), expected)


def test_the_gradient_on_all_data_is_the_mean_over_one_pass_of_mini_batches():
    problem, seen = problem_of(batch=6), []
    x, (X, y) = problem.x0() + 0.1 * randn(problem.d), clients()[2]
    assert problem.why_not_vectorised() == ""
    at_once = problem.chunk_oracle([2] * 4, 5, 3)(x)
    problem.model.module.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    found = problem.oracle(2, 5, 3)(x)
    assert [len(part) for part in seen] == [6, 6, 6, 2]
    rows = [[int((row == X).all(1).nonzero()) for row in part] for part in seen]
    assert sorted(j for part in rows for j in part) == list(range(20))
    module = build()
    module.load_state_dict(problem.unflatten(x))
    module.train()
    each = [len(r) / 20 * plain_gradient(module, F.cross_entropy, X[r], y[r]) for r in rows]
    torch.testing.assert_close(found, sum(each))
    torch.testing.assert_close(at_once, found.expand(4, -1))
    torch.testing.assert_close(problem.oracle(2, 9, 7)(x), found, rtol=0, atol=0)


def test_x_and_the_control_variates_hold_no_buffer():
    problem = problem_of()
    parameters = dict(build().named_parameters())
    assert problem.model.names == list(parameters)
    assert problem.d == sum(p.numel() for p in parameters.values())
    sim = simulate(Scaffold(eta_l=0.1, K=3), problem)
    done = next(sim)
    assert {len(done.x), len(done.server.c)} == {problem.d}
    assert {len(c_i) for _, c_i in sim.states.items()} == {problem.d}


def test_frozen_layers_keep_their_buffers_beside_layers_that_are_trained():
    module = build()
    module[1].eval().running_mean += 3
    problem = problem_of(module)
    x = trained(problem).x
    state = problem.unflatten(x)
    assert torch.equal(state["1.running_mean"], torch.full((6,), 3.0).double())
    assert int(state["1.num_batches_tracked"]) == 0
    names = ("running_mean", "running_var", "num_batches_tracked")
    assert set(problem.statistics(x)) == {f"4.{name}" for name in names}


# -- statistics


def test_pooled_statistics_are_those_of_one_client_with_all_data():
    problem = problem_of()
    x = trained(problem).x
    found = problem.statistics(x)
    layer = problem.module_at(x)[0]
    Z = layer(torch.cat([X for X, _ in clients()])).detach()
    assert apart(found["1.running_mean"], Z.mean(0)) < 1e-12
    assert apart(found["1.running_var"], Z.var(0)) < 1e-12 * float(Z.var(0).max())
    one = [tuple(map(torch.cat, zip(*clients(), strict=True)))]
    big = Supervised(build(), F.cross_entropy, one, batch=4).statistics(x)
    assert apart(found["1.running_mean"], big["1.running_mean"]) < 1e-12
    assert apart(found["1.running_var"], big["1.running_var"]) < 1e-12 * float(Z.var(0).max())


def test_weights_count_in_the_pool_and_the_mean_of_variances_is_not_the_variance():
    p = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    problem = problem_of(weights=p)
    x, n = problem.x0(), sum(SIZES)
    found = problem.statistics(x)
    Z = [problem.module_at(x)[0](X).detach() for X, _ in clients()]
    means = torch.stack([z.mean(0) for z in Z])
    variances = torch.stack([z.var(0, correction=0) for z in Z])
    mean = p @ means
    assert apart(found["1.running_mean"], mean) < 1e-12
    within = p @ variances
    right = (within + p @ (means - mean).square()) * n / (n - 1)
    assert apart(found["1.running_var"], right) < 1e-12 * float(right.max())
    assert apart(found["1.running_var"], within * n / (n - 1)) > 1


def test_a_small_variance_beside_a_large_mean_is_not_lost_in_float32():
    X = (1000 + 0.01 * randn(64, 3)).float()
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, CLASSES))
    problem = Supervised(module, F.cross_entropy, [(X, torch.arange(64) % CLASSES)] * 2, batch=8)
    found = problem.statistics(problem.x0())["0.running_var"]
    expected = X.double().var(0)
    assert apart(found / expected * 127 / 126, torch.ones(3)) < 0.02
    assert found.dtype == torch.float64


def test_one_clients_own_statistics():
    problem = problem_of(batch=None)
    x = problem.x0()
    module = build()
    module[1].momentum = module[4].momentum = None  # PyTorch then keeps those of the one batch.
    module.train()(clients()[3][0])
    for name, own in problem.statistics(x, client=3).items():
        torch.testing.assert_close(own, module.state_dict()[name], check_dtype=False)


def test_a_layer_in_two_places_has_the_statistics_of_both():
    norm = nn.BatchNorm1d(FEATURES)
    module = nn.Sequential(norm, nn.Linear(FEATURES, FEATURES), norm, nn.Linear(FEATURES, 3))
    problem = problem_of(module.double(), batch=None)
    x = problem.x0()
    found = problem.statistics(x)
    X = clients()[0][0]
    before = F.batch_norm(X, None, None, training=True)
    both = torch.cat([X, module[1](before).detach()])
    own = problem.statistics(x, client=0)
    torch.testing.assert_close(own["0.running_mean"], both.mean(0))
    torch.testing.assert_close(own["0.running_var"], both.var(0))
    state = problem.unflatten(x)
    assert torch.equal(state["0.running_mean"], state["2.running_mean"])
    assert torch.equal(state["0.running_mean"], found["0.running_mean"])


def test_dropout_has_no_part_in_statistics():
    problem, again = (problem_of(build(0, nn.Dropout(0.5))) for _ in range(2))
    x = problem.x0()
    torch.manual_seed(1)
    first = problem.statistics(x)
    torch.manual_seed(2)
    assert all(torch.equal(first[name], t) for name, t in again.statistics(x).items())
    plain = problem_of().statistics(x)
    assert apart(first["5.running_mean"], plain["4.running_mean"]) < 1e-12


def test_held_out_rows_have_no_part_in_statistics():
    problem = problem_of(sizes=(24, 24), batch=6).split(0.25)
    x = problem.x0()
    rows = torch.cat([problem.clients[i].X for i in range(2)])
    assert len(rows) == 36
    Z = problem.module_at(x)[0](rows).detach()
    assert apart(problem.statistics(x)["1.running_mean"], Z.mean(0)) < 1e-12


def test_statistics_are_estimated_once_for_a_point(monkeypatch):
    problem, calls = problem_of(), []
    whole = batch_norm.pooled
    monkeypatch.setattr(batch_norm, "pooled", lambda found: calls.append(1) or whole(found))
    x = problem.x0()
    problem.evaluate(x)
    problem.unflatten(x)
    [problem.evaluate(x, client=i) for i in range(4)]
    assert len(calls) == 1
    problem.evaluate(x + 1)
    x += 1  # The same tensor with other numbers.
    first = problem.evaluate(x)
    assert len(calls) == 2
    problem.batch = 2
    assert problem.evaluate(x) != first
    assert len(calls) == 3


def test_data_in_the_place_of_several_clients_are_passed_once(monkeypatch):
    problem, calls = problem_of(sizes=(8,)), []
    problem = problem.replace(clients=[clients()[1]] * 5)
    found = problem._statistics.found
    monkeypatch.setattr(problem._statistics, "found", lambda *a: calls.append(a) or found(*a))
    pool, own = problem.statistics(problem.x0()), problem.statistics(problem.x0(), client=3)
    assert len(calls) == 2  # one for all five, and one for client 3
    torch.testing.assert_close(pool["1.running_var"], own["1.running_var"])


# -- evaluation


def test_evaluation_uses_pooled_statistics_and_never_those_of_its_batch():
    X, y = clients()[2]
    test = (100 + X[:1], y[:1])  # Of one sample there is no variance.
    problem = problem_of(test=test, metrics={"first": lambda output, y: output[0, 0]})
    x = trained(problem).x
    module = problem.module_at(x)
    assert not module.training
    assert all(t.dtype == torch.float64 for t in module.parameters())
    output = module(test[0])
    found = problem.evaluate(x)
    assert found["loss"] == pytest.approx(F.cross_entropy(output, test[1]).item(), rel=1e-12)
    assert found["first"] == pytest.approx(output[0, 0].item(), rel=1e-12)
    losses = [F.cross_entropy(module(X), y).item() for X, y in clients()]
    assert [problem.evaluate(x, client=i)["loss"] for i in range(4)] == pytest.approx(losses)
    assert [problem.client_loss(i, x) for i in range(4)] == pytest.approx(losses)
    assert problem.loss(x) == pytest.approx(float(problem.weights @ torch.tensor(losses).double()))


def test_gradients_and_hessians_of_a_diagnosis_are_those_of_the_module_at_x():
    problem = problem_of()
    x = trained(problem).x
    module = problem.module_at(x)
    X, y = clients()[1]
    gradient = plain_gradient(module, F.cross_entropy, X, y)
    torch.testing.assert_close(problem.client_gradient(1, x), gradient)
    data = problem.clients[1]
    each = problem.sample_gradients(x, data)
    torch.testing.assert_close(each.mean(0), gradient)
    v = randn(problem.d)
    trainable = list(module.parameters())
    parts = torch.autograd.grad(F.cross_entropy(module(X), y), trainable, create_graph=True)
    flat = torch.cat([part.reshape(-1) for part in parts])
    Hv = torch.cat([t.reshape(-1) for t in torch.autograd.grad(flat @ v, trainable)])
    torch.testing.assert_close(problem.client_hvp(1, x, v), Hv)
    at_once = problem.chunk_hvp([0, 1, 2, 3], x, v[None])
    torch.testing.assert_close(at_once[1, 0], Hv)
    assert problem.in_one_pass().loss(x) == pytest.approx(problem.loss(x))


def test_hessians_of_several_clients_at_once_use_the_statistics_at_each_x():
    problem = problem_of(sizes=(8,) * 4)
    for x in (problem.x0(), trained(problem).x):
        v = randn(problem.d)
        at_once = problem.chunk_hvp([0, 1, 2, 3], x, v[None])
        each = [problem.client_hvp(i, x, v) for i in range(4)]
        torch.testing.assert_close(at_once[:, 0], torch.stack(each))
    assert problem.chunk_hvp is not None  # vmap agreed with autograd, so that it is used.


def test_diagnose_takes_batch_norm():
    found = diagnose(problem_of(sizes=(8, 8, 8)), minutes=0.05)
    assert found.d == problem_of().d


def test_large_data_are_evaluated_in_pieces(monkeypatch):
    monkeypatch.setattr("trimtab.problems.supervised.mean_loss._CHUNK", 1)
    seen = []
    problem = problem_of(sizes=(150, 90))
    x = problem.x0()
    expected = F.cross_entropy(problem.module_at(x)(clients((150, 90))[0][0]), data(150)[1])
    problem.evaluate(x)
    problem.model.module.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    assert problem.evaluate(x, client=0)["loss"] == pytest.approx(expected.item())
    assert seen == [64, 64, 22]


def test_a_loss_of_module_and_batch():
    loss = OnBatch(lambda module, batch: F.cross_entropy(module(batch[0]), batch[1]))
    problem, plain = Supervised(build(), loss, clients(), batch=4), problem_of(weights=None)
    x = trained(plain).x
    torch.testing.assert_close(trained(problem).x, x)
    assert problem.evaluate(x)["loss"] == pytest.approx(plain.evaluate(x)["loss"])


def samples_of(client):
    return [(x, int(label)) for x, label in zip(*client, strict=True)]


def stacked(samples):
    X, y = zip(*samples, strict=True)
    return torch.stack(X), torch.tensor(y)


KINDS = {
    "SyncBatchNorm": {"module": build(0, nn.SyncBatchNorm(6).double())},
    "no parameters, no momentum": {"module": build(0, nn.BatchNorm1d(6, 1e-5, None, False))},
    "independent draws": {"sampling": "iid"},
    "a collate": {"clients": [samples_of(each) for each in clients()], "collate": stacked},
    "arguments by name": {"clients": [({"input": X}, y) for X, y in clients()]},
}


@pytest.mark.parametrize("kind", KINDS)
def test_other_layers_and_other_data_are_measured_like_the_module_at_x(kind):
    given = {"module": build(), "clients": clients(), "batch": 4} | KINDS[kind]
    problem = Supervised(loss=lambda output, y: F.cross_entropy(output, y), **given)
    x = trained(problem).x
    module = problem.module_at(x)
    losses = [F.cross_entropy(module(X), y).item() for X, y in clients()]
    assert problem.evaluate(x)["loss"] == pytest.approx(sum(losses) / 4)


# -- what is refused


REFUSED = {
    "one sample": ((8, 1, 8), {}, "client 1 has one sample, ", "; leave it out"),
    "a rest of one": (
        (8, 8, 9),
        {},
        "client 2 trains on 9 samples, of which 2 mini-batches of 4 leave one",
    ),
    "mini-batches of one": ((8, 8), {"batch": 1}, "client 0 has mini-batches of 1 sample, "),
    "a share that is one": ((20, 5), {"batch": 0.2}, "client 1 has mini-batches of 1 sample, "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_mini_batch_of_one_value_per_channel_is_refused_before_the_first_round(refused, name):
    sizes, settings, *words = REFUSED[name]
    with refused(*words, "layer '1'", "freeze the layer with .eval()"):
        simulate(FedAvg(eta_l=0.1, K=3), problem_of(sizes=sizes, **settings))


def test_independent_draws_leave_no_rest():
    problem = problem_of(sizes=(8, 9), sampling="iid")
    x = trained(problem).x
    assert torch.isfinite(problem.oracle(1, 0, 1)(x)).all()
    assert torch.isfinite(problem.statistics(x)["1.running_var"]).all()


def test_one_image_has_enough_values():
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    given = [(randn(n, 1, 4, 4), torch.arange(n) % 3) for n in (1, 5)]
    problem = Supervised(module.double(), F.cross_entropy, given, batch=4)
    assert torch.isfinite(trained(problem).x).all()


def test_no_other_module_is_asked_for_more_than_one_sample():
    problem = Supervised(nn.Linear(FEATURES, CLASSES), F.cross_entropy, clients((8, 1)), batch=1)
    assert torch.isfinite(trained(problem).x).all()


# -- the record


def test_the_record_says_how_statistics_were_made():
    assert STATISTICS in problem_notes(problem_of(), LOSS)
    frozen = Supervised(build().eval(), F.cross_entropy, clients())
    assert STATISTICS not in problem_notes(frozen, LOSS)


def test_clients_are_measured_with_pooled_and_with_their_own_statistics():
    problem = problem_of()
    x = trained(problem).x
    found = per_client(problem, x, LOSS)
    assert found.values == tuple(problem.evaluate(x, i)["loss"] for i in range(4))
    module = problem.module_at(x)
    for i, (X, y) in enumerate(clients()):
        own = {n: t.to(module.state_dict()[n]) for n, t in problem.statistics(x, i).items()}
        module.load_state_dict({**problem.unflatten(x), **own})
        assert found.own_values[i] == pytest.approx(F.cross_entropy(module(X), y).item())
    assert found.own_mean == pytest.approx(sum(found.own_values) / 4)
    assert per_client(problem_of(build().eval()), x, ACCURACY).own_mean is None


def test_clients_that_learn_alone_are_measured_with_their_own_statistics():
    problem = problem_of(test=data(30, seed=9))
    x = trained(problem).x
    alone = local(HeldOutProblem(problem, problem.evaluate, "none", problem.evaluate))
    rows = []
    for i in range(4):
        module = problem.module_at(x)
        own = {n: t.to(module.state_dict()[n]) for n, t in problem.statistics(x, i).items()}
        module.load_state_dict({**problem.unflatten(x), **own})
        rows.append(F.cross_entropy(module(problem.test.X), problem.test.y).item())
    found = alone.evaluate(x.expand(4, -1))["loss"]
    assert found == pytest.approx(float(problem.weights @ torch.tensor(rows).double()))
    assert problem.evaluate(x)["loss"] != pytest.approx(found)


def test_the_fingerprint_does_not_depend_on_what_was_evaluated():
    problem, other = problem_of(), problem_of()
    problem.evaluate(trained(problem).x)
    assert problem.fingerprint == other.fingerprint
