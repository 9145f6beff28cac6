"""Lanes in processes: no number depends on them, nothing is lost, and nothing is left running."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.helpers.quadratics_pair import pair
from trimtab import Epochs, FedAvg, Momentum, compare
from trimtab._files import Lock
from trimtab.cli import main
from trimtab.errors import InUse
from trimtab.simulation import Rounds
from trimtab.studies.comparison import Comparison
from trimtab.studies.holdout import ProblemSpec
from trimtab.studies.pool import JobRunner, Pool, worker_setup
from trimtab.studies.record import RoundDone
from trimtab.studies.study import Study, StudySettings
from trimtab.studies.tuner import Stage

PROBLEM = """
import time

import torch
from torch import nn
from torch.nn import functional as F

import trimtab

PAUSE = 0.0


class Slow(trimtab.Supervised):
    def evaluate(self, x, client=None):
        time.sleep(PAUSE)
        return super().evaluate(x, client)


def problem(seed=0):
    draw = torch.Generator().manual_seed(1)
    w = torch.randn(6, generator=draw)

    def part(shift, n):
        X = torch.randn(n, 6, generator=draw) + shift
        return X, ((X @ w) > 0).long()

    clients = [part(i / 4, 20 + 5 * i) for i in range(6)]
    return Slow(lambda: nn.Linear(6, 2), F.cross_entropy, clients, part(0.5, 80), batch=5)


def slow():
    global PAUSE
    PAUSE = 0.003
    return problem()


def share(output, y):
    if output.abs().max() > 6:
        raise KeyError("column")
    return 0.5


def breaks():
    return problem().replace(metrics={"share": share})
"""
WAIT = 300.0  # a test that works takes far less, on a machine that is not busy
ALGORITHMS = ["sgd", "scaffold", "mime"]
HOW = {"R": 12, "S": 4, "seeds": 2, "lost": 0.1, "slow": 0.3, "budget": 30000, "target": 0.9}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("problem") / "mine.py"
    path.write_text(PROBLEM)
    return path


@pytest.fixture(scope="module")
def alone(file, tmp_path_factory):
    """Return the folder of a comparison in this process, by its words; each is made once."""

    @cache
    def folder(**words):
        out = tmp_path_factory.mktemp("alone") / "c"
        asked(file, out=out, **words).result()
        return out

    return folder


def numbers(folder):
    """Return all that a comparison has written, but for what time it was and how long it took."""

    def timeless(value):
        if isinstance(value, dict):
            timed = ("seconds", "started")
            return {k: timeless(v) for k, v in value.items() if k not in timed}
        return [timeless(v) for v in value] if isinstance(value, list) else value

    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix in (".json", ".jsonl"):
            found[name] = [timeless(json.loads(line)) for line in _documents(path)]
        elif path.suffix == ".safetensors":
            found[name] = path.read_bytes()
    return found


def _documents(path):
    text = path.read_text()
    return text.splitlines() if path.suffix == ".jsonl" else [text]


def asked(file, problem="problem", **words):
    return compare.start(f"{file}:{problem}", ALGORITHMS, **HOW | words)


def begun(file, out):
    """Start a comparison by the command line, slow enough to be stopped; return it when it runs."""
    how = ["--S=4", "-R", "12", "--seeds=2", "--lost=0.1", "--slow=0.3", "--budget=30000"]
    how += ["--target=0.9", "--algorithms", ",".join(ALGORITHMS), "--out", str(out), "--jobs=2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "trimtab", "compare", f"{file}:slow", *how],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    assert waits_for(lambda: len(list(out.rglob("rounds.jsonl"))) > 4)
    return process, workers_of(process.pid)


def workers_of(pid):
    """Return the processes that a process has started, and that have not ended."""
    every = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    return [other for other in every if _stat(other)[1] == str(pid) and running([other])]


def running(pids):
    return [pid for pid in pids if _stat(pid)[0] not in ("Z", "X", "")]


def _stat(pid):
    """Return the state of a process, and its parent; nothing if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return "", ""


def is_free(folder):
    try:
        Lock(folder).release()
    except InUse:
        return False
    return True


def waits_for(condition):
    end = time.monotonic() + WAIT
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return found


needs_proc = pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at /proc")


@pytest.mark.parametrize("baselines", [False, True])
def test_no_number_depends_on_the_processes(tmp_path, file, alone, baselines):
    one, two = alone(baselines=baselines), tmp_path / "two"
    second = asked(file, out=two, baselines=baselines, jobs=2).result()
    assert numbers(one) == numbers(two)
    assert Comparison.load(one).advice == second.advice
    assert any(name.endswith("best.safetensors") for name in numbers(one))


def test_without_a_folder_and_without_a_target_rounds_are_told_as_without_processes(file):
    def told(work):
        events = [e for e in work if isinstance(e, RoundDone)]
        return sorted((e.label, repr(e.algorithm), e.line.r, str(e.line.metrics)) for e in events)

    one, two = (asked(file, jobs=jobs, target=None) for jobs in (1, 2))
    assert told(one) == told(two)
    first, second = one.result(), two.result()
    assert second.folder is None
    assert [(e.settings, e.rounds, e.best, e.tests) for e in first.entries] == [
        (e.settings, e.rounds, e.best, e.tests) for e in second.entries
    ]
    assert first.target == second.target


@pytest.mark.parametrize(("rounds", "jobs"), [(1, 1), (60, 2), (200, 1)])
def test_closed_between_two_rounds_it_goes_on_to_the_same_numbers(
    tmp_path, file, alone, rounds, jobs
):
    cut = tmp_path / "cut"
    work = asked(file, out=cut, jobs=2)
    for _ in range(rounds):
        next(work)
    work.close()
    asked(file, out=cut, jobs=jobs, resume=True).result()
    assert numbers(cut) == numbers(alone())


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopped_or_killed_it_leaves_nothing_running_and_loses_nothing(
    tmp_path, file, alone, number
):
    two = tmp_path / "two"
    process, workers = begun(file, two)
    assert len(workers) == 2
    process.send_signal(number)
    assert process.wait(WAIT) == (130 if number == signal.SIGINT else -number)
    assert waits_for(lambda: not running(workers))
    assert waits_for(lambda: is_free(two))
    before = {path: path.read_text() for path in two.rglob("rounds.jsonl")}
    asked(file, "slow", out=two, resume=True).result()
    for path, text in before.items():
        assert path.read_text().startswith(text[: text.rfind("\n") + 1])
    assert numbers(two) == numbers(alone(problem="slow"))


@needs_proc
def test_a_process_that_is_killed_is_replaced_by_the_others(tmp_path, file, alone):
    two = tmp_path / "two"
    work = asked(file, out=two, jobs=2)
    next(event for event in work if isinstance(event, RoundDone) and event.line.r == 5)
    os.kill(workers_of(os.getpid())[0], signal.SIGKILL)
    with pytest.warns(UserWarning, match="ended with code -9"):
        work.result()
    assert numbers(alone()) == numbers(two)
    assert not workers_of(os.getpid())


@needs_proc
def test_if_all_processes_are_killed_it_ends_by_itself(tmp_path, file, alone):
    two = tmp_path / "two"
    work = asked(file, out=two, jobs=2)
    next(event for event in work if isinstance(event, RoundDone) and event.line.r == 5)
    for pid in workers_of(os.getpid()):
        os.kill(pid, signal.SIGKILL)
    with pytest.warns(UserWarning, match="ended with code -9"):
        work.result()
    assert numbers(alone()) == numbers(two)


@needs_proc
def test_the_folder_stays_locked_until_the_last_process_has_ended(tmp_path, file, refused):
    out = tmp_path / "c"
    process, workers = begun(file, out)
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    process.kill()
    process.wait(WAIT)
    try:
        with refused("is in use by another process"):
            compare(f"{file}:slow", ALGORITHMS, out=out, resume=True, **HOW)
    finally:
        for pid in running(workers):
            os.kill(pid, signal.SIGCONT)
    assert waits_for(lambda: not running(workers))


def test_an_error_in_a_users_file_is_the_same_sentence(tmp_path, file, capfd):
    said = []
    for jobs in ("1", "2"):
        words = [f"{file}:breaks", "--algorithms", "fedavg,scaffold", "--budget", "9000"]
        words += ["--out", str(tmp_path / jobs), "--jobs", jobs, "-R", "20"]
        with pytest.raises(SystemExit) as ended:
            main(["compare", *words])
        assert ended.value.code == 2
        said.append(capfd.readouterr().err.strip())
    assert said[0] == said[1]
    assert "KeyError: 'column'" in said[0]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"problem": pair(1.0)}, "jobs needs a problem that other processes can make too; pass"),
        ({"available": lambda r: [0, 1]}, "pass the path of a CSV as available, or drop jobs."),
        ({"algorithms": [type("Own", (FedAvg,), {})]}, "pass their names or file.py:Class"),
        ({"jobs": 0}, "jobs=0; pass a number of processes >= 1"),
    ],
)
def test_what_another_process_cannot_make_is_refused(tmp_path, file, refused, words, expected):
    words = {"problem": f"{file}:problem", "jobs": 2, "out": tmp_path / "c"} | words
    with refused(expected):
        compare(**words)
    assert not (tmp_path / "c").exists()


def test_settings_read_the_same_elsewhere(tmp_path):
    settings = StudySettings(
        problem=ProblemSpec("digits", seed=3, batch=0.5, data=tmp_path, weights="samples"),
        algorithms=["sgd", FedAvg(eta_l=0.1, K=Epochs(2)), str(tmp_path / "mine.py:Mine")],
        name="digits",
        target=None,
        K=[1, 5],
        R=10,
        rounds=Rounds(
            S=0.2,
            seed=3,
            x=torch.randn(5, dtype=torch.float64),
            slow=0.1,
            lost=0.2,
            available=tmp_path / "there.csv",
        ),
        base=Momentum(0.5),
        metric="auc",
        eta_g=1.5,
        prefer="bytes",
        split=None,
        baselines=True,
    )
    described = json.loads(json.dumps(settings.to_json(2)))
    again = StudySettings.from_json(described)
    assert again.to_json(2) == settings.to_json(2)
    assert again.problem == settings.problem
    assert again.algorithms == settings.algorithms
    assert torch.equal(again.rounds.x, settings.rounds.x)
    assert (again.base, list(again.K)) == (settings.base, settings.K)


def test_out_of_time_in_the_processes_is_out_of_time_here(tmp_path, file, alone):
    """The time is over before they start: they stop after one round, and so does this process."""
    words = {"K": 2, "eta_g": 1.0, "budget": 1e6, "target": 0.8}
    late = {"minutes": 1e-6, "jobs": 2, "out": tmp_path / "late"}
    cut = asked(file, **words | late).result()
    assert not cut.about.complete
    assert any("the time ran out" in what for e in cut.entries for what in e.not_run)
    done = asked(file, **words | late | {"minutes": None, "jobs": 1, "resume": True}).result()
    assert done.about.complete
    asked(file, **words, out=tmp_path / "whole").result()
    ours, theirs = (numbers(tmp_path / name)["compare.json"][0] for name in ("late", "whole"))
    assert ours["outcome"] == theirs["outcome"]


def test_the_start_of_a_worker_counts_as_time_of_its_stage(tmp_path, file, alone):
    """A stage has 60 seconds from when it is sent; the worker is ready 61 seconds later."""
    settings = StudySettings(
        problem=ProblemSpec(f"{file}:problem"),
        algorithms=["sgd"],
        name="mine",
        target=0.8,
        K=None,
        R=12,
        rounds=Rounds(),
        base=None,
        metric=None,
        eta_g=None,
        prefer="rounds",
        split=0.1,
        baselines=False,
    )
    study = Study.of(settings, tmp_path / "study", resume=False)
    study.open()

    class Slow:
        def run(self, job):
            runner = JobRunner(worker_setup(study, settings.to_json(2)))
            yield from runner.run(job | {"ends": job["ends"] - 61})

        request_stop = stop = lambda self: None

    label = study.specs[0].label
    with Pool(1, Slow, study.specs) as pool:
        pool.submit(label, Stage("search", 60.0, target=0.8)).result()
    rounds = (tmp_path / "study" / label).rglob("rounds.jsonl")
    assert sum(len(path.read_text().splitlines()) for path in rounds) == 1
