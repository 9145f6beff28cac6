"""The invariant c = sum p_i c_i: what an audit lets go, whom it names, who joins and forgets."""

from dataclasses import dataclass, replace
from math import isnan

import pytest
import torch

from tests.helpers.federation_in_process import Federation, quadratic, unsynced  # noqa: F401
from tests.helpers.two_exchanges import Server
from trimtab import FedAvg, Quadratic, Scaffold
from trimtab.algorithms import registry
from trimtab.commit import Accepted, digest
from trimtab.federation.message import Message

SCAFFOLD = Scaffold(eta_l=0.1, K=3)
HALF_OF_THE_DIGITS = torch.finfo(torch.float64).eps ** 0.5


@pytest.fixture
def make(make):
    """Make federations that have run a round."""

    def begun(*args, **options):
        federation = make(*args, **options)
        next(federation.server.run(federation.ask))
        return federation

    return begun


def small(by=1e-3):
    """Return quadratics whose gradients, and so the controls, are small."""
    usual = quadratic()
    return Quadratic(A=usual.A, b=by * usual.b)


def showing(federation, controls):
    """Return a transport on which sites show these controls, which the server has accepted."""
    standing = federation.server.standing
    given = {name: torch.tensor(control).double() for name, control in controls.items()}
    states = {
        name: Accepted(standing.member(name).accepted.tag, digest({"0": control}))
        for name, control in given.items()
    }
    members = standing.accepting(states)
    federation.server._ledger.standing = replace(standing, members=members)

    def honest(requests, timeout):
        for name, request in requests.items():
            old = standing.member(name).accepted.digest
            yield from federation.ask(
                {name: Message(request.header | {"digest": old}, request.arrays)}, timeout
            )

    def ask(requests, timeout):
        for name, reply in honest(requests, timeout):
            lie = name in given and reply["kind"] == "control"
            arrays = {"0": given[name]} if lie else reply.arrays
            yield name, Message(reply.header, arrays)

    return ask


# -- the audit


def test_controls_that_agree_to_the_last_bit_are_in_order(make):
    federation = make(problem=small(by=0.0), x=torch.zeros(2).double())
    audit = federation.server.audit(federation.ask)
    assert (audit.deviation, audit.tolerance, audit.ok) == (0.0, 0.0, True)


def test_an_audit_lets_half_of_the_digits_go(make):
    federation = make(problem=small())
    audit = federation.server.audit(federation.ask)
    peak = max(line.get("control", 0.0) for line in federation.server.journal)
    assert 0 < audit.largest < 0.1
    assert audit.tolerance == pytest.approx(HALF_OF_THE_DIGITS * max(audit.largest, peak))


def test_an_audit_remembers_how_large_the_controls_once_were(make):
    federation = make(x=torch.full((2,), 1e3).double(), R=40)
    federation.run()
    peak = max(line.get("control", 0.0) for line in federation.server.journal)
    audit = federation.server.audit(federation.ask)
    assert peak > 10 * audit.largest
    assert audit.tolerance == pytest.approx(HALF_OF_THE_DIGITS * peak)


def test_an_audit_goes_on_without_the_journal(make):
    federation = make(problem=small())
    (federation.server.folder / "journal.jsonl").unlink()
    federation.restart_server()
    audit = federation.server.audit(federation.ask)
    assert audit.ok
    assert audit.tolerance < 0.1 * HALF_OF_THE_DIGITS


def test_an_audit_that_nobody_answers_is_not_in_order(make):
    federation = make()
    audit = federation.server.audit(lambda requests, timeout: ())
    assert not audit.ok
    assert isnan(audit.deviation)
    assert audit.largest == 0.0
    assert set(audit.missing) == set(federation.names)


@pytest.mark.parametrize(("norm", "named"), [(1.5e-5, True), (0.9e-5, False)])
def test_a_control_beside_zeros_is_named_above_rounding(make, norm, named):
    federation = make(problem=small())
    lies = {"site0": [0.0, 0.0], "site1": [0.0, 0.0], "site2": [norm, 0.0]}
    audit = federation.server.audit(showing(federation, lies))
    assert not audit.ok
    assert set(audit.suspects) == ({"site2"} if named else set())


@pytest.mark.parametrize(
    ("scale", "norm", "taken"),
    [(0.0, 0.9e6, True), (0.0, 1.5e6, False), (10.0, 5e6, True), (10.0, 1.6e7, False)],
)
def test_a_control_is_absurd_beyond_a_million_times_x(make, scale, norm, taken):
    federation = make(problem=small(), x=torch.tensor([scale, 0.0]).double())
    audit = federation.server.audit(showing(federation, {"site1": [norm, 0.0]}))
    assert ("site1" not in audit.missing) is taken
    if not taken:
        assert "its state: array 0 has norm" in audit.missing["site1"]


def test_a_state_that_was_not_accepted_is_not_counted(make, caplog):
    federation = make()

    def lying(requests, timeout):
        for name, reply in federation.ask(requests, timeout):
            arrays = {"0": reply.arrays["0"] + 1e-9} if name == "site1" else reply.arrays
            yield name, Message(reply.header, arrays)

    audit = federation.server.audit(lying)
    assert audit.missing == {"site1": "it shows another state than the accepted one"}
    assert federation.server.audit(federation.ask).ok


@pytest.mark.parametrize("silent", [False, True])
def test_a_site_that_leaves_is_not_asked_and_leaves_nothing_behind(make, silent):
    federation = make(problem=quadratic(4), R=5)
    asked = []

    def ask(requests, timeout):
        asked.extend(requests)
        there = {n: r for n, r in requests.items() if not (silent and n == "site3")}
        return federation.ask(there, timeout)

    c = {name: federation.control(name) for name in federation.names}
    federation.server.leave(ask, "site1")
    assert sorted(asked) == ["site0", "site2", "site3"]
    standing = federation.server.standing
    if silent:
        assert (standing.epoch, float(standing.server.c.norm())) == (1, 0.0)
    else:
        expected = sum(c[name] for name in asked) / 3
        torch.testing.assert_close(standing.server.c, expected, rtol=1e-14, atol=0)
    assert federation.run()[-1].r == 5
    assert federation.server.audit(federation.ask).ok


# -- who comes, goes and forgets


@dataclass(frozen=True, kw_only=True)
class FromOne:
    """An algorithm whose controls begin at one."""

    def init_server(self, x):
        return Server(x, torch.ones_like(x))

    def init_client(self, x):
        return torch.ones_like(x)

    def local(self, g, c_i, x):
        return (g(x) - c_i,), g(x)

    def round(self, server, clients):
        (dc,) = clients.run(self.local, server.x).mean()
        return server._replace(c=server.c + dc)


def test_controls_that_do_not_begin_at_zero_are_kept_in_balance(make, monkeypatch):
    kind = registry.Kind("fromone", FromOne, "FromOne", "#000", "FromOne")
    monkeypatch.setitem(registry._own, "fromone", kind)
    federation = make(FromOne(), quadratic(5), N=3)
    for number, name in enumerate(("new", "newer"), 3):
        federation.sites[name] = federation.site(name)
        federation.server.join(federation.ask, name)
        assert federation.server.standing.member(name).index == number
        assert federation.server.audit(federation.ask).ok
    assert federation.server.standing.numbers == 5


def test_only_who_joins_is_asked(make):
    federation, asked = make(problem=quadratic(5), N=3), []
    federation.sites["new"] = federation.site("new")

    def noting(requests, timeout):
        asked.extend(requests)
        return federation.ask(requests, timeout)

    federation.server.join(noting, "new")
    assert asked == ["new"]


@dataclass(frozen=True, kw_only=True)
class Counting:
    """An algorithm whose clients remember something, and whose server no c."""

    def init_server(self, x):
        return Plain(x)

    def init_client(self, x):
        return torch.zeros_like(x)

    def local(self, g, n_i, x):
        return (g(x),), n_i + 1

    def round(self, server, clients):
        (dx,) = clients.run(self.local, server.x).mean()
        return Plain(server.x - 0.1 * dx)


Plain = type(FedAvg(eta_l=1, K=1).init_server(torch.zeros(1)))


def test_without_controls_a_lost_state_begins_all_anew(make, monkeypatch):
    kind = registry.Kind("counting", Counting, "Counting", "#000", "Counting")
    monkeypatch.setitem(registry._own, "counting", kind)
    federation = make(Counting(), R=4)
    folder = federation.folder / "site1" / federation.server.standing.experiment
    for path in folder.glob("*.safetensors"):
        path.unlink()
    rounds = federation.run()
    kinds = [line["kind"] for line in federation.server.journal]
    assert kinds.count("restart") == 1
    assert "restore" not in kinds
    assert federation.server.standing.epoch == 1
    assert [len(done.cohort) for done in rounds] == [2, 3, 3]
