"""A step that is far too small is raised, and rounds that hardly lowered f advise nothing."""

import pytest
import torch

from tests.helpers.losses import quadratics, random
from trimtab import diagnose
from trimtab.diagnosis import reasons
from trimtab.diagnosis.advise import Choice, Reach
from trimtab.diagnosis.budget import Budget
from trimtab.diagnosis.case import begin
from trimtab.diagnosis.panel import choose_panel
from trimtab.diagnosis.prediction import Plan
from trimtab.diagnosis.race import Lane, Trial, winner

CENTRES = 0.003 * random(4, 3)
STEEP = torch.tensor([1e4, 2e4, 1e4, 3e4]).double()


class Crater:
    """f_i = log(1 + s |x - c_i|^2): flat where training starts, and steep at the optimum."""

    N, d = 4, 3
    weights = torch.full((4,), 0.25).double()

    def x0(self, seed=0):
        return torch.ones(3).double() / 3**0.5

    def client_loss(self, i, x):
        return float(torch.log1p(STEEP[i] * (x - CENTRES[i]).square().sum()))

    def oracle(self, i, seed, r):
        def g(y, k=None):
            away = y - CENTRES[i]
            return 2 * STEEP[i] * away / (1 + STEEP[i] * away.square().sum())

        return g

    def evaluate(self, x, client=None):
        each = [self.client_loss(i, x) for i in range(4)]
        return {"loss": sum(each) / 4 if client is None else each[client]}


def test_a_step_that_the_optimum_could_bear_is_raised_where_the_way_there_is_flat():
    found = diagnose(Crater())
    way = found.f_start - found.least
    said = (found.algorithm, found.K, found.eta_l)
    tried = [one for one in found.trials if (one.algorithm, one.K, one.eta) == said]
    assert found.eta_l * found.L > 8
    assert any(found.f_start - one.losses[-1] >= way / 10 for one in tried)
    assert "FedAvg suffices" not in str(found)


@pytest.fixture
def trial():
    """Return a trial that starts at f = 10 and aims at f = 1."""
    problem, budget = quadratics(), Budget(60.0)
    case = begin(problem, choose_panel(problem, 0, budget), budget, problem.x0(), 6, 0, 1.0)
    case.f0, case.least, case.best = 10.0, 0.0, problem.x_star
    return Trial(case, 0.9, careful=True)


def lanes(*ends):
    """Return lanes that fell to these f in ten rounds."""
    made = [
        Lane("scaffold", K, 0.1, [10 - (10 - f) * r / 10 for r in range(1, 11)]) for K, f in ends
    ]
    for lane in made:
        lane.compared = True
    return made


@pytest.mark.parametrize(("end", "careful", "stands"), [(9.5, True, False), (9.5, False, True)])
def test_a_favourite_that_went_nowhere_stands_only_if_the_model_holds(trial, end, careful, stands):
    tried = lanes((8, end), (16, 9.6))
    trial.careful = careful
    chosen = winner(trial, tried, tried[0], alike=True)
    assert (chosen is tried[0]) == stands
    assert winner(trial, lanes((8, 8.0)), None, alike=True).K == 8


def test_a_lane_below_the_least_f_known_has_arrived(trial):
    """Its pace would be a power of a negative number."""
    (lane,) = lanes((8, 2.0))
    lane.losses += [1.5] * 15 + [-0.5] * 5
    assert trial._may_arrive(30, [lane], 47)


@pytest.mark.parametrize(
    ("eta", "reached", "doubted"),
    [(1 / 16, None, True), (1 / 4, None, True), (1 / 2, None, False), (1 / 16, 40, False)],
)
def test_a_step_far_below_the_models_that_did_not_arrive_is_doubted(eta, reached, doubted):
    """What the model counted with a step that the problem cannot bear says nothing of another."""
    lane = Lane("scaffold", 4, eta, losses=[1.0] * 60)
    models, own = (Choice("scaffold", 4, step, 74) for step in (1.0, eta))
    plan = Plan(own, "", models, [lane], lane, reached, f_start=2.0)
    reach = Reach(eps=1e-3, beyond=None)
    doubts = reasons._doubts_about_choice(plan, agrees=True, reach=reach, modelled=True)
    assert any("60 rounds did not reach eps" in doubt for doubt in doubts) == doubted
    assert reasons._is_shorter(plan) == doubted
