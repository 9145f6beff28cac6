"""Every algorithm, base and option agrees, round by round, with the NumPy oracle beside this."""

from functools import cache, partial
from itertools import combinations

import numpy as np
import pytest
import torch

import trimtab
from tests.algorithms import numpy_oracle as oracle
from tests.helpers.quadratics import Unequal
from trimtab.core.oracle import server_random

N, d, S, K, R, SEED = 8, 5, 3, 4, 15, 7
MOST = 12  # steps that Scaffnew draws
UNEQUAL = (1, 4, 2, 3, 3, 1, 4, 2)  # K_i, in the cases of that name


def case(ours, theirs, **settings):
    return ours(**settings), partial(theirs, **settings)


BASES = {
    "momentum": case(trimtab.Momentum, oracle.momentum, beta=0.8),
    "adam": case(trimtab.Adam, oracle.adam, beta1=0.8, beta2=0.95, eps=0.01),
    "adagrad": case(trimtab.Adagrad, oracle.adagrad, eps=0.02),
    "yogi": case(trimtab.Yogi, oracle.yogi, beta1=0.7, beta2=0.9, eps=0.03),
    "adamw": case(trimtab.AdamW, oracle.adamw, beta1=0.8, beta2=0.95, eps=0.01, weight_decay=0.2),
}
# The norms of these gradients lie on both sides of 0.4.
BASES["clipped"] = (
    trimtab.Clipped(BASES["adamw"][0], norm=0.4),
    partial(oracle.clipped, base=BASES["adamw"][1], norm=0.4),
)


def based(ours, theirs, **settings):
    """Return a case for each base."""
    return {
        f"{ours.__name__}-{name}": (
            ours(base=base, **settings),
            partial(theirs, base=their_base, **settings),
        )
        for name, (base, their_base) in BASES.items()
    }


def server_numbers():
    """What the server draws in each round if it draws one uniform number."""
    one = torch.zeros(1, dtype=torch.float64)
    return [server_random(SEED, r)("uniform", one).item() for r in range(1, R + 1)]


local = {"eta_l": 0.1, "K": K, "eta_g": 0.7}
# Four rounds up, eight down by half a cosine, and the others at its end.
FALL = 0.505 + 0.495 * np.cos(np.linspace(0, np.pi, 9))
WARM_UP = 0.1 * np.concatenate([[0.25, 0.5, 0.75, 1.0], FALL, FALL[-1:].repeat(R - 13)])
CASES = {
    "Sgd": case(trimtab.Sgd, oracle.sgd, eta=0.3),
    "FedAvg": case(trimtab.FedAvg, oracle.fedavg, **local),
    "FedProx": case(trimtab.FedProx, oracle.fedprox, mu=1.5, **local),
    "Scaffold-I": case(trimtab.Scaffold, oracle.scaffold, option="I", **local),
    "Scaffold-II": case(trimtab.Scaffold, oracle.scaffold, option="II", **local),
    "Scaffold-lean": (
        trimtab.Scaffold(lean=True, **local),
        partial(oracle.scaffold, option="II", **local),
    ),
    "Scaffold-II-unequal": (
        trimtab.Scaffold(**local),
        partial(oracle.scaffold, option="II", **local | {"K": UNEQUAL}),
    ),
    "Scaffold-warm-up": (
        trimtab.Scheduled(trimtab.Scaffold(**local), eta_l=trimtab.Warmup(4, trimtab.Cosine(8))),
        partial(oracle.scaffold, option="II", **local | {"eta_l": WARM_UP}),
    ),
    "RichardsonRomberg": (
        trimtab.RichardsonRomberg(trimtab.FedAvg(**local)),
        partial(oracle.richardson_romberg, **local),
    ),
    **based(trimtab.FedOpt, oracle.fedopt, eta_l=0.1, K=K, eta_g=0.3),
    **based(trimtab.ServerOnly, oracle.server_only, eta=0.1),
    **based(trimtab.MimeLite, oracle.mimelite, eta=0.05, K=K),
    **based(trimtab.Mime, oracle.mime, eta=0.05, K=K),
    "Dane": case(trimtab.Dane, oracle.dane, eta_l=0.1, K=K, mu=0.8),
    "MimeMvr": case(trimtab.MimeMvr, oracle.mime_mvr, eta=0.05, K=K, a=0.3),
    "MimeLiteMvr": case(trimtab.MimeLiteMvr, oracle.mimelite_mvr, eta=0.05, K=K, a=0.3),
    "ServerMvr": case(trimtab.ServerMvr, oracle.server_mvr, eta=0.1, a=0.3),
    **based(trimtab.ScaffoldOpt, oracle.scaffold_opt, eta_l=0.05, K=K, eta_g=0.7),
    "FedNova-unequal": (
        trimtab.FedNova(**local),
        partial(oracle.fednova, **local | {"K": UNEQUAL}),
    ),
    "Scallion": case(trimtab.Scallion, oracle.scallion, alpha=0.4, **local),
    "Scaffnew": (
        trimtab.Scaffnew(eta_l=0.1, p=0.4),
        partial(oracle.scaffnew, eta_l=0.1, p=0.4, numbers=server_numbers()),
    ),
    "FedDyn": case(trimtab.FedDyn, oracle.feddyn, eta_l=0.1, K=K, alpha=1.5),
    "ScaffoldM": case(trimtab.ScaffoldM, oracle.scaffold_m, a=0.3, **local),
}


def test_every_algorithm_is_written_a_second_time():
    assert set(trimtab.ALGORITHMS.values()) <= {type(algorithm) for algorithm, _ in CASES.values()}


every_case = pytest.mark.parametrize("name", CASES)
TWICE = ("Mime-", "MimeLiteMvr", "MimeMvr", "Dane")  # names of two exchanges a round begin so
asks_twice = pytest.mark.parametrize("name", [name for name in CASES if name.startswith(TWICE)])
asks_once = pytest.mark.parametrize("name", [name for name in CASES if not name.startswith(TWICE)])


@cache
def problem():
    draw = np.random.default_rng(0)
    Q, _ = np.linalg.qr(draw.normal(size=(N, d, d)))
    A = Q * draw.uniform(0.2, 2.0, size=(N, 1, d)) @ Q.mT
    A = (A + A.mT) / 2
    b = draw.normal(size=(N, d))
    weights = draw.uniform(0.5, 4.0, size=N)
    return trimtab.Quadratic(torch.tensor(A), torch.tensor(b), sigma=0.5, weights=weights)


@cache
def noise():
    """What trimtab's mini-batch gradients add to the full ones: (R, N, MOST, d)."""
    zero = torch.zeros(d, dtype=torch.float64)
    table = np.empty((R, N, MOST, d))
    for r, i, k in np.ndindex(R, N, MOST):
        g = problem().oracle(i, SEED, r + 1)  # rounds count from 1
        table[r, i, k] = g(zero, k) - problem().client_gradient(i, zero)
    return table


def x0():
    return torch.linspace(-2, 2, d, dtype=torch.float64)


def simulated(name, **settings):
    """Return x after every round (with controls: the rows x, c, c_1 ... c_N), and who answered."""
    settings |= {"executor": Unequal(UNEQUAL)} if name.endswith("unequal") else {}
    sim = trimtab.simulate(CASES[name][0], problem(), seed=SEED, x=x0(), **settings)
    path, answered = [], []
    for _ in range(R):
        round = next(sim)
        rows = [round.x]
        if hasattr(round.server, "c"):
            c_i = [sim.states[i] if i in sim.states else torch.zeros(d) for i in range(N)]
            rows += [round.server.c, *c_i]
        path.append([row.tolist() for row in rows])
        answered.append(round.cohort)
    return np.array(path).squeeze(), answered


def expected(name, cohorts):
    A, b, p = problem().A.numpy(), problem().b.numpy(), problem().weights.numpy()
    return oracle.run(CASES[name][1], oracle.Clients(A, b, p, noise(), cohorts), x0().numpy())


def agree(path, other):
    """Tell whether every vector agrees to 1e-9 of its length."""
    assert path.shape == other.shape
    distance, length = np.linalg.norm(path - other, axis=-1), np.linalg.norm(other, axis=-1)
    return bool((distance <= 1e-9 * length).all())


@every_case
def test_every_round_agrees_with_the_oracle(name):
    path, cohorts = simulated(name, S=S)
    assert {len(cohort) for cohort in cohorts} == {S}
    assert len(set(cohorts)) > R / 2
    assert agree(path, expected(name, cohorts))


@every_case
def test_cohorts_given_are_cohorts_sampled(name):
    path, cohorts = simulated(name, S=S)
    again, same = simulated(name, cohorts=cohorts)
    assert cohorts == same
    assert np.array_equal(path, again)


@every_case
def test_cohorts_of_any_size_and_order(name):
    cohorts = [tuple((3 * r + 5 * j) % N for j in range(1 + r % N)) for r in range(R)]
    path, _ = simulated(name, cohorts=cohorts)
    assert agree(path, expected(name, cohorts))


@asks_once
def test_a_lost_reply_is_as_if_never_asked(name):
    path, answered = simulated(name, cohorts=[range(N), [3], [6, 2, 4]] * (R // 3), lost=0.3)
    assert () in answered
    assert any(3 < len(cohort) < N for cohort in answered)
    assert agree(path, expected(name, answered))


@asks_twice
def test_a_client_lost_in_either_of_two_exchanges_is_as_if_never_asked(name):
    path, answered = simulated(name, cohorts=[[r % N] for r in range(R)], lost=0.3)
    assert () in answered  # of two exchanges `cohort` shows the second: ask one client at a time
    assert agree(path, expected(name, answered))


def test_the_algorithms_differ_visibly():
    _, cohorts = simulated("FedAvg", S=S)
    x = {name: expected(name, cohorts) for name in CASES}
    x = {name: path if path.ndim == 2 else path[:, 0] for name, path in x.items()}
    alike = [(a, b) for a, b in combinations(x, 2) if np.abs(x[a][-1] - x[b][-1]).max() < 1e-3]
    assert alike == [("Scaffold-II", "Scaffold-lean")]
