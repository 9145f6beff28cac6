"""The driver of `make bench-peers`: who answers is measured, who cannot, dies or hangs is said."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
FAKE = """
import json, sys, time
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
    elif line == "loss\\n":
        print(json.dumps(dict(loss=0.5)), flush=True)
    else:
        break
"""


def fake(ms=1.0, can="True", round="pass"):
    """Return the command of a peer that only speaks the protocol."""
    return [sys.executable, "-c", FAKE.format(ms=ms, can=can, round=round)]


@pytest.fixture
def peers(monkeypatch, tmp_path):
    """Return the driver, its environments replaced by fakes: pfl, fedjax without SCAFFOLD."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import peers

    starts = {
        "trimtab": fake(ms=1),
        "pfl": fake(ms=4),
        "fedjax": fake(ms=2, can="work['algorithm'] == 'fedavg'"),
    }
    monkeypatch.setattr(peers, "command", starts.__getitem__)
    monkeypatch.setattr(peers, "ENVIRONMENTS", tmp_path)
    return peers


@pytest.fixture
def measure(peers, tmp_path):
    """Measure these peers and ours on W1, and return the results by name."""

    def run(**others):
        starts = {"trimtab": fake(ms=1), **others}
        work = peers.workload("W1", "scaffold")
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
    assert result["loss"] == result["our loss"] == 0.5


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
    other = {"machine": {"processor": "abacus", "cores": 1}, "results": []}
    path.write_text(json.dumps(other))
    with refused("another machine", "--out"):
        peers.Results(path)


def test_every_peer_has_its_script_and_its_versions(peers):
    for peer in peers.PEERS:
        assert (BENCHMARKS / "peers" / f"{peer}.py").exists()
        pins = (BENCHMARKS / "peers" / f"{peer}.txt").read_text().split()
        assert all("==" in pin for pin in pins)
        assert not any(pin.startswith("torchvision") for pin in pins)


def test_check_compares_losses_and_leaves_no_record(peers, tmp_path):
    out = tmp_path / "peers.json"
    done = CliRunner().invoke(peers.main, ["--check", "--peers", "fedjax", "--out", str(out)])
    assert "fedjax fedavg: loss 0.5000000, ours 0.5000000" in done.output
    assert "fedjax scaffold: Fake has no scaffold." in done.output
    assert not out.exists()
