"""A page that follows what goes on: what is served, to whom, and what a folder shows so far."""

import http.client
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event

import click
import pytest
from rich.console import Console

from trimtab import FedAvg, Quadratic, compare
from trimtab.cli.output import command_again
from trimtab.cli.progress import Board, watch
from trimtab.cli.standings import Standings
from trimtab.core.task import Progress, Task
from trimtab.report.page import nothing_yet, page_of
from trimtab.report.serving import LOOPBACK, LivePage
from trimtab.report.sources import source_of
from trimtab.studies.comparison import read_comparison
from trimtab.studies.events import RoundDone
from trimtab.studies.goal import Goal
from trimtab.studies.record import RoundLine
from trimtab.studies.underway import Underway, settings_of_text

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


def asked(page, path="/", method="GET", **headers):
    """Ask a served page; return the status, the headers and what came."""
    connection = http.client.HTTPConnection(LOOPBACK, page.port, timeout=20)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, answer.headers, content.decode()


def told(port):
    """Go through the events of a page: its pages, until the end."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=60)
    connection.request("GET", "/events")
    answer = connection.getresponse()
    kind = ""
    for line in answer:
        word, _, rest = line.decode().rstrip("\n").partition(": ")
        if word == "event":
            kind = rest
        elif word == "data" and kind == "page":
            yield json.loads(rest)
    connection.close()
    assert kind == "end"


# -- the server


def test_a_page_is_served_to_this_machine_alone_and_nobody_can_change_it():
    with LivePage(lambda: nothing_yet("mine")) as page:
        assert page._server.server_address[0] == LOOPBACK
        status, headers, content = asked(page)
        assert status == 200
        assert headers["Content-Type"] == "text/html; charset=utf-8"
        assert headers["Cache-Control"] == "no-store"
        assert "mine has nothing to show yet" in content
        assert 'data-live="/events"' in content
        assert asked(page, method="HEAD")[2] == ""
        for method in ("POST", "PUT", "DELETE"):
            assert asked(page, method=method)[0] == 501
        for path in ("/run.json", "/../pyproject.toml", "/events/more", "/?x"):
            assert asked(page, path)[0] == 404
        # A name that somebody else has pointed to this machine is not ours.
        assert asked(page, Host="evil.example")[0] == 403
        assert asked(page, Host=f"localhost:{page.port}")[0] == 200
    with pytest.raises(ConnectionRefusedError):
        asked(page)


def test_whoever_watches_is_told_every_new_page_and_the_last_one():
    shown = ["first"]
    with LivePage(lambda: nothing_yet(shown[0])) as page:
        pages = told(page.port)
        assert "first has nothing" in next(pages)
        shown[0] = "second"
        assert "second has nothing" in next(pages)
        page.finish(nothing_yet("last"))
        assert [one.count("last has nothing") for one in pages] == [1]


def test_nothing_is_made_while_nobody_looks():
    looks = []
    with LivePage(lambda: looks.append(1) or nothing_yet("x")) as page:
        assert not Event().wait(1.2)
        assert looks == []
        asked(page)
        assert looks == [1]


def test_what_cannot_be_read_just_now_leaves_the_page_as_it_was():
    def look():
        if seen:
            raise ValueError("half of a file")
        seen.append(1)
        return nothing_yet("whole")

    seen = []
    with LivePage(look) as page:
        page._next = 0.0
        assert "whole has nothing" in asked(page)[2]
        page._next = 0.0
        assert "whole has nothing" in asked(page)[2]


def test_a_port_that_is_taken_is_one_sentence(refused):
    with LivePage(str) as page, refused(f"port {page.port}", "pass another one"):
        LivePage(str, page.port)


# -- what a folder shows before the end


def test_a_comparison_at_work_is_shown_as_far_as_it_is(tmp_path):
    pair = Quadratic([1.0, 3.0], [1.0, -2.0])
    words = {"R": 30, "K": [1, 3], "seeds": 2, "target": -0.55, "out": tmp_path / "c"}
    work = compare.start(pair, ["sgd", "fedavg"], **words)
    there = Underway(tmp_path / "c")
    assert there.look() is None
    told = 0
    for event in work:
        told += isinstance(event, RoundDone) and bool(event.label)
        if told == 40:
            break
    so_far = there.look()
    assert there.rounds == 40
    assert so_far.goal == read_goal(tmp_path / "c")
    assert so_far.entries
    assert all(entry.curve and entry.searched for entry in so_far.entries)
    assert so_far.advice
    html = page_of([source_of(so_far, underway=True)])
    assert "How sure: not at all yet" in html
    assert "<h2>Search</h2>" in html
    assert ">ahead so far<" in html
    assert "a ring is who is ahead so far" in html
    assert "winner" not in html
    result = work.result()
    done = there.look()
    for underway in (True, False):  # what repeats it with other seeds has begun, or is over
        html = page_of([source_of(done, underway=underway)])
        assert ">winner<" in html
        assert "ahead so far" not in html
    assert [e.label for e in done.entries] == [e.label for e in result.entries]
    for mine, entry in zip(done.entries, read_comparison(tmp_path / "c").entries, strict=True):
        assert (mine.rounds, mine.best, mine.shown) == (entry.rounds, entry.best, entry.shown)
        assert [run.seed for run in mine.runs] == [run.seed for run in entry.runs]
        assert mine.curve == entry.curve
        assert mine.settings == entry.settings


def read_goal(folder):
    return Goal.from_json(json.loads((folder / "compare.json").read_text())["goal"])


def test_a_line_that_is_half_written_is_read_when_it_is_whole(tmp_path):
    work = compare.start(
        Quadratic([1.0, 3.0], [1.0, -2.0]), [FedAvg(eta_l=0.1, K=2)], R=5, out=tmp_path / "c"
    )
    work.result()
    there = Underway(tmp_path / "c")
    (path, *_) = sorted((tmp_path / "c").glob("*/*/rounds.jsonl"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    there.look()
    before = there.rounds
    path.write_bytes(whole)
    there.look()
    assert there.rounds == before + 1


@pytest.mark.parametrize("text", ["Mine(", "Mine", ""])
def test_a_text_that_is_no_algorithm_has_no_settings(text):
    assert settings_of_text(text) == {}


# -- the commands


def commanded(folder, *words):
    """Start a command with --live in a folder; return the process and the port of its page."""
    (folder / "mine.py").write_text(PROBLEM)
    process = subprocess.Popen(
        [sys.executable, "-m", "trimtab", *words, "--live"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in process.stderr:
        found = re.search(r"Live page: http://127\.0\.0\.1:(\d+)/$", line)
        if found:
            return process, int(found[1])
    raise AssertionError(process.communicate())


@pytest.mark.parametrize(
    ("words", "shows"),
    [
        ("run fedavg mine.py:pair --eta-l 0.1 --K 2 -R 2000 --out here", "ran 2000 rounds"),
        ("compare mine.py:pair --algorithms sgd,fedavg -R 60 --out here", "90 % interval"),
        ("diagnose mine.py:pair --minutes 0.05 --out here", "Points"),
        ("reproduce figure3 --quick --out here", "Sentences of the paper"),
    ],
)
def test_a_command_shows_its_page_until_the_last_one(tmp_path, words, shows):
    process, port = commanded(tmp_path, *words.split())
    try:
        pages = list(told(port))
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert 'class="live" data-over="yes">Finished. This page is here' in pages[-1]
    assert shows in pages[-1]
    assert all('class="live"' in page for page in pages)
    (page,) = Path(tmp_path / "here").rglob("report.html")
    assert 'class="live"' not in page.read_text()
    assert "Page: " in out


# -- how long it takes


class Rounds:
    """Rounds of a run as a study tells them, and the clock that they go by."""

    def __init__(self, folder, **about):
        goal = {"metric": "accuracy", "range": {"name": "accuracy", "higher": True}, "target": 0.9}
        folder.mkdir()
        (folder / "run.json").write_text(json.dumps({"goal": goal, **about}))
        self.now = 0.0
        self.standings = Standings(folder, lambda: self.now)

    def play(self, first, last, seconds):
        for r in range(first, last + 1):
            self.now += seconds
            accuracy = {"accuracy": 0.5 + 0.01 * (r if r < 5 else 5 - r)}
            line = RoundLine(r=r, bytes_up=10, bytes_down=20, drift=0.5, metrics=accuracy)
            self.standings.add(RoundDone("fedavg", FedAvg(eta_l=0.1, K=2), line))


def test_the_best_so_far_the_bytes_and_the_time_left(tmp_path):
    rounds = Rounds(tmp_path / "r", R=20)
    rounds.play(1, 10, seconds=2.0)
    one = rounds.standings.lanes["fedavg"]
    assert one.best == 0.54
    assert one.bytes == 300
    assert rounds.standings.left == pytest.approx(20.0)
    assert rounds.standings.sentence == "10 rounds in 20 s, at most 20 s left"


def test_what_an_earlier_process_did_is_not_taken_for_the_pace_of_this_one(tmp_path):
    rounds = Rounds(tmp_path / "r", R=20)
    rounds.play(11, 15, seconds=2.0)
    assert rounds.standings.left == pytest.approx(10.0)


def test_nothing_is_said_of_the_time_left_at_once(tmp_path):
    rounds = Rounds(tmp_path / "r", R=20)
    rounds.play(1, 1, seconds=1.0)
    assert rounds.standings.left is None


@pytest.mark.parametrize("terminal", [True, False])
def test_a_board_of_rounds_is_shown_on_a_terminal_alone(tmp_path, terminal):
    rounds = Rounds(tmp_path / "r", R=20)
    rounds.play(1, 10, seconds=2.0)
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=120, no_color=True)
    with Board(console, rounds.standings) as board:
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
    asked = "run fedavg mine.py:slow --eta-l 0.001 --K 2 --out here"
    words = [*asked.split(), "-R", "100000"]
    process, port = commanded(tmp_path, *words)
    try:
        pages = told(port)
        assert "Live: " in next(pages)
        process.send_signal(signal.SIGINT)
        assert all('data-over="yes"' not in page for page in pages)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "all rounds so far are in here: repeat the command with --resume" in err
    assert "Traceback" not in err
    lines = (tmp_path / "here" / "rounds.jsonl").read_text().splitlines()
    done = subprocess.run(
        [sys.executable, "-m", "trimtab", *words, "-R", str(len(lines) + 3), "--resume"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"ran {len(lines) + 3} rounds" in done.stdout


def test_the_command_of_a_page_leaves_out_how_it_was_watched():
    with click.Context(click.Command("x"), obj=None) as context:
        words = "run sgd --live --live-port 80 --log tensorboard --eta 1 --json"
        context.obj = words.split()
        assert command_again() == "trimtab run sgd --eta 1"
