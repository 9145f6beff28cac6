"""Problems by name, and functions in the user's files."""

import sys
from math import log

import pytest
import torch

from trimtab import Quadratic, Supervised
from trimtab.problems.data.files import DataError
from trimtab.problems.loading import load_problem, load_problem_and_target
from trimtab.problems.names import PROBLEMS
from trimtab.problems.problem import metric_of

FILE = """
import torch
from torch import nn
from trimtab import Quadratic, Supervised

def pair(G=1.0):
    return Quadratic(torch.tensor([2.0, 0.0]), torch.tensor([-G, G]))

def linear():
    X, y = torch.zeros(8, 3), torch.zeros(8, 1)
    return Supervised(nn.Linear(3, 1), nn.functional.mse_loss, [(X, y)])

def batched(batch=None):
    return linear().replace(batch=batch)

def number():
    return 7

def broken():
    return 1 / 0

def wrong():
    return Quadratic([1.0], [1.0], sigma=-1)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


# Of the real problems: N, d, and the loss of a model that knows nothing (logistic regression
# starts at 0, so log of the number of classes; the strength of concrete has variance 1).
REAL = {
    "emnist": (100, 785 * 47, log(47)),
    "a9a": (10, 124 * 2, log(2)),
    "heart": (4, 23 * 2, log(2)),
    "concrete": (10, 9, 1.0),
    "shakespeare": (50, None, None),
    "cifar10": (10, 11173962, None),
}


@pytest.mark.parametrize("name", [name for name in PROBLEMS if name not in REAL])
def test_a_problem_that_needs_no_files_can_be_evaluated(name):
    problem = load_problem(name)
    measured = problem.evaluate(problem.x0())
    assert measured[metric_of(problem, measured).name] < 10


@pytest.mark.parametrize("name", REAL)
def test_a_problem_on_real_data(real_data, name):
    try:
        problem, target = load_problem_and_target(name)
    except DataError as error:
        if "cannot be downloaded" not in str(error):
            raise
        pytest.skip(f"needs real data: {error}")
    N, d, loss = REAL[name]
    assert problem.N == N
    assert d in (None, problem.d)
    assert len(problem.clients[N - 1]) > 1
    if loss is not None:
        assert problem.evaluate(problem.x0())["loss"] == pytest.approx(loss, rel=1e-5)
        assert target is not None


def test_every_problem_is_tested():
    assert set(REAL) < set(PROBLEMS)


def test_the_hospitals_are_the_clients(real_data):
    problem = load_problem("heart")
    assert [len(problem.clients[i]) for i in range(4)] == [243, 236, 99, 160]
    assert len(problem.test) == 60 + 58 + 24 + 40


def test_concrete_is_sorted_by_strength(real_data):
    problem = load_problem("concrete")
    means = [float(problem.clients[i].y.mean()) for i in range(10)]
    assert means == sorted(means)
    assert [problem.batch, problem.steps(epochs=1)] == [None, 1]


def test_a_folder_of_data_reaches_the_problem(tmp_path, monkeypatch):
    monkeypatch.delenv("TRIMTAB_DATA", raising=False)
    lines = [
        "head",
        *(f"{i},{i * i},{i % 2},{i % 3},{i % 5},{i % 7},1{i},2{i},{i}" for i in range(9)),
    ]
    (tmp_path / "concrete.csv").write_text("\n".join(lines))
    problem = load_problem("concrete", data=tmp_path, batch=1, N=3)
    assert problem.batch == 1
    assert [len(problem.clients[i]) for i in range(3)] == [3, 3, 3]


def test_digits_are_sorted_by_label_over_ten_clients():
    problem, target = load_problem_and_target("digits")
    assert (problem.N, problem.d, target) == (10, 64 * 10 + 10, 0.95)
    kinds = [len(set(problem.clients[i].y.tolist())) for i in range(10)]
    assert max(kinds) <= 3
    assert sum(len(problem.clients[i]) for i in range(10)) == 1438
    assert len(problem.test) == 359
    assert load_problem("digits", batch=7).batch == 7


def test_the_quadratic_has_unit_smoothness():
    problem = load_problem("quadratic")
    assert abs(problem.L - 1) < 1e-12
    assert problem.b.dtype == torch.float64


def test_a_function_in_a_file_is_called_with_the_options_it_takes(file):
    before = list(sys.path)
    problem, target = load_problem_and_target(f"{file}:pair", batch=None)
    assert isinstance(problem, Quadratic)
    assert target is None
    assert sys.path == before
    assert load_problem(f"{file}:batched", batch=4).batch == 4


def test_a_batch_also_reaches_a_supervised_problem_that_does_not_ask_for_it(file):
    problem = load_problem(f"{file}:linear", batch=4)
    assert isinstance(problem, Supervised)
    assert problem.batch == 4


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("missing", ["no function 'missing'", "pair", "linear"]),
        ("number", ["returned a int", "return a Problem"]),
        ("broken", ["ZeroDivisionError"]),
        ("wrong", ["sigma=-1"]),
        ("torch", ["no function 'torch'"]),
    ],
)
def test_a_bad_function_is_refused(refused, file, function, words):
    with refused(*words):
        load_problem(f"{file}:{function}")


def test_a_batch_for_a_problem_without_mini_batches_is_refused(refused, file):
    with refused("no mini-batches"):
        load_problem(f"{file}:pair", batch=4)


def test_an_unknown_name_a_missing_file_and_a_missing_function_are_refused(refused, file):
    with refused("'mnist' is not a problem", "digits", "file.py:function"):
        load_problem("mnist")
    with refused("nowhere.py", "no such file"):
        load_problem("nowhere.py:problem")
    with refused("names no function", f"{file}:function"):
        load_problem(str(file))


@pytest.mark.parametrize("text", ["import nothing_of_that_name", "def f(:"])
def test_a_file_that_cannot_be_imported_is_refused(refused, file, text):
    file.write_text(text)
    with refused("mine.py", "cannot be imported", "fix it"):
        load_problem(f"{file}:pair")


def test_a_function_is_called_under_the_seed(tmp_path):
    """So that a module built in it is the same when the run is resumed."""
    (tmp_path / "mine.py").write_text(
        "import torch, trimtab\n"
        "def f():\n"
        "    data = [(torch.ones(2, 3), torch.tensor([0, 1]))]\n"
        "    loss = torch.nn.functional.cross_entropy\n"
        "    return trimtab.Supervised(torch.nn.Linear(3, 2), loss, data)\n"
    )
    state = torch.get_rng_state()
    one, two, three = (load_problem(f"{tmp_path}/mine.py:f", seed=s) for s in (1, 1, 2))
    assert one.fingerprint == two.fingerprint != three.fingerprint
    assert torch.equal(torch.get_rng_state(), state)


# -- how data are cut


def labels_of(problem):
    return [sorted(set(problem.clients[i].y.tolist())) for i in range(problem.N)]


def test_built_in_data_are_cut_as_told():
    by_label = load_problem("digits", partition="label")
    assert labels_of(by_label) == labels_of(load_problem("digits"))
    alike = load_problem("digits", partition="similarity:100", N=5)
    assert labels_of(alike) == [list(range(10))] * 5
    uneven = load_problem("digits", partition="dirichlet:0.1")
    sizes = [uneven.clients.size(i) for i in range(10)]
    assert sum(sizes) == sum(by_label.clients.size(i) for i in range(10))
    assert max(sizes) > 2 * min(sizes)
    same = load_problem("digits", similarity=100, N=5)
    assert same.fingerprint == alike.fingerprint


def test_a_cut_that_cannot_be_made_is_refused(refused, file):
    with refused("partition=dirichlet", "pass dirichlet:0.1"):
        load_problem("digits", partition="dirichlet")
    with refused("partition=label and similarity=10", "one of them"):
        load_problem("digits", partition="label", similarity=10)
    for spec in ("quadratic", "heart", "shakespeare", f"{file}:linear"):
        with refused(f"{spec} is already divided into clients", "drop partition"):
            load_problem(spec, partition="label")


def test_a_function_of_the_users_may_take_a_cut(tmp_path):
    path = tmp_path / "cut.py"
    path.write_text(
        "from trimtab import Quadratic\n"
        "def mine(partition='none'):\n"
        "    return Quadratic([1.0] * len(partition), [0.0] * len(partition))\n"
    )
    assert load_problem(f"{path}:mine", partition="mine").N == 4
    assert load_problem(f"{path}:mine", partition=None).N == 4


def test_numbers_are_cut_by_similarity_alone(real_data, refused):
    alike = load_problem("concrete", partition="similarity:100")
    assert alike.N == 10
    with refused("these targets are numbers"):
        load_problem("concrete", partition="dirichlet:0.1")
