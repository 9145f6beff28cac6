"""A saved simulation goes on bit for bit, and is refused where it does not belong."""

import json
import os
from dataclasses import replace
from itertools import islice

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

from tests.helpers.small_runs import (
    ALGORITHMS,
    FEDAVG,
    SCAFFOLD,
    D,
    Resting,
    history,
    quadratic,
    run,
    same_simulation,
)
from trimtab import Quadratic, Scaffold, Simulation, Supervised, simulate
from trimtab.problems.catalogue import logistic


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sim.safetensors"


def assert_resumes(path, algorithm, problem, before=4, after=4, again=None, **settings):
    """Interrupt a run, load it with a problem built afresh, and compare with one that went on."""
    straight, _ = run(algorithm, problem(), before, **settings)
    stopped, _ = run(algorithm, problem(), before, **settings)
    stopped.save(path)
    del stopped
    resumed = Simulation.load(path, algorithm, problem(), **(again or {}))
    assert same_simulation(straight, resumed)
    assert history(islice(straight, after)) == history(islice(resumed, after))
    assert same_simulation(straight, resumed)
    return resumed


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_every_algorithm_resumes_bit_for_bit_with_sampling_losses_and_noise(algorithm, path):
    assert_resumes(path, algorithm, quadratic, S=3, lost=0.3, seed=5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_dtypes_and_a_given_start_resume(dtype, path):
    x = torch.linspace(1, 2, D, dtype=dtype)
    sim = assert_resumes(path, SCAFFOLD, lambda: quadratic(dtype), S=3, x=x)
    assert sim.server.c.dtype == dtype


def test_explicit_cohorts_resume_where_they_were_and_end(path):
    cohorts = [[0, 1], [2], [3, 4, 5], [1], [0, 5]]
    sim = assert_resumes(path, SCAFFOLD, quadratic, before=3, after=9, cohorts=cohorts)
    assert sim.r == 5


def test_client_states_beyond_memory_are_saved_and_resume_in_any_memory(path):
    for memory in (0, 2 * 8 * D, None):
        for again in (0, 8 * D, None):
            assert_resumes(path, SCAFFOLD, quadratic, S=4, memory=memory, again={"memory": again})


@pytest.mark.parametrize("sampling", ["reshuffle", "iid"])
@pytest.mark.parametrize("build", [True, False], ids=["built", "module"])
def test_mini_batches_and_dropout_resume(path, sampling, build):
    draw = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(n, 4, generator=draw), torch.randint(3, (n,), generator=draw))
        for n in (7, 3, 10, 5)
    ]

    def net():
        return nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.3), nn.Tanh(), nn.Linear(5, 3))

    module = net()

    def problem():
        given = net if build else module
        return Supervised(given, F.cross_entropy, clients, batch=4, sampling=sampling, l2=0.01)

    assert_resumes(path, Scaffold(eta_l=0.1, K=5), problem, before=3, after=3, S=2, seed=1)


def test_clients_that_are_not_read_yet_do_not_change_how_a_run_goes_on(path):
    draw = torch.Generator().manual_seed(0)
    X, y, x = (
        torch.randn(8, 4, generator=draw),
        torch.arange(8) % 3,
        torch.randn(15, generator=draw),
    )
    clients = [(X, y), (X, torch.where(y == 0, -100, y))]  # the second has labels to ignore

    def problem():
        return Supervised(lambda: logistic(4, 3), F.cross_entropy, clients, batch=3)

    cohorts = [[1], *([[0]] * 8)]
    assert_resumes(path, SCAFFOLD, problem, before=1, after=8, cohorts=cohorts, x=x)


def test_after_a_change_of_algorithm_the_new_one_resumes_and_the_change_is_remembered(path):
    new = replace(SCAFFOLD, eta_l=0.02, K=5)
    straight, stopped = (run(SCAFFOLD, quadratic(), 2, S=3)[0] for _ in range(2))
    straight.algorithm = stopped.algorithm = new
    next(straight)
    next(stopped)
    stopped.save(path)
    resumed = Simulation.load(path, new, quadratic())
    assert resumed.changes == straight.changes == [(2, repr(new))]
    assert history(islice(straight, 3)) == history(islice(resumed, 3))


def test_a_simulation_may_be_saved_before_its_first_round_and_again_after_loading(path):
    straight = simulate(SCAFFOLD, quadratic(), S=3)
    simulate(SCAFFOLD, quadratic(), S=3).save(path)
    resumed = Simulation.load(path, SCAFFOLD, quadratic())
    for _ in range(3):
        next(straight)
        next(resumed)
        resumed.save(path)
        resumed = Simulation.load(path, SCAFFOLD, quadratic())
    assert same_simulation(straight, resumed)


def test_saving_changes_nothing_in_the_run(path):
    straight, saved = (simulate(SCAFFOLD, quadratic(), S=3) for _ in range(2))
    for _ in range(4):
        next(straight)
        next(saved)
        saved.save(path)
    assert same_simulation(straight, saved)


# -- the file


def test_the_file_is_safetensors_with_a_json_header_and_nothing_else(path):
    sim, rounds = run(SCAFFOLD, quadratic(), 2, S=2)
    sim.save(path)
    with safe_open(path, framework="pt") as file:
        names = set(file.keys())
        settings = json.loads(file.metadata()["trimtab"])
    seen = sorted({i for round in rounds for i in round.cohort})
    assert names == {"server.0", "server.1", *(f"client.{i}.0" for i in seen)}
    assert settings["clients"] == seen
    assert settings["algorithm"] == repr(SCAFFOLD)
    assert (settings["r"], settings["S"], settings["seed"]) == (2, 2, 0)
    raw = path.read_bytes()
    header = int.from_bytes(raw[:8], "little")
    json.loads(raw[8 : 8 + header])
    assert len(raw) == 8 + header + len(names) * 8 * D  # no room for a pickle


def test_saving_makes_folders_and_leaves_one_file(tmp_path):
    path = tmp_path / "a" / "b" / "sim"
    sim, _ = run(FEDAVG, quadratic(), 1)
    sim.save(str(path))
    sim.save(path)
    assert os.listdir(path.parent) == ["sim"]
    assert Simulation.load(str(path), FEDAVG, quadratic()).r == 1


@pytest.mark.parametrize("where", ["replace", "fsync"])
def test_a_crash_while_saving_leaves_the_old_file_intact(path, monkeypatch, where):
    sim, _ = run(SCAFFOLD, quadratic(), 2, S=3)
    sim.save(path)
    before = path.read_bytes()
    next(sim)

    def crash(*_):
        raise OSError("the plug was pulled")

    with monkeypatch.context() as patch:
        patch.setattr(os, where, crash)
        with pytest.raises(OSError, match="plug"):
            sim.save(path)
    assert path.read_bytes() == before
    assert Simulation.load(path, SCAFFOLD, quadratic()).r == 2
    sim.save(path)
    assert Simulation.load(path, SCAFFOLD, quadratic()).r == 3


# -- refusals


@pytest.fixture
def saved(path):
    run(SCAFFOLD, quadratic(), 2, S=3)[0].save(path)
    return path


@pytest.mark.parametrize(
    "other",
    [replace(SCAFFOLD, eta_l=0.2), replace(SCAFFOLD, option="I"), FEDAVG],
    ids=["step size", "option", "kind"],
)
def test_another_algorithm_is_refused(refused, saved, other):
    with refused(str(saved), repr(SCAFFOLD), repr(other)):
        Simulation.load(saved, other, quadratic())


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (quadratic(sigma=0.4), ["sigma was 0.5, is now 0.4"]),
        (quadratic(weights=None), ["the weights of the clients differ"]),
        (quadratic(torch.float32), ["dtype was torch.float64, is now torch.float32"]),
        (
            Quadratic(quadratic().A, quadratic().b + 1, 0.5, (1, 2, 3, 4, 5, 6)),
            ["the vectors b differ"],
        ),
        (Resting(6), ["Quadratic", "is now", "Resting"]),
    ],
    ids=["noise", "weights", "dtype", "b", "kind"],
)
def test_another_problem_is_refused_in_a_sentence_that_names_what_differs(
    refused, saved, other, words
):
    with refused(str(saved), "another problem", *words):
        Simulation.load(saved, SCAFFOLD, other)


def rewritten(path, **changes):
    with safe_open(path, framework="pt") as file:
        settings = json.loads(file.metadata()["trimtab"])
    dropped = {name for name, value in changes.items() if value is None}
    settings = {k: v for k, v in (settings | changes).items() if k not in dropped}
    save_file(load_file(path), path, {"trimtab": json.dumps(settings)})


def test_another_format_is_refused(refused, saved):
    rewritten(saved, format=99)
    with refused(str(saved), "format 99", "version"):
        Simulation.load(saved, SCAFFOLD, quadratic())


def test_a_header_without_format_is_refused(refused, saved):
    rewritten(saved, format=None)
    with refused(str(saved)):
        Simulation.load(saved, SCAFFOLD, quadratic())


def test_a_missing_file_is_refused(refused, path):
    with refused(str(path), "no such file"):
        Simulation.load(path, SCAFFOLD, quadratic())


def test_a_folder_is_refused(refused, tmp_path):
    with refused(str(tmp_path)):
        Simulation.load(tmp_path, SCAFFOLD, quadratic())


@pytest.mark.parametrize("kept", [0, 5, 100, -1])
def test_a_truncated_file_is_refused(refused, saved, kept):
    saved.write_bytes(saved.read_bytes()[:kept])
    with refused(f"{saved} is damaged", "delete this file"):
        Simulation.load(saved, SCAFFOLD, quadratic())


@pytest.mark.parametrize("name", ["S", "problem", "clients"])
def test_a_file_without_a_setting_is_damaged(refused, saved, name):
    rewritten(saved, **{name: None})
    with refused(f"{saved} is damaged", f"it has no {name}", "delete this file"):
        Simulation.load(saved, SCAFFOLD, quadratic())


@pytest.mark.parametrize("name", ["server.0", "server.1", "client."])
def test_a_file_without_a_tensor_is_damaged(refused, saved, name):
    with safe_open(saved, framework="pt") as file:
        metadata = file.metadata()
    tensors = {n: t for n, t in load_file(saved).items() if not n.startswith(name)}
    save_file(tensors, saved, metadata)
    with refused(f"{saved} is damaged", f"it has no {name}", "delete this file"):
        Simulation.load(saved, SCAFFOLD, quadratic())


def test_a_file_that_is_no_simulation_is_refused(refused, path):
    save_file({"x": torch.zeros(3)}, path)
    with refused(str(path), "not a saved simulation"):
        Simulation.load(path, SCAFFOLD, quadratic())
