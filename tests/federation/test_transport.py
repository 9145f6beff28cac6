"""The process of the rounds over another transport than Flower: sites in this process."""

import inspect
import json

import pytest
import torch

from tests.helpers.federation_in_process import Federation, quadratic, unsynced  # noqa: F401
from trimtab import Scaffold
from trimtab.algorithms.registry import encode
from trimtab.federation.events import AuditDone, Ended, RoundCommitted, from_json, to_json
from trimtab.federation.processes import rounds
from trimtab.federation.processes.rounds import events_of_run
from trimtab.federation.setup.job import Job
from trimtab.federation.storage.roster import RosterFile
from trimtab.federation.transport import Transport
from trimtab.federation.transport.flower.fleet import Fleet

SCAFFOLD = Scaffold(eta_l=0.1, K=3)
METHODS = ("online", "wait_for", "ask", "admit")


@pytest.mark.parametrize("kind", [Fleet, Federation])
def test_every_transport_has_the_methods_of_one(kind):
    for name in METHODS:
        expected = inspect.signature(getattr(Transport, name)).parameters
        assert list(inspect.signature(getattr(kind, name)).parameters) == list(expected), name


def test_sites_come_and_go_between_rounds_as_the_roster_says(tmp_path):
    federation = Federation(tmp_path, SCAFFOLD, quadratic(N=4), N=3, R=4)
    folder = tmp_path / "operator"
    folder.mkdir()
    roster = RosterFile(folder)
    roster.create({"format": 1}, dict.fromkeys(federation.names, "key"))

    federation.server.min_sites = 2
    job, events = Job("run", encode(SCAFFOLD), 4, None, 2, 60.0, 3, "restore", "state", 10), []
    for event in events_of_run(federation.server, roster, federation, job):
        events.append(event)
        if isinstance(event, RoundCommitted) and event.r == 2:
            federation.sites["site3"] = federation.site("site3")
            roster.admit("site3", "key3")
            roster.remove_site("site0")
    done = [event for event in events if isinstance(event, RoundCommitted)]
    assert [list(event.cohort) for event in done] == [
        *[["site0", "site1", "site2"]] * 2,
        *[["site1", "site2", "site3"]] * 2,
    ]
    assert list(roster.read().sites) == ["site1", "site2", "site3"]
    assert roster.read().leaving == ()
    (audit,) = [event for event in events if isinstance(event, AuditDone)]
    assert audit.deviation <= 1e-13 * audit.largest
    assert isinstance(events[-1], Ended)
    assert events[-1].r == 4
    for event in events:
        known = json.loads(json.dumps(to_json(event)))
        assert to_json(from_json(known)) == known
    assert torch.isfinite(federation.server.standing.server.x).all()
    federation.close()


def test_metrics_and_audit_at_the_end_ask_again_who_comes_back_late(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(rounds, "_PAUSE", 0.0)
    federation = Federation(tmp_path, SCAFFOLD, quadratic(N=3), R=2)
    (tmp_path / "operator").mkdir()
    roster = RosterFile(tmp_path / "operator")
    roster.create({"format": 1}, dict.fromkeys(federation.names, "key"))
    away, silent, carried = {}, [3], federation.ask

    def ask(requests, timeout, least=None):  # site2 is taken to be connected before it is
        if away and "site2" in requests and "site2" not in federation.sites:
            silent[0] -= 1
            federation.sites |= {} if silent[0] else away
        yield from carried(requests, timeout, least)

    federation.ask, federation.wait_for = ask, lambda names, least, seconds: None
    job, events = Job("run", encode(SCAFFOLD), 2, None, 1, 60.0, 3, "restore", "state", 10), []
    for event in events_of_run(federation.server, roster, federation, job):
        events.append(event)
        if isinstance(event, RoundCommitted) and event.r == 2:
            away["site2"] = federation.sites.pop("site2")
    (audit,) = [event for event in events if isinstance(event, AuditDone)]
    assert silent == [0]
    assert audit.missing == {}
    assert "without some sites" not in caplog.text
    federation.close()


def test_a_run_does_not_end_without_a_word_of_enough_sites(tmp_path, caplog):
    federation = Federation(tmp_path, SCAFFOLD, quadratic(N=2), R=1)
    carried, deaf = federation.ask, [2]

    def ask(requests, timeout):
        if next(iter(requests.values()))["kind"] == "evaluate" and deaf[0]:
            deaf[0] -= 1
            return
        yield from carried(requests, timeout)

    federation.run(ask)
    assert deaf == [0]
    assert caplog.text.count("0 sites measured the last x, fewer than min_sites=1") == 2
    assert set(federation.server.outcome.metrics) >= {"loss"}
    federation.close()


def test_metrics_without_some_sites_say_whose_are_missing_and_why(tmp_path, caplog):
    federation = Federation(tmp_path, SCAFFOLD, quadratic(N=3), R=1)
    del federation.sites["site1"]
    federation.run()
    assert "without some sites (site1: it is not connected, or its reply was lost)" in caplog.text
    missing = federation.server.audit(federation.ask).missing
    assert missing == {"site1": "it is not connected, or its reply was lost"}
    federation.close()
