"""Siblings of the attacks that were seen: one site, or the server, that says what it should not."""

from dataclasses import dataclass

import pytest
import torch

from tests.federation.test_site import begun, later  # noqa: F401
from tests.federation.test_trust import advance
from tests.helpers.federation_in_process import quadratic, unsynced  # noqa: F401
from tests.helpers.two_exchanges import Server
from trimtab import FedAvg
from trimtab.algorithms import registry
from trimtab.federation.message import (
    Message,
    ReplyStatus,
    decode_arrays,
    encode_arrays,
    encode_header,
)
from trimtab.federation.storage.journal import read_chain
from trimtab.federation.transport.flower.objects import HEADER_UP

FEDAVG = FedAvg(eta_l=0.1, K=2)


@dataclass(frozen=True, kw_only=True)
class Numbered:
    """An algorithm whose clients send a number beside a vector."""

    def init_server(self, x):
        return Server(x, torch.zeros_like(x))

    def init_client(self, x):
        return ()

    def local(self, g, state, x):
        return (g(x), torch.tensor(3.0, dtype=x.dtype)), ()

    def round(self, server, clients):
        move, number = clients.run(self.local, server.x).mean()
        return server._replace(x=server.x - 0.1 * number * move)


def lying(federation, name, change, kinds=("work",)):
    """Return a transport on which one site's replies of some kinds are changed."""

    def ask(requests, timeout):
        for sender, reply in federation.ask(requests, timeout):
            yield sender, change(reply) if sender == name and reply["kind"] in kinds else reply

    return ask


# -- a server that wants to learn more than a site answers


def test_no_experiment_is_without_a_branch_and_so_without_a_count(begun):  # noqa: F811
    federation, requests = begun(FEDAVG)
    request = later(requests[-1], branch=0, experiment="another")
    assert federation.sites["site0"].answer(request)["status"] == ReplyStatus.REFUSED


def test_an_exchange_that_fails_is_answered(begun, tmp_path):  # noqa: F811
    """Whether a gradient overflows is a bit of the data: the site answers once, and logs it."""
    federation, requests = begun(FEDAVG)
    site, before = federation.sites["site0"], requests[-1]
    huge = {name: torch.full_like(array, 1.7e308) for name, array in before.arrays.items()}
    for request in (later(before, huge, r=5), later(before, huge, r=5)):  # the same one again
        assert site.answer(request)["status"] == ReplyStatus.DIVERGED
    said = site.answer(later(before, r=5))
    assert said["status"] == ReplyStatus.REFUSED
    assert "another broadcast" in said["why"]
    lines = [entry.line for entry in read_chain(site.folder / "sent.jsonl")]
    assert [(line["r"], line["exchange"]) for line in lines if line.get("r") == 5] == [(5, 0)]
    assert site.answer(later(before, r=6))["status"] == ReplyStatus.DONE


def test_a_measurement_that_fails_is_answered(begun, monkeypatch):  # noqa: F811
    federation, requests = begun(FEDAVG, rounds=1)
    site = federation.sites["site0"]
    monkeypatch.setattr(site, "_measured", lambda request, x: 1 / 0)
    x = {"0": requests[-1].arrays["0"]}
    assert site.answer(later(requests[-1], x, kind="evaluate"))["status"] == ReplyStatus.FAILED
    other = site.answer(later(requests[-1], {"0": 2 + x["0"]}, kind="evaluate"))
    assert other["status"] == ReplyStatus.REFUSED


def test_an_answered_exchange_has_no_second_answer_whatever_is_changed(begun):  # noqa: F811
    federation, requests = begun(FEDAVG)
    site, one = federation.sites["site0"], later(requests[-1], r=7)
    assert site.answer(one)["status"] == ReplyStatus.DONE
    for change in ({"index": 1}, {"seed": 99}, {"accepted": "ab"}, {"digest": "0" * 64}):
        reply = site.answer(Message(one.header | change, one.arrays))
        assert reply["status"] == ReplyStatus.REFUSED
        assert not reply.arrays


def test_a_reply_has_a_header_within_its_limit_whatever_the_request_is_named(begun):  # noqa: F811
    federation, requests = begun(FEDAVG)
    long = "a" * 200_000
    request = later(requests[-1], tag=long, kind=long, experiment=[long], exchange={"a": long})
    reply = federation.sites["site0"].answer(request)
    assert reply["status"] == ReplyStatus.REFUSED
    assert len(encode_header(reply.header)) < HEADER_UP


# -- a site


@pytest.mark.parametrize("said", [{"state": "start"}, {"digest": ""}], ids=repr)
def test_an_update_whose_state_is_not_named_does_not_count(make, said):
    federation = make(problem=quadratic(4), R=3, min_sites=3)
    (done,) = advance(
        federation,
        1,
        lying(federation, "site1", lambda reply: Message(reply.header | said, reply.arrays)),
    )
    assert done.absent == {"site1": "it does not say which state it has kept"}


def test_updates_beyond_all_limits_are_refusals_too(make):
    federation = make(problem=quadratic(5), R=9, min_sites=3)
    advance(federation, 1)

    def change(reply):
        return Message(reply.header, {name: 1e9 * array for name, array in reply.arrays.items()})

    advance(federation, 3, lying(federation, "site4", change))
    assert federation.server.standing.member("site4").suspended


def test_a_number_in_an_update_is_compared_like_an_array(make, monkeypatch):
    """A mean of numbers may decide as much as a mean of vectors, as FedNova's number of steps."""
    kind = registry.Kind("numbered", Numbered, "Numbered", "#000", "Numbered")
    monkeypatch.setitem(registry._own, "numbered", kind)
    federation = make(Numbered(), problem=quadratic(5), R=3, min_sites=3)

    def change(reply):
        number = max(reply.arrays)
        return Message(reply.header, reply.arrays | {number: 100 * reply.arrays[number]})

    (done,) = advance(federation, 1, lying(federation, "site4", change))
    assert "times that of most sites" in done.absent["site4"]


def test_a_first_round_of_two_says_nothing_of_first_updates(make):
    federation = make(problem=quadratic(4), R=5, min_sites=2)

    def ask(requests, timeout):
        first = all(
            request["kind"] == "work" and request["r"] == 1 for request in requests.values()
        )
        few = {name: requests[name] for name in ("site0", "site1")} if first else requests
        yield from federation.ask(few, timeout)

    advance(federation, 1, ask)
    assert not federation.server.standing.first
    advance(federation, 1, ask)
    assert federation.server.standing.first


@pytest.mark.parametrize("silent", ["restore", "control"])
def test_a_site_that_says_it_forgot_and_is_silent_does_not_stretch_the_rounds(make, silent):
    federation = make(problem=quadratic(5), R=20, min_sites=3)
    asked = []

    def ask(requests, timeout):
        kind = next(iter(requests.values()))["kind"]
        asked.append((kind, timeout))
        for sender, reply in federation.ask(requests, timeout):
            work = kind == "work" and requests[sender]["r"] > 1
            if work and sender == "site4":
                reply = Message(reply.header | {"status": ReplyStatus.MISMATCH}, {})
            if (sender, kind) != ("site4" if silent == "restore" else "site3", silent):
                yield sender, reply

    advance(federation, 20, ask)
    kinds = [kind for kind, _ in asked]
    assert kinds.count("control") <= 6
    assert all(timeout <= 90 for kind, timeout in asked if kind != "work")


def test_sites_that_forget_do_not_use_up_the_branches(make):
    federation = make(problem=quadratic(5), R=80, min_sites=3, on_lost_state="restart")

    def change(reply):
        return Message(reply.header | {"status": ReplyStatus.MISMATCH}, {})

    advance(federation, 60, lying(federation, "site4", change))
    assert federation.server.standing.branch <= 5


def test_a_sites_own_last_norm_allows_it_more_than_the_median_does(make):
    """24 times the median is refused at first, and taken from a site whose last had 8 times."""
    federation = make(problem=quadratic(5), R=9, min_sites=3)
    advance(federation, 1)

    def ask(requests, timeout):
        for sender, reply in federation.ask(requests, timeout):
            if reply["kind"] == "work":
                # All sites send vectors of one norm, so that the median is known.
                norm = federation.factor if sender == "site4" else 1.0
                arrays = {k: norm * v / v.norm() for k, v in reply.arrays.items()}
                reply = Message(reply.header, arrays)
            yield sender, reply

    for factor, taken in ((24.0, False), (8.0, True), (24.0, True), (31.0, False)):
        federation.factor = factor
        (done,) = advance(federation, 1, ask)
        assert ("site4" in done.cohort) == taken


def test_a_metric_that_the_problem_does_not_define_makes_its_site_sit_out(make):
    federation = make(problem=quadratic(4), R=3, min_sites=3, ranges={"loss": None})

    def change(reply):
        return Message(reply.header | {"metrics": {"patient": 7.0}}, reply.arrays)

    (done,) = advance(federation, 1, lying(federation, "site1", change))
    assert done.absent == {
        "site1": "it reports 'patient', a metric that the problem does not define"
    }


def test_no_update_stays_on_the_servers_disk(make):
    federation = make(problem=quadratic(4), R=3)
    spool = federation.server.folder / "spool"
    advance(federation, 1)
    assert spool.exists()
    federation.server.leave(federation.ask, "site3")
    assert not spool.exists()
    federation.run()
    assert not spool.exists()


def test_a_table_of_arrays_has_a_limit():
    data = encode_arrays({"a" * 70_000: torch.zeros(1)})
    with pytest.raises(ValueError, match="the table of its arrays has"):
        decode_arrays(data)
