"""Over Flower itself, with TLS and keys, x and every c_i are the simulator's, bit for bit."""

import threading

import pytest
from whole import Whole

from trimtab import Mime, Momentum, Scaffold
from trimtab.federation import experiment
from trimtab.federation.log import Log
from trimtab.federation.server import Server

pytestmark = pytest.mark.federation


def test_three_rounds_of_scaffold_and_of_mime_are_the_simulators(tmp_path):
    whole = Whole(tmp_path, "abc")
    server = Server(whole.operator, Log(whole.operator / "logs" / "server.log"))
    try:
        for name in whole.names:
            whole.start_site(name)
        server.start()
        told = {}
        for state, algorithm in {
            "state": Scaffold(eta_l=0.3, K=4),
            "state-mime": Mime(eta=0.3, K=4, base=Momentum()),
        }.items():
            job = experiment.begin(
                whole.federation, algorithm, R=3, seed=5, round_timeout=100, state=state
            )
            alarm = threading.Timer(200, server.stop.set)
            alarm.start()
            events = list(server.events(job))
            alarm.cancel()
            told[state] = {event["event"]: event for event in events}
            rounds = [event for event in events if event["event"] == "round"]
            assert [event["cohort"] for event in rounds] == [["a", "b", "c"]] * 3, whole.logs()
            whole.check_replay(state)
        assert told["state"]["audit"]["deviation"] <= 1e-13 * told["state"]["audit"]["largest"]
        assert "audit" not in told["state-mime"]
        sim = whole.replay("state-mime")
        found = sim.problem.evaluate(sim.server.x)
        for name, value in told["state-mime"]["end"]["metrics"].items():
            assert value == pytest.approx(found[name], rel=1e-12)
    finally:
        server.close()
        whole.close()
