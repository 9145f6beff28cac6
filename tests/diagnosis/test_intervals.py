"""Intervals: another seed does not contradict them, and no joint replicate contradicts itself."""

from dataclasses import replace
from itertools import combinations
from math import ceil, inf

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.diagnosis.test_little_time import Costly
from tests.helpers.losses import Opaque, everybody, logistic, quadratics, random
from trimtab import Quadratic, Supervised, diagnose
from trimtab.core.task import Task
from trimtab.diagnosis import hessians, intervals, measure
from trimtab.diagnosis.budget import Budget
from trimtab.diagnosis.intervals import LEVEL, Estimate, drawn, estimated, largest
from trimtab.diagnosis.panel import panel_of, thinned
from trimtab.diagnosis.rules import RULES

SEEDS = range(1, 7)
MARGIN = 0.15  # an interval that is 4 x too narrow is contradicted in > 15 % of the pairs


def network(N=8, n=200):
    """Return a small network on clients whose inputs are moved."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    clients = []
    for i in range(N):
        X = random(n, 4, seed=i) + random(4, seed=100 + i)
        clients.append((X, (X @ random(4, 3, seed=5) + random(n, 3, seed=50 + i)).argmax(1)))
    return Supervised(module, F.cross_entropy, clients, batch=20, sampling="iid")


def some(problem, count, seed):
    """Return a panel of this many clients, drawn at random."""
    draw = torch.Generator().manual_seed(seed)
    clients = tuple(sorted(torch.randperm(problem.N, generator=draw)[:count].tolist()))
    return panel_of(problem, clients)


CASES = {
    "some quadratics": (
        lambda: quadratics(N=60, d=6, G=2.0, delta=0.5, sigma=0.5),
        lambda problem, seed: some(problem, 24, seed),
    ),
    "some samples of logistic": (
        lambda: logistic(N=8, n=120, batch=20, sampling="iid"),
        lambda problem, seed: thinned(problem, tuple(range(8)), 40, seed, Budget(9.0)),
    ),
    "some samples of a network": (
        network,
        lambda problem, seed: thinned(problem, tuple(range(8)), 60, seed, Budget(9.0)),
    ),
}


def measured(problem, panel, seed):
    """Return a sample with all numbers at one point."""
    budget = Budget(600.0)
    x = problem.x0(0).double() + 0.5
    here, there = (measure.at_point(panel, at) for at in (x, x + random(len(x))))
    noise = measure.batch_noise(panel, x, seed, budget.until(1))
    matrices = hessians.full_hessians(panel, x, budget.until(1))
    found = hessians.by_matrices(panel, matrices, budget.until(1))
    apart = measure.difference(there, here)
    draws = drawn(panel, problem.N, seed)
    B = measure.B_of(panel.p, apart)
    return intervals.at_point("x", x, draws, panel.p, here, found, noise, (apart,), B)


@pytest.fixture(scope="module")
def samples():
    """Return what several seeds measure of each case."""
    made = {name: (problem(), panel) for name, (problem, panel) in CASES.items()}
    return {
        name: [measured(problem, panel(problem, seed), seed) for seed in SEEDS]
        for name, (problem, panel) in made.items()
    }


def agreement(runs):
    """Return the share of all pairs of runs and quantities whose intervals overlap."""
    pairs = [(a[name], b[name]) for a, b in combinations(runs, 2) for name in a]
    return sum(a.overlaps(b) for a, b in pairs) / len(pairs)


def narrowed(found, factor):
    """Return the mutant: intervals that are too narrow."""
    return {
        name: replace(
            one,
            low=one.value - (one.value - one.low) / factor,
            high=one.value + (one.high - one.value) / factor,
        )
        for name, one in found.items()
    }


@pytest.mark.parametrize("name", CASES)
def test_another_seed_does_not_contradict_what_was_measured(samples, name):
    runs = [sample.estimates() for sample in samples[name]]
    assert set(runs[0]) == {"zeta", "G", "B", "sigma", "L", "delta", "mu", "norm", "second"}
    assert agreement(runs) >= LEVEL


def test_intervals_that_are_four_times_too_narrow_are_contradicted(samples):
    shares = [
        agreement([narrowed(sample.estimates(), 4) for sample in each]) for each in samples.values()
    ]
    assert sum(shares) / len(shares) < LEVEL - MARGIN


@pytest.mark.parametrize("name", CASES)
def test_no_replicate_contradicts_itself(samples, name):
    for sample in samples[name]:
        each, slack = sample.replicates, 1 + 1e-9
        assert (each["delta"] <= 2 * slack * each["L"]).all()
        assert (each["norm"] <= slack * each["L"]).all()
        assert (each["mu"] <= slack * each["norm"]).all()
        assert (each["zeta"] <= slack * each["G"]).all()
        assert (each["B"] >= 1).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: quadratics(sigma=0.5, G=3.0, delta=0.1),
        lambda: logistic(batch=10),
        lambda: network(N=3, n=20).replace(l2=0.05),
    ],
    ids=["quadratics", "logistic", "network"],
)
def test_two_diagnoses_with_other_seeds_agree(make, monkeypatch):
    problem, runs = make(), []
    for seed in (1, 2):  # The time is counted in gradients, so that no machine is too slow.
        costly = Costly(problem)
        with monkeypatch.context() as patch:
            patch.setattr("trimtab.diagnosis.budget.perf_counter", lambda own=costly: own.now)
            runs.append(diagnose(costly, seed=seed, minutes=5000 * costly.N / 60))
    names = {"zeta", "G", "B", "L", "delta", "mu", "norm", "second", "sigma", "delta/L", "knee I"}
    assert names <= set(runs[0].intervals)
    pairs = {name: [run.intervals[name] for run in runs] for name in names}
    assert [name for name, (a, b) in pairs.items() if not a.overlaps(b)] == []
    for run in runs:
        for name, one in run.intervals.items():
            assert one.low <= one.value <= one.high, name
            assert one.at.startswith(run.where)


def test_where_nothing_is_drawn_there_is_no_width():
    found = diagnose(quadratics(G=3.0, delta=0.1))
    for name in ("zeta", "G", "L", "delta", "mu", "delta/L", "knee II", "rounds scaffold", "bias"):
        one = found.intervals[name]
        assert one.high - one.low <= 1e-6 * abs(one.value), name
    assert [row.where for row in found.points] == [row.intervals["zeta"].at for row in found.points]


def steep_and_flat(N=6, d=8):
    """Return quadratics with L/mu = 10,000 whose optimum has to be searched for."""
    problem = quadratics(N=N, d=d, G=2.0, delta=1e-5)
    h = torch.diag(torch.logspace(-4, 0, d, dtype=torch.float64))
    return Opaque(Quadratic(h + problem.A - problem.H, problem.b))


@pytest.mark.parametrize("make", [steep_and_flat, lambda: logistic(N=4, l2=0.001)])
def test_where_nothing_is_sampled_the_interval_is_narrow_and_holds_the_truth(make):
    """A search ends at a small gradient, which may be far from the optimum where f is flat."""
    problem = make()
    found = diagnose(problem)
    panel, x = everybody(problem), problem.x0(0).double()
    for _ in range(40):  # Newton
        matrices = hessians.full_hessians(panel, x, lambda: False).each
        x = x - torch.linalg.solve(matrices.mean(0), panel.gradient(x))
    matrices = hessians.full_hessians(panel, x, lambda: False).each
    exact = measure.scalars(panel.p, matrices, panel.gradients(x))
    exact["delta/L"] = exact["delta"] / exact["L"]
    for name in ("zeta", "L", "delta", "mu", "delta/L"):
        one, true = found.intervals[name], float(exact[name])
        assert one.low <= true <= one.high, (name, str(one), true)
        scale = found.L if name in ("delta", "mu") else abs(true)
        assert one.high - one.low <= 1e-6 * scale, (name, one)


def test_sigma_of_thinned_data_is_that_of_the_true_mini_batches():
    """A share of few samples is a smaller mini-batch, and a fixed size may be all of them."""
    ratios = []
    for batch in (0.2, 30):
        problem = logistic(N=6, n=150, batch=batch)
        x = problem.x0() + 0.3
        whole, thin = everybody(problem), thinned(problem, tuple(range(6)), 30, 0, Budget(1e6))
        true, few = (measure.batch_noise(p, x, 0, lambda: False).sigma for p in (whole, thin))
        ratios.append(few / true)
    assert ratios == pytest.approx(
        [1, 1], rel=0.2
    )  # Unscaled, the first would be 2.2, the other 0.


def test_the_first_pairs_of_mini_batches_say_how_many_are_drawn(monkeypatch):
    """Drawing until the error is small ends where it is small by chance."""
    drawn_, problem = [], quadratics(N=4, d=3, sigma=1.0)

    def noise(panel, x, seed, pair, out_of_time):
        """Return noise that varies among the first 28 pairs, and hardly after them."""
        drawn_.append(pair)
        size = 1 + (0.5 * random(panel.problem.N, 1, seed=pair) if pair < 28 else 0)
        return size * torch.ones(panel.problem.N, 3).double()

    monkeypatch.setattr(measure, "noise_samples", noise)
    found = measure.batch_noise(everybody(problem), problem.x0(), 0, lambda: False)
    first = found.squares[:25]
    error = problem.weights.square() @ first.var(0)
    needed = float(error / (RULES.noise_error * problem.weights @ first.mean(0)) ** 2)
    assert len(drawn_) == ceil(needed) > 35


def test_mini_batches_of_sampled_clients_count_once():
    """Clients that differ by their mini-batches alone differ by all that these cause."""
    pairs, n, N = 20, 50, 1000
    squares = random(pairs, n).square()
    p = torch.full((n,), 1 / n, dtype=torch.float64)
    panel, here = some(quadratics(N=N, d=3), n, 0), measure.at_point
    draws = drawn(panel, N, 0)
    noise = measure.BatchNoise(float(squares.mean().sqrt()), squares)
    x = panel.problem.x0()
    sample = intervals.at_point("x", x, draws, p, here(panel, x), None, noise)
    error = squares.mean(0).std() / n**0.5 / squares.mean()
    logs = 2 * sample.replicates["sigma"].log()
    assert float(logs.std() / error) == pytest.approx(1, abs=0.2)  # Counted twice it would be 1.4.


def test_hessians_of_some_quadratics_do_not_depend_on_the_optimum():
    """The panel knows that Hessians are constant; else the interval of L was 5 x L wide."""
    problem = quadratics(N=60, d=6, G=20.0, delta=0.05)
    panel = some(problem, 24, 0)
    assert panel.problem.constant_hessians
    for at in (inf, 1e-3):
        x, left = problem.x0() + 0.5, intervals.Left(0.0, at)
        found = hessians.by_matrices(
            panel, hessians.full_hessians(panel, x, lambda: False), lambda: False
        )
        how = drawn(panel, 60, 0), panel.p, measure.at_point(panel, x), found
        one = intervals.at_point("x", x, *how, left=left).estimates()["L"]
        assert (one.high - one.low < 0.5 * one.value) == (at == inf)


def test_an_interval_is_longer_where_the_truth_may_be_further_off():
    """A replicate that is far above the centre stands for a truth far below the value."""
    seen = {"mu": 1 + torch.linspace(0, 1, 200).double() ** 4}
    found = intervals._Replicated({"mu": seen["mu"].mean()}, seen, {})
    draws = drawn(everybody(quadratics()), 6, 0)
    around = found.around("mu", 1.0, draws)
    assert 1 - float(around.min()) > 1.5 * (float(around.max()) - 1)


def test_clients_that_were_not_measured_may_be_further_off_by_one_factor_on_matrices():
    A = torch.stack([torch.diag(torch.tensor(a)) for a in ([1.0, 0.2], [1.2, 0.1], [0.8, 0.3])])
    p = torch.full((3,), 1 / 3, dtype=torch.float64)
    plain, wide = (measure.scalars(p, A.double(), beyond=f) for f in (None, torch.tensor(3.0)))
    assert wide["delta"] == pytest.approx(3 * float(plain["delta"]))
    assert wide["L"] == pytest.approx(1 + 3 * 0.2)  # Hess + 3 (Hess_i - Hess) of the steepest
    assert wide["mu"] == plain["mu"]


def test_what_is_derived_inherits_the_interval_and_all_three_forms_have_it():
    found = diagnose(quadratics(N=20, sigma=2.0, G=3.0, delta=0.1))
    noisy, rounds = found.intervals["sigma"], found.intervals["rounds sgd"]
    assert noisy.low < noisy.value < noisy.high
    assert rounds.low < rounds.value < rounds.high
    assert str(noisy) in str(found)
    assert found.to_json()["intervals"]["sigma"] == noisy.to_json()


def test_clients_that_nobody_measured_may_be_steeper():
    problem = quadratics(N=60, d=6)
    own = random(24).abs()
    few = largest(own, drawn(some(problem, 24, 0), 60, 0))
    assert (few >= 1).all()
    assert few.max() > 1
    assert (largest(own, drawn(everybody(quadratics(N=24, d=6)), 24, 0)) == 1).all()


def test_of_400_clients_the_mean_is_that_of_all():
    problem = quadratics(N=400, d=6, delta=0.5)
    found = diagnose(problem)
    assert found.mu == pytest.approx(problem.mu, rel=1e-6)
    assert found.delta == pytest.approx(problem.delta, rel=1e-6)


def test_an_interval_holds_its_value_and_what_was_left_out():
    one = estimated(1.0, torch.linspace(1.1, 1.4, 201).double(), "start", slack=0.5, least=0.9)
    assert (one.low, one.value) == (0.9, 1.0)
    assert one.high == pytest.approx(1.39 + 0.5, abs=0.01)
    assert Estimate(1.0, 0.9, 1.1, "x").overlaps(Estimate(1.2, 1.05, 1.3, "x"))
    assert not Estimate(1.0, 0.9, 1.1, "x").overlaps(Estimate(1.2, 1.15, 1.3, "x"))


def test_common_directions_give_a_bound_that_is_inside_its_interval():
    problem = quadratics(N=12, d=40, delta=0.5)
    budget = Budget(600.0)
    for seed in SEEDS:
        steps = hessians.by_products(
            everybody(problem), problem.x_star, seed, budget, budget.until(1)
        )
        found = Task(steps).result()
        for name in ("L", "delta"):
            value, true = getattr(found, name), getattr(problem, name)
            assert value <= true * (1 + 1e-9)
            assert true <= value + found.errors[name] * (1 + 1e-6) + 1e-9


def test_replicates_have_no_more_dimensions_than_clients_and_say_the_same(monkeypatch):
    """A gradient of a network has thousands of dimensions, in which 200 replicates take minutes."""
    whole = network()
    panel = thinned(whole, tuple(range(8)), 16, 0, Budget(9.0))
    x = whole.x0(0)
    here, draws = measure.at_point(panel, x), drawn(panel, whole.N, 0)
    widths, numbers = [], measure.scalars

    def seen(p, A=None, X=None, V=None, **how):
        widths.append(X.shape[1])
        return numbers(p, A, X, V, **how)

    monkeypatch.setattr(intervals, "scalars", seen)
    short = intervals.at_point("x", x, draws, panel.p, here).estimates()["zeta"]
    assert max(widths) <= whole.N < whole.d
    monkeypatch.setattr(
        intervals, "vectors", lambda rows, _, deviations: measure.vectors(rows, None, deviations)
    )
    long = intervals.at_point("x", x, draws, panel.p, here).estimates()["zeta"]
    assert max(widths) == whole.d
    assert short.low == pytest.approx(long.low, abs=0.05 * (long.high - long.low))
    assert short.high == pytest.approx(long.high, abs=0.05 * (long.high - long.low))
