"""The commit protocol, one rule at a time."""

import json
import os
import re
import stat
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers.federation_in_process import Federation, quadratic, unsynced  # noqa: F401
from tests.helpers.two_exchanges import twice  # noqa: F401
from trimtab import Diverged, FedAvg, Quadratic, Scaffold, Supervised, simulate
from trimtab._version import PROTOCOL, __version__
from trimtab.algorithms import registry
from trimtab.commit import START, States
from trimtab.federation.message import Message, check_arrays, decode, encode
from trimtab.federation.protocol.controls import LostState
from trimtab.federation.protocol.coordinator import Coordinator
from trimtab.federation.protocol.site import Site
from trimtab.federation.storage.journal import rounds_of

SCAFFOLD = Scaffold(eta_l=0.1, K=3)
OTHER = {"trimtab": "9", "protocol": 9}  # a trimtab that does not work with this one


def advance(federation, count, ask=None):
    """Run some rounds, and leave the experiment where it is then."""
    rounds = federation.server.run(ask or federation.ask)
    return [next(rounds) for _ in range(count)]


def audited(federation):
    audit = federation.server.audit(federation.ask)
    assert not audit.missing
    assert audit.deviation <= 1e-13 * audit.largest
    assert audit.largest > 0
    return audit


def files(federation, name):
    folder = federation.folder / name / federation.server.standing.experiment
    return sorted((path.name for path in folder.glob("*.safetensors")), key=clock_of)


def clock_of(name):
    return int(name.partition("-")[0])


def without(federation, *absent):
    """Return a transport that does not reach some sites."""
    return lambda requests, timeout: federation.ask(
        {name: request for name, request in requests.items() if name not in absent}, timeout
    )


def changed(federation, name, change):
    """Return a transport that changes the replies of one site to what it is asked to work on."""

    def ask(requests, timeout):
        for sender, reply in federation.ask(requests, timeout):
            wrong = sender == name and reply["kind"] == "work"
            yield sender, change(reply) if wrong else reply

    return ask


# -- messages


def test_a_message_is_the_same_on_the_other_side():
    x = torch.randn(3, dtype=torch.float64)
    sent = Message({"kind": "work", "eta": 0.1, "none": None}, {"0": x, "1": x, "2": x.float()})
    got = decode(encode(sent))
    assert got.header == sent.header
    assert got.arrays.keys() == sent.arrays.keys()
    assert all(torch.equal(got.arrays[k], v) for k, v in sent.arrays.items())
    assert all(got.arrays[k].dtype == v.dtype for k, v in sent.arrays.items())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04K\x01.",
        b"\xff" * 50,
        (200).to_bytes(8, "little") + b"{" * 200,
        encode(Message({}, {"0": torch.ones(4)}))[:-1],
        encode(Message({}, {"0": torch.ones(4)})) + b"0",
        encode(Message({})).replace(b"{}", b"[]"),
        encode(Message({})).replace(b"trimtab", b"trimtob"),
    ],
)
def test_bytes_that_are_no_message_are_refused(data, refused):
    with refused("cannot be read"):
        decode(data)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({}, ("nothing", "0 are expected")),
        ({"0": torch.ones(2), "1": torch.ones(2)}, ("0, 1",)),
        ({"1": torch.ones(2)}, ("named 1",)),
        ({"0": torch.ones(2, 1)}, ("shape (2, 1)", "(2,)")),
        ({"0": torch.ones(2, dtype=torch.float64)}, ("torch.float64", "torch.float32")),
        ({"0": torch.tensor([1.0, float("nan")])}, ("NaN",)),
        ({"0": torch.tensor([1.0, -float("inf")])}, ("infinity",)),
        ({"0": torch.tensor([1e3, 0.0])}, ("norm 1e+03", "100")),
        ({"0": torch.tensor([1e30, 1e30])}, ("norm", "limit")),
    ],
)
def test_arrays_that_are_not_what_was_asked_for_are_refused(arrays, words, refused):
    check_arrays("site va", {"0": torch.ones(2)}, [torch.zeros(2)], limit=100.0)
    with refused("site va", *words):
        check_arrays("site va", arrays, [torch.zeros(2)], limit=100.0)


def test_an_algorithm_outside_the_registry_is_refused(refused):
    @dataclass(frozen=True)
    class Own:
        eta: float

    with refused("Own", "registry"):
        registry.encode(Own(eta=0.1))
    with refused("os"):
        registry.decode({"kind": "os"})
    with refused("fedavg"):
        registry.decode({"kind": "fedavg", "eta": 0.1})


# -- the site's half


def test_a_site_keeps_its_new_state_before_it_answers(make):
    federation = make()
    seen = []

    def ask(requests, timeout):
        for name, reply in federation.ask(requests, timeout):
            if reply["kind"] == "work":
                seen.extend(file for file in files(federation, name) if reply["tag"] in file)
            yield name, reply

    advance(federation, 2, ask)
    assert len(seen) == 6


def test_a_site_keeps_the_accepted_state_and_as_many_before_as_the_server_wants(make):
    federation = make(R=8, keep=3)
    federation.run()
    for name in federation.names:
        kept = files(federation, name)
        assert len(kept) == 3 + 2  # with the pending one, which was accepted since
        assert federation.server.standing.member(name).accepted.tag in kept[-1]


def test_a_reply_that_is_lost_leaves_no_trace(make):
    federation = make(R=6)
    advance(federation, 2)
    lost = lambda requests, timeout: (  # noqa: E731
        pair for pair in federation.ask(requests, timeout) if pair[0] != "site1"
    )
    advance(federation, 2, lost)
    federation.run()
    audited(federation)
    assert federation.cohorts() == [[0, 1, 2]] * 2 + [[0, 2]] * 2 + [[0, 1, 2]] * 2
    sim = simulate(SCAFFOLD, federation.problem, seed=3, cohorts=federation.cohorts())
    *_, last = sim
    assert torch.equal(last.x, federation.server.standing.server.x)


def test_a_request_that_comes_late_undoes_nothing(make):
    federation = make(R=5)
    held = []

    def hold(requests, timeout):
        held.append(requests["site0"])
        return without(federation, "site0")(requests, timeout)

    advance(federation, 1)
    advance(federation, 1, hold)
    advance(federation, 1)
    reply = federation.sites["site0"].answer(held[-1])
    assert (reply["status"], reply["why"]) == ("refused", "it has answered round 3 of branch 1.")
    federation.run()
    audited(federation)


def test_a_state_of_an_old_epoch_or_a_foreign_experiment_is_not_taken(make):
    federation = make(R=1)
    seen = []

    def ask(requests, timeout):
        seen.extend(requests.values())
        return federation.ask(requests, timeout)

    federation.run(ask)
    standing, site = federation.server.standing, federation.sites["site0"]
    accepted = standing.member("site0").accepted
    header = seen[-3].header | {"kind": "control", "tag": "ab"}
    header |= {"accepted": accepted.tag, "digest": accepted.digest}
    assert header["site"] == "site0"
    assert site.answer(Message(header))["status"] == "done"
    assert site.answer(Message(header | {"experiment": "other"}))["status"] == "mismatch"
    other = "0" * 64  # the digest of a state that the server accepted, and that is not here
    assert site.answer(Message(header | {"digest": other}))["status"] == "mismatch"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"trimtab": "9.9", "protocol": 9}, (f"trimtab {__version__}", "9.9", "install")),
        ({"protocol": 1}, ("(protocol 1)", f"(protocol {PROTOCOL})")),
        ({"site": "site1"}, ("site1",)),
        ({"kind": "shell"}, ("shell",)),
        ({"experiment": "../../etc"}, ("../../etc",)),
        ({"tag": "a/b"}, ("a/b",)),
        ({"accepted": ".."}, ("..",)),
        ({"branch": "now"}, ("now",)),
        ({"head": "../"}, ("../",)),
        ({"keep": 101}, ("101",)),
        ({"index": 7}, ("client 7", "N=3")),
        ({"x": "7"}, ("a request came without x.",)),
        ({"branch": (1 << 53) + 1}, ("which is no number",)),
        ({"index": (1 << 53) + 1}, ("which is no number",)),
        ({"exchange": 17}, ("which is no number",)),
        ({"r": (1 << 53) + 1}, ("which is no number",)),
        ({"seed": (1 << 64) + 1}, ("which is no number",)),
    ],
)
def test_a_site_refuses_what_it_should_not_do(make, change, words):
    federation = make()
    asked = []

    def ask(requests, timeout):
        asked.append(requests["site0"])
        return federation.ask(requests, timeout)

    advance(federation, 1, ask)
    reply = federation.sites["site0"].answer(Message(asked[-1].header | change, asked[-1].arrays))
    assert reply["status"] == "refused"
    assert all(word in reply["why"] for word in words), reply["why"]


def test_a_site_whose_data_are_bad_says_so_and_stays(make):
    X, y = torch.ones(4, 2), torch.tensor([0, 1, 0, 1])
    bad = torch.full_like(X, torch.nan)
    problem = Supervised(nn.Linear(2, 2), F.cross_entropy, [(X, y), (bad, y), (X, y)])
    federation = make(FedAvg(eta_l=0.1, K=2), problem, R=2)
    rounds = federation.run()
    assert [done.cohort for done in rounds] == [("site0", "site2")] * 2
    assert rounds[0].absent["site1"].startswith("ValueError; the site's log has it as error ")


# -- the server's half


def test_replies_that_are_late_doubled_or_claim_another_name_do_not_count(make, caplog):
    federation = make(R=4)
    kept = []

    def ask(requests, timeout):
        replies = list(federation.ask(requests, timeout))
        kept.extend(reply for reply in replies if reply[1]["kind"] == "work")
        yield from kept[:-3]  # of the rounds before
        yield from reversed(replies)
        yield from replies
        yield "nobody", replies[0][1]

    federation.run(ask)
    audited(federation)
    *_, last = simulate(SCAFFOLD, federation.problem, seed=3, cohorts=[[0, 1, 2]] * 4)
    assert torch.equal(last.x, federation.server.standing.server.x)

    other = make(R=2)
    lie = changed(other, "site1", lambda reply: Message(reply.header | {"site": "site0"}))
    assert advance(other, 1, lie)[0].cohort == ("site0", "site2")
    assert "site site1 sits out: it claims the name 'site0'" in caplog.text


def with_array(name, tensor):
    return lambda reply: Message(reply.header, reply.arrays | {name: tensor})


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (with_array("0", torch.ones(3, dtype=torch.float64)), "shape (3,)"),
        (with_array("0", torch.ones(2)), "torch.float32"),
        (with_array("0", torch.tensor([1, torch.nan], dtype=torch.float64)), "NaN"),
        (with_array("1", torch.tensor([1e9, 0], dtype=torch.float64)), "norm 1e+09"),
        (with_array("2", torch.ones(2, dtype=torch.float64)), "0, 1, 2"),
        (lambda reply: Message(reply.header, {}), "nothing"),
        (
            lambda reply: Message(reply.header | {"trimtab": "9", "protocol": 9}, reply.arrays),
            "trimtab 9",
        ),
        (lambda reply: Message(reply.header | {"base": "ab"}, reply.arrays), "another state"),
        (lambda reply: Message(reply.header | {"status": 7}, reply.arrays), "7"),
    ],
)
def test_an_upload_that_is_unsound_makes_its_site_sit_out(make, caplog, change, word):
    federation = make(R=4)
    advance(federation, 1)
    (done,) = advance(federation, 1, changed(federation, "site1", change))
    assert done.cohort == ("site0", "site2")
    assert word in done.absent["site1"]
    assert any("site1" in line and word in line for line in caplog.messages)
    assert len(federation.run()[-1].cohort) == 3
    audited(federation)


def test_a_run_that_diverges_says_so_and_keeps_the_last_finite_x(make):
    federation = make(FedAvg(eta_l=1e200, K=3), R=50)
    with pytest.raises(Diverged, match="eta_l"):
        federation.run()
    assert torch.isfinite(federation.server.standing.server.x).all()


def test_a_round_whose_sum_is_not_finite_is_not_committed(make):
    far = quadratic()
    far = Quadratic(A=far.A, b=1e3 * far.b)
    federation = make(FedAvg(eta_l=0.1, K=3, eta_g=1e307), far, R=5)
    with pytest.raises(Diverged, match="round 1"):
        federation.run()
    assert federation.server.standing.r == 0
    assert torch.isfinite(federation.server.standing.server.x).all()


def test_one_site_that_sends_nan_does_not_end_the_run(make, caplog):
    federation = make(R=3, min_sites=3)
    nan = with_array("0", torch.full((2,), torch.nan, dtype=torch.float64))
    wrong = changed(federation, "site1", nan)
    rounds = []

    def ask(requests, timeout):
        rounds.append(requests)
        return (wrong if len(rounds) == 3 else federation.ask)(requests, timeout)

    assert [done.r for done in federation.run(ask)] == [1, 2, 3]
    assert "site site1 sits out: its upload: array 0 holds NaN or infinity" in caplog.messages
    audited(federation)


def test_a_round_with_too_few_sites_is_repeated(make, caplog):
    federation = make(R=3, min_sites=2)
    calls = []

    def ask(requests, timeout):
        calls.append(len(requests))
        few = without(federation, "site0", "site1") if len(calls) % 2 else federation.ask
        return few(requests, timeout)

    rounds = federation.run(ask)
    assert [len(done.cohort) for done in rounds] == [3, 3, 3]
    assert "fewer than min_sites=2" in caplog.text
    audited(federation)


def test_sites_measure_the_x_they_receive_and_the_target_ends_the_run(make):
    draw = torch.Generator().manual_seed(0)
    X = torch.randn(60, 2, generator=draw, dtype=torch.float64)
    y = (X[:, 0] > 0).long()
    parts = [(X[:20], y[:20]), (X[20:30], y[20:30])]
    problem = Supervised(nn.Linear(2, 2), F.cross_entropy, parts, test=(X[30:], y[30:]))
    algorithm = FedAvg(eta_l=0.3, K=1)
    federation = make(algorithm, problem, R=100, target=0.95)
    rounds = federation.run()
    outcome = federation.server.outcome
    *_, last = simulate(algorithm, problem, seed=3, cohorts=[[0, 1]] * outcome.r, executor="loop")
    assert outcome.reached
    assert torch.equal(last.x, federation.server.standing.server.x)
    rounded = {name: float(f"{value:.3g}") for name, value in problem.evaluate(last.x).items()}
    assert outcome.metrics == pytest.approx(rounded)
    assert outcome.metrics["accuracy"] >= 0.95
    assert all(done.metrics["accuracy"] < 0.95 for done in rounds)
    assert len(rounds) == outcome.r < 100
    assert rounds[0].metrics == pytest.approx(problem.evaluate(problem.x0(3)), rel=5e-3)


def test_metrics_are_weighted_by_the_test_samples(make):
    x = torch.ones(2).double()
    federation = make(R=1, x=x)
    tested = {"site0": 2, "site1": 10, "site2": 0}
    for name, site in federation.sites.items():
        site.sizes = lambda index, name=name: (5, tested[name])
    (done,) = federation.run()
    each = [federation.problem.evaluate(x, client=i)["loss"] for i in range(3)]
    assert abs(each[0] - each[1]) > 0.01
    assert done.sites["site2"].metrics == {}
    assert done.metrics["loss"] == pytest.approx((2 * each[0] + 10 * each[1]) / 12, rel=1e-2)


def test_a_site_without_test_data_sends_no_metrics_and_a_target_needs_some(make, refused):
    X = torch.randn(12, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parts = [(X[:2], torch.arange(2) % 2), (X[2:], torch.arange(10) % 2)]
    problem = Supervised(nn.Linear(2, 2), F.cross_entropy, parts)
    federation = make(FedAvg(eta_l=0.3, K=1), problem, R=1)
    (done,) = federation.run()
    assert [report.metrics for report in done.sites.values()] == [{}, {}]
    assert federation.server.outcome.metrics == {}
    with refused("target", "no site has test data"):
        make(FedAvg(eta_l=0.3, K=1), problem, R=1, target=0.9).run()


# -- several exchanges


def test_state_becomes_pending_at_the_last_exchange_and_only_the_faithful_are_asked(
    make,
    twice,  # noqa: F811
):
    federation = make(twice, R=4)
    asked = []

    def ask(requests, timeout):
        asked.append(sorted(requests))
        kinds = {request["kind"] for request in requests.values()}
        first = kinds == {"work"} and requests["site0"]["exchange"] == 0
        if first and requests["site0"]["r"] == 2:
            return without(federation, "site2")(requests, timeout)
        if kinds == {"work"} and not first and requests["site0"]["r"] == 3:
            federation.restart_site("site1")
        return federation.ask(requests, timeout)

    rounds = federation.run(ask)
    assert [done.cohort for done in rounds] == [
        ("site0", "site1", "site2"),
        ("site0", "site1"),
        ("site0", "site1", "site2"),  # although site1 started again between two exchanges
        ("site0", "site1", "site2"),
    ]
    assert asked[4] == ["site0", "site1"]  # the second exchange of round 2
    counted = [float(federation.control(name)[0]) for name in federation.names]
    assert counted == [8, 8, 6]


# -- lost states


def lose(federation, *lost):
    for name in lost:
        for file in files(federation, name):
            (federation.folder / name / federation.server.standing.experiment / file).unlink()


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_a_lost_state_is_given_back(make, caplog, weights):
    data = [(torch.randn(n, 2, dtype=torch.float64), torch.arange(n) % 2) for n in (5, 9, 14)]
    rule = None if weights == "uniform" else "samples"
    problem = Supervised(nn.Linear(2, 2), F.cross_entropy, data, weights=rule)
    federation = make(problem=problem, R=8, weights=weights)
    advance(federation, 3)
    before = federation.control("site1")
    lose(federation, "site1")
    (done,) = advance(federation, 1)
    assert done.cohort == ("site0", "site2")
    assert "is not here" in done.absent["site1"]
    audited(federation)
    (done,) = advance(federation, 1)
    assert len(done.cohort) == 3
    assert "the state of site1 was gone; it is restored" in caplog.text
    audited(federation)
    restored = States(federation.folder / "site1" / federation.server.standing.experiment)
    (version,) = (v for v in restored.files().values() if v.base == START)
    torch.testing.assert_close(restored.load(version.tag)[0]["0"], before, rtol=1e-12, atol=1e-12)
    assert [line["kind"] for line in federation.server.journal].count("restore") == 1


def test_states_lost_at_several_sites_share_what_c_lacks(make):
    federation = make(R=9)
    advance(federation, 3)
    lose(federation, "site0", "site2")
    assert federation.run()[0].cohort == ("site1",)
    (line,) = (line for line in federation.server.journal if line["kind"] == "restore")
    assert line["sites"] == ["site0", "site2"]
    audited(federation)


def test_a_lost_state_waits_for_the_others(make, caplog):
    federation = make(R=9)
    advance(federation, 2)
    lose(federation, "site1")
    rounds = federation.server.run(without(federation, "site0"))
    assert [next(rounds).cohort for _ in range(3)] == [("site2",)] * 3
    assert "waits for ['site0']" in caplog.text
    assert len(federation.run()[-1].cohort) == 3
    audited(federation)


def test_a_crash_while_a_state_is_given_back_loses_nothing(make, monkeypatch):
    federation = make(R=6)
    advance(federation, 2)
    lose(federation, "site1")

    def die(name):
        if name == "server:before-journal" and federation.sites["site1"].seen:
            raise KeyboardInterrupt

    answer = federation.sites["site1"].answer
    federation.sites["site1"].seen = False

    def seeing(request):
        federation.sites["site1"].seen = request["kind"] == "restore"
        return answer(request)

    monkeypatch.setattr(federation.sites["site1"], "answer", seeing)
    with monkeypatch.context() as patch:
        patch.setattr("trimtab.commit.durable.fault_point", die)
        with pytest.raises(KeyboardInterrupt):
            federation.run()
    federation.restart_server()
    assert len(federation.run()[-1].cohort) == 3
    audited(federation)


def test_all_controls_begin_anew_where_that_is_chosen(make, caplog):
    federation = make(R=7, on_lost_state="restart")
    advance(federation, 3)
    lose(federation, "site1")
    rounds = federation.run()
    assert "all controls start anew" in caplog.text
    standing = federation.server.standing
    assert standing.epoch == 1
    (at,) = (line for line in federation.server.journal if line["kind"] == "restart")
    assert (at["r"], at["sites"]) == (4, ["site1"])
    audited(federation)
    x = rounds[0].x
    fresh = simulate(SCAFFOLD, Shifted(federation.problem, by=4), x=x, seed=3, executor="loop")
    for done in rounds[1:]:
        assert torch.equal(next(fresh).x, done.x)


class Shifted:
    """A problem whose rounds count from another number on."""

    def __init__(self, problem, by):
        self.problem, self.by = problem, by

    def __getattr__(self, name):
        return getattr(self.problem, name)

    def oracle(self, i, seed, r):
        return self.problem.oracle(i, seed, r + self.by)


def test_a_lost_state_ends_the_run_where_that_is_chosen(make):
    federation = make(R=7, on_lost_state="refuse")
    advance(federation, 2)
    lose(federation, "site1")
    with pytest.raises(LostState, match=r"site1 .*'restore'.*'restart'"):
        federation.run()
    federation.restart_server(on_lost_state="restore")
    federation.run()
    audited(federation)


def test_a_damaged_state_is_a_lost_one(make):
    federation = make(R=6)
    advance(federation, 2)
    folder = federation.folder / "site1" / federation.server.standing.experiment
    for file in files(federation, "site1"):
        (folder / file).write_bytes((folder / file).read_bytes()[:-3])
    assert len(federation.run()[-1].cohort) == 3
    audited(federation)


def test_a_very_old_checkpoint_is_survived_as_well(make):
    federation = make(R=9)
    path = federation.folder / "server" / "checkpoint.safetensors"
    advance(federation, 2)
    old = path.read_bytes()
    advance(federation, 6)
    path.write_bytes(old)
    federation.restart_server()
    federation.run()
    audited(federation)
    journal = federation.server.journal
    assert [line["r"] for line in rounds_of(journal)] == list(range(1, 10))
    assert [line["commit"] for line in journal] == list(range(1, len(journal) + 1))
    (gap,) = (line for line in journal if line["kind"] == "gap")
    assert (gap["r"], gap["branch"], gap["lines"]) == (2, 2, 6)


# -- joining and leaving


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("reachable", [True, False])
def test_sites_join_and_leave_with_the_invariant_kept(make, weights, reachable):
    draw = torch.Generator().manual_seed(0)
    data = [
        (torch.randn(n, 2, generator=draw, dtype=torch.float64), torch.arange(n) % 2)
        for n in (5, 9, 14, 3)
    ]
    problem = Supervised(nn.Linear(2, 2), F.cross_entropy, data)
    federation = make(problem=problem, N=3, R=12, weights=weights)
    advance(federation, 3)
    c = federation.server.standing.server.c
    federation.sites["new"] = Site(federation.folder / "new", "new", problem)
    federation.server.join(federation.ask, "new")
    share = 3 / 4 if weights == "uniform" else 28 / 31
    torch.testing.assert_close(federation.server.standing.server.c, share * c)
    audited(federation)
    (done,) = advance(federation, 1)
    assert len(done.cohort) == 4
    audited(federation)

    c, c_1 = federation.server.standing.server.c, federation.control("site1")
    ask = federation.ask if reachable else without(federation, "site1")
    federation.server.leave(ask, "site1")
    W, w = (4, 1) if weights == "uniform" else (31, 9)
    expected = (W * c - w * c_1) / (W - w)
    torch.testing.assert_close(federation.server.standing.server.c, expected)
    audited(federation)
    federation.names = ["site0", "site2", "new"]
    federation.restart_server()
    rounds = federation.run()
    assert rounds[-1].cohort == ("site0", "site2", "new")
    assert rounds[-1].r == 12
    audited(federation)
    assert [m.index for m in federation.server.standing.members] == [0, 2, 3]


def test_in_float32_the_invariant_is_kept_as_far_as_float32_goes(make):
    federation = make(problem=quadratic(4, d=50, dtype=torch.float32), N=3, R=12)
    advance(federation, 3)
    lose(federation, "site1")
    federation.sites["new"] = Site(federation.folder / "new", "new", federation.problem)
    for done in federation.server.run(federation.ask):
        if done.r == 6:
            federation.server.join(federation.ask, "new")
        if done.r == 9:
            federation.server.leave(federation.ask, "site0")
    audit = federation.server.audit(federation.ask)
    assert federation.server.standing.server.c.dtype == torch.float32
    assert not audit.missing
    assert audit.deviation <= 1e-5 * audit.largest


def test_who_cannot_join_or_leave_is_told_why(make, refused):
    federation = make(R=9, min_sites=2)
    advance(federation, 2)
    with refused("site0", "already"):
        federation.server.join(federation.ask, "site0")
    with refused("new", "does not answer"):
        federation.server.join(federation.ask, "new")
    with refused("nobody", "site0, site1, site2"):
        federation.server.leave(federation.ask, "nobody")
    federation.server.leave(federation.ask, "site1")
    with refused("min_sites=2"):
        federation.server.leave(federation.ask, "site2")
    audited(federation)


def test_who_computes_otherwise_cannot_join(make, refused):
    federation = make(N=2, R=9)
    advance(federation, 1)
    other = quadratic(dtype=torch.float32)
    federation.sites["new"] = Site(federation.folder / "new", "new", other)
    with refused("site 'new' computes in torch.float32, not in torch.float64"):
        federation.server.join(federation.ask, "new")
    assert advance(federation, 1)[0].cohort == ("site0", "site1")


def test_the_only_site_cannot_leave(make, refused):
    federation = make(N=1, R=9)
    advance(federation, 1)
    with refused("'site0' is the only site; end the experiment instead."):
        federation.server.leave(federation.ask, "site0")


def test_algorithms_without_controls_join_and_leave_too(make, refused):
    federation = make(FedAvg(eta_l=0.1, K=2), N=2, R=4)
    advance(federation, 1)
    federation.sites["site2"] = federation.site("site2")
    federation.server.join(federation.ask, "site2")
    assert advance(federation, 1)[0].cohort == ("site0", "site1", "site2")
    federation.server.leave(federation.ask, "site1")
    assert advance(federation, 1)[0].cohort == ("site0", "site2")
    with refused("no control variates"):
        federation.server.audit(federation.ask)
    assert not files(federation, "site0")
    assert {member.accepted.tag for member in federation.server.standing.members} == {START}


# -- folders


def test_folders_are_private_and_belong_to_one_process(make, refused):
    federation = make(R=1)
    federation.run()
    for folder in ("server", "site0", f"site0/{federation.server.standing.experiment}"):
        assert stat.S_IMODE(os.stat(federation.folder / folder).st_mode) == 0o700
    with refused("in use by another process"):
        federation.site("site0")
    with refused("in use by another process"):
        federation.start()


def test_a_folder_is_continued_with_its_own_settings_only(make, refused):
    federation = make(R=2)
    federation.run()
    federation.server.close()
    with refused("seed=3", "4"):
        federation.start(seed=4)
    with refused("weights=uniform", "samples"):
        federation.start(seed=3, weights="samples")
    federation.options |= {"weights": "uniform"}
    federation.algorithm = replace(SCAFFOLD, K=4)
    with refused("algorithm", "'K': 3", "'K': 4"):
        federation.start()
    federation.algorithm, federation.names = SCAFFOLD, ["site0", "site1"]
    with refused("sites", "site2"):
        federation.start()
    federation.names.append("site2")
    federation.server = federation.start()


def test_experiments_on_one_site_do_not_touch_each_other(make):
    one = make(R=3)
    one.run()
    other = Federation.__new__(Federation)
    other.__dict__ |= one.__dict__ | {"folder": one.folder}
    other.options = one.options | {"seed": 9}
    other.server = type(one.server)(one.folder / "second", SCAFFOLD, one.names, **other.options)
    other.run()
    audited(one)
    audited(other)
    assert one.server.standing.experiment != other.server.standing.experiment
    other.server.close()


def test_a_run_goes_on_where_it_was(make):
    federation = make(R=3)
    federation.run()
    federation.restart_server(R=6)
    rounds = federation.run()
    assert [done.r for done in rounds] == [4, 5, 6]
    *_, last = simulate(SCAFFOLD, federation.problem, seed=3, cohorts=[[0, 1, 2]] * 6)
    assert torch.equal(rounds[-1].x, last.x)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"weights": "equal"}, ("weights='equal'", "samples")),
        ({"on_lost_state": "ask"}, ("on_lost_state='ask'", "restart")),
        ({"min_sites": 4}, ("min_sites=4", "3")),
        ({"min_sites": 0}, ("min_sites=0",)),
    ],
)
def test_wrong_options_are_refused(tmp_path, refused, wrong, words):
    options = {"x": torch.zeros(2), "R": 3} | wrong
    with refused(*words):
        Coordinator(tmp_path, SCAFFOLD, ["a", "b", "c"], **options)
    with refused("distinct"):
        Coordinator(tmp_path, SCAFFOLD, ["a", "a"], x=torch.zeros(2), R=3)


def test_what_a_site_says_of_itself_is_checked(make, caplog):
    federation = make(R=2)

    def saying(wrong, *liars):
        def ask(requests, timeout):
            for name, reply in federation.ask(requests, timeout):
                lie = wrong if name in liars else {}
                yield name, Message(reply.header | lie, reply.arrays)

        return ask

    (*_, last) = federation.run(saying({"n": "many"}, "site0"))  # the others begin without it
    assert last.cohort == ("site1", "site2")
    assert "its n is 'many', which is no whole number" in last.absent["site0"]
    for wrong in ({"n": 0}, {"dtype": "save"}, {"d": 7}):  # no site keeps the others from a start
        federation = make(R=2)
        assert len(federation.run(saying(wrong, "site0"))) == 2
        assert re.search(f"site0 sits out: .*{next(iter(wrong.values()))}", caplog.text)
        caplog.clear()


def test_sites_of_another_model_sit_out_from_the_start(make, refused, caplog):
    federation = make(R=2, x=torch.zeros(5))
    with refused("no site has the server's model", "d=2", "d=5"):
        federation.run()
    federation = make(R=2)
    federation.sites["site1"].problem = quadratic(dtype=torch.float32)
    federation.sites["site1"]._dtype = torch.float32
    assert [done.cohort for done in federation.run()] == [("site0", "site2")] * 2
    assert "site1 sits out: it computes in torch.float32, not in torch.float64" in caplog.text


def test_an_experiment_that_has_not_begun_has_no_standing(make, refused):
    with refused("the experiment has not begun; run it first."):
        make().server.standing  # noqa: B018


def test_sites_that_come_late_are_waited_for(make, caplog):
    federation, asked = make(R=1), []

    def ask(requests, timeout):
        asked.append(requests)
        return federation.ask(requests if len(asked) > 1 else {}, timeout)

    assert [done.cohort for done in federation.run(ask)] == [("site0", "site1", "site2")]
    assert "0 of 1 sites are there; missing: ['site0', 'site1', 'site2']" in caplog.text


@pytest.mark.parametrize("wrong", [{"tested": -1}, {"tested": 10**6}])
def test_who_measures_the_last_x_unsoundly_is_left_out_of_its_metrics(make, caplog, wrong):
    federation = make(R=1, min_sites=2)
    told = {}

    def ask(requests, timeout):
        for name, reply in federation.ask(requests, timeout):
            if reply["kind"] == "evaluate":
                told[name] = reply["metrics"]["loss"]
                reply = Message(reply.header | (wrong if name == "site1" else {}))
            yield name, reply

    federation.run(ask)
    mean = (told["site0"] + told["site2"]) / 2
    assert federation.server.outcome.metrics["loss"] == pytest.approx(mean)
    assert "the last metrics are without some sites (site1: " in caplog.text


def test_the_journal_tells_what_happened(make):
    federation = make(R=2)
    federation.run()
    text = (federation.folder / "server" / "journal.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    digests = [line.pop("sha256") for line in lines]
    assert [line.pop("before") for line in lines] == ["", *digests[:-1]]
    assert federation.server.standing.head == digests[-1]
    assert lines == federation.server.journal
    assert [line["kind"] for line in lines] == ["begin", "round", "round", "end"]
    assert lines[0]["weights"] == {"site0": 1 / 3, "site1": 1 / 3, "site2": 1 / 3}
    assert lines[1]["cohort"] == federation.names
    assert lines[1]["bytes_up"] == 3 * 2 * 2 * 8


def test_versions_of_one_protocol_work_together(make):
    federation = make(R=2)

    def newer(requests, timeout):
        asked = {n: Message(m.header | {"trimtab": "9"}, m.arrays) for n, m in requests.items()}
        for name, reply in federation.ask(asked, timeout):
            yield name, Message(reply.header | {"trimtab": "8"}, reply.arrays)

    assert [len(done.cohort) for done in federation.run(newer)] == [3, 3]
