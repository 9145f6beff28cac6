"""SCAFFOLD, and others with controls, reach x* with any K_i and S < N; FedAvg and FedNova do not.

At x* the corrected gradient of each client is zero, so that it stays there however many steps it
makes; and a control that is the mean of a client's own gradients is right whatever K_i was.
"""

import pytest
import torch

from tests.helpers.quadratics import WEIGHTS, assert_same, distances, path, quadratic
from trimtab import (
    FedAvg,
    FedDyn,
    FedNova,
    Momentum,
    Quadratic,
    Scaffnew,
    Scaffold,
    ScaffoldM,
    ScaffoldOpt,
    Scallion,
    simulate,
)
from trimtab.core.oracle import ClientOracle

HOW = {"eta_l": 0.05, "K": 8}
WITH_CONTROLS = (
    Scaffold(**HOW),
    Scaffold(**HOW, option="I"),
    Scaffold(**HOW, eta_g=0.7),
    ScaffoldOpt(**HOW, base=Momentum(0.3)),
    FedDyn(**HOW, alpha=1.0),
)
WITHOUT = (FedAvg(**HOW), FedNova(**HOW))
weighted = pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["uniform", "weighted"])


@weighted
@pytest.mark.parametrize("S", [2, 6])
@pytest.mark.parametrize("slow", [0.5, 1.0])
@pytest.mark.parametrize("algorithm", WITH_CONTROLS, ids=repr)
def test_scaffold_reaches_the_optimum_with_any_numbers_of_steps(algorithm, slow, S, weights):
    problem = quadratic(weights=weights)
    x = path(algorithm, problem, 600, S=S, slow=slow)[-1]
    assert distances(x, problem.x_star) < 1e-8


@weighted
@pytest.mark.parametrize("S", [2, 6])
@pytest.mark.parametrize("algorithm", WITHOUT, ids=repr)
def test_fedavg_and_fednova_do_not(algorithm, S, weights):
    problem = quadratic(weights=weights)
    xs = path(algorithm, problem, 600, S=S, slow=0.5)
    assert distances(xs[-300:], problem.x_star).mean() > 0.02


@pytest.mark.parametrize("own", [1, 3, 8])
@pytest.mark.parametrize(
    "algorithm", [Scaffold(**HOW), ScaffoldOpt(**HOW, base=Momentum(0.3))], ids=repr
)
def test_a_control_is_the_mean_of_the_clients_own_gradients(algorithm, own):
    """Divided by the K that was asked for it would be too small, though x* stays where it is."""
    problem, seen = quadratic(sigma=1.0), []
    x, c_i, c = torch.linspace(-1, 1, 9, dtype=torch.float64).view(3, 3)
    oracle = problem.oracle(0, 0, 1)

    def noted(y, k=None):
        seen.append(oracle(y, k))
        return seen[-1]

    _, c_i_new = algorithm.local(ClientOracle(noted, count=lambda K: own), c_i, x, c)
    assert len(seen) == own
    assert_same(c_i_new, torch.stack(seen).mean(0))


@pytest.mark.parametrize(
    "algorithm",
    [
        Scallion(eta_l=0.1, K=5),
        ScaffoldM(eta_l=0.1, K=5),
        Scaffnew(eta_l=0.1, p=0.5),
    ],
    ids=repr,
)
def test_who_divides_by_a_common_number_of_steps_refuses_slow_clients(algorithm):
    problem = Quadratic(A=torch.tensor([2.0, 1.0]), b=torch.tensor([-1.0, 1.0]))
    with pytest.raises(ValueError, match="steps"):
        next(simulate(algorithm, problem, slow=0.5))
