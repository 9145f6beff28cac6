"""Mini-batches depend on (seed, client, round, k) alone; clients are read when they are needed."""

import weakref
from itertools import chain, islice
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from tests.helpers.learning import classifier, clients, net, plain_gradient, samples, tracer
from trimtab import FedAvg, Supervised, simulate
from trimtab.compute.kernel import simd_level
from trimtab.problems.supervised import clients as clients_module
from trimtab.problems.supervised.batches import Batches, batch_size, drawn
from trimtab.problems.supervised.data import Data

# -- which samples


@given(st.integers(1, 25), st.integers(1, 30), st.integers(0, 3))
def test_every_pass_covers_every_sample_once_and_keeps_its_short_last_batch(n, batch, passes):
    problem, b = tracer(n, batch=batch), min(batch, n)
    steps = -(-n // b)
    found = [samples(problem, passes * steps + k) for k in range(steps)]
    assert sorted(chain(*found)) == list(range(n))
    assert [len(rows) for rows in found] == [b] * (steps - 1) + [n - b * (steps - 1)]


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.sampled_from([None, 1, 3, 5, 0.4]),
    st.sampled_from(["reshuffle", "iid"]),
    st.lists(st.one_of(st.none(), st.integers(-7, 40)), min_size=1, max_size=6, unique=True),
)
def test_a_kernel_is_given_the_same_samples(sizes, batch, sampling, ks):
    """Mini-batches of several clients at once lie where their places say."""

    data = [Data(torch.zeros(n, 1), torch.zeros(n, dtype=torch.long)) for n in sizes]
    cut = [Batches(each, batch, sampling, (3, i, 2)) for i, each in enumerate(data)]
    cohort = SimpleNamespace(lengths=sizes, plans={})
    found = drawn(range(len(sizes)), cohort, batch, sampling, 3, 2, ks)
    if simd_level() is None or any(k is not None and k < 0 for k in ks):
        assert found is None
        return
    for i, batches in enumerate(cut):
        for j, k in enumerate(ks):
            rows = found.of(i, j)
            expected = None if k is None else batches.rows(k)
            assert (rows is None) == (expected is None)
            assert rows is None or rows.tolist() == expected.tolist()


def test_each_pass_each_round_each_client_and_each_seed_has_its_own_order():
    problem = tracer(20, clients=2, batch=5)
    orders = [
        [samples(problem, k, **where) for k in ks]
        for ks, where in (
            (range(4), {}),
            (range(4, 8), {}),
            (range(4), {"r": 2}),
            (range(4), {"i": 1}),
            (range(4), {"seed": 1}),
        )
    ]
    assert all(a != b for j, a in enumerate(orders) for b in orders[:j])


@pytest.mark.parametrize("sampling", ["reshuffle", "iid"])
@pytest.mark.usefixtures("same_global_rng")
def test_equal_seed_client_round_and_k_mean_equal_mini_batches_in_any_order_of_calls(sampling):
    problem = tracer(12, clients=2, batch=5, sampling=sampling)
    x = problem.x0()
    g = problem.oracle(1, 7, 3)
    forth = [g(x, k) for k in range(8)]
    problem.oracle(0, 7, 3)(x, 4)
    back = [problem.oracle(1, 7, 3)(x, k) for k in reversed(range(8))][::-1]
    assert all(map(torch.equal, forth, back))


def test_a_mini_batch_does_not_depend_on_the_point():
    problem = classifier(9, batch=4, l2=0.5)
    x, y, g = problem.x0(), problem.x0() + 1, problem.oracle(0, 0, 1)
    X, labels = problem.clients[0].X, problem.clients[0].y
    rows = samples(tracer(9, batch=4), 1)
    for point in (x, y):
        module = net().double()
        module.load_state_dict(problem.unflatten(point))
        expected = plain_gradient(module, F.cross_entropy, X[rows], labels[rows]) + 0.5 * point
        torch.testing.assert_close(g(point, 1), expected)


def test_iid_draws_with_replacement_and_every_sample_equally_often():
    problem = tracer(5, batch=4, sampling="iid")
    g, x = problem.oracle(0, 0, 1), problem.x0()
    counts = torch.stack([4 * g(x, k) for k in range(3000)])
    assert torch.equal(counts, counts.round())
    assert torch.equal(counts.sum(1), torch.full((3000,), 4.0).double())
    assert counts.max() > 1  # twice in one batch
    torch.testing.assert_close(counts.mean(0), torch.full((5,), 0.8).double(), rtol=0, atol=0.05)
    # 1 - (4/5)^4 of the batches hold a given sample, were draws independent
    assert float((counts > 0).double().mean()) == pytest.approx(1 - 0.8**4, abs=0.01)


def test_iid_mini_batches_differ_between_steps_rounds_clients_and_seeds():
    problem = tracer(40, clients=2, batch=20, sampling="iid")
    x = problem.x0()
    where = [(0, 0, 1, 0), (0, 0, 1, 1), (0, 0, 2, 0), (1, 0, 1, 0), (0, 1, 1, 0)]
    found = {tuple(problem.oracle(i, seed, r)(x, k).tolist()) for i, seed, r, k in where}
    assert len(found) == 5


@pytest.mark.parametrize("sampling", ["reshuffle", "iid"])
def test_without_a_batch_every_step_uses_all_local_data(sampling):
    problem = tracer(7, sampling=sampling)
    for k in (None, 0, 5):
        assert samples(problem, k) == list(range(7))


@pytest.mark.parametrize(
    ("batch", "n", "expected"),
    [
        *[(None, 7, 7), (3, 7, 3), (7, 7, 7), (9, 7, 7), (1, 7, 1)],
        *[(0.2, 100, 20), (0.2, 101, 21), (0.2, 15, 3), (0.2, 3, 1), (1.0, 7, 7), (0.1, 30, 3)],
        (1e-12, 5, 1),
    ],
)
def test_a_batch_is_a_size_or_a_fraction_rounded_up_and_never_larger_than_the_data(
    batch, n, expected
):
    assert batch_size(batch, n) == expected


def test_one_fifth_is_five_steps_a_pass():
    problem = tracer(23, batch=0.2)
    assert [len(samples(problem, k)) for k in range(5)] == [5, 5, 5, 5, 3]


def test_clients_of_unequal_sizes_take_equally_many_steps():
    problem = classifier(1, 6, 13, batch=4)
    K, eta, x = 5, 0.3, problem.x0()
    moves = []
    for i in range(3):
        g, y = problem.oracle(i, 0, 1), x
        for k in range(K):
            y = y - eta * g(y, k)
        moves.append(y - x)
    round = next(simulate(FedAvg(eta_l=eta, K=K), problem))
    torch.testing.assert_close(round.x, x + sum(moves) / 3)


# -- where the data come from


class Rows(Dataset):
    """A map-style Dataset of single samples, as numbers and numpy arrays."""

    def __init__(self, X, y):
        self.X, self.y = X.numpy(), y.tolist()

    def __len__(self):
        return len(self.y)

    def __getitem__(self, j):
        return self.X[j], self.y[j]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "wrap",
    [TensorDataset, Rows, lambda X, y: (X.numpy(), y.numpy()), lambda X, y: [X, y.tolist()]],
    ids=["TensorDataset", "map-style", "numpy", "lists"],
)
def test_datasets_give_what_tensors_give(wrap, dtype):
    module, pairs = net().to(dtype), clients(5, 2, dtype=dtype)
    tensors = Supervised(module, F.cross_entropy, pairs, pairs[0], batch=2, weights="samples")
    wrapped = Supervised(
        module,
        F.cross_entropy,
        [wrap(*pair) for pair in pairs],
        wrap(*pairs[0]),
        batch=2,
        weights="samples",
    )
    assert wrapped.weights.tolist() == [5 / 7, 2 / 7]
    algorithm = FedAvg(eta_l=0.1, K=3)
    a, b = (list(islice(simulate(algorithm, p), 3))[-1].x for p in (tensors, wrapped))
    assert torch.equal(a, b)
    assert a.dtype == dtype
    assert tensors.evaluate(a) == wrapped.evaluate(a)


class Lazy:
    """A sequence that makes clients on demand, and remembers whom it made and what still lives."""

    def __init__(self, n):
        self.n, self.asked, self.alive = n, [], weakref.WeakSet()

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.asked.append(i)
        (pair,) = clients(6, dtype=torch.float32)
        self.alive.add(pair[0])
        return pair


def test_only_sampled_clients_are_read():
    lazy = Lazy(10**6)
    problem = Supervised(net(), F.cross_entropy, lazy, batch=2)
    assert lazy.asked == []
    sim = simulate(FedAvg(eta_l=0.1, K=2), problem, S=3)
    sampled = {i for round in islice(sim, 4) for i in round.cohort}
    assert set(lazy.asked) == sampled
    assert len(lazy.asked) == len(sampled)


def test_lazy_clients_do_not_pile_up_in_memory(monkeypatch):
    monkeypatch.setattr(clients_module, "_KEPT", 3)
    lazy = Lazy(50)
    problem = Supervised(net(), F.cross_entropy, lazy)
    for i in range(20):
        problem.client_gradient(i, problem.x0())
        assert len(lazy.alive) <= 3
    problem.client_gradient(19, problem.x0())
    assert lazy.asked == list(range(20))  # the last one is still there


def test_a_client_that_was_dropped_is_read_again_and_is_the_same(monkeypatch):
    monkeypatch.setattr(clients_module, "_KEPT", 1)
    problem = Supervised(net(), F.cross_entropy, Lazy(3), batch=2)
    x = problem.x0()
    first = problem.oracle(0, 0, 1)(x, 1)
    problem.oracle(2, 0, 1)(x, 1)
    assert torch.equal(problem.oracle(0, 0, 1)(x, 1), first)
