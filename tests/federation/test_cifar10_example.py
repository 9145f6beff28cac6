"""examples/cifar10_federation: its cut, its record, and that a killed run goes on."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from trimtab import Scaffold, Supervised, simulate
from trimtab.federation.protocol.statistics import Layers, save
from trimtab.federation.setup.problem_file import ProblemFile
from trimtab.federation.storage.ledger import Ledger, Member, Standing
from trimtab.problems.data.images import cifar10

EXAMPLE = Path(__file__).parents[2] / "examples" / "cifar10_federation"
PROBLEM = """\
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F


def model():
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)), F.cross_entropy


def silo(data):
    shard = load_file(data)
    return (shard["X"], shard["y"]), (shard["X_test"], shard["y_test"])
"""


@pytest.fixture
def images(tmp_path):
    """Files in CIFAR-10's layout: 120 images to train on and 40 to test on, no two alike."""
    draw = torch.Generator().manual_seed(0)
    folder = tmp_path / "images" / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name, n in (("data_batch_1", 120), ("test_batch", 40)):
        records = torch.randint(256, (n, 3073), generator=draw, dtype=torch.uint8)
        records[:, 0] = torch.arange(n) % 10
        (folder / f"{name}.bin").write_bytes(records.numpy().tobytes())
    return tmp_path / "images"


@pytest.fixture
def run():
    spec = importlib.util.spec_from_file_location("cifar10_federation_run", EXAMPLE / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def options_of(run, images, out, *words):
    out.mkdir(exist_ok=True)
    common = ["--data", str(images), "--out", str(out)]
    return run.arguments([*common, *words])


def test_the_network_has_batch_norm_and_at_most_300_000_parameters(run, images, tmp_path):
    file = ProblemFile(EXAMPLE / "problem.py")
    module, _ = file._built()
    assert sum(parameter.numel() for parameter in module.parameters()) == 269_722
    options = options_of(run, images, tmp_path / "out", "--samples", "6")
    run.cut(options, tmp_path)
    problem = file.site_problem(tmp_path / "client1.safetensors", 3)
    assert len(problem.model.norms) == 19
    done = next(simulate(Scaffold(eta_l=0.1, K=1), problem, cohorts=[[0, 1]]))
    assert torch.isfinite(done.x).all()


def test_the_last_x_is_measured_by_the_statistics_of_the_clients(run, images, tmp_path):
    folder, file = tmp_path / "scaffold", ProblemFile(EXAMPLE / "problem.py")
    state, server = folder / "operator" / "state", file.server_problem()
    state.mkdir(parents=True)
    x, algorithm = server.x0(0), Scaffold(eta_l=0.1, K=2)
    members = (Member("client1", 0, 1.0),)
    standing = Standing("e", algorithm, 0, "uniform", algorithm.init_server(x), members, r=2)
    Ledger(state).commit(standing, "round", metrics={})
    layers = Layers.of(server)
    given = dict(zip(layers.names, map(torch.ones_like, layers.like()), strict=True))
    save(state, 2, given)
    options = options_of(run, images, tmp_path / "out")
    found = run.on_all_tests(options, folder)
    _, test, _ = cifar10(images, "standardised")
    other = Supervised(*file._built(), [test], test)
    with other.normalised_by(given):
        assert found == other.evaluate(x)
    assert found != other.evaluate(x)


def test_the_shards_are_disjoint_and_together_all_images(run, images, tmp_path):
    run.cut(options_of(run, images, tmp_path / "out"), tmp_path)
    shards = [load_file(tmp_path / f"client{i}.safetensors") for i in (1, 2, 3, 4)]
    for name, n in (("X", 120), ("X_test", 40)):
        rows = torch.cat([shard[name] for shard in shards]).flatten(1)
        assert len(rows) == len(rows.unique(dim=0)) == n
    labels = torch.stack([shard["y"].bincount(minlength=10) for shard in shards])
    assert labels.sum(0).tolist() == [12] * 10
    assert (labels.max(0).values > 6).any(), "labels are in unequal parts"


def test_a_folder_of_other_settings_is_refused(run, images, tmp_path):
    options = options_of(run, images, tmp_path / "out", "--K", "3")
    run.check_settings(options)
    options.minutes, options.R, options.target = 1, 7, 0.9
    run.check_settings(options)
    options.K = 4
    with pytest.raises(SystemExit, match="was begun with other settings; pass those of"):
        run.check_settings(options)


def test_the_record_says_how_far_it_came_and_why_it_ended(run, images, tmp_path, capsys):
    options = options_of(run, images, tmp_path / "out", "--minutes", "1", "--target", "0.4")
    (options.out / "data").mkdir()
    run.cut(options, options.out / "data")
    folder = options.out / "scaffold"
    begin(folder / "operator" / "state", accuracies=(0.1, 0.3, 0.2), seconds=19)

    def told(rounds=3, **outcome):
        outcome |= {"rounds": rounds, "metrics": {"accuracy": 0.39, "loss": 1.0}, "audit": {}}
        (folder / "outcome.json").write_text(json.dumps(outcome))
        run.record(options)
        return json.loads((options.out / "scaffold.json").read_text())

    stopped = told(rounds=2, reached=False)
    assert stopped["ended"] == "not yet", "that outcome is of earlier rounds"
    assert [(p["r"], p["accuracy"]) for p in stopped["curve"]] == [(0, 0.1), (1, 0.3), (2, 0.2)]
    assert stopped["best"] == {"r": 1, "accuracy": 0.3}
    assert (stopped["rounds"], stopped["seconds"]) == (3, 57)
    assert sum(len(client["classes"]) for client in stopped["data"].values()) == 40
    assert told(reached=False)["ended"] == "not yet"
    assert told(reached=True)["ended"] == "the target accuracy 0.4 was met"
    options.minutes = 0.9
    ended = told(reached=False)
    assert ended["ended"] == "the 0.9 minutes were used up"
    assert ended["curve"][-1]["accuracy"] == 0.39
    assert "best accuracy 0.39 after round 3" in capsys.readouterr().out
    options.minutes, options.R = 1, 3
    assert told(reached=False)["ended"] == "R=3 was reached"
    assert (options.out / "curves.png").read_bytes().startswith(b"\x89PNG")


def begin(state, accuracies, seconds):
    """Write the journal of rounds in which the clients measured these accuracies."""
    state.mkdir(parents=True)
    algorithm, ledger = Scaffold(eta_l=0.1, K=2), Ledger(state)
    members = (Member("client1", 0, 1.0),)
    server = algorithm.init_server(torch.zeros(3))
    facts = {"seconds": seconds, "bytes_up": 1, "bytes_down": 1, "drift": 0.0}
    for r, accuracy in enumerate(accuracies, 1):
        metrics = {"accuracy": accuracy, "loss": 2.0}
        standing = Standing("e", algorithm, 0, "uniform", server, members, commit=r - 1, r=r)
        ledger.commit(standing, "round", metrics=metrics, **facts)


@pytest.mark.federation
def test_a_killed_run_leaves_nobody_behind_and_goes_on(run, images, tmp_path):
    shutil.copy(EXAMPLE / "run.py", tmp_path)
    (tmp_path / "problem.py").write_text(PROBLEM)
    out = tmp_path / "out"
    command = [sys.executable, tmp_path / "run.py", "--sites", "2", "--K", "2", "--eta-l", "0.01"]
    command += ["--data", images, "--out", out]

    def rounds():
        return run.rounds_of(out / "scaffold")

    first = subprocess.Popen(command, start_new_session=True)
    try:
        until(lambda: rounds(), 240)
        assert below(out)
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    until(lambda: not below(out), 60)
    before = rounds()

    minutes = (sum(line["seconds"] for line in before) + 0.001) / 60
    subprocess.run([*command, "--minutes", str(minutes)], check=True, timeout=480)
    ended = json.loads((out / "scaffold.json").read_text())
    assert ended["ended"] == f"the {minutes:g} minutes were used up"
    assert rounds()[: len(before)] == before
    assert ended["rounds"] == len(rounds()) > len(before)
    assert [point["r"] for point in ended["curve"]] == list(range(len(rounds()) + 1))
    assert ended["audit"]["missing"] == {}
    assert ended["audit"]["deviation"] <= 1e-5 * ended["audit"]["largest"]
    assert set(ended["all_tests"]) == {"accuracy", "loss"}
    assert not below(out)


def until(happens, seconds):
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.2)


def below(out):
    """Return the commands of the federation's processes that live."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_text().replace("\0", " ")
        except OSError:
            continue
        found += [words] if f"{out}/" in words else []
    return found
