"""The benchmark measures what it says; how fast is for `trimtab bench`, not for a test."""

import json
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

from trimtab import Scaffold, simulate
from trimtab.problems.supervised.batches import Batches
from trimtab_papers.bench import WORKLOADS, machine, measure, measurement, problem_of
from trimtab_papers.bench.measurement import PlainLoop, heavy_calls
from trimtab_papers.commands import bench

SMALL_ENOUGH = [name for name in WORKLOADS if name != "W3"]  # a ResNet step takes seconds


@pytest.mark.parametrize("name", SMALL_ENOUGH)
def test_a_small_workload_gives_all_times_and_ratios(name):
    row = measure(WORKLOADS[name].small())
    times = row.milliseconds
    assert set(times) == {"bare", "fedavg", "scaffold", "plain"} | (
        {"evaluation"} if name == "W1" else set()
    )
    assert all(t > 0 for t in times.values())
    assert set(row.ratios) == set(row.met) == {r for r in row.goals if "compiled" not in r}
    for ratio, value in row.ratios.items():
        above, below = ratio.split(" / ")
        assert value == pytest.approx(times[above] / times[below])
        low, high = row.spread[ratio]
        assert 0 < low <= high
    assert list(row.to_json()) == [
        *("workload", "shows", "executor", "milliseconds", "ratios", "goals", "met", "spread")
    ]


def test_no_round_is_given_the_mini_batches_that_another_drew(monkeypatch):
    """The last ones drawn are kept: whoever comes second would not draw."""
    seeds = []

    def started(*args, seed, **options):
        seeds.append(seed)
        return simulate(*args, seed=seed, **options)

    monkeypatch.setattr(measurement, "simulate", started)
    measure(WORKLOADS["W8"].small())
    assert len(seeds) == len(set(seeds)) == 2


def test_there_are_cohorts_for_all_repetitions():
    work = replace(WORKLOADS["W1"].small(), repeats=101)
    assert len(list(measure.start(work))) == 101


def test_the_workloads_are_those_of_the_table():
    """K, and the parameters that a client moves."""
    found = {
        name: (work.K, sum(p.numel() for p in work.module().parameters()))
        for name, work in WORKLOADS.items()
    }
    assert found == {
        "W1": (5, 785 * 47),
        "W1x10": (50, 785 * 47),
        "any": (5, 785 * 47),
        "W2": (25, 785 * 200 + 201 * 47),
        "W3": (1, 11_173_962),
        "W4": (5, 785 * 62),
        "W4x5": (25, 785 * 62),
        "W5": (5, 10 * 32 + 289 * 64 + 9217 * 128 + 129 * 62),
        "W6": (4, 90 * 64 + 80 * 64 + 2 * (4 * 65 * 64 + 65 * 256 + 257 * 64 + 4 * 64) + 65 * 90),
        "W7": (4, 90 * 8 + 4 * 256 * (8 + 256 + 2) + 4 * 256 * (256 + 256 + 2) + 257 * 90),
        "W8": (10, 10),
        "W9": (10, 27),
        "W10a": (5, 21 * 64 + 65 * 64 + 65),
        "W10b": (5, 785 * 200 + 201 * 62),
        "W10c": (5, 33 * 64 + 65 * 64 + 65 * 10 + 2 * 128),
        "W11": (5, 1_626_442),  # as in pfl's benchmark
    }


@pytest.mark.parametrize("name", SMALL_ENOUGH)
def test_clients_have_the_sizes_of_the_workload_and_every_time_the_same_data(name):
    work = replace(WORKLOADS[name], N=3)
    first, again = work.clients(), work.clients()
    low, high = (work.n, work.n + 1) if isinstance(work.n, int) else work.n
    assert all(low <= len(X) == len(y) < high for X, y in first)
    for (X, y), (X2, y2) in zip(first, again, strict=True):
        assert torch.equal(X, X2)
        assert torch.equal(y, y2)


def in_double(work):
    """Return a workload whose rounding does not matter: all clients, one full batch each."""

    def data(n, draw):
        return tuple(t.double() if t.is_floating_point() else t for t in work.data(n, draw))

    build = work.without_dropout().build
    n = 6 if isinstance(work.n, int) else (4, 8)
    return replace(work, build=lambda: build().double(), data=data, N=3, S=3, n=n, b=1.0)


def one_round_apart(ours, plain):
    """Return how far ours and the plain loop are apart after a round, relative to their move."""
    loop = PlainLoop(plain, plain.clients())
    loop.round()
    problem = problem_of(ours, ours.clients())
    sim = simulate(Scaffold(eta_l=ours.eta, K=ours.K), problem, executor="loop")
    next(sim)
    x, c = (
        torch.cat([p.detach().reshape(-1) for p in part])
        for part in (loop.model.parameters(), loop.c)
    )
    assert x.dtype == sim.server.x.dtype == torch.float64
    moved = sim.server.x - problem.x0()
    apart = (x - sim.server.x).norm() / moved.norm(), (c - sim.server.c).norm() / c.norm()
    return float(max(apart))


@pytest.mark.parametrize("name", SMALL_ENOUGH)
def test_the_plain_loop_takes_the_round_that_ours_takes(name):
    """With all clients and full batches there is no chance, and in float64 no rounding to see."""
    work = in_double(WORKLOADS[name])
    assert one_round_apart(work, work) < 1e-9
    more = replace(work, K=work.K + 1)
    assert one_round_apart(work, more) > 1e-3


@pytest.mark.parametrize("name", ["W8", "W9", "W10a"])
def test_the_plain_loop_has_mini_batches_of_our_sizes(name):
    work = replace(WORKLOADS[name], N=4, S=4)
    clients = work.clients()
    problem, loop = problem_of(work, clients), PlainLoop(work, clients)
    for i in range(work.N):
        ours = Batches(problem.clients[i], work.b, "reshuffle", (0, i, 1))
        assert [len(ours[k]) for k in range(ours.steps)] == [len(X) for X, _ in loop.loaders[i]]


def test_the_bare_calls_are_those_of_a_step():
    def names(work):
        return [call.operator._schema.name.split("::")[1] for call in heavy_calls(WORKLOADS[work])]

    assert names("W8") == ["addmm", "mm"]
    assert names("W10b") == ["addmm", "addmm", "mm", "mm", "mm"]
    assert names("W5").count("convolution") == names("W5").count("convolution_backward") == 2
    assert len(names("W6")) >= 3 * 9  # nine matrices, each in a product forth and two back
    assert len(names("W7")) >= 3 + 2 * 2  # the last layer, and two of LSTM forth and back


def run(*arguments):
    done = CliRunner().invoke(bench, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_picks_workloads_and_its_record_is_continued(tmp_path):
    out = tmp_path / "new" / "bench.json"
    run("w8", "--quick", "--out", out)
    before = json.loads(out.read_text())["rows"]
    run("W8", "w10A", "--quick", "--out", out, "--resume")
    after = json.loads(out.read_text())["rows"]
    assert [row["workload"] for row in after] == ["W8", "W10a"]
    assert after[0] == before[0]
    run("w9", "--quick", "--out", out)
    assert [row["workload"] for row in json.loads(out.read_text())["rows"]] == ["W9"]


def test_a_record_of_another_machine_is_not_continued(tmp_path, refused):
    out = tmp_path / "bench.json"
    out.write_text(json.dumps({"machine": machine() | {"cores": 99}, "rows": []}))
    with refused("another machine (cores 99", "another file"):
        CliRunner().invoke(bench, ["w8", "--out", str(out), "--resume"], catch_exceptions=False)


def test_the_machine_is_described():
    assert {"processor", "cores", "kernel", "versions"} <= set(machine())
