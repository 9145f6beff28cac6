"""Clusters of Ray on this machine: nodes that are killed, removed and return; the same bits.

One cluster of three nodes serves all tests, since a node takes seconds to start. Each test ends
what it started by its own handle.
"""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("ray")

from trimtab import (
    Cosine,
    Mime,
    Momentum,
    Ray,
    Rounding,
    Scaffold,
    Scheduled,
    Through,
    Tree,
    compare,
    load_problem,
    simulate,
)
from trimtab.core import leaves
from trimtab.studies.holdout import ProblemSpec

pytestmark = [
    pytest.mark.cluster,
    # Ray's own code has not yet heard of these.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray.*"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
WAIT = 240.0  # a test that works takes far less, on a machine that is not busy
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "node_ip_address": "127.0.0.1"}
SCAFFOLD = Scaffold(eta_l=0.1, K=3)
HOW = {"S": 11, "lost": 0.2, "slow": 0.3, "seed": 3}
PROBLEM = """
import os
import resource
import signal

import trimtab


def problem(N=20):
    if os.environ.get("BROKEN") == "1":
        raise RuntimeError("there is no such disk")
    return trimtab.load_problem("digits", N=N, batch=16)


def crowded(N=20):
    if os.environ.get("BROKEN") == "1":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    return trimtab.load_problem("digits", N=N, batch=16)
"""
NORM = """
import torch
from torch import nn
from torch.nn import functional as F

import trimtab


def module():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def problem():
    clients = [(torch.randn(8 + 2 * i, 3) + i, torch.arange(8 + 2 * i) % 2) for i in range(12)]
    return trimtab.Supervised(module, F.cross_entropy, clients, batch=0.5)
"""


@pytest.fixture(scope="module")
def cluster():
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args=NODE | {"include_dashboard": False})
    made.add_node(**NODE)
    made.add_node(**NODE)
    ray.init(
        address=made.address,
        log_to_driver=False,
        logging_level="ERROR",
        configure_logging=False,
    )
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def digits():
    return load_problem("digits", N=20, batch=16)


@pytest.fixture
def running():
    """Return what starts simulations, and end their actors."""
    made = []

    def start(algorithm, problem, executor, **options):
        made.append(simulate(algorithm, problem, executor=executor, **HOW | options))
        return made[-1]

    yield start
    for sim in made:
        sim.runs_on.close()


def advanced(sim, rounds):
    for _ in islice(sim, rounds):
        pass
    return sim


def bits(sim):
    own = [state for _, state in sim.states.items()]
    return [leaf for tree in (sim.server, *own) for leaf in leaves(tree)]


def same(one, other):
    a, b = bits(one), bits(other)
    return len(a) == len(b) and all(map(torch.equal, a, b))


def pid_of(sim, slot):
    """Return the number of an actor's process; who has gone by itself is replaced first."""
    import ray

    list(sim.states)  # every actor is asked
    return ray.get(sim.runs_on.slots()[slot].handle.pid.remote())


def ended(pid):
    """Wait until a process has ended: one whose raylet was killed notices it only after a while."""
    until, stat = time.monotonic() + WAIT, Path(f"/proc/{pid}/stat")
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until
        time.sleep(0.05)


def rebuilt(driver, since):
    """Return the shards that were rebuilt since then."""
    return {told.shards for told in driver.recoveries[since:]}


def nodes(count):
    """Wait until so many nodes are alive."""
    import ray

    until = time.monotonic() + WAIT
    while sum(node["Alive"] for node in ray.nodes()) != count:
        assert time.monotonic() < until
        time.sleep(0.2)


@pytest.mark.parametrize("actors", [1, 2, 3])
def test_the_bits_are_those_of_the_tree_on_one_two_and_three_nodes(
    cluster, digits, running, actors
):
    algorithm = {
        1: Through(SCAFFOLD, (Rounding(0.01),)),
        2: Mime(eta=0.05, K=3, base=Momentum()),
        3: Scheduled(SCAFFOLD, eta_l=Cosine(R=10)),
    }[actors]
    sim = advanced(running(algorithm, digits, Ray(actors=actors)), 4)
    assert same(sim, advanced(running(algorithm, digits, Tree(16)), 4))
    assert sim.runs_on.facts() == {"shards": 16, "actors": actors, "nodes": actors}


def test_a_network_with_batch_norm_has_the_bits_of_the_tree(cluster, running, tmp_path):
    (tmp_path / "norm.py").write_text(NORM)
    problem = load_problem(f"{tmp_path}/norm.py:problem")
    sim, tree = (
        advanced(running(SCAFFOLD, problem, executor), 3) for executor in (Ray(actors=2), Tree(16))
    )
    assert same(sim, tree)
    assert problem.statistics(sim.server.x)["1.running_var"].min() > 0


def test_actors_and_nodes_may_go_and_return(cluster, digits, running, tmp_path):
    """Kill an actor in mid-round, one between run and commit, then a raylet; a node returns.

    Those that were killed are rebuilt. A machine that is busy may lose further ones, so that
    nothing is said of how many there are in all.
    """
    sim = running(SCAFFOLD, digits, Ray(snapshots=tmp_path, every=3, wait=WAIT))
    driver = sim.runs_on
    advanced(sim, 2)
    call_all, commit = driver.call_all, driver.commit

    def asked(questions):
        os.kill(victim, signal.SIGKILL)
        driver.call_all = call_all
        return call_all(questions)

    victim = pid_of(sim, 0)
    driver.call_all = asked  # as the round's exchange is sent
    advanced(sim, 2)
    owned = [(slot.begin, slot.end) for slot in driver.slots()]
    assert (3, owned[0]) in [(told.r, told.shards) for told in driver.recoveries]

    def committed(clients):
        os.kill(victim, signal.SIGKILL)
        driver.commit = commit
        return commit(clients)

    victim, before = pid_of(sim, 2), len(driver.recoveries)
    driver.commit = committed
    advanced(sim, 2)
    assert owned[2] in rebuilt(driver, before)

    lost, there = next((n, m) for n in cluster.worker_nodes for m in (1, 2)
                       if n.node_id[:6] in driver.slots()[m].node)  # fmt: skip
    victim, before = pid_of(sim, there), len(driver.recoveries)
    lost.kill_raylet()
    ended(victim)  # till then it would answer
    cluster.worker_nodes.discard(lost)
    new = cluster.add_node(**NODE)
    advanced(sim, 2)
    nodes(3)
    assert owned[there] in rebuilt(driver, before)

    cluster.remove_node(new, allow_graceful=False)
    cluster.add_node(**NODE)
    advanced(sim, 2)
    nodes(3)
    assert same(sim, advanced(running(SCAFFOLD, digits, Tree(16)), 10))
    assert all(told["seconds"] > 0 for told in driver.facts()["recoveries"])


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(PROBLEM)
    return path


@pytest.fixture
def broken(cluster):
    """Return a fourth node, on which files fail, with a resource that leads an actor there."""
    node = cluster.add_node(**NODE, num_gpus=1, env_vars={"BROKEN": "1"})
    nodes(4)
    yield node
    cluster.remove_node(node)
    nodes(3)


def test_what_fails_at_one_node_is_told_with_that_node(broken, mine, running):
    name = rf"node 127\.0\.0\.1 \({broken.node_id[:6]}\)"
    alone = {"actors": 1, "gpus": 1}  # a machine with a GPU, and there is only one
    sim = running(SCAFFOLD, load_problem(f"{mine}:problem"), Ray(**alone))
    with pytest.raises(ValueError, match=rf"^{name}: .*mine\.py.*there is no such disk.*fix it"):
        next(sim)
    sim.runs_on.close()
    crowded = load_problem(f"{mine}:crowded")
    sim = running(SCAFFOLD, crowded, Ray(**alone), memory=0)
    with pytest.raises(OSError, match=rf"^{name}: .* cannot take more client states \(File too"):
        advanced(sim, 3)


# -- commands


def trimtab(*words, check=True, **options):
    command = [sys.executable, "-m", "trimtab", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, **options)
    assert not check or done.returncode == 0, done.stderr
    return done


def test_a_driver_that_was_killed_goes_on(cluster, mine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["run", "scaffold", "mine.py:problem", "--eta-l", "0.1", "--K", "3", "--S", "11"]
    words += ["-R", "60", "--lost", "0.2", "--target", "1", "--json"]
    there = ["--cluster", cluster.address, "--snapshots", tmp_path / "snapshots"]
    command = [sys.executable, "-m", "trimtab", *words, *there, "--out", "killed"]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.DEVNULL)
    rounds, until = tmp_path / "killed" / "rounds.jsonl", time.monotonic() + WAIT
    while not rounds.exists() or rounds.read_text().count("\n") < 10:
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    trimtab(*words, *there, "--out", "killed", "--resume")
    record = json.loads((tmp_path / "killed" / "run.json").read_text())
    assert record["executor"] == "ray-16"
    assert record["settings"]["shards"] == record["shards"] == 16
    assert len(rounds.read_text().splitlines()) == 60
    problem = load_problem("mine.py:problem")
    whole = simulate(SCAFFOLD, problem, S=11, lost=0.2, seed=0, executor=Tree(16))
    expected = problem.unflatten(advanced(whole, 60).server.x)
    found = load_file(tmp_path / "killed" / "model.safetensors")
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def numbers(folder):
    """Return all that a comparison measured, but for its seconds."""
    found = {}
    for path in sorted(Path(folder).rglob("rounds.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        found[str(path.relative_to(folder))] = [line | {"seconds": 0} for line in lines]
    return found


def test_a_comparison_over_machines_measures_what_one_process_does(cluster, tmp_path):
    how = {"R": 8, "S": 4, "seeds": 2, "lost": 0.1, "budget": 9000, "target": 0.97, "K": 3}
    recipe = ProblemSpec("digits", batch=64)
    algorithms = ["sgd", "scaffold"]
    there = compare(recipe, algorithms, out=tmp_path / "there", cluster=cluster.address, **how)
    here = compare(recipe, algorithms, out=tmp_path / "here", **how)
    assert numbers(tmp_path / "there") == numbers(tmp_path / "here")
    assert [e.rounds for e in there.entries] == [e.rounds for e in here.entries]
    assert there.advice == here.advice


def test_cells_are_computed_by_the_cluster_and_written_here(cluster, tmp_path):
    words = ["reproduce", "theorem2", "--quick", "--json"]
    trimtab(*words, "--out", tmp_path / "there", "--cluster", cluster.address)
    records = sorted((tmp_path / "there" / "theorem2").glob("*.json.gz"))
    assert records
    trimtab(*words, "--out", tmp_path / "here")
    from trimtab_papers.verdicts import read

    there, here = (read(tmp_path / name / "theorem2") for name in ("there", "here"))
    for records in (there, here):
        for record in records.values():
            del record["seconds"]
    assert there == here
