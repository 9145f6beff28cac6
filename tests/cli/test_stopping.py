"""Ctrl-C in real processes: what each command leaves, and how it says to go on."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from trimtab.cli import main
from trimtab.core.task import Progress, Task
from trimtab_papers.bench.measurement import Row

WAIT = 120.0  # seconds within which what must come comes; it comes within a few


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@contextmanager
def started(*words):
    """Start the program as a process; whatever happens, it is not there at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "trimtab", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        # A suite in the background ignores Ctrl-C, and what it starts would do so too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def stop_when(there, *words):
    """Send Ctrl-C as soon as `there()` is true; return what was said."""
    with started(*words) as process:
        until = time.monotonic() + WAIT
        while not there():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WAIT)
    assert process.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    return err


def holds(path, words=""):
    path = Path(path)
    return lambda: path.exists() and words in path.read_text()


def test_a_reproduction_goes_on_when_the_command_is_repeated():
    cells = ("reproduce", "unequal", "--out", "here", "--cells", "*-S3")
    records = lambda: {p.name: p.read_bytes() for p in Path("here/unequal").glob("*.json.gz")}  # noqa: E731
    err = stop_when(records, *cells)
    assert "what another one has done is kept there: repeat the command." in err
    kept = records()
    main([*cells])
    whole = records()
    assert set(kept) < set(whole)
    assert {name: whole[name] for name in kept} == kept
    assert Path("here/unequal/report.html").exists()


def test_a_bench_goes_on_with_resume(capsys):
    words = ("bench", "--quick", "--repeats", "1", "--out", "here.json")
    err = stop_when(holds("here.json"), *words)
    assert "what was measured is in here.json: repeat the command with --resume." in err
    kept = json.loads(Path("here.json").read_text())["rows"]
    done = [row["workload"] for row in kept]
    assert 1 <= len(done) < 10
    main([*words[:1], *done, *words[1:], "--resume", "--json"])
    assert json.loads(capsys.readouterr().out)["rows"] == kept


@pytest.mark.parametrize(
    ("stopped_in", "sentence"),
    [
        ("W1", "stopped; nothing was measured yet: repeat the command."),
        ("W2", "stopped; what was measured is lost without --out: repeat the command."),
    ],
)
def test_a_bench_without_a_file_says_what_is_lost(monkeypatch, capsys, stopped_in, sentence):
    class Measure:
        @staticmethod
        def start(work):
            return Task(steps(work))

    def steps(work):
        if work.name == stopped_in:
            os.kill(os.getpid(), signal.SIGINT)
        yield Progress("measuring")
        return Row(work.name, "", "loop", {}, {}, {}, {}, {})

    monkeypatch.setattr("trimtab_papers.bench.measure", Measure)
    with pytest.raises(SystemExit) as end:
        main(["bench", "w1", "w2", "--quick"])
    assert end.value.code == 130
    assert capsys.readouterr().err.splitlines()[-1] == f"trimtab: {sentence}"


def test_a_diagnosis_that_is_stopped_leaves_an_honest_page_and_can_be_resumed(capsys):
    words = ("diagnose", "digits", "--out", "here")
    err = stop_when(holds("here/report.html", "The diagnosis continues"), *words)
    assert "its first facts are in here/report.html. Finished stages are kept" in err
    assert "repeat the command with --resume" in err
    page = Path("here/report.html").read_text()
    assert "continues" not in page
    assert "The diagnosis ended before it had advice to give." in page
    assert not Path("here/diagnosis.json").exists()
    with pytest.raises(SystemExit):
        main([*words])
    assert "pass --resume to continue its diagnosis, or another --out" in capsys.readouterr().err
    main([*words, "--resume"])
    assert f"Page: {Path('here/report.html')}" in capsys.readouterr().out
    assert "first facts about" not in Path("here/report.html").read_text()
    assert json.loads(Path("here/diagnosis.json").read_text())["problem"] == "digits"


def test_a_diagnosis_that_fails_does_not_say_that_it_goes_on(monkeypatch, capsys):
    from trimtab.diagnosis import stages

    def broken(*words):
        raise ValueError("no time for this.")

    monkeypatch.setattr(stages, "client_hessians", broken)
    with pytest.raises(SystemExit):
        main(["diagnose", "quadratic", "--out", "here"])
    assert "ValueError: no time for this." in capsys.readouterr().err
    assert "ended before it had advice to give" in Path("here/report.html").read_text()


def test_a_check_that_is_stopped_says_that_nothing_is_kept(capsys, monkeypatch):
    def stopped(*given, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr("trimtab.testing.verdicts", stopped)
    with pytest.raises(SystemExit) as end:
        main(["check", "fedavg"])
    assert end.value.code == 130
    assert capsys.readouterr().err == (
        "trimtab: stopped; no verdict is saved: repeat the command.\n"
    )
    assert not list(Path().iterdir())
