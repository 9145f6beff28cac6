"""Every budget of time has an honest answer, and is kept: by a clock that counts gradients."""

from itertools import islice

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers.losses import Opaque, everybody, logistic, quadratics, random
from trimtab import Supervised, diagnose, simulate
from trimtab.core.task import Task
from trimtab.diagnosis import hessians, optimum
from trimtab.diagnosis.budget import Budget
from trimtab.diagnosis.panel import choose_panel
from trimtab.diagnosis.rules import RULES
from trimtab.problems.catalogue import resnet18
from trimtab.report import write_diagnosis

PASSES = [0.1, 3, 10, 30, 100, 500, 1000, 3000, 20_000]


class Costly(Opaque):
    """A problem whose clients take a second for a gradient, by a clock of its own."""

    def __init__(self, problem):
        super().__init__(problem)
        self.now = 0.0

    def oracle(self, i, seed, r):
        g = super().oracle(i, seed, r)

        def costly(y, k=None):
            self.now += 1
            return g(y, k)

        return costly

    def loss(self, x):
        self.now += self.N / 2
        return super().loss(x)

    def gradient(self, x):
        self.now += self.N
        return super().gradient(x)

    def client_gradient(self, i, x):
        self.now += 1
        return super().client_gradient(i, x)

    def client_hvp(self, i, x, V):
        self.now += 2 * (V.numel() // self.d)
        return self.inner.client_hvp(i, x, V)


def network():
    """Return a small network whose clients have one label each."""
    X = random(80, 6) + 2 * F.one_hot(torch.arange(80) // 16, 6).double()
    clients = [(X[16 * i : 16 * i + 16], torch.full((16,), i)) for i in range(5)]
    module = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 5))
    return Supervised(module.double(), F.cross_entropy, clients)


PROBLEMS = {
    "quadratics": lambda: quadratics(N=8, d=12, G=3.0, delta=0.3),
    "noisy": lambda: quadratics(N=8, d=12, G=3.0, delta=0.3, sigma=0.1),
    "logistic": lambda: logistic(N=6),
    "network": network,
}


@pytest.fixture
def in_passes(monkeypatch):
    """Diagnose in the time of so many gradients of all data."""

    def run(problem, passes, **options):
        costly = Costly(problem)
        monkeypatch.setattr("trimtab.diagnosis.budget.perf_counter", lambda: costly.now)
        monkeypatch.setattr("trimtab.studies.budget.monotonic", lambda: costly.now)
        return diagnose(costly, minutes=passes * costly.N / 60, **options), costly

    return run


@pytest.mark.parametrize("passes", PASSES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_minutes_are_kept_and_the_answer_is_honest(in_passes, name, passes):
    problem = PROBLEMS[name]()
    found, costly = in_passes(problem, passes)
    given = passes * problem.N
    assert costly.now <= max(1.1 * given, given + 5 * problem.N)  # a step that was under way
    no_contradiction(found)
    if found.algorithm is None:
        refuses(found)
    else:
        was_tried(found)
        *_, last = islice(simulate(found.advised(), problem), 15)
        assert problem.loss(last.x) < problem.loss(problem.x0())
    said = "Hessians differ was not measured" in " ".join(found.reasons)
    assert said != (found.delta == found.delta)  # what is printed is not denied


def no_contradiction(found):
    """|Hess_i - Hess| <= |Hess_i| + |Hess| <= 2 L, and <= L where nothing is negative."""
    slack = 1 + 1e-9
    for row in (found, *found.points):
        if row.delta is not None and row.delta == row.delta:
            assert row.delta <= 2 * slack * row.L
    if found.delta == found.delta:
        assert found.L * slack >= max(found.norm, found.delta - found.norm)
        if found.weak == 0 and found.mu >= 0:
            assert found.L * slack >= found.delta
    assert all(getattr(found, name) == getattr(found, name) for name in found.bounds)
    if found.measured_on < found.N:
        assert found.bounds["L"] == "at least"
        assert "  L       >= " in str(found)


def refuses(found):
    text = str(found)
    advice = text.splitlines()[0]
    assert advice.startswith("No advice: ")
    assert advice.endswith("; run `trimtab compare`.")
    assert "Use " not in text
    assert (found.K, found.eta_l, found.eta_g) == (None, None, None)
    assert found.to_json()["algorithm"] is None
    with pytest.raises(ValueError, match="diagnose has no advice for problem, because") as caught:
        found.advised()
    assert str(caught.value).count(". ") == 0


def was_tried(found):
    mine = next(one for one in found.trials if one.algorithm == found.algorithm)
    assert (mine.K, mine.eta) == (found.K, found.eta_l)
    goal = found.least + found.eps
    assert len(mine.losses) >= RULES.least or min(mine.losses) <= goal
    assert mine.losses[-1] < found.f_start
    assert found.advice.startswith("No algorithm reached ") == (found.verdict == "nearest")


def test_with_hardly_any_time_there_is_no_advice_and_with_more_there_is(in_passes):
    little, _ = in_passes(network(), 2)
    more, _ = in_passes(network(), 400)
    assert little.algorithm is None
    assert "no time for" in little.advice
    assert more.algorithm is not None
    assert more.eps == pytest.approx(0.01 * (more.f_start - more.least))


def test_a_page_without_advice_has_no_imperative(in_passes, tmp_path):
    found, _ = in_passes(network(), 2)
    text = write_diagnosis(found, tmp_path / "page.html").read_text()
    assert "No advice: " in text
    assert "why there is no advice" in text
    assert "Use " not in text
    assert "nan" not in text


def test_what_was_cut_short_is_said(in_passes):
    found, _ = in_passes(logistic(N=6), 900)
    assert found.cut
    assert all(sentence in str(found) for sentence in found.cut)


def test_resnet18_has_an_answer_whatever_the_time():
    """11 million parameters and hardly any data."""
    X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    clients = [(X[:1], torch.tensor([0])), (X[1:], torch.tensor([1]))]
    problem = Supervised(lambda: resnet18(groups=8), F.cross_entropy, clients)
    found = diagnose(problem, minutes=0.02)
    assert found.d > 11_000_000
    assert found.zeta > 0
    assert found.L > 0
    assert found.cut
    no_contradiction(found)
    was_tried(found) if found.algorithm is not None else refuses(found)
    assert not found.sure.startswith("sure")


# -- no number contradicts another, whenever the time is over


@pytest.mark.parametrize("convex", [True, False], ids=["convex", "not convex"])
def test_L_is_at_least_what_delta_and_the_mean_say_of_it(convex):
    A = random(12, 30, 30)
    A = A @ A.mT / 30 if convex else (A + A.mT) / 8
    A[4] *= 5
    panel = everybody(Matrices(A))
    for looks in (*range(1, 80, 3), 10_000):
        steps = hessians.by_products(panel, random(30), 0, Budget(60.0), after(looks))
        found = Task(steps).result()
        assert max(found.norm, found.delta - found.norm) * (1 - 1e-12) <= found.L
        assert not convex or found.delta <= found.L
    true = float(torch.linalg.eigvalsh(A).abs().max())
    assert pytest.approx(true, rel=0.02) == found.L


class Matrices:
    """Quadratics that need no minimum."""

    x0 = oracle = None

    def __init__(self, A):
        self.A, self.N, self.d = A, len(A), A.shape[1]
        self.weights = torch.full((self.N,), 1 / self.N, dtype=torch.float64)

    def client_gradient(self, i, x):
        return self.A[i] @ x


def after(looks):
    """Return a question that is answered with yes from so many times on."""
    asked = 0

    def out_of_time():
        nonlocal asked
        asked += 1
        return asked >= looks

    return out_of_time


# -- long steps look at the clock


def test_a_search_along_a_line_ends_when_the_time_is_over():
    problem = logistic()
    calls = 0

    class Counted(Opaque):
        def gradient(self, x):
            nonlocal calls
            calls += 1
            return super().gradient(x)

    steps = list(optimum.descend(everybody(Counted(problem)), problem.x0(), after(3)))
    assert calls == 2
    assert len(steps) <= 1


def test_whole_hessians_look_at_the_clock_between_products():
    problem = quadratics(d=40)
    panel = choose_panel(problem, 0, Budget(60.0))
    assert hessians.full_hessians(panel, problem.x0(), after(1)) is None
    in_time = panel.all_products(problem.x0(), torch.eye(40).double(), after(1), clients=[0, 1])
    assert len(list(in_time)) < 2


def test_large_matrices_are_decomposed_only_if_there_is_time():
    assert Budget(60.0).decomposes(1000, 0.5)
    assert not Budget(0.5).decomposes(1000, 0.5)


def test_the_curvature_along_the_gradient_says_how_steep_f_is():
    problem = quadratics()
    panel = choose_panel(problem, 0, Budget(60.0))
    x = problem.x0() + 1
    found = optimum.along_gradient(panel, x, problem.gradient(x))
    assert 0.1 * problem.L <= found <= 1.001 * problem.L
    assert optimum.along_gradient(panel, x, torch.zeros_like(x)) == 0
