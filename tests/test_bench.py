"""The benchmark measures what it says; how fast is for `trimtab bench`, not for a test."""

from dataclasses import replace

import pytest
import torch

from trimtab import Scaffold, Supervised, simulate
from trimtab.bench import ETA, WORKLOADS, machine, measure
from trimtab.bench.plain_loop import PlainLoop


@pytest.mark.parametrize("name", ["W1", "any", "W2", "W4"])
def test_a_small_workload_gives_all_times_and_ratios(name):
    work = replace(WORKLOADS[name], N=4, S=2, n=20, b=10, epochs=1, repeats=2)
    row = measure(work)
    times = row.milliseconds
    assert set(times) == {"bare", "fedavg", "scaffold", "plain"} | (
        {"evaluation"} if name == "W1" else set()
    )
    assert all(t > 0 for t in times.values())
    assert set(row.ratios) == set(row.goals) == set(row.met)
    for ratio, value in row.ratios.items():
        above, below = ratio.split(" / ")
        assert value == pytest.approx(times[above] / times[below])
    assert list(row.to_json()) == [
        *("workload", "shows", "executor", "milliseconds", "ratios", "goals", "met")
    ]
    assert row.executor in ("batched", "threads", "loop")


def test_there_are_cohorts_for_all_repetitions():
    work = replace(WORKLOADS["W1"], N=4, S=2, n=20, b=10, epochs=1, repeats=101)
    assert len(list(measure.start(work))) == 101


def test_the_workloads_are_those_of_the_table():
    steps = {name: work.K for name, work in WORKLOADS.items()}
    assert steps == {"W1": 5, "W1x10": 50, "any": 5, "W2": 25, "W3": 1, "W4": 5, "W4x5": 25}


def test_the_plain_loop_is_scaffold_too():
    """With all clients and one full batch there is no chance: the same numbers as ours."""
    work = replace(WORKLOADS["W1"], N=3, S=3, n=6, b=6, epochs=4)
    clients, plain = work.clients(), PlainLoop(work, work.clients())
    problem = Supervised(work.build(), torch.nn.functional.cross_entropy, clients)
    sim = simulate(Scaffold(eta_l=ETA, K=work.K), problem)
    for _ in range(3):
        plain.round()
        done = next(sim)
    x = torch.cat([p.detach().reshape(-1) for p in plain.model.parameters()])
    torch.testing.assert_close(x, done.x, rtol=1e-3, atol=1e-5)


def test_the_machine_is_described():
    assert {"processor", "cores", "kernel", "versions"} <= set(machine())
