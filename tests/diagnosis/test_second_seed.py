"""A page says nothing that a second diagnosis with another seed contradicts beyond its interval."""

from dataclasses import replace
from itertools import combinations, count

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers.losses import logistic, quadratics, random
from trimtab import Supervised, diagnose
from trimtab.diagnosis.advise import Gain
from trimtab.diagnosis.intervals import LEVEL, Estimate
from trimtab.diagnosis.rules import RULES
from trimtab.studies.advice import MATERIAL

SEEDS = (1, 2, 3)
NUMBERS = {"zeta", "G", "B", "L", "delta", "mu", "norm", "second", "sigma", "delta/L", "knee I"}


def network(N=4, n=24):
    """Return a network whose clients have inputs of their own."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    clients = []
    for i in range(N):
        X = random(n + 4 * i, 4, seed=i) + random(4, seed=100 + i)
        clients.append((X, (X @ random(4, 3, seed=5)).argmax(1)))
    return Supervised(module, F.cross_entropy, clients, batch=8, l2=0.05, weights="samples")


def convolutions(N=4, n=18):
    """Return a small CNN whose clients see images of their own and have few of the labels."""
    torch.manual_seed(0)
    layers = [nn.Unflatten(1, (1, 6, 6)), nn.Conv2d(1, 2, 3), nn.Tanh(), nn.AvgPool2d(2)]
    module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 3)).double()
    clients = []
    for i in range(N):
        y = (torch.arange(n) % 2 + i) % 3
        X = random(3, 36, seed=7)[y] + random(n, 36, seed=i) + 0.3 * random(36, seed=50 + i)
        clients.append((X, y))
    return Supervised(module, F.cross_entropy, clients, batch=6, l2=0.02)


def regression(N=8):
    """Return a linear regression whose clients have scales, truths and sizes of their own."""
    torch.manual_seed(0)
    clients = []
    for i in range(N):
        n = 160 // (i + 1)
        X = (1 + 0.3 * i) * random(n, 6, seed=i) + random(6, seed=50 + i)
        truth = random(6, seed=99) + 0.4 * random(6, seed=70 + i)
        clients.append((X, (X @ truth + 0.3 * random(n, seed=80 + i))[:, None]))
    module = nn.Linear(6, 1).double()
    return Supervised(module, F.mse_loss, clients, batch=8, l2=0.01, weights="samples")


def wide(N=6, n=24):
    """Return a network whose Hessians are too large to be decomposed."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 20), nn.Tanh(), nn.Linear(20, 10)).double()
    clients = []
    for i in range(N):
        X = (1 + 0.1 * i) * random(n, 8, seed=i) + random(8, seed=100 + i)
        clients.append((X, (X @ random(8, 10, seed=5)).argmax(1)))
    return Supervised(module, F.cross_entropy, clients, batch=8, l2=0.05)


PROBLEMS = {
    "noisy quadratics": (lambda: quadratics(G=3.0, delta=0.1, sigma=0.5), {}),
    "half of the quadratics": (lambda: quadratics(N=10, G=1.0, delta=0.3), {"S": 5}),
    "quadratics alike": (lambda: quadratics(G=0.01, delta=0.05, sigma=0.1), {}),
    "logistic": (lambda: logistic(batch=10), {}),
    "half of logistic": (lambda: logistic(N=6, batch=10, sampling="iid"), {"S": 3}),
    "regression": (regression, {}),
    "three clients of eight": (regression, {"S": 3}),
    "network": (network, {}),
    "wide network": (wide, {"eps": 0.1}),
    "CNN": (convolutions, {"eps": 0.1}),  # A tenth of the way is left.
}
NOISY = [name for name in PROBLEMS if name != "half of the quadratics"]


@pytest.fixture(scope="module", params=PROBLEMS)
def runs(request):
    """Return the diagnoses of a problem by several seeds; a microsecond passes at each look."""
    make, how = PROBLEMS[request.param]
    problem, looks = make(), count()  # One problem: another one would start elsewhere.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trimtab.diagnosis.budget.perf_counter", lambda: 1e-6 * next(looks))
        return [diagnose(problem, seed=seed, **how) for seed in SEEDS]


def apart(a, b):
    """Return which numbers of two diagnoses contradict each other, of those that both have."""
    return [name for name in NUMBERS if not a.intervals[name].overlaps(b.intervals[name])]


def apart_on_the_way(a, b):
    """Return the same for the points at which both measured: where, and which number."""
    rows = [(p.where, p.intervals, q.intervals) for p, q in zip(a.points, b.points, strict=True)]
    return [
        (where, name)
        for where, mine, other in rows
        for name in mine.keys() & other.keys()
        if not mine[name].overlaps(other[name])
    ]


def contradiction(a, b):
    """Return what two pieces of advice claim that cannot both be true; empty if nothing."""
    if None in (a.gain, b.gain):
        return ""
    against = (a.algorithm, b.algorithm) == (b.gain.over, a.gain.over)
    better = all(found.gain.factor.low > MATERIAL for found in (a, b))
    return f"{a.algorithm} and {b.algorithm} each beat the other" if against and better else ""


def too_many_apart(runs):
    """Return whether more numbers contradict each other than intervals of this level allow."""
    looks = [apart(*pair) for pair in combinations(runs, 2)]
    return sum(map(len, looks)) > (1 - LEVEL) * len(NUMBERS) * len(looks)


def without_width(found):
    """Return a diagnosis that takes its numbers to be exact."""
    exact = {
        name: replace(one, low=one.value, high=one.value) for name, one in found.intervals.items()
    }
    return replace(found, evidence=replace(found.evidence, intervals=exact))


def test_intervals_of_two_seeds_have_a_number_in_common(runs):
    for a in runs:
        assert set(a.intervals) >= NUMBERS
        assert all(one.low <= one.value <= one.high for one in a.intervals.values())
    assert not too_many_apart(runs)


def test_what_two_seeds_measure_on_the_way_overlaps_as_well(runs):
    looks = [apart_on_the_way(*pair) for pair in combinations(runs, 2)]
    numbers = sum(len(row.intervals) for row in runs[0].points) * len(looks)
    assert sum(map(len, looks)) <= (1 - LEVEL) * numbers, looks


def test_the_advice_of_two_seeds_claims_nothing_that_the_other_denies(runs):
    assert [contradiction(*pair) for pair in combinations(runs, 2)] == [""] * 3


def test_what_is_advised_gets_there_on_the_model_of_the_other_seed(runs):
    """Unless that model was not asked for this K, or its rounds are too few for another draw."""
    for a, b in combinations(runs, 2):
        expected = {(one.algorithm, one.K): one for one in b.predicted}
        mine = expected.get((a.algorithm, a.K))
        if mine is not None and a.verdict == "choice":
            fewest = min(one.rounds for one in b.predicted if one.rounds)
            assert mine.rounds or mine.ran >= RULES.behind * fewest


@pytest.mark.parametrize("runs", NOISY, indirect=True)
def test_intervals_that_are_too_narrow_are_noticed(runs):
    """Each seed draws mini-batches of its own, so no two find the same sigma."""
    exact = [without_width(found) for found in runs]
    assert all("sigma" in apart(*pair) for pair in combinations(exact, 2))
    assert too_many_apart(exact)


@pytest.mark.parametrize("runs", ["half of logistic"], indirect=True)
def test_counts_of_one_draw_say_so(runs):
    for found in runs:
        assert "On the quadratic model with one draw of cohorts and mini-batches" in str(found)


@pytest.mark.parametrize("runs", ["noisy quadratics"], indirect=True)
def test_advice_that_is_too_sure_is_noticed(runs):
    found = runs[0]
    sure = Gain("fedavg", 4, Estimate(3.0, 2.0, 4.0, "model"), 1.0, at_least=False)
    a, b = (
        replace(
            found,
            recommendation=replace(
                found.recommendation, algorithm=name, gain=replace(sure, over=other)
            ),
        )
        for name, other in (("scaffold", "fedavg"), ("fedavg", "scaffold"))
    )
    assert sure.factor.low > MATERIAL
    assert "each beat the other" in contradiction(a, b)
