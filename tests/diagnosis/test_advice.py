"""What is advised, why, and how it is said."""

import json
import re
import sys
from itertools import count, islice
from types import SimpleNamespace

import pytest
import torch

from tests.helpers.losses import Opaque, logistic, quadratics, random
from trimtab import FedAvg, Quadratic, diagnose, simulate
from trimtab.algorithms.registry import kind
from trimtab.core.task import Progress
from trimtab.diagnosis.sections import gradients_sentence, hessians_sentence
from trimtab.report import write_diagnosis

module = sys.modules["trimtab.diagnosis.diagnose"]
FIELDS = ["G", "B", "delta", "L", "mu", "sigma", "zeta", "K", "eta_l", "eta_g", "algorithm"]
FIELDS += ["reasons"]


@pytest.fixture(scope="module")
def different():
    return diagnose(quadratics(G=3.0, delta=0.1))


@pytest.fixture(scope="module")
def alike():
    return diagnose(quadratics(G=1e-3, delta=0.05))


def test_a_diagnosis_has_the_promised_fields(different):
    assert all(hasattr(different, name) for name in FIELDS)
    assert json.loads(json.dumps(different.to_json()))["algorithm"] == different.algorithm


def test_different_clients_need_scaffold_and_the_text_says_why(different):
    assert different.algorithm == "scaffold"
    assert different.K > 1
    text = str(different)
    assert text.startswith(f"Use Scaffold with K = {different.K}, eta_l = ")
    first, second, third = different.reasons
    start = different.points[0]
    assert first.startswith(f"Client gradients disagree moderately (zeta = {start.zeta:.2g} at")
    assert f"{different.zeta:.2g} at the optimum)" in first
    assert f"so FedAvg with this step and K stops {different.bias.limit:.2g} away" in first
    assert f"delta/L = {different.delta / different.L:.2g}" in second
    assert third == different.saving
    for words in (*different.reasons, f"How sure: {different.sure}", "most for"):
        assert words in text


def test_when_clients_are_alike_no_client_needs_a_state(alike):
    assert alike.algorithm == "fedavg"
    assert "scaffold" in {one.algorithm for one in alike.confirmed}


def test_clients_that_come_once_keep_no_state():
    problem = quadratics(N=20, G=3.0, delta=0.3)
    found = diagnose(problem, S=4, cross_device=True)
    assert {one.algorithm for one in found.predicted} == {"mimelite", "fedavg", "sgd"}
    assert not kind(found.algorithm).stateful


def test_other_algorithms_may_be_named(monkeypatch):
    looks = count()  # A microsecond passes at each look at the clock.
    monkeypatch.setattr("trimtab.diagnosis.budget.perf_counter", lambda: 1e-6 * next(looks))
    monkeypatch.setattr("trimtab.studies.budget.monotonic", lambda: 1e-6 * next(looks))
    problem = quadratics(N=3, d=4, G=3.0, delta=0.1)
    found = diagnose(problem, algorithms=["fedprox", "sgd"])
    assert {one.algorithm for one in found.predicted} == {"fedprox", "sgd"}
    assert found.algorithm in ("fedprox", "sgd")


def test_the_advised_settings_are_ready_to_run_and_get_there():
    problem = quadratics(G=3.0, delta=0.1)
    found = diagnose(problem)
    best = min(one.rounds for one in found.predicted if one.rounds)
    *_, last = islice(simulate(found.advised(), problem), 2 * best)
    assert problem.evaluate(last.x)["gap"] <= found.eps


def test_the_bias_said_is_where_fedavg_stops():
    problem = quadratics(G=3.0, delta=0.1)
    found = diagnose(problem)
    stop = problem.fedavg_limit(found.eta_l, found.K) - problem.x_star
    assert found.bias.limit == pytest.approx(float(stop.norm()), rel=1e-6)
    first = problem.fedavg_bias(found.eta_l, found.K)
    assert found.bias.heterogeneity == pytest.approx(float(first.norm()), rel=1e-6)


# -- the edges


def test_starting_at_the_optimum_is_no_accident(recwarn):
    pair = Quadratic(A=[2.0, 0.0], b=[-1.0, 1.0])  # Figure 3: x0 is x*
    found = diagnose(pair)
    assert (found.G, found.delta, found.L, found.mu) == pytest.approx((1, 1, 2, 1), rel=0.05)
    assert any("starts at the optimum" in doubt for doubt in found.doubts)


def test_one_client_has_nobody_to_be_compared_with(refused):
    with refused("N=1 client"):
        diagnose(Quadratic(A=[[1.0, 0.1]], b=[[1.0, 1.0]]))


def test_a_point_to_start_from(refused):
    problem = quadratics()
    far = diagnose(problem, problem.x_star + 50)
    assert far.eps > diagnose(problem).eps
    with refused("length d=12"):
        diagnose(problem, torch.ones(3))
    with refused("finite"):
        diagnose(problem, torch.full((12,), torch.nan))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"S": 99}, "S=99"),
        ({"eps": -1.0}, "eps=-1.0"),
        ({"minutes": 0}, "minutes=0"),
        ({"minutes": "5"}, "minutes='5'"),
        ({"algorithms": []}, "algorithms is empty"),
        ({"algorithms": 3}, "a list of names"),
        ({"algorithms": [FedAvg(eta_l=0.1, K=2)]}, "a list of names"),
        ({"seed": 1.5}, "seed=1.5"),
    ],
)
def test_bad_arguments_are_one_sentence(refused, options, words):
    with refused(words):
        diagnose(quadratics(), **options)


def test_an_algorithm_without_a_step_size_is_refused(refused, monkeypatch):
    monkeypatch.setattr(module, "kind", lambda name: SimpleNamespace(name=name, step=""))
    with refused("fedavg has no step size"):
        diagnose(quadratics(), algorithms=["fedavg"])


def test_two_diagnoses_are_the_same():
    problem = logistic(batch=10)
    a, b = (diagnose(problem, seed=3).to_json() for _ in range(2))
    assert {k: v for k, v in a.items() if k != "seconds"} == {
        k: v for k, v in b.items() if k != "seconds"
    }


def test_stages_are_told_while_it_works():
    events = list(diagnose.start(Opaque(quadratics())))
    stages = [event for event in events if isinstance(event, Progress)]
    assert len(stages) > 8
    assert [stage.share for stage in stages] == sorted(stage.share for stage in stages)


def test_the_page_holds_all_it_shows(different, tmp_path):
    text = write_diagnosis(different, tmp_path / "page.html").read_text()
    assert different.advice in text
    assert "<svg" in text
    assert 'src="http' not in text
    heads = re.findall("<h2>(.*?)</h2>", text)
    assert heads[0].startswith("Which algorithm")
    assert heads[1:3] == ["Why", "Runs on the problem"]
    assert heads[3:6] == ["How the clients differ", "Which clients differ", "Expected rounds"]
    assert "<pre" not in text  # nothing is said a second time
    for row in different.clients:
        assert f"{row.gradient:.3g}" in text
    pictures = re.findall(r'<svg class="(\w+)"([^>]*)>', text)
    assert {"bars", "spectrum", "lines"} <= {name for name, _ in pictures}
    spoken = [rest for name, rest in pictures if name != "sample"]  # of a legend, beside its name
    assert all("aria-label=" in rest for rest in spoken)
    assert text.count("<details>") >= 2


def test_weak_numbers_do_not_break_the_page(tmp_path):
    found = diagnose(Quadratic(A=random(3, 2).abs() + 1, b=torch.zeros(3, 2).double()))
    write_diagnosis(found, tmp_path / "page.html")


def test_a_problem_may_be_named():
    assert diagnose("quadratic", minutes=0.02).name == "quadratic"
    with pytest.raises(ValueError, match=r"'quadrtic' is not a problem .did you mean"):
        diagnose("quadrtic")


def test_one_number_at_one_point_has_one_interval(different):
    for name in ("zeta", "L", "delta", "mu"):
        assert different.points[-1].intervals[name] == different.intervals[name]


def test_a_point_where_f_is_larger_than_at_the_start_is_not_measured():
    """The mean Hessian bears a step at which local steps of the steepest client diverge."""
    A = torch.diag_embed(torch.tensor([[1.0, 0.1]] * 3 + [[60.0, 0.1]], dtype=torch.float64))
    b = torch.tensor([[1.0, 0.1], [2.0, -0.1], [-1.0, 0.3], [20.0, 0.5]], dtype=torch.float64)
    found = diagnose(Quadratic(A, b))
    assert all(point.loss <= found.points[0].loss for point in found.points)


@pytest.mark.parametrize(
    ("K", "alike", "said"),
    [(1, True, "did as well"), (1, False, "did best"), (8, True, "did best")],
)
def test_the_best_K_is_not_said_of_one_step_beside_an_algorithm_that_is_alike(K, alike, said):
    """Sgd is named if Scaffold needs 5 rounds and Sgd 6."""
    assert hessians_sentence(0.9, 1.0, K, rough=False, alike=alike).endswith(f"{said}.")


def test_equal_clients_do_not_disagree_where_training_starts_at_the_optimum():
    assert gradients_sentence(0.0, 0.0, 0.0, "start", None, None).startswith(
        "Client gradients disagree little"
    )
