"""A step that is far too small is raised by the search."""

import torch

from tests.helpers.losses import random
from trimtab import diagnose

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
