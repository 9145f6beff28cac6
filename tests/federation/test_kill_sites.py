"""Kill -9 of a worker and of whole sites; states that are gone; sites that come and go."""

import os
import shutil
import signal
import time

import pytest

from tests.helpers.whole_federation import Serving, Whole
from trimtab import Scaffold
from trimtab.federation.setup.operator import Federation, admit
from trimtab.federation.storage.roster import RosterFile

pytestmark = pytest.mark.federation


def test_nothing_is_lost_however_sites_die(tmp_path):
    whole = Whole(tmp_path, "abc")
    faults = {
        "a": "site:before-pending@2",
        "b": "site:within-pending@3",
        "c": "site:after-pending@2",
    }
    for name, point in faults.items():
        once = str(tmp_path / f"once-{name}")
        whole.start_site(name, TRIMTAB_FAULT=point, TRIMTAB_FAULT_ONCE=once)
    with Serving(whole) as server:
        scaffold = Scaffold(eta_l=0.3, K=4)
        told = server.job(algorithm=scaffold, R=5, round_timeout=60, min_sites=2)
        for name in faults:
            assert (tmp_path / f"once-{name}").exists()
            said = "the worker died (killed by SIGKILL); it is started again and asked once more"
            assert said in whole.log(name)
        check(whole, told)

        killed = []

        def kill(event):
            if event.r == 6:
                whole.kill(whole.sites["a"], "trimtab.federation.processes.worker")
                whole.kill(whole.sites["b"], "trimtab.federation.processes.worker")
                whole.kill_site("c")
                whole.start_site("c")
                killed.append(event.r)

        told = server.job(R=9, on_round=kill, seconds=300)
        assert killed == [6]
        check(whole, told)
        assert {"a", "b", "c"} <= {name for event in told.rounds for name in event.cohort}
        lost_and_found(whole, server)
        come_and_go(whole, server)


def lost_and_found(whole, server):
    """A site whose disk is gone is told so, and gets its control back."""
    assert whole.stop(whole.sites.pop("b")) == 0
    shutil.rmtree(whole.folder / "sites" / "b" / "state")
    whole.start_site("b")
    told = server.job(R=11, min_sites=3, seconds=300)
    assert "site b" in whole.log()
    assert told.rounds[-1].cohort == ["a", "b", "c"]
    assert [line["kind"] for line in whole.journal()].count("restore") == 1, whole.logs()
    balanced(told)


def come_and_go(whole, server):
    """A site joins and another leaves, between rounds, with the invariant kept."""
    whole.federation = admit(Federation.read(whole.operator), "d")
    whole.unpack("d", 3)
    RosterFile(whole.operator).remove_site("a")
    whole.start_site("d")
    told = server.job(R=16, min_sites=2, seconds=300)
    kinds = [line["kind"] for line in whole.journal()]
    assert kinds.count("join") == kinds.count("leave") == 1, whole.logs()
    assert told.rounds[-1].cohort == ["b", "c", "d"]
    assert list(Federation.read(whole.operator).sites) == ["b", "c", "d"]
    balanced(told)


def check(whole, told):
    balanced(told)
    whole.check_replay()


def balanced(told):
    assert told.audit.missing == {}
    assert told.audit.deviation <= 1e-13 * told.audit.largest


def test_the_operators_command_ends_cleanly_and_goes_on(tmp_path):
    whole = Whole(tmp_path, "ab")
    try:
        for name in whole.names:
            whole.start_site(name)
        command = ("server", str(whole.operator), "--algorithm", "scaffold", "--eta-l", "0.3")
        server = whole.start_server(*command, "--K", "4", "-R", "6", "--round-timeout", "60")
        whole.wait_for_rounds(1, seconds=180)
        below = whole.descendants(server)
        os.kill(server.pid, signal.SIGKILL)  # without a chance to say goodbye
        server.communicate()
        assert eventually_gone(below)
        server = whole.start_server("resume", str(whole.operator))
        whole.wait_for_rounds(3, seconds=180)
        assert whole.stop(server, signal.SIGINT) == 130
        said = (whole.operator / "logs" / "output.log").read_text()
        assert "continue with `trimtab federate resume`." in said
        found = whole.run("resume", str(whole.operator))
        assert (found["rounds"], found["sites"]) == (6, ["a", "b"])
        assert found["audit"]["deviation"] <= 1e-13 * found["audit"]["largest"]
        audit = whole.run("audit", str(whole.operator))
        assert audit["deviation"] == found["audit"]["deviation"]
        whole.check_replay()
        for name in whole.names:
            assert whole.stop(whole.sites.pop(name)) == 0
            assert f"site {name} has stopped." in whole.log(name)
    finally:
        whole.close()


def eventually_gone(pids, seconds=20):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not any(os.path.exists(f"/proc/{pid}") for pid in pids):
            return True
        time.sleep(0.2)
    return False
