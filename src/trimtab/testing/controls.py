"""Rules for algorithms with control variates c and c_i."""

from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any

import torch

from trimtab.algorithms.through import Rounding, Through
from trimtab.core import State
from trimtab.simulation import Diverged, Simulation
from trimtab.testing import _trials
from trimtab.testing._trials import require


def control_is_the_mean_gradient(algorithm: Any, seed: int = 0) -> None:
    """After a round c_i is the mean of the raw gradients of its steps; with option I, g(x)."""
    # Neither zero nor equal, so that a c or c_i that leaks into the mean is seen.
    server, states = _with_controls(algorithm, c=1.0, c_i=2.0)
    _, clients = _trials.run_round(algorithm, server, states, seed=seed)
    for i in _trials.SOME:
        what, c_i = "the mean of its raw gradients", torch.stack(clients.gradients[i]).mean(0)
        if getattr(algorithm, "option", "II") == "I":
            what = "its full gradient g(x)"
            c_i = _trials.quadratic(seed=seed).client_gradient(i, server.x)
        same = _trials.close(clients.states[i], c_i)
        require(
            same,
            algorithm,
            f"c_i is not {what} after a round",
            "compare with line 12 (i), (ii) of the paper",
        )


def correction_matters(algorithm: Any, seed: int = 0) -> None:
    """c and c_i each change the steps of the clients."""
    x = _trials.run_round(algorithm, *_with_controls(algorithm), seed=seed)[0].x
    for name in ("c", "c_i"):
        # Large against gradients of order one, so that small step sizes show the effect too.
        states = _with_controls(algorithm, **{name: 100.0})
        y = _trials.run_round(algorithm, *states, seed=seed)[0].x
        what = f"{name} = 100 does not change the steps"
        require(
            not _trials.close(x, y), algorithm, what, "add c - c_i to the gradient at every step"
        )


def controls_average_to_c(algorithm: Any, seed: int = 0) -> None:
    """After every round c = sum p_i c_i, with sampling, weights and lost replies."""
    _with_controls(algorithm)
    sim = _trials.simulated(algorithm, seed, S=4, lost=0.3)
    _audit(sim, 20, "start at zero, and add to c the share times the mean of c_i_new - c_i")


def keeps_what_it_sent(algorithm: Any, seed: int = 0) -> None:
    """c = sum p_i c_i also when uploads are rounded in transit."""
    _with_controls(algorithm)
    # A step of 0.05 is coarse: a client that keeps its exact c_i differs from c at once.
    rounded = Through(algorithm, (Rounding(0.05),))
    sim = _trials.simulated(rounded, seed, S=4)
    advice = "compute the client's new state from the result of g.sent(upload), and upload that"
    _audit(sim, 5, advice, algorithm)


def includes_late_clients(algorithm: Any, seed: int = 0) -> None:
    """c = sum p_i c_i also when clients join late."""
    _with_controls(algorithm)
    # Clients 2 to 5 take part when c is no longer zero.
    cohorts = [[0, 1], [0, 1], [0, 5], [2, 3, 4]]
    sim = _trials.simulated(algorithm, seed, cohorts=cohorts)
    _audit(sim, len(cohorts), "initialise c_i the same way, however late a client joins")


def reaches_the_weighted_optimum(algorithm: Any, seed: int = 0) -> None:
    """With half of the clients per round, and no noise, x reaches the minimum of sum p_i f_i."""
    _with_controls(algorithm)
    exact = _trials.quadratic(sigma=0.0, seed=seed)
    sim = _trials.simulated(algorithm, seed, exact, S=_trials.N // 2)
    before, gap = inf, _trials.distance(sim)
    with suppress(Diverged):
        # It continues while 100 rounds at least halve the distance, so that small steps may do.
        while 1e-6 < gap < before / 2:
            before, gap = gap, _trials.distance(_trials.advance(sim, 100))
    what = (
        f"|x - x*| is {gap:.1g} after {sim.r} rounds with {_trials.N // 2} of {_trials.N} clients"
    )
    require(
        gap <= 1e-6,
        algorithm,
        what,
        "compare with lines 10, 12 and 17 of the paper, or change the step size",
    )


def _audit(sim: Simulation, rounds: int, advice: str, algorithm: Any = None) -> None:
    """Require c = sum p_i c_i after each of some rounds."""
    for _ in range(rounds):
        gap = _trials.advance(sim, 1).audit()
        what = f"c differs from the sum of p_i c_i by {gap:.1g} after round {sim.r}"
        what += "" if algorithm is None else " when uploads are rounded"
        require(gap < 1e-8, algorithm or sim.algorithm, what, advice)


def _with_controls(
    algorithm: Any, c: float = 0.0, c_i: float = 0.0
) -> tuple[State, dict[int, State]]:
    """Return states with these controls; raise ContractError if the algorithm has none."""
    server, client = algorithm.init_server(_trials.start()), algorithm.init_client(_trials.start())
    has_controls = hasattr(server, "c") and _trials.shapes(server.c) == _trials.shapes(client)
    what = "it has no c in the server's state, or the client's state is not c_i"
    require(has_controls, algorithm, what, "use check_algorithm alone")
    states = {i: torch.full_like(client, c_i) for i in range(_trials.N)}
    return server._replace(c=torch.full_like(client, c)), states


CONTROL_SUM_CHECKS: tuple[Callable[[Any, int], None], ...] = (
    correction_matters,
    controls_average_to_c,
    keeps_what_it_sent,
    includes_late_clients,
    reaches_the_weighted_optimum,
)
CONTROL_CHECKS = (control_is_the_mean_gradient, *CONTROL_SUM_CHECKS)
