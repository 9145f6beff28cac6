"""Kill -9 of the server's processes, before, within and after each durable write."""

import os
import signal

import pytest

from tests.helpers.killed_at import POINTS
from tests.helpers.whole_federation import Serving, Whole
from trimtab import Scaffold

pytestmark = pytest.mark.federation
WRITES = [point for point in POINTS if point.startswith("server:")]


def test_nothing_is_lost_however_the_server_dies(tmp_path):
    whole = Whole(tmp_path, "abc")
    for name in whole.names:
        whole.start_site(name)
    with Serving(whole) as server:
        environment = server.rounds.environment
        R = 2
        told = server.job(algorithm=Scaffold(eta_l=0.3, K=4), R=R, round_timeout=60, min_sites=2)
        for point in WRITES:
            R += 1
            once = tmp_path / point.replace(":", "-")
            environment |= {"TRIMTAB_FAULT": point, "TRIMTAB_FAULT_ONCE": str(once)}
            told = server.job(R=R)
            assert once.exists(), f"{point} was not reached"
            assert whole.standing().r == R
            check(whole, told, point)
        died = "the process of the rounds died (killed by SIGKILL); it goes on from the last"
        assert whole.log().count(died) == len(WRITES)
        environment.pop("TRIMTAB_FAULT")

        killed = []

        def kill(event):
            for child in (server.superlink, server.rounds)[len(killed) :][:1]:
                os.kill(child.pid, signal.SIGKILL)
                killed.append(child.name)

        told = server.job(R=R + 4, on_round=kill)
        assert killed == ["the SuperLink", "the process of the rounds"]
        assert "the SuperLink died" in whole.log()
        assert whole.standing().r == R + 4
        check(whole, told, "SuperLink and rounds")


def check(whole, told, what):
    assert told.audit.missing == {}, what
    assert told.audit.deviation <= 1e-13 * told.audit.largest, what
    whole.check_replay()
