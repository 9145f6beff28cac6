"""The driver of `make bench-peers`: who answers is measured, who cannot, dies or hangs is said."""

import json
import sys
from dataclasses import asdict, replace
from math import log
from pathlib import Path

import peers as driver
import pytest
import torch
from click.testing import CliRunner

from trimtab_papers.bench import WORKLOADS, machine

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FAKE = """
import json, sys, time
import numpy as np
work, rounds = json.loads(sys.stdin.readline()), 0
if {can}:
    print(json.dumps(dict(ready=True, versions=dict(fake="1"))), flush=True)
else:
    print(json.dumps(dict(cannot="Fake has no " + work["algorithm"] + ".")), flush=True)
for line in sys.stdin:
    if line == "go\\n":
        rounds += 1
        {round}
        print(json.dumps(dict(ms={ms} + 1 / rounds)), flush=True)
    elif line.startswith("weights "):
        start = np.load(work["folder"] + "/start.npz")
        np.savez(line.split()[1], *[start[name] + {move} for name in start.files])
        print(json.dumps(dict(written=True)), flush=True)
    else:
        break
"""


def fake(ms=1.0, can="True", round="pass", move=1.0):
    """Return the command of a peer that only speaks the protocol; it adds to all parameters."""
    return [sys.executable, "-c", FAKE.format(ms=ms, can=can, round=round, move=move)]


def small(name):
    """Return a workload with little data."""
    return WORKLOADS[name].small()


@pytest.fixture
def peers(monkeypatch, tmp_path):
    """Return the driver, its environments replaced by fakes: pfl, fedjax without SCAFFOLD."""
    starts = {
        "trimtab": fake(ms=1),
        "pfl": fake(ms=4),
        "fedjax": fake(ms=2, can="work['algorithm'] == 'fedavg'"),
        "jax": fake(move=1.5),
    }
    monkeypatch.setattr(driver, "command", starts.__getitem__)
    monkeypatch.setattr(driver, "ENVIRONMENTS", tmp_path)
    monkeypatch.setattr(driver, "WORKLOADS", {name: small(name) for name in WORKLOADS})
    return driver


@pytest.fixture
def measure(peers, tmp_path):
    """Measure these peers and ours on W1, and return the results by name."""

    def run(**others):
        starts = {"trimtab": fake(ms=1), **others}
        work = peers.told(small("W1"), "scaffold", tmp_path)
        results = peers.measure(work, starts, repeats=2, logs=tmp_path, limit=3)
        return {result["peer"]: result for result in results}

    return run


@pytest.fixture
def bench(peers, tmp_path):
    """Run the command; return what it printed and the results of its record."""
    out = tmp_path / "results" / "peers.json"

    def run(*options):
        done = CliRunner().invoke(peers.main, [*options, "--out", str(out)])
        assert done.exit_code == 0, done.output
        return done.output, json.loads(out.read_text())["results"]

    return run


def test_the_minimum_after_the_warm_up_counts(measure):
    result = measure(quick=fake(ms=4))["quick"]
    assert result["ms"] == 4 + 1 / 4  # of rounds 3 and 4
    assert result["ratio"] == pytest.approx((4 + 1 / 4) / (1 + 1 / 4))
    assert result["versions"] == {"fake": "1"}
    assert result["loss"] == result["our loss"] == pytest.approx(log(47))  # equal logits
    assert result["apart"] == 0


def test_who_cannot_dies_or_hangs_is_said_and_the_others_go_on(measure):
    results = measure(
        cannot=fake(can="False"),
        dies=fake(round="rounds > 1 and sys.exit('out of memory')"),
        hangs=fake(round="rounds > 2 and time.sleep(60)"),
        runs=fake(),
    )
    assert {name: result.get("cannot") for name, result in results.items()} == {
        "cannot": "Fake has no scaffold.",
        "dies": "It ended with code 1: out of memory.",
        "hangs": "It did not answer within 3 seconds.",
        "runs": None,
    }
    assert results["runs"]["ms"] > 0


def test_without_ours_there_is_nothing_to_compare(measure, refused):
    with refused("trimtab cannot run W1", "code 3"):
        measure(trimtab=fake(round="sys.exit(3)"), other=fake())


def test_a_record_holds_the_machine_and_every_result(bench, tmp_path):
    output, results = bench("--peers", "pfl,fedjax", "--workloads", "W1")
    assert [(r["algorithm"], r["peer"]) for r in results] == [
        *(("fedavg", "pfl"), ("fedavg", "fedjax")),
        *(("scaffold", "fedjax"), ("scaffold", "pfl")),
    ]
    assert "fedjax, W1 scaffold: Fake has no scaffold." in output
    record = json.loads((tmp_path / "results" / "peers.json").read_text())
    assert {"processor", "cores", "versions"} <= set(record["machine"])


def test_a_rerun_goes_on_with_what_is_missing(bench, peers, monkeypatch):
    bench("--peers", "pfl", "--workloads", "W1")
    asked = []

    def spy(work, starts, **rest):
        asked.append((work.name, work.algorithm, *starts))
        return []

    monkeypatch.setattr(peers, "measure", spy)
    both = ("--peers", "pfl,fedjax", "--workloads", "W1")
    bench(*both)
    assert asked == [("W1", a, "trimtab", "fedjax") for a in ("fedavg", "scaffold")]
    asked.clear()
    bench(*both, "--again")
    assert asked == [("W1", a, "trimtab", "pfl", "fedjax") for a in ("fedavg", "scaffold")]


def test_an_interrupted_run_keeps_what_it_has(bench, peers, monkeypatch, tmp_path):
    whole = peers.measure

    def interrupted(work, starts, **rest):
        if work.algorithm == "scaffold":
            raise KeyboardInterrupt
        return whole(work, starts, **rest)

    monkeypatch.setattr(peers, "measure", interrupted)
    out = tmp_path / "peers.json"
    options = ["--peers", "pfl", "--workloads", "W1", "--out", str(out)]
    assert CliRunner().invoke(peers.main, options).exit_code == 1
    assert [r["algorithm"] for r in json.loads(out.read_text())["results"]] == ["fedavg"]


def test_an_environment_that_cannot_be_built_is_said(bench, peers, monkeypatch):
    def command(peer):
        if peer == "pfl":
            raise peers.Gone("Its environment cannot be built: no such version.")
        return fake()

    monkeypatch.setattr(peers, "command", command)
    _, results = bench("--peers", "pfl", "--workloads", "W1")
    assert {r["cannot"] for r in results} == {"Its environment cannot be built: no such version."}


def test_a_record_of_another_machine_is_not_continued(peers, tmp_path, refused):
    path = tmp_path / "peers.json"
    other = {"machine": machine() | {"processor": "abacus"}, "results": []}
    path.write_text(json.dumps(other))
    with refused("another machine", "another file"):
        peers.Results(path)


def test_every_peer_has_its_script_and_its_versions(peers):
    for peer in set(peers.PEERS) - {peers.COMPILED}:  # That is ours.
        assert (BENCHMARKS / "peers" / f"{peer}.py").exists()
        pins = (BENCHMARKS / "peers" / f"{peer}.txt").read_text().split()
        assert all("==" in pin for pin in pins)
        assert not any(pin.startswith("torchvision") for pin in pins)


def test_ours_compiled_is_ours_with_an_option():
    assert driver.command("compiled") == [*driver.command("trimtab"), "--compile"]
    assert set(driver.ASKED["compiled"]) == {n for n, w in WORKLOADS.items() if w.compiled}


def test_check_compares_models_and_leaves_no_record(peers, tmp_path):
    out = tmp_path / "peers.json"
    options = ["--check", "--peers", "fedjax,jax", "--workloads", "W1", "--out", str(out)]
    output = CliRunner().invoke(peers.main, options).output.replace("\n", " ")
    assert "W1 fedavg, fedjax: the same, apart by 0.0e+00 of the move" in output
    assert "W1 fedavg, jax: NOT THE SAME, apart by 5.0e-01 of the move" in output
    assert "W1 scaffold, fedjax: Fake has no scaffold." in output
    assert not out.exists()


def test_models_are_compared_with_our_move(peers, tmp_path):
    work = peers.told(small("W10a"), "fedavg", tmp_path)
    start = work.start()
    ours = [w + 1 for w in start]
    assert peers.apart(work, start, ours) == pytest.approx(1)
    assert peers.apart(work, [w + 1.01 for w in start], ours) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name not in ("any", "W3")])
def test_peers_are_told_the_model_and_the_data_of_the_workload(peers, name, tmp_path):
    of = replace(WORKLOADS[name].without_dropout(), N=3, S=3)
    work = peers.Work.from_json(json.dumps(asdict(peers.told(of, "fedavg", tmp_path))))
    module, twin = of.module(), peers.torch_model(work)
    clients = peers.torch_clients(work.clients())
    assert len(clients) == work.N
    for (X, y), (theirs, target) in zip(of.clients(), clients, strict=True):
        assert torch.equal(X, theirs)
        assert torch.equal(y, target)
        assert torch.equal(module(X[:2]), twin(theirs[:2]))
    loss = peers.torch_loss(work)(twin(X), target)
    assert torch.equal(loss, of.loss(module(X), y))
    steps = {-(-len(X) // b) for (X, _), b in zip(clients, work.sizes, strict=True)}
    assert work.epochs == (None if len(steps) > 1 or name == "W8" else work.K // min(steps))


def test_a_module_that_cannot_be_described_to_peers_is_refused(peers, refused):
    with refused("Wrapped cannot be described to peers"):
        list(peers.described(WORKLOADS["any"].module()))


def test_every_peer_is_asked_for_workloads_that_there_are(peers):
    assert set(peers.NAMES) <= set(WORKLOADS)
    assert all(set(names) <= set(peers.NAMES) for names in peers.ASKED.values())
