"""A page that is written while a command works, and what a folder shows so far."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from html import escape
from pathlib import Path

import click
import pytest
from rich.console import Console

from trimtab import FedAvg, Quadratic, compare, diagnose
from trimtab.cli import main
from trimtab.cli.output import LivePage, command_again
from trimtab.cli.progress import Board, StudyProgress, watch
from trimtab.core.task import Progress, Task
from trimtab.problems.metrics import ACCURACY
from trimtab.report.page import empty_page, page_of
from trimtab.report.sources import result_so_far, run_so_far, source_of
from trimtab.studies.goal import Goal
from trimtab.studies.record import RoundDone, RoundLine
from trimtab.studies.run import run

PROBLEM = """
from trimtab import Quadratic

def pair():
    return Quadratic([1.0, 3.0], [1.0, -2.0])

class Slow(Quadratic):
    def evaluate(self, x, client=None):
        __import__("time").sleep(0.02)
        return super().evaluate(x, client)

def slow():
    return Slow([1.0, 3.0], [1.0, -2.0])
"""


# -- the page that is written while a command works


class Writing:
    """A live page over a clock that stands still; its content is `shown`."""

    def __init__(self, path, live=True):
        self.now, self.shown, self.made = 0.0, "first", 0
        self.page = LivePage(path, self.make, live, lambda: self.now)

    def make(self):
        self.made += 1
        if self.shown == "unreadable":
            raise ValueError("half of a file")
        return empty_page(self.shown)


def test_a_live_page_is_written_anew_when_the_last_one_is_a_second_old(tmp_path, capsys):
    path = tmp_path / "report.html"
    writing = Writing(path)
    writing.page.update("3 rounds <so far>")
    text = path.read_text()
    assert "first has nothing to show yet" in text
    assert '<p class="live">Live: 3 rounds &lt;so far&gt;.</p>' in text
    assert "location.reload()" in text
    writing.shown = "second"
    writing.page.update("4 rounds")
    assert path.read_text() == text
    writing.page.update("4 rounds", now=True)
    assert "second has nothing to show yet" in path.read_text()
    writing.shown, writing.now = "third", LivePage.EVERY
    writing.page.update("5 rounds")
    assert "third has nothing to show yet" in path.read_text()
    assert capsys.readouterr().err == f"Live page: {path}\n"


def test_pages_take_a_twentieth_of_the_time_at_most(tmp_path):
    writing = Writing(tmp_path / "report.html")
    times = iter([0.0, 2.0, 41.9, 42.0, 42.0])
    writing.page.clock = lambda: next(times)
    writing.page.update("a page that takes two seconds")
    writing.page.update("too early")
    assert writing.made == 1
    writing.page.update("after 40 more")
    assert writing.made == 2


def test_nothing_is_written_without_live(tmp_path):
    writing = Writing(tmp_path / "report.html", live=False)
    writing.page.update("1 round", now=True)
    with pytest.raises(KeyboardInterrupt), writing.page:
        raise KeyboardInterrupt
    assert writing.made == 0
    assert not list(tmp_path.iterdir())


def test_a_page_that_cannot_be_made_now_leaves_the_last_one(tmp_path):
    writing = Writing(tmp_path / "report.html")
    writing.page.update("1 round")
    before = (tmp_path / "report.html").read_text()
    writing.shown = "unreadable"
    writing.page.update("2 rounds", now=True)
    assert writing.made == 2
    assert (tmp_path / "report.html").read_text() == before


def test_a_command_that_stops_leaves_a_page_that_does_not_reload(tmp_path):
    writing = Writing(tmp_path / "report.html")
    writing.page.update("1 round")
    with pytest.raises(KeyboardInterrupt), writing.page:
        raise KeyboardInterrupt
    text = (tmp_path / "report.html").read_text()
    assert '<p class="live">Stopped. ' in text
    assert "location.reload()" not in text


# -- what a folder shows before the end


def test_an_unfinished_comparison_shows_its_search_and_no_winner(tmp_path):
    pair = Quadratic([1.0, 3.0], [1.0, -2.0])
    words = {"R": 30, "K": [1, 3], "seeds": 2, "target": -0.55, "out": tmp_path / "c"}
    result = compare(pair, ["sgd", "fedavg"], **words)
    known = result.population
    result.about = replace(result.about, finished=False)
    result.entries = [replace(entry, runs=[]) for entry in result.entries]
    result.population = None
    result.save()
    there = result_so_far(tmp_path / "c", known)
    assert there.population == known
    html = page_of([source_of(there)])
    assert "How sure: not yet, because the command has not finished." in html
    assert "<h2>Search</h2>" in html
    assert ">best so far<" in html
    assert "a ring is the best so far" in html
    assert ">winner<" not in html


def test_a_comparison_without_a_saved_stage_has_no_result_yet(tmp_path):
    pair = Quadratic([1.0, 3.0], [1.0, -2.0])
    work = compare.start(pair, ["sgd"], R=5, out=tmp_path / "c")
    assert isinstance(next(work), RoundDone)
    content = json.loads((tmp_path / "c" / "compare.json").read_text())
    content.pop("outcome", None)
    (tmp_path / "c" / "compare.json").write_text(json.dumps(content))
    assert result_so_far(tmp_path / "c", None) is None
    work.close()


def test_a_run_at_work_is_shown_as_far_as_its_rounds_are_whole(tmp_path):
    pair = Quadratic([1.0, 3.0], [1.0, -2.0])
    work = run.start(FedAvg(eta_l=0.1, K=2), pair, R=6, target=-0.2, name="pair", out=tmp_path)
    for _ in range(4):
        next(work)
    work.close()
    path = tmp_path / "rounds.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert len(run_so_far(tmp_path).entries[0].curve) == 3
    path.write_bytes(whole)
    there = run_so_far(tmp_path)
    (entry,) = there.entries
    assert (len(entry.curve), entry.shown, entry.settings["K"]) == (4, "FedAvg", 2)
    assert entry.rounds == there.goal.held(entry.curve)
    assert "has run 4 rounds; the best so far is loss" in there.advice
    assert not there.about.finished
    assert "K = 2" in page_of([source_of(there)])


# -- the commands


def live_pages(monkeypatch):
    """Return the notes of all live pages that are written from now on, each of them at once."""
    notes = []
    update = LivePage.update

    def note(self, sentence, now=False):
        notes.append(sentence)
        update(self, sentence, now=True)
        text = self.path.read_text()
        assert f'class="live">Live: {escape(sentence)}.</p>' in text
        assert "location.reload()" in text

    monkeypatch.setattr(LivePage, "update", note)
    return notes


@pytest.mark.parametrize(
    ("words", "shows"),
    [
        ("run fedavg mine.py:pair --eta-l 0.1 --K 2 -R 20 --out here", "ran 20 rounds"),
        ("compare mine.py:pair --algorithms sgd,fedavg -R 10 --out here", "90 % interval"),
        ("diagnose mine.py:pair --minutes 0.05 --out here", "Points"),
        ("reproduce figure3 --quick --out here", "Sentences of the paper"),
    ],
)
def test_a_command_writes_its_page_meanwhile_and_the_last_one_does_not_reload(
    tmp_path, monkeypatch, capsys, words, shows
):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(PROBLEM)
    notes = live_pages(monkeypatch)
    main([*words.split(), "--live"])
    said = capsys.readouterr()
    (page,) = Path("here").rglob("report.html")
    assert len(notes) > 1
    assert said.err.count(f"Live page: {page}\n") == 1
    assert f"Page: {page}" in said.out
    text = page.read_text()
    assert shows in text
    assert 'class="live"' not in text
    assert "location.reload()" not in text


def test_a_diagnosis_that_stops_before_its_facts_leaves_nothing(tmp_path, monkeypatch, capsys):
    def steps(*args, **words):
        yield Progress("measuring", 0.1)
        raise ValueError("no clients.")

    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(PROBLEM)
    notes = live_pages(monkeypatch)
    monkeypatch.setattr(diagnose, "start", lambda *_, **__: Task(steps()))
    with pytest.raises(SystemExit):
        main(["diagnose", "mine.py:pair", "--out", "here", "--live"])
    assert notes == ["measuring, about 10% done"]
    assert not Path("here").exists()


# -- how long it takes


class Rounds:
    """Rounds of a run as a study tells them, and the clock that they go by."""

    def __init__(self, folder, **about):
        goal = Goal(ACCURACY, 0.9).to_json()
        folder.mkdir()
        (folder / "run.json").write_text(json.dumps({"goal": goal, **about}))
        self.now = 0.0
        self.progress = StudyProgress(folder, lambda: self.now)

    def play(self, first, last, seconds):
        for r in range(first, last + 1):
            self.now += seconds
            accuracy = {"accuracy": 0.5 + 0.01 * (r if r < 5 else 5 - r)}
            line = RoundLine(r=r, bytes_up=10, bytes_down=20, drift=0.5, metrics=accuracy)
            self.progress.add(RoundDone("fedavg", FedAvg(eta_l=0.1, K=2), line))


def test_the_best_so_far_the_bytes_and_the_time_left(tmp_path):
    rounds = Rounds(tmp_path / "r", R=20)
    rounds.play(1, 10, seconds=2.0)
    one = rounds.progress.entries["fedavg"]
    assert one.best(rounds.progress.goal) == 0.54
    assert one.bytes == 300
    assert rounds.progress.left == pytest.approx(20.0)
    assert rounds.progress.sentence == "10 rounds in 20 s, at most 20 s left"


def test_what_an_earlier_process_did_is_not_taken_for_the_pace_of_this_one(tmp_path):
    rounds = Rounds(tmp_path / "r", R=20)
    rounds.play(11, 15, seconds=2.0)
    assert rounds.progress.left == pytest.approx(10.0)


def test_nothing_is_said_of_the_time_left_at_once(tmp_path):
    rounds = Rounds(tmp_path / "r", R=20)
    rounds.play(1, 1, seconds=1.0)
    assert rounds.progress.left is None


@pytest.mark.parametrize("terminal", [True, False])
def test_a_board_of_rounds_is_shown_on_a_terminal_alone(tmp_path, terminal):
    rounds = Rounds(tmp_path / "r", R=20)
    rounds.play(1, 10, seconds=2.0)
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=120, no_color=True)
    with Board(console, rounds.progress) as board:
        board.say("so far so good")
    shown = out.getvalue()
    if not terminal:
        assert shown == ""
        return
    for word in (
        "fedavg",
        "eta_l = 0.1",
        "best accuracy",
        "0.54",
        "0.5",
        "300 B",
        "so far so good",
    ):
        assert word in shown, word
    assert "10 rounds in 20 s, at most 20 s left" in shown


# -- how it is stopped


def test_ctrl_c_between_two_steps_closes_the_work_and_says_how_to_go_on():
    def steps():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            yield Progress("first", 0.1)
            yield Progress("second", 0.2)
        finally:
            closed.append(True)

    closed, heard, before = [], [], signal.getsignal(signal.SIGINT)
    with pytest.raises(click.ClickException, match="repeat the command"):
        watch(Task(steps()), lambda: "stopped; repeat the command.", heard.append)
    assert closed == [True]
    assert heard == [Progress("first", 0.1)]
    assert signal.getsignal(signal.SIGINT) is before


def test_the_page_of_a_run_that_was_stopped_says_so(tmp_path):
    (tmp_path / "mine.py").write_text(PROBLEM)
    asked = "run fedavg mine.py:slow --eta-l 0.001 --K 2 --out here"
    words = [sys.executable, "-m", "trimtab", *asked.split(), "-R", "100000"]
    process = subprocess.Popen(
        [*words, "--live"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    page = tmp_path / "here" / "report.html"
    try:
        assert process.stderr.readline() == "Live page: here/report.html\n"
        until = time.monotonic() + 60
        while not (page.exists() and "round" in page.read_text()):
            assert time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "all rounds so far are in here: repeat the command with --resume" in err
    assert "Traceback" not in err
    assert 'class="live">Stopped. ' in page.read_text()
    assert "location.reload()" not in page.read_text()
    lines = (tmp_path / "here" / "rounds.jsonl").read_text().splitlines()
    done = subprocess.run(
        [*words, "-R", str(len(lines) + 3), "--resume"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"ran {len(lines) + 3} rounds" in done.stdout
    assert 'class="live"' not in page.read_text()


def test_the_command_of_a_page_leaves_out_how_it_was_watched():
    with click.Context(click.Command("x"), obj=None) as context:
        words = "run sgd --live --log tensorboard --eta 1 --json"
        context.obj = words.split()
        assert command_again() == "trimtab run sgd --eta 1"


@pytest.mark.parametrize("words", ["--minutes 2", "--minutes=2", "--budget 5 --round-cost=1", ""])
def test_the_command_of_a_page_has_the_budget_instead_of_minutes(words):
    with click.Context(click.Command("x"), obj=None) as context:
        context.obj = ["compare", "digits", *words.split(), "--jobs", "2"]
        again = "trimtab compare digits --jobs 2 --budget 2600000 --round-cost 86.5"
        assert command_again(2.6e6, 86.5) == again
        assert command_again(2.6e6) == again.removesuffix(" --round-cost 86.5")
        assert words in command_again()
