"""Several experiments in one federation: the same keys and sites, own state, one at a time."""

import json
import threading
import time

import pytest

from tests.helpers.command import trimtab
from tests.helpers.operator_folder import operator_folder
from tests.helpers.whole_federation import Whole
from trimtab import FedAvg, Scaffold
from trimtab.errors import InUse
from trimtab.federation.setup import job
from trimtab.federation.setup.job import (
    read_job,
    resume_job,
    start_job,
    state_of,
    turn,
    warnings_of,
)

SCAFFOLD, FEDAVG = Scaffold(eta_l=0.1, K=2), FedAvg(eta_l=0.1, K=2)


@pytest.fixture
def made(tmp_path):
    return operator_folder(tmp_path / "fed", ["rome", "oslo", "lima"])


def test_each_experiment_has_its_own_state_and_the_last_one_is_the_default(made):
    assert state_of(made.folder, None) == "state"
    first = start_job(made, SCAFFOLD, R=9)
    second = start_job(made, FEDAVG, R=5, state=state_of(made.folder, "slow"))
    assert (first.state, second.state) == ("state", "experiments/slow/state")
    assert state_of(made.folder, None) == second.state
    assert (read_job(made), read_job(made, second.state)) == (first, second)
    assert resume_job(made, state="state", R=12).R == 12
    assert state_of(made.folder, None) == "state"
    assert read_job(made, second.state).R == 5


def test_one_runs_and_the_others_wait(made, monkeypatch):
    monkeypatch.setattr(job, "_POLL", 0.01)
    one, other = start_job(made, SCAFFOLD, R=1), start_job(made, SCAFFOLD, R=1, state="b")
    other = job.replace(other, state=state_of(made.folder, "b"))
    said, done, entered = [], threading.Event(), threading.Event()

    def waiting():
        with turn(made.folder, other, said.append):
            entered.set()
            assert done.is_set()

    with turn(made.folder, one, said.append):
        with pytest.raises(InUse, match="is in use by another process"):
            turn(made.folder, one, said.append).__enter__()
        thread = threading.Thread(target=waiting)
        thread.start()
        while not said:
            time.sleep(0.01)
        done.set()
    thread.join(60)
    assert entered.is_set()
    assert said == ["the experiment is running; experiment b starts when it has ended."]


def test_by_default_half_of_the_sites_and_three_of_them_are_enough(tmp_path):
    for sites, least in ((2, 2), (3, 3), (5, 3), (7, 4)):
        folder = tmp_path / str(sites)
        made = operator_folder(folder, [f"site{i}" for i in range(sites)])
        assert start_job(made, SCAFFOLD, R=1).min_sites == least


@pytest.mark.parametrize(
    ("sites", "min_sites", "words"),
    [(2, 2, "only 2 sites are registered"), (4, 2, "min_sites is 2"), (3, 3, ""), (9, 4, "")],
)
def test_too_few_sites_are_said_at_the_start(made, sites, min_sites, words):
    said = warnings_of(start_job(made, SCAFFOLD, R=1, min_sites=min(min_sites, 3)), sites)
    assert [words in sentence for sentence in said] == ([True] if words else [])


@pytest.mark.federation
def test_a_second_step_size_needs_no_new_key_and_no_new_approval(tmp_path, capsys):
    whole = Whole(tmp_path, "abc")
    run = ("--algorithm", "scaffold", "--K", "4", "--min-sites", "3", "-R")
    folder = str(whole.operator)
    try:
        for name in whole.names:
            whole.start_site(name)
        whole.start_server("server", folder, *run, "4", "--eta-l", "0.3", "--json")
        whole.wait_for_rounds(1)
        second = ("server", folder, *run, "2", "--eta-l", "0.1", "--experiment", "small", "--json")
        output = whole.operator / "logs" / "second.log"
        queued = whole._start(second, output, {})
        until = time.monotonic() + 60
        while "the experiment is running; experiment small starts" not in output.read_text():
            assert time.monotonic() < until, output.read_text()
            time.sleep(0.1)
        assert whole.finish(whole.server)["rounds"] == 4
        out, _ = queued.communicate(timeout=240)
        assert json.loads(out)["rounds"] == 2, whole.logs()
        state = state_of(whole.operator, "small")
        one, other = whole.standing(), whole.standing(state)
        assert (one.r, other.r, other.algorithm.eta_l) == (4, 2, 0.1)
        assert one.experiment != other.experiment
        for kept in ("state", state):
            whole.check_replay(kept)
        for name in whole.names:
            folders = {path.name for path in (tmp_path / "sites" / name / "state").iterdir()}
            assert {one.experiment, other.experiment} <= folders
        status = json.loads(trimtab(capsys, "federate", "status", folder, "--json")[1])
        assert (status["round"], status["experiments"]) == (2, {"small": 2})
        assert (whole.operator / "experiments" / "small" / "report.html").exists()
        assert not list(whole.operator.glob("superlink.db*"))
    finally:
        whole.close()
