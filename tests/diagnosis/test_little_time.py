"""Every budget of time has an honest answer, and is kept: by a clock that counts gradients."""

from dataclasses import replace
from itertools import islice
from math import inf, isfinite

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers.losses import Opaque, everybody, logistic, quadratics, random
from trimtab import Supervised, diagnose, simulate
from trimtab.core.task import Task
from trimtab.diagnosis import hessians, optimum, quadratic_model
from trimtab.diagnosis.budget import Budget
from trimtab.diagnosis.case import begin
from trimtab.diagnosis.model_rounds import Goal, predict
from trimtab.diagnosis.panel import choose_panel
from trimtab.diagnosis.prediction import _settled
from trimtab.diagnosis.race import LEAST, LONG, Lane, Trial, _better, better_step, winner
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
    assert not (said and isfinite(found.delta))  # what is printed is not denied


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
        assert "L      >= " in str(found)


def refuses(found):
    text = str(found)
    assert text.startswith("No advice: ")
    assert text.splitlines()[0].endswith("; run `trimtab compare`.")
    assert "Use " not in text
    assert (found.K, found.eta_l, found.eta_g) == (None, None, None)
    assert found.to_json()["algorithm"] is None
    with pytest.raises(ValueError, match="diagnose has no advice for problem, because") as caught:
        found.advised()
    assert str(caught.value).count(". ") == 0


def was_tried(found):
    said = (found.algorithm, found.K, found.eta_l)
    mine = [curve.losses for curve in found.trials if (curve.algorithm, curve.K, curve.eta) == said]
    goal = found.least + found.eps
    assert any(
        (len(losses) >= LEAST or min(losses) <= goal) and losses[-1] < found.f_start
        for losses in mine
    )


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
    assert "Cut short:" in str(found)


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


# -- the rounds on the problem decide


def lanes_of(trial, *rows):
    """Return lanes that ran: (algorithm, K, f after each round)."""
    lanes = []
    for algorithm, K, losses in rows:
        lane = Lane(algorithm, K, 0.1, losses=losses)
        lane.there, lane.compared = lane.reached(trial.goal) < inf, True
        lanes.append(lane)
    return lanes


@pytest.fixture
def trial():
    """Return a trial that starts at f = 10 and aims at f = 1."""
    problem = quadratics()
    case = begin(
        problem, choose_panel(problem, 0, Budget(60.0)), Budget(60.0), problem.x0(), 6, 0, 1.0
    )
    case.f0, case.least, case.best = 10.0, 0.0, problem.x_star
    return Trial(case, 0.9, careful=True)


def falling(to, rounds=10):
    return [10 - (10 - to) * (r + 1) / rounds for r in range(rounds)]


def test_one_step_a_round_is_not_advised_against_what_the_rounds_say(trial):
    lanes = lanes_of(trial, ("sgd", 1, falling(9)), ("scaffold", 16, falling(4)))
    assert winner(trial, lanes, lanes[0], alike=False).K == 16


def test_the_favourite_stands_if_it_is_about_as_good(trial):
    lanes = lanes_of(trial, ("scaffold", 4, falling(5)), ("scaffold", 16, falling(4.5)))
    assert winner(trial, lanes, lanes[0], alike=False).K == 4


def test_fedavg_that_is_ahead_early_does_not_beat_scaffold_whose_clients_differ(trial):
    rows = ("fedavg", 8, falling(3)), ("scaffold", 8, falling(5)), ("sgd", 1, falling(9))
    lanes = lanes_of(trial, *rows)
    assert winner(trial, lanes, None, alike=False).algorithm == "scaffold"
    assert winner(trial, lanes, None, alike=True).algorithm == "fedavg"


def test_who_reaches_the_goal_first_wins_and_ties_go_to_fewer_steps(trial):
    early, late = [5.0, 2.0, 0.5], [5.0, 3.0, 1.5]
    rows = ("scaffold", 32, early), ("scaffold", 8, early), ("sgd", 1, late), ("fedavg", 4, late)
    lanes = lanes_of(trial, *rows)
    assert winner(trial, lanes, lanes[2], alike=True) is lanes[1]


def test_nothing_is_advised_that_did_not_lower_f(trial):
    lanes = lanes_of(trial, ("sgd", 1, falling(10)), ("scaffold", 16, falling(11)))
    assert winner(trial, lanes, lanes[0], alike=False) is None


def test_nothing_is_advised_by_rounds_that_hardly_lowered_f(trial):
    """A hundredth of the way says nothing of who is there first; a model that holds may."""
    rows = ("scaffold", 64, falling(9.95)), ("fedavg", 2, falling(9.8)), ("sgd", 1, falling(9.85))
    lanes = lanes_of(trial, *rows)
    assert winner(trial, lanes, lanes[0], alike=True) is None
    assert winner(trial, lanes, None, alike=True) is None
    assert winner(trial, lanes, lanes[1], alike=True) is None
    trial.careful = False
    assert winner(trial, lanes, lanes[1], alike=True) is lanes[1]
    plan = _settled(trial, lanes, None, None)
    assert plan.choice is None
    assert "no candidate came a tenth of the way to the least f" in plan.why_not


def test_after_few_rounds_half_the_step_is_preferred_and_after_many_the_better_one(trial):
    def better(rounds, careful):
        whole, half = lanes_of(
            trial, ("sgd", 1, falling(2, rounds)), ("sgd", 1, falling(5, rounds))
        )
        whole.eta, trial.careful = 0.2, careful
        return _better(trial, half, whole), _better(trial, whole, half)

    assert better(10, careful=True) == (True, False)
    assert better(40, careful=True) == (False, True)
    assert better(10, careful=False) == (False, True)


@pytest.fixture
def real():
    """Return a trial on quadratics, aiming at 1e-6 of the way down, and lanes with small steps."""
    problem = quadratics(G=1.0, delta=0.3)
    budget = Budget(600.0)
    case = begin(problem, choose_panel(problem, 0, budget), budget, problem.x0(), 6, 0, 1e-6)
    case.best, case.least, case.optimum = problem.x_star, problem.loss(problem.x_star), True
    lanes = [Lane("sgd", 1, 0.2), *(Lane(name, K, 0.1) for name in MANY for K in (2, 8))]
    return Trial(case, 1.0, careful=False), lanes


MANY = ("scaffold", "fedavg")


def test_after_ten_rounds_the_best_of_each_algorithm_goes_on_alone_with_a_better_step(real):
    trial, lanes = real
    list(trial.race(lanes, 20, 1.0))
    on = [lane for lane in lanes if len(lane.losses) > LEAST]
    assert on
    assert len({lane.algorithm for lane in on}) == len(on)
    assert all(len(lane.losses) >= LEAST for lane in lanes)
    best = next(lane for lane in on if lane.algorithm == "scaffold")
    assert best.eta > 0.1  # A tenth of 1/L is too small.
    same = [o for o in trial.slower if (o.algorithm, o.K) == (best.algorithm, best.K)]
    assert {o.eta for o in same} == {0.1 * 2**j for j in range(len(same) + 1)} - {best.eta}
    assert all(best.losses[LEAST - 1] < o.losses[-1] for o in same if len(o.losses) == LEAST)


def test_a_race_that_cannot_arrive_ends_after_thirty_rounds(real):
    trial, _ = real
    slow, fast = (Lane("sgd", 1, eta) for eta in (1e-7, 1e-8))
    list(trial.race([slow, fast], 100, 1.0))
    assert max(len(slow.losses), len(fast.losses)) == LONG
    assert slow.compared
    assert not slow.there


def test_a_race_that_may_arrive_goes_on(real):
    trial, _ = real
    trial.case.eps = 1e-3
    trial.goal = trial.case.least + 1e-3
    lane = Lane("scaffold", 8, 0.2)
    list(trial.race([lane], 100, 1.0))
    assert lane.there


def test_on_thinned_data_a_step_that_arrives_and_then_rises_is_not_advised(real, monkeypatch):
    trial, _ = real
    trial.goal = trial.case.least + 0.5 * (trial.f_start - trial.case.least)
    edge = 0.1
    fine, late = [trial.goal - 0.1] * LONG, [trial.goal - 0.1] * 12 + [trial.f_start] * LONG

    def advance(lane):
        """Let f rise after 12 rounds with any step above the edge."""
        script = late if lane.eta > edge else fine
        lane.losses.append(script[len(lane.losses)])
        if trial._rises(lane.losses):
            lane.losses, lane.eta = [], lane.eta / 2

    monkeypatch.setattr(trial, "_advance", advance)
    lane = Lane("sgd", 1, 0.15, fine[:4], compared=True, there=True)
    whole, _ = Task(better_step(trial, lane)).result()
    assert whole.eta == 0.15
    trial.case.panel = replace(trial.case.panel, thinned=object())
    thinned, tried = Task(better_step(trial, lane)).result()
    assert thinned.eta == 0.075
    assert len(thinned.losses) == LONG
    assert thinned in tried


def test_a_step_that_explodes_is_cut_until_f_falls(trial):
    trial.case.least, trial.case.f0 = 0.0, trial.case.panel.problem.loss(trial.case.x0)
    trial.f_start = trial.case.f0
    lane = Lane("sgd", 1, 1e6)
    list(trial.race([lane], 12, 1.0))
    assert lane.eta < 1e3
    assert not lane.losses or lane.losses[-1] < trial.f_start


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


def test_rounds_on_the_model_end_when_the_time_is_over():
    problem = quadratics()
    a, U = torch.linalg.eigh(problem.A)
    zero = torch.zeros_like(problem.b)
    start = problem.x0() - problem.x_star
    model = quadratic_model.QuadraticModel(problem.weights, a, U, zero, start, 0.0, None)
    goal = Goal(share=1e-30, S=6, N=6, R=1000)
    assert [one.ran for one in predict(model, "fedavg", [1, 4], goal, 0, after(4))] == [4, 4]


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
