"""The base class of problems and its defaults, and objects of other classes as problems."""

import pickle
import warnings
from copy import copy
from math import inf

import pytest
import torch
from torch import nn

from tests.problems.test_own_problems import D, Lossless, Six, WithClientLoss, same
from trimtab import Metric, Problem, Quadratic, Scaffold, Simulation, diagnose, simulate
from trimtab.diagnosis.panel import Panel, client_products
from trimtab.problems.adapter import as_problem
from trimtab.problems.clients import per_client
from trimtab.problems.identity import matches_fingerprint
from trimtab.problems.metrics import LOSS
from trimtab.problems.origin import Origin, origin_of, set_origin
from trimtab.problems.problem import metric_of, with_target_metric
from trimtab.studies.holdout import held_out

X = torch.tensor([0.3, -1.0, 2.0]).double()


class SixOfOurs(Six, Problem):
    """The same members in a subclass."""


@pytest.fixture(params=[SixOfOurs, Six], ids=["subclass", "adapted"])
def problem(request):
    return as_problem(request.param())


# -- defaults


def test_a_class_without_x0_or_oracle_cannot_be_instantiated():
    with pytest.raises(TypeError, match="abstract"):
        Problem()


def test_a_problem_without_evaluate_says_so(refused):
    class Five(Problem):
        N, d, weights, x0, oracle = Six.N, Six.d, Six.weights, Six.x0, Six.oracle

    next(simulate(Scaffold(eta_l=0.2, K=3), Five()))
    with refused("Five has no evaluate(x, client=None)", "define it"):
        Five().evaluate(X)


def test_losses_are_those_of_evaluate(problem):
    assert problem.loss(X) == Six().evaluate(X)["loss"]
    assert problem.client_loss(1, X) == Six().evaluate(X, client=1)["loss"]


def test_a_loss_that_evaluate_does_not_return_is_missed(refused):
    with refused("a diagnosis needs f itself", "Lossless has no loss", "client_loss(i, x)"):
        as_problem(Lossless()).loss(X)


def test_gradients_come_from_the_oracle(problem):
    expected = same()
    for i in range(3):
        torch.testing.assert_close(problem.client_gradient(i, X), expected.client_gradient(i, X))
    torch.testing.assert_close(problem.gradient(X), expected.gradient(X))


def test_products_with_hessians_are_differentiated(problem):
    V = torch.eye(D, dtype=torch.float64)[:2]
    torch.testing.assert_close(problem.client_hvp(1, X, V), same().client_hvp(1, X, V))
    torch.testing.assert_close(problem.client_hvp(1, X, V[0]), same().client_hvp(1, X, V[0]))


def test_what_a_problem_cannot_do_is_none(problem):
    for name in (
        *("x_star", "chunk_hvp", "client_hessian", "chunk_oracle", "kernel"),
        *("why_no_kernel", "why_not_vectorised", "sampling", "groups", "columns", "samples"),
        *("steps", "steps_in_a_pass", "weighing", "metric", "with_metric", "has_own_test", "split"),
        "validation_error",
    ):
        assert getattr(problem, name) is None, name
    assert problem.in_one_pass() is problem.class_shares() is problem.label_counts() is None


def test_what_is_true_of_most_problems_is_the_default(problem):
    assert (problem.constant_hessians, problem.symmetric, problem.threads) == (False, True, False)
    assert (problem.has_test, problem.has_validation) == (True, False)
    assert dict(problem.metrics) == {}
    assert problem.least_loss == -inf
    with pytest.raises(NotImplementedError):
        problem.validate(X)
    with pytest.raises(NotImplementedError):
        problem.play(None)


def test_a_model_file_holds_x(problem):
    tensors = problem.unflatten(X)
    assert list(tensors) == ["x"]
    assert tensors["x"] is not X
    torch.testing.assert_close(problem.flatten(tensors), X)


def test_the_sizes_tell_problems_apart(problem):
    assert problem.fingerprint == f"{type(problem).__name__} N=3 d=3"


def test_every_member_has_a_test_of_its_default():
    """A member that is added to Problem is added here, and to a test above."""
    members = {name for name in dir(Problem) if name[0] != "_"}
    assert members == {
        *("x0", "oracle", "evaluate", "loss", "client_loss", "gradient", "client_gradient"),
        *("constant_hessians", "symmetric", "x_star", "in_one_pass", "client_hvp", "chunk_hvp"),
        *("client_hessian", "threads", "chunk_oracle", "kernel", "play"),
        *("why_no_kernel", "why_not_vectorised", "sampling", "groups", "columns", "samples"),
        *("steps", "steps_in_a_pass", "weighing", "class_shares", "label_counts", "metric"),
        *("metrics", "with_metric", "has_own_test", "has_test", "split", "has_validation"),
        *("validate", "validation_error", "unflatten", "flatten", "fingerprint", "least_loss"),
    }


def test_its_own_members_go_first():
    class Own(Six):
        loss, threads, symmetric, has_test = staticmethod(lambda x: 3.0), True, False, False
        x_star, weighing, sampling = X, "own", "reshuffle"

        def samples(self, i):
            return 10 + i, 2

    adapted, ours = as_problem(Own()), same()
    assert (adapted.loss(X), adapted.threads, adapted.symmetric) == (3.0, True, False)
    assert (adapted.has_test, adapted.weighing, adapted.sampling) == (False, "own", "reshuffle")
    assert adapted.x_star is X
    assert adapted.samples(1) == (11, 2)
    assert as_problem(ours) is ours


# -- objects of other classes


@pytest.mark.parametrize("given", ["digits", Quadratic, 3, None], ids=str)
def test_what_is_no_problem_is_refused(refused, given):
    with refused("is not a problem; pass "):
        as_problem(given)


def test_members_that_subclasses_compute_or_assign_may_be_either():
    class Assigned(SixOfOurs):
        def __init__(self):
            self.N, self.metric, self.groups = 3, LOSS, ["a", "b", "a"]
            self.x_star, self.has_test, self.weighing = X, False, "own"
            self.validate = lambda x: {"loss": 1.0}
            self.steps = {}  # This is a name that a user's class may have taken before.

    class Computed(SixOfOurs):
        x_star = property(lambda self: X)
        has_test = property(lambda self: False)
        has_validation = property(lambda self: True)
        weighing = property(lambda self: "own")
        chunk_oracle = property(lambda self: None)

    for made in (Assigned(), Computed()):
        assert made.x_star is X
        assert (made.has_test, made.weighing, made.has_validation) == (False, "own", True)


def test_the_mean_of_the_clients_losses_goes_before_what_may_be_of_test_data():
    class Tested(WithClientLoss):
        def evaluate(self, x, client=None):
            return {"loss": 100.0}

    class OfOurs(Tested, Problem):
        pass

    for made in (Tested(), OfOurs()):
        assert as_problem(made).loss(X) == pytest.approx(Six().evaluate(X)["loss"])


@pytest.mark.parametrize(
    "own",
    [nn.MSELoss(), nn.functional.mse_loss, lambda output, y: 0.0, 0.25, "mse"],
    ids=["module", "function", "lambda", "number", "name"],
)
def test_a_loss_of_outputs_and_targets_is_not_taken_for_f(own):
    class Trained(Six):
        loss = staticmethod(own) if callable(own) else own

    assert as_problem(Trained()).loss(X) == Six().evaluate(X)["loss"]
    found = diagnose(Trained())
    assert abs(found.L - 1.0) < 1e-3


@pytest.mark.parametrize("f", [lambda x: 3.0, lambda x, client=None: 3.0, lambda *x: 3.0])
def test_a_loss_of_x_is_f_whatever_else_it_takes(f):
    class Own(Six):
        loss = staticmethod(f)

    assert as_problem(Own()).loss(torch.zeros(D)) == 3.0


def test_samples_and_metrics_of_another_kind_are_not_ours():
    class Named(Six):
        samples = torch.zeros(4, 3)

        def metrics(self, x):
            return {}

    adapted = as_problem(Named())
    assert adapted.samples is None
    assert dict(adapted.metrics) == {}
    next(simulate(Scaffold(eta_l=0.2, K=3), Named()))


def test_calls_are_made_on_the_object_itself():
    class Counting(Six):
        calls = 0

        def oracle(self, i, seed, r):
            self.calls += 1
            return super().oracle(i, seed, r)

    mine = Counting()
    sim = simulate(Scaffold(eta_l=0.2, K=3), mine)
    next(sim)
    assert mine.calls == sim.problem.calls == 3


def test_a_copy_has_an_object_of_its_own():
    mine = Six()
    adapted = as_problem(mine)
    set_origin(adapted, Origin("mine.py:six", {}))
    other = copy(adapted)
    other.metric = LOSS
    assert (adapted.metric, other.metric) == (None, LOSS)
    assert not hasattr(mine, "metric")
    assert origin_of(other) == Origin("mine.py:six", {})
    assert with_target_metric(adapted, "loss").metric == LOSS
    assert adapted.metric is None


def test_an_adapted_object_keeps_its_origin_and_travels():
    mine = Six()
    set_origin(mine, Origin("mine.py:six", {}))
    adapted = as_problem(mine)
    assert origin_of(adapted) == Origin("mine.py:six", {})
    other = pickle.loads(pickle.dumps(adapted))
    assert other.fingerprint == adapted.fingerprint == "Six N=3 d=3"
    assert repr(adapted) == repr(mine)
    assert not hasattr(adapted, "anything_else")


class Proxy:
    """A problem whose class declares nothing."""

    def __init__(self, inner):
        self.inner, self.asked = inner, []

    def __getattr__(self, name):
        if name in ("kernel", "anything"):
            raise AttributeError(name)
        self.asked.append(name)
        return getattr(self.inner, name)


def test_a_proxy_is_asked_only_for_what_is_needed():
    proxy = Proxy(same())
    adapted = as_problem(proxy)
    assert not {"fingerprint", "x_star"} & set(proxy.asked)
    assert adapted.loss(X) == same().loss(X)
    assert adapted.fingerprint == same().fingerprint
    torch.testing.assert_close(adapted.x_star, same().x_star)
    assert adapted.kernel is None
    assert adapted.constant_hessians


def test_problems_that_an_object_makes_are_adapted_too():
    class Making(Six):
        def split(self, fraction, seed):
            made = Making()
            made.validate = lambda x: {"loss": fraction}
            return made

        def with_metric(self, name):
            made = Making()
            made.evaluate = lambda x, client=None: {"loss": 1.0, name: 0.5}
            return made

    measured = held_out(as_problem(Making()), 0.1, 0, None)
    assert measured.split == 0.1
    assert measured.validate(X) == {"loss": 0.1}
    assert isinstance(measured.problem, Problem)
    judged = with_target_metric(as_problem(Making()), "auc")
    assert isinstance(judged, Problem)
    assert judged.metric.name == "auc"


def test_a_problem_that_validates_has_validation_data():
    class Validated(Six):
        def validate(self, x):
            return {"loss": 1.0}

    class Sometimes(Validated):
        has_validation = False

    assert as_problem(Validated()).has_validation
    assert not as_problem(Sometimes()).has_validation


def test_a_gradient_does_not_compute_the_loss_as_well():
    class Costly(SixOfOurs):
        def loss(self, x):
            raise AssertionError("the loss was computed")

    panel = Panel(Costly(), (0, 1, 2))
    torch.testing.assert_close(panel.gradient(X), same().gradient(X))


@pytest.mark.parametrize("kind", [SixOfOurs, Six])
def test_the_default_serves_where_own_products_fail(kind):
    class Failing(kind):
        def client_hvp(self, i, x, V):
            raise RuntimeError("derivative for aten::fused_backward is not implemented")

    V = torch.eye(D, dtype=torch.float64)
    found = client_products(as_problem(Failing()), 1, X, V)
    torch.testing.assert_close(found, same().client_hvp(1, X, V))


def test_data_are_pooled_when_that_is_asked_and_as_long_as_a_panel_lives():
    class Pooling(SixOfOurs):
        pooled = 0

        def in_one_pass(self):
            self.pooled += 1
            return Pooled

    class Pooled:
        loss = staticmethod(same().loss)
        loss_and_gradient = staticmethod(lambda x: (same().loss(x), same().gradient(x)))

    problem = Pooling()
    panel = Panel(problem, (0, 1, 2))
    assert problem.pooled == 0
    for _ in range(2):
        assert panel.loss_and_gradient(X)[0] == panel.loss(X) == same().loss(X)
    assert problem.pooled == 1


@pytest.mark.parametrize("kind", [SixOfOurs, Six])
def test_only_a_problem_without_a_fingerprint_of_its_own_gets_the_warning(tmp_path, kind):
    class Marked(kind):
        fingerprint = "mine"

    class Unmarked(kind):
        pass

    algorithm, path = Scaffold(eta_l=0.2, K=3), tmp_path / "saved"
    assert matches_fingerprint(as_problem(Marked()), "mine").warning == ""
    assert (
        "no fingerprint" in matches_fingerprint(as_problem(Unmarked()), "Unmarked N=3 d=3").warning
    )
    simulate(algorithm, Unmarked()).save(path)
    with pytest.warns(UserWarning, match="no fingerprint"):
        Simulation.load(path, algorithm, Unmarked())
    simulate(algorithm, Marked()).save(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Simulation.load(path, algorithm, Marked())


@pytest.mark.parametrize("kind", [SixOfOurs, Six])
def test_a_problem_whose_evaluate_takes_no_client_has_no_metrics_by_client(kind):
    class NoClients(kind):
        def evaluate(self, x):
            return {"loss": 0.0}

    assert per_client(as_problem(NoClients()), X, LOSS) is None
    assert per_client(as_problem(kind()), X, LOSS).clients == 3


def test_an_object_that_unflattens_alone_cannot_be_read_back():
    class Writing(Six):
        def unflatten(self, x):
            return {"weight": x}

    assert as_problem(Writing()).flatten is None


def test_a_metric_of_another_kind_is_refused(refused):
    class Named(Six):
        metric = "auc"

    with refused("Named.metric is 'auc'; make it a Metric"):
        metric_of(as_problem(Named()), {"auc": 0.5})
    Named.metric = Metric("auc", higher=True)
    assert metric_of(as_problem(Named()), {"auc": 0.5}).name == "auc"
