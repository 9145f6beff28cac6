"""Data held out: by (seed, client), lazily, told apart in a saved run, and never learnt from."""

from itertools import islice

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.helpers.learning import CLASSES, FEATURES, classifier, clients, data, net, randn, tracer
from trimtab import Metric, Quadratic, Scaffold, Supervised, simulate
from trimtab.problems.identity import matches_fingerprint
from trimtab.problems.problem import with_target_metric
from trimtab.problems.supervised.clients import HeldOutView, held_out
from trimtab.problems.supervised.reading import Reader

SIZES = (20, 4, 9)


def numbered(n, start=0):
    """Return samples that carry their own numbers."""
    rows = torch.arange(start, start + n)
    return rows[:, None].double().repeat(1, FEATURES), rows % CLASSES


def sides(given, fraction=0.1, seed=0):
    """Return which samples of each client stay, and which are held out."""
    reader = Reader(torch.float64, torch.device("cpu"))
    parts = [HeldOutView(given, fraction, seed, held, reader) for held in (False, True)]
    return [[part[i][0][:, 0].long().tolist() for i in range(len(given))] for part in parts]


# -- which rows


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.floats(0.01, 0.99),
    st.integers(0, 2**40),
)
def test_every_row_is_on_one_side(sizes, fraction, seed):
    kept, held = sides([numbered(n) for n in sizes], fraction, seed)
    for n, rows, out in zip(sizes, kept, held, strict=True):
        assert sorted(rows + out) == list(range(n))
        assert rows == sorted(rows)
        assert rows
        assert len(out) == held_out(n, fraction)
        assert bool(out) == (n >= 5)


def test_rows_depend_on_seed_and_client_alone():
    ten = numbered(50)
    assert sides([ten, ten], seed=3) == sides([ten, ten], seed=3)
    one, other = sides([ten, ten], seed=3)[1]
    assert one != other
    assert sides([ten], seed=3)[1] == [one]
    assert sides([ten], seed=4)[1] != [one]


def test_a_tenth_is_held_out():
    assert [held_out(n, 0.1) for n in (1, 4, 5, 10, 100, 1000)] == [0, 0, 1, 1, 10, 100]
    assert held_out(5, 0.99) == 4


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 2, float("nan"), "0.1", True, None])
def test_a_fraction_that_is_none_is_refused(fraction, refused):
    with refused("between 0 and 1"):
        classifier(9).split(fraction)


# -- the problem


def test_a_split_problem_learns_from_the_rest_and_validates_on_all_rows_held_out():
    given = [numbered(n, start=100 * i) for i, n in enumerate(SIZES)]
    problem = Supervised(net(), F.cross_entropy, given)
    parted = problem.split(0.2, seed=7)
    kept, held = sides(given, 0.2, 7)
    for i, rows in enumerate(kept):
        assert parted.clients[i].X[:, 0].long().tolist() == rows
        assert parted.clients.size(i) == len(rows)
        assert parted.steps_in_a_pass(i) == 1
    X, y = (torch.cat(part) for part in zip(*given, strict=True))
    out = [row for rows in held for row in rows]
    mask = torch.isin(X[:, 0].long(), torch.tensor(out))
    x = problem.x0()
    assert parted.validate(x) == pytest.approx(problem.replace(test=(X[mask], y[mask])).evaluate(x))
    assert torch.equal(parted.x0(), x)
    assert problem.clients.size(0) == SIZES[0]  # the original is as it was
    assert not problem.has_validation


def test_no_step_sees_what_is_held_out():
    problem = tracer(30, batch=4).split(0.2)
    (kept,), (out,) = (
        sides([(torch.arange(30.0)[:, None], torch.zeros(30))], 0.2) for _ in range(1)
    ).__next__()
    g = problem.oracle(0, 0, 1)
    seen = {j for k in range(6) for j in g(problem.x0(), k).nonzero().flatten().tolist()}
    assert seen == set(kept)
    assert not seen & set(out)
    assert set(problem.client_gradient(0, problem.x0()).nonzero().flatten().tolist()) == set(kept)


@pytest.mark.parametrize("weights", [None, "samples", [1.0, 2.0, 5.0]])
def test_weights_stay_those_of_the_whole_clients(weights):
    problem = classifier(*SIZES, weights=weights)
    parted = problem.split(0.4)
    assert torch.equal(parted.weights, problem.weights)
    assert torch.equal(parted.replace(batch=2).weights, problem.weights)
    assert parted.weighing == problem.weighing


def test_replace_keeps_what_is_held_out_the_tests_the_groups_and_the_metric():
    problem = with_target_metric(
        classifier(*SIZES, tests=clients(6, 6, 6), groups=["a", "b", "a"], metrics=["auc"]), "auc"
    )
    parted = problem.split(0.1, seed=2)
    other = parted.replace(batch=3)
    assert other.batch == 3
    x = problem.x0()
    assert other.validate(x) == parted.validate(x)
    assert "auc" in other.validate(x)
    assert other.groups == ["a", "b", "a"]
    assert other.metric == problem.metric == Metric("auc", True, 0.0, 1.0)
    assert other.evaluate(x, client=1) == problem.evaluate(x, client=1)
    assert other.clients.size(0) == 18


def test_the_kernel_stays_in_use():
    problem = classifier(30, 20, module=nn.Linear(FEATURES, CLASSES), batch=0.2, test=data(9))
    parted = problem.split(0.1)
    assert (parted.kernel is None) == (problem.kernel is None)
    assert parted.clients[0].labelled
    rounds = list(islice(simulate(Scaffold(eta_l=0.1, K=3), parted, executor="batched"), 3))
    plain = list(islice(simulate(Scaffold(eta_l=0.1, K=3), parted, executor="loop"), 3))
    torch.testing.assert_close(rounds[-1].x, plain[-1].x)


def test_split_data_are_still_in_float64_or_float32():
    for dtype in (torch.float32, torch.float64):
        parted = classifier(9, 7, dtype=dtype).split()
        assert parted.x0().dtype == parted.clients[0].X.dtype == dtype
        assert parted.validate(parted.x0())["loss"] > 0


def test_where_nobody_has_five_rows_nothing_is_held_out(refused):
    problem = classifier(4, 3, 1)
    assert problem.split() is problem
    assert not problem.has_validation
    with refused("no validation data", "problem.split(0.1)"):
        problem.validate(problem.x0())


def test_the_users_own_validation_data_stay():
    problem = classifier(*SIZES, validation=data(12, seed=5), test=data(8, seed=6))
    assert problem.split(0.3) is problem
    x = problem.x0()
    assert problem.validate(x) == problem.replace(test=data(12, seed=5)).evaluate(x)
    assert problem.validate(x) != problem.evaluate(x)
    assert problem.clients.size(0) == SIZES[0]


def test_a_problem_split_already_stays():
    parted = classifier(*SIZES).split(0.2, seed=1)
    assert parted.split(0.2, seed=2) is parted


def test_one_client_of_one_class_and_regression_are_split():
    X, y = randn(10, FEATURES), torch.zeros(10, dtype=torch.long)
    lone = Supervised(net(), F.cross_entropy, [(X, y)], metrics=["auc"]).split()
    assert lone.validate(lone.x0())["auc"] != lone.validate(lone.x0())["auc"]  # it is NaN
    numbers = Supervised(nn.Linear(FEATURES, 1), F.mse_loss, [(X, randn(10, 1))], metrics=["r2"])
    assert set(numbers.split(0.3).validate(numbers.x0())) == {"loss", "r2"}


def test_bad_validation_data_are_refused(refused):
    problem = classifier(9, validation=(randn(3, FEATURES + 1), torch.zeros(3, dtype=torch.long)))
    with refused("the validation data"):
        problem.validate(problem.x0())


# -- in what form data come


class Counted(Dataset):
    """Samples that are read one by one, and remembers which."""

    def __init__(self, n):
        (self.X, self.y), self.read = data(n), []

    def __len__(self):
        return len(self.y)

    def __getitem__(self, j):
        self.read.append(j)
        return self.X[j], int(self.y[j])


FORMS = {
    "tensors": lambda X, y: (X, y),
    "arrays": lambda X, y: (X.numpy(), y.numpy()),
    "lists": lambda X, y: (X.tolist(), y.tolist()),
    "samples": lambda X, y: list(zip(X, y.tolist(), strict=True)),
    "samples as lists": lambda X, y: [[row, int(label)] for row, label in zip(X, y, strict=True)],
    "TensorDataset": TensorDataset,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fraction", [0.1, 0.4])  # one row of five held out, and two
def test_all_forms_are_split_alike(form, fraction):
    X, y = data(5, dtype=torch.float32)
    expected = Supervised(net().float(), F.cross_entropy, [(X, y)]).split(fraction)
    parted = Supervised(net().float(), F.cross_entropy, [FORMS[form](X, y)]).split(fraction)
    x = expected.x0()
    assert parted.validate(x.to(parted.x0())) == pytest.approx(expected.validate(x), rel=1e-5)
    assert torch.equal(parted.clients[0].y, expected.clients[0].y)


def test_of_a_dataset_only_the_rows_of_one_side_are_read():
    dataset = Counted(20)
    parted = Supervised(net(), F.cross_entropy, [dataset]).split(0.2)
    assert dataset.read == []
    _ = parted.clients[0]
    kept = list(dataset.read)
    assert len(kept) == 16
    parted.validate(parted.x0())
    parted.validate(parted.x0())
    assert sorted(dataset.read) == list(range(20))  # each once: validation data are kept


def test_what_is_no_dataset_is_refused_as_before(refused):
    loader = DataLoader(TensorDataset(*data(9)))
    with refused("client 0 is a DataLoader"):
        problem = Supervised(net(), F.cross_entropy, [loader]).split()
        problem.client_loss(0, problem.x0())
    X, y = data(9)
    with refused("client 0 has 9 inputs but 8 targets"):
        problem = Supervised(net(), F.cross_entropy, [(X, y[:8])]).split()
        problem.client_loss(0, problem.x0())
    with refused("client 0 has NaN"):
        problem = Supervised(net(), F.cross_entropy, [(X * numpy.nan, y)]).split()
        problem.validate(problem.x0())


class Lazy:
    """A sequence that makes clients on demand, and remembers whom."""

    def __init__(self, n, size=10):
        self.n, self.size, self.asked = n, size, []

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.asked.append(i)
        return data(self.size, seed=i)


def test_lazy_clients_stay_lazy():
    lazy = Lazy(10**6)
    problem = Supervised(net().double(), F.cross_entropy, lazy, batch=2, test=data(6))
    parted = problem.split(0.2)
    assert lazy.asked == []
    sim = simulate(Scaffold(eta_l=0.1, K=2), parted, S=3)
    sampled = {i for round in islice(sim, 3) for i in round.cohort}
    assert set(lazy.asked) <= sampled | {0}  # whether there are validation data: the first has some
    assert parted.clients.size(5) == 8


def test_lazy_clients_are_validated_on_all_their_rows():
    lazy = Lazy(4)
    parted = Supervised(net().double(), F.cross_entropy, lazy).split(0.2, seed=3)
    listed = Supervised(net().double(), F.cross_entropy, [data(10, seed=i) for i in range(4)])
    x = parted.x0()
    assert parted.validate(x) == listed.split(0.2, seed=3).validate(x)
    asked = len(lazy.asked)
    parted.validate(x)
    assert len(lazy.asked) == asked


def test_lazy_clients_without_five_rows_have_no_validation_data():
    parted = Supervised(net().double(), F.cross_entropy, Lazy(3, size=4)).split()
    assert not parted.has_validation
    assert not parted.has_validation


def test_clients_that_do_not_fit_together_are_named(refused):
    given = [data(9), (randn(9, FEATURES + 1), torch.zeros(9, dtype=torch.long))]
    problem = Supervised(net(), F.cross_entropy, given).split()
    with refused("client 1 has inputs of shape (5,)"):
        problem.validate(problem.x0())


# -- in a saved run


def test_a_split_problem_is_another_one():
    problem = classifier(*SIZES)
    parted = problem.split(0.1, seed=0)
    assert parted.fingerprint != problem.fingerprint
    assert parted.fingerprint == classifier(*SIZES).split(0.1, seed=0).fingerprint
    assert matches_fingerprint(parted, problem.fingerprint).differs == (
        "the validation data differ",
    )
    assert matches_fingerprint(problem, parted.fingerprint).differs == (
        "the validation data differ",
    )
    for other in (problem.split(0.2), problem.split(0.1, seed=1)):
        assert matches_fingerprint(other, parted.fingerprint).differs == (
            "the validation data differ",
        )


def test_validation_data_and_test_parts_count():
    plain = classifier(9, 7)
    assert "validation" not in plain.fingerprint  # as in earlier versions
    assert "tests" not in plain.fingerprint
    own = classifier(9, 7, validation=data(5, seed=8))
    assert matches_fingerprint(own, plain.fingerprint).differs == ("the validation data differ",)
    other = classifier(9, 7, validation=data(5, seed=9))
    assert matches_fingerprint(other, own.fingerprint).differs == ("the validation data differ",)
    tested = [classifier(9, 7, tests=tests) for tests in ([data(5), None], [None, data(5)])]
    words = ("the test parts of the clients differ",)
    assert matches_fingerprint(tested[0], plain.fingerprint).differs == words
    assert matches_fingerprint(tested[0], tested[1].fingerprint).differs == words


# -- clients' own test parts


def test_a_client_is_evaluated_on_its_own_test_part_where_it_has_one():
    own = [data(6, seed=11), None, data(8, seed=12)]
    problem = classifier(*SIZES, tests=own)
    plain = classifier(*SIZES)
    x = problem.x0()
    assert problem.evaluate(x, client=1) == plain.evaluate(x, client=1)
    for i in (0, 2):
        assert problem.evaluate(x, client=i) == plain.replace(test=own[i]).evaluate(x)
    assert [problem.has_own_test(i) for i in range(3)] == [True, False, True]
    assert problem.client_loss(0, x) == plain.client_loss(0, x)  # f_i is on the training data


def test_without_another_test_set_it_is_all_test_parts_together():
    own = [data(6, seed=11), None, data(8, seed=12)]
    problem = classifier(*SIZES, tests=own)
    X, y = (torch.cat(part) for part in zip(own[0], own[2], strict=True))
    x = problem.x0()
    assert problem.has_test
    assert len(problem.test) == 14
    assert problem.evaluate(x) == classifier(*SIZES, test=(X, y)).evaluate(x)
    given = classifier(*SIZES, tests=own, test=data(5, seed=3))
    assert given.evaluate(x) == classifier(*SIZES, test=data(5, seed=3)).evaluate(x)


@pytest.mark.parametrize("kind", [tuple, list])
@pytest.mark.parametrize("form", ["tensors", "arrays"])
def test_a_triple_is_a_client_with_its_test_part(kind, form):
    train, own = clients(9, 7), data(6, seed=11)
    triple = kind([*FORMS[form](*train[0]), own])
    problem = Supervised(net(), F.cross_entropy, [triple, train[1]])
    expected = classifier(9, 7, tests=[own, None])
    expected = Supervised(net(), F.cross_entropy, train, tests=[own, None])
    x = problem.x0()
    assert x.dtype == torch.float64
    for client in (None, 0, 1):
        assert problem.evaluate(x, client) == expected.evaluate(x, client)
    assert problem.fingerprint == expected.fingerprint
    assert problem.split(0.2).evaluate(x, client=0) == expected.evaluate(x, client=0)
    assert problem.replace(tests=None).has_test is False


def test_three_samples_are_no_triple():
    rows = [(torch.zeros(FEATURES), 0), (torch.ones(FEATURES), 1), (torch.ones(FEATURES), 2)]
    problem = Supervised(net().float(), F.cross_entropy, [rows, tuple(rows)])
    assert problem.clients.size(0) == len(problem.clients[1]) == 3
    assert not problem.has_own_test(0)


def test_lazy_tests_are_read_when_asked_for():
    lazy = Lazy(3)
    problem = classifier(9, 9, 9, tests=lazy, test=data(5))
    problem.evaluate(problem.x0())
    assert lazy.asked == []
    problem.evaluate(problem.x0(), client=2)
    assert set(lazy.asked) == {2}


def test_tests_that_are_none_are_refused(refused):
    with refused("tests has 1 parts for 2 clients"):
        classifier(9, 7, tests=[data(3)])
    with refused("tests is a dict", "None, for each client"):
        classifier(9, 7, tests={0: data(3), 1: data(3)})
    X, y = data(9)
    with refused("tests= has others", "one of the two"):
        Supervised(net(), F.cross_entropy, [(X, y, data(3))], tests=[data(3)])
    bad = classifier(9, 7, tests=[None, (X[:, 1:], y)])
    with refused("the test part of client 1 has inputs of shape (3,)"):
        bad.client_loss(0, bad.x0())
        bad.evaluate(bad.x0(), client=1)
    assert not classifier(9, 7, tests=[None, None]).has_test


def test_groups_name_one_for_each_client(refused):
    with refused("groups has 2 labels for 1 clients"):
        classifier(9, groups=["a", "b"])
    with refused("one label for each client"):
        classifier(9, 7, groups="ab")


# -- what a problem can do


def test_problems_say_what_can_be_held_out():
    problem = classifier(9)
    assert problem.split is not None
    assert not problem.has_validation
    assert problem.split(0.2, 1).has_validation
    nothing = Quadratic(A=[1.0, 2.0], b=[0.0, 1.0])
    assert nothing.split is None
    assert not nothing.has_validation


def test_a_problem_of_ones_own_may_validate():
    class Own(Quadratic):
        def validate(self, x):
            return {"loss": 1.0}

    assert Own(A=[1.0], b=[0.0]).has_validation
