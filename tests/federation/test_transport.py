"""The process of the rounds over another transport than Flower: sites in this process."""

import inspect
import io
import json

import pytest
import torch
from inprocess import Federation, quadratic, unsynced  # noqa: F401

from trimtab import Scaffold
from trimtab.algorithms.registry import encode
from trimtab.federation.events import AuditDone, Ended, RoundCommitted, from_json, to_json
from trimtab.federation.processes.rounds import _Events, _run
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

    class Out(io.StringIO):
        def write(self, text):
            if json.loads(text).get("r") == 2 and json.loads(text)["event"] == "round":
                federation.sites["site3"] = federation.site("site3")
                roster.admit("site3", "key")
                roster.dismiss("site0")
            return super().write(text)

    out, job = Out(), Job("run", encode(SCAFFOLD), 4, None, 2, 60.0, 3, "restore", "state")
    federation.server.min_sites = 2
    _run(federation.server, roster, federation, job, _Events(out))
    events = [from_json(json.loads(line)) for line in out.getvalue().splitlines()]
    rounds = [event for event in events if isinstance(event, RoundCommitted)]
    assert [event.cohort for event in rounds] == [
        *[["site0", "site1", "site2"]] * 2,
        *[["site1", "site2", "site3"]] * 2,
    ]
    assert list(roster.read().sites) == ["site1", "site2", "site3"]
    assert roster.read().leaving == ()
    (audit,) = [event for event in events if isinstance(event, AuditDone)]
    assert audit.deviation <= 1e-13 * audit.largest
    assert isinstance(events[-1], Ended)
    assert events[-1].r == 4
    assert [to_json(event) for event in events] == [
        json.loads(line) for line in out.getvalue().splitlines()
    ]
    assert torch.isfinite(federation.server.standing.server.x).all()
    federation.close()
