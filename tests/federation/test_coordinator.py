"""The server's half, one rule at a time: what it asks, counts, waits for and writes down."""

import inspect
import logging
import re
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch

from tests.helpers.federation_in_process import Federation, quadratic, unsynced  # noqa: F401
from tests.helpers.two_exchanges import Server, Twice, twice  # noqa: F401
from trimtab import (
    Diverged,
    FedAvg,
    RichardsonRomberg,
    Rounding,
    Scaffold,
    Through,
    simulate,
)
from trimtab.algorithms import registry
from trimtab.federation.events import SiteReport
from trimtab.federation.message import Message
from trimtab.federation.protocol import attempt as requests_module
from trimtab.federation.protocol import controls, coordinator
from trimtab.federation.protocol.attempt import Inquiry
from trimtab.federation.protocol.checks import goal_for, is_reached, mean_metrics
from trimtab.federation.protocol.controls import Hello, enrolled
from trimtab.federation.protocol.coordinator import Coordinator
from trimtab.federation.protocol.rehearsal import plan
from trimtab.federation.storage.files import CannotWrite
from trimtab.federation.storage.ledger import Member, Standing

SCAFFOLD = Scaffold(eta_l=0.1, K=3)
FEDAVG = FedAvg(eta_l=0.1, K=2)


def through(federation, change):
    """Return a transport that gives each reply to `change`; what becomes None is lost."""

    def ask(requests, timeout):
        for name, reply in federation.ask(requests, timeout):
            other = change(name, reply)
            if other is not None:
                yield name, other

    return ask


def saying(reply, **claims):
    return Message(reply.header | claims, reply.arrays)


def registered(monkeypatch, cls):
    kind = registry.Kind(cls.__name__.lower(), cls, cls.__name__, "#000", cls.__name__)
    monkeypatch.setitem(registry._own, kind.name, kind)
    return cls()


# -- what there is to begin with


def test_an_experiment_needs_a_site(tmp_path, refused):
    with refused("distinct names, at least one"):
        Coordinator(tmp_path, SCAFFOLD, [], x=torch.zeros(2), R=3)


def test_experiments_and_attempts_have_names_that_nobody_guesses(make):
    first, second = make(R=1), make(R=1)
    first.run()
    second.run()
    names = {made.server.standing.experiment for made in (first, second)}
    tags = {Inquiry(lambda requests, timeout: iter(()), 1.0).tag for _ in range(2)}
    assert all(re.fullmatch("[0-9a-f]{16}", name) for name in names)
    assert all(re.fullmatch("[0-9a-f]{12}", tag) for tag in tags)
    assert len(names) == len(tags) == 2


@pytest.mark.parametrize(
    ("rule", "samples", "warned"),
    [
        ("samples", {"a": 6, "b": 4}, ["a"]),
        ("samples", {"a": 5, "b": 5}, []),
        ("samples", {"a": 4, "b": 3, "c": 3}, []),
        ("samples", {"a": 6}, []),  # whose updates should decide?
        ("uniform", {"a": 6, "b": 4}, []),
    ],
)
def test_who_has_more_than_half_of_the_weight_is_logged(caplog, monkeypatch, rule, samples, warned):
    members = tuple(Member(name, index, 1.0) for index, name in enumerate(samples))
    first = Standing("e", FEDAVG, 0, rule, FEDAVG.init_server(torch.zeros(2)), members)
    monkeypatch.setattr(logging.getLogger("trimtab"), "propagate", True)
    standing = enrolled(first, {name: Hello(n, 1, torch.float64) for name, n in samples.items()})
    told = [line for line in caplog.messages if "of the weight" in line]
    assert [line.split()[1] for line in told] == warned
    assert all(" has 60 % of the weight" in line for line in told)
    weights = samples if rule == "samples" else dict.fromkeys(samples, 1.0)
    assert {m.name: m.weight for m in standing.members} == weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_where_sites_are_divided_on_their_dtype_the_servers_own_decides(make, dtype):
    federation = make(FEDAVG, quadratic(2), R=1, x=torch.zeros(2, dtype=dtype))
    federation.sites["site1"].problem = quadratic(2, dtype=torch.float32)
    federation.sites["site1"]._dtype = torch.float32
    (done,) = federation.run()
    assert done.cohort == (("site1",) if dtype == torch.float32 else ("site0",))
    assert done.x.dtype == dtype


# -- replies


def test_nothing_is_waited_for_when_all_have_answered(make):
    federation = make(R=2)

    def ask(requests, timeout):
        yield from federation.ask(requests, timeout)
        pytest.fail("the server waits for more than all replies")

    assert len(federation.run(ask)) == 2


def test_who_does_not_answer_was_silent_or_is_not_connected(make, monkeypatch):
    federation = make(R=2, round_timeout=60.0)
    without = through(federation, lambda name, reply: reply if name != "site1" else None)
    done = next(federation.server.run(without))
    assert done.absent == {"site1": "it is not connected, or its reply was lost"}
    now = [100.0]
    monkeypatch.setattr(requests_module, "monotonic", lambda: now[0])

    def slow(requests, timeout):
        yield from without(requests, timeout)
        now[0] += timeout

    done = next(federation.server.run(slow))
    assert done.absent == {"site1": "no answer within 60 s"}


def test_what_a_site_says_of_itself_is_cut_at_400_letters(make):
    federation = make(R=2)
    failing = {"status": "failed", "why": "no " * 300}
    lie = through(federation, lambda name, r: saying(r, **failing) if name == "site1" else r)
    (done, *_) = (next(federation.server.run(lie)),)
    assert done.absent["site1"] == ("no " * 300)[:400] + " …"


# -- uploads


@pytest.mark.parametrize(
    ("x", "norm", "taken"),
    [(0.0, 9.0, True), (0.0, 15.0, False), (5.0, 45.0, True), (5.0, 60.0, False)],
)
def test_an_upload_is_absurd_beyond_the_limit_times_x_or_one(make, x, norm, taken):
    start = torch.tensor([x, 0.0]).double()
    federation = make(FEDAVG, quadratic(2), R=1, x=start, norm_limit=10.0)
    loud = {"0": torch.tensor([norm, 0.0]).double()}

    def louder(name, reply):
        return Message(reply.header, loud if name == "site1" and reply.arrays else reply.arrays)

    (done,) = federation.run(through(federation, louder))
    assert ("site1" in done.cohort) is taken


@pytest.mark.parametrize(("silent", "ends"), [(2, False), (1, True)])
def test_a_run_diverges_if_most_of_all_sites_do(make, silent, ends):
    federation, asked = make(problem=quadratic(4), R=1), []
    quiet = [f"site{i}" for i in range(silent)]
    nan = torch.full((2,), torch.nan).double()

    def ask(requests, timeout):
        asked.append(len(requests))
        for name, reply in federation.ask(requests, timeout):
            if reply["kind"] != "work" or len(asked) > 4:
                yield name, reply
            elif name not in quiet:
                yield name, Message(reply.header, reply.arrays | {"0": nan})

    if ends:
        with pytest.raises(Diverged, match="round 1"):
            federation.run(ask)
    else:
        assert [done.r for done in federation.run(ask)] == [1]


def test_a_run_does_not_diverge_while_one_site_is_sound(make):
    federation, asked = make(problem=quadratic(4), R=1, min_sites=2), []
    nan = torch.full((2,), torch.nan).double()

    def ask(requests, timeout):
        asked.append(len(requests))
        for name, reply in federation.ask(requests, timeout):
            wrong = reply["kind"] == "work" and name != "site0" and len(asked) <= 4
            yield name, Message(reply.header, reply.arrays | {"0": nan}) if wrong else reply

    (done,) = federation.run(ask)
    assert len(done.cohort) == 4


# -- rounds of several exchanges, and what comes with them


def test_what_sites_took_and_sent_is_added_over_the_exchanges(make, twice):  # noqa: F811
    federation = make(twice, R=1)

    def timed(name, reply):
        first = "metrics" in reply.header
        return saying(reply, seconds=1.0 if first else 2.0) if reply["kind"] == "work" else reply

    (done,) = federation.run(through(federation, timed))
    vector = 2 * 8
    assert {site.seconds for site in done.sites.values()} == {3.0}
    assert {site.bytes_up for site in done.sites.values()} == {2 * vector}
    assert done.bytes_up == 3 * 2 * vector
    assert done.bytes_down == 3 * (1 + 2) * vector


def test_a_round_takes_as_long_as_it_takes(make, monkeypatch):
    federation, times = make(FEDAVG, R=1), iter([10.0, 12.5])
    monkeypatch.setattr(coordinator, "perf_counter", lambda: next(times))
    assert next(federation.server.run(federation.ask)).seconds == 2.5


def test_x_is_sent_once_and_beside_a_broadcast_that_has_it_in_parts(make):
    for algorithm, where in ((SCAFFOLD, "0"), (RichardsonRomberg(FEDAVG), "x")):
        federation, requests = make(algorithm, R=3), []

        def noting(sent, timeout, federation=federation, requests=requests):
            requests.extend(request for request in sent.values() if request["kind"] == "work")
            return federation.ask(sent, timeout)

        rounds = federation.run(noting)
        assert {request["x"] for request in requests} == {where}
        assert {len(request.arrays) for request in requests} == {2 if where == "0" else 3}
        problem = federation.problem
        for before, done in pairwise(rounds):
            losses = [problem.evaluate(before.x, client=i)["loss"] for i in range(3)]
            assert done.metrics["loss"] == pytest.approx(sum(losses) / 3, rel=5e-3)


@dataclass(frozen=True, kw_only=True)
class Noisy:
    """Clients that send random numbers, in two exchanges."""

    def init_server(self, x):
        return Server(x, torch.zeros_like(x))

    def init_client(self, x):
        return ()

    def local(self, g, state, x):
        return (g.normal(x),), ()

    def round(self, server, clients):
        (first,) = clients.run(self.local, server.x).mean()
        (second,) = clients.run(self.local, server.x).mean()
        return server._replace(x=server.x + first, c=second)


def test_the_random_numbers_of_clients_are_the_simulators_in_every_exchange(make, monkeypatch):
    noisy = registered(monkeypatch, Noisy)
    federation = make(noisy, R=3)
    sim = simulate(noisy, federation.problem, seed=3, executor="loop")
    for done in federation.run():
        expected = next(sim)
        assert torch.equal(done.server.c, expected.server.c)
        assert not torch.equal(done.server.c, done.x)


def test_an_algorithm_with_stages_goes_as_in_the_simulator(make):
    staged = Through(SCAFFOLD, (Rounding(0.01),))
    federation = make(staged, R=3)
    sim = simulate(staged, federation.problem, seed=3, executor="loop")
    for done in federation.run():
        assert torch.equal(done.x, next(sim).x)
    assert federation.server.audit(federation.ask).ok


@dataclass(frozen=True, kw_only=True)
class Moody(Twice):
    """An algorithm whose rounds depend on what no rehearsal shows."""

    def round(self, server, clients):
        wanted = self.first if server.x.numel() < 4 else self.other
        clients.run(wanted, server.x)
        return server

    def other(self, g, n_i, x):
        return (g(x),), n_i


@dataclass(frozen=True, kw_only=True)
class Longer(Twice):
    """An algorithm with more exchanges for a longer x."""

    def round(self, server, clients):
        for _ in range(server.x.numel()):
            clients.run(self.first, server.x)
        return server


@dataclass(frozen=True, kw_only=True)
class Deeper(Twice):
    """An algorithm whose state has more dimensions for a longer x."""

    def init_client(self, x):
        return x.new_zeros([1] * x.numel())


def test_a_round_that_is_not_as_it_was_rehearsed_is_noticed(make, monkeypatch):
    with pytest.raises(AssertionError, match="as it was rehearsed"):
        make(registered(monkeypatch, Moody), quadratic(d=5), R=1).run()
    for cls in (Longer, Deeper):
        with pytest.raises(ValueError, match="zip"):
            plan(cls(), 5, torch.float64)


# -- waiting, and writing


@pytest.fixture
def slept(monkeypatch):
    """Return how long the server has slept, without doing so."""
    pauses = []
    for module in (coordinator, controls):
        monkeypatch.setattr(module, "sleep", pauses.append)
    return pauses


def test_the_server_pauses_before_it_repeats_a_round_and_only_then(make, slept):
    for few in range(3):  # the replies to the first, second and third request are lost
        federation, asked = make(R=2, min_sites=2, pause=7.0), []
        slept.clear()

        def ask(requests, timeout, federation=federation, asked=asked, few=few):
            asked.append(len(requests))
            return federation.ask(requests, timeout) if len(asked) != few + 1 else iter(())

        assert len(federation.run(ask)) == 2
        assert slept == [7.0]
    assert len(asked) == 5  # hello, two rounds, one of them twice, and the end


def test_the_server_pauses_at_the_end_too_and_not_when_the_target_is_met(make, slept):
    federation, asked = make(R=2, min_sites=2, pause=7.0), []

    def ask(requests, timeout):
        asked.append(len(requests))
        return federation.ask(requests, timeout) if len(asked) != 4 else iter(())

    federation.run(ask)
    assert slept == [7.0]
    slept.clear()
    federation = make(R=9, pause=7.0, target=1e9)
    assert federation.run() == []
    assert federation.server.outcome.reached
    assert slept == []


def test_the_server_pauses_when_its_disk_is_full(make, slept, monkeypatch):
    federation = make(R=1, pause=7.0)
    usual, failed = federation.server._ledger.commit, []

    def full(standing, kind, **facts):
        if not failed:
            failed.append(kind)
            raise CannotWrite("the disk is full")
        usual(standing, kind, **facts)

    monkeypatch.setattr(federation.server._ledger, "commit", full)
    federation.run()
    assert (failed, slept) == (["begin"], [7.0])


def test_a_target_that_only_the_last_x_meets_is_reached(make):
    long = make(FEDAVG, quadratic(2), R=30)
    losses = [done.metrics["loss"] for done in long.run()]
    best = min(range(30), key=losses.__getitem__)
    between = (losses[best] + min(losses[:best])) / 2
    short = make(FEDAVG, quadratic(2), R=best, target=between)
    assert len(short.run()) == best
    assert short.server.outcome.reached


def test_the_log_of_a_whole_run_misses_nobody(make, caplog):
    make(R=1).run()
    assert not [line for line in caplog.messages if "without some sites" in line]


@pytest.mark.parametrize(
    ("kinds", "forgetful"),
    [
        (["restart"] * 4 + ["round"] * 16, {"a"}),
        (["restart", "restore"] * 2 + ["round"] * 16, {"a"}),
        (["restart"] * 3 + ["round"] * 17, set()),
        (["restart"] * 4 + ["round"] * 17, set()),  # one of them was 21 commits ago
        (["round"] * 20, set()),
    ],
)
def test_who_lost_its_state_four_times_in_twenty_commits_sits_out(make, kinds, forgetful):
    server = make().server
    sites = {"restart": {"sites": ["a"]}, "restore": {"sites": ["a"]}}
    server._ledger.lines = [{"kind": kind} | sites.get(kind, {}) for kind in kinds]
    assert server._not_helped() == forgetful


# -- metrics


def report(tested=10, **metrics):
    return SiteReport(metrics, tested, 0, 0)


def test_accuracy_is_the_goal_if_most_sites_have_one():
    has, lacks = report(accuracy=0.9, loss=1.0), report(loss=1.0)
    for having, lacking, name in ((2, 1, "accuracy"), (2, 2, "loss"), (1, 2, "loss")):
        sites = dict(enumerate([has] * having + [lacks] * lacking))
        assert goal_for(sites, 0.5, None).name == name


def test_who_tests_on_nothing_says_nothing(caplog):
    assert mean_metrics([report(0, loss=1.0)]) == {}
    assert mean_metrics([report(0, loss=1.0), report(5, loss=3.0), report(7)]) == {"loss": 3.0}
    good = {"a": report(accuracy=0.9), "b": report(0, accuracy=0.9), "c": report(0, accuracy=0.9)}
    assert is_reached(good, 0.8, None)
    assert "met by the numbers of a alone" in caplog.text


def test_the_defaults_of_an_experiment_are_those_that_the_documentation_says():
    parameters = inspect.signature(Coordinator).parameters
    wanted = {"seed": 0, "min_sites": 1, "round_timeout": 3600.0, "norm_limit": 1e6, "pause": 5.0}
    assert {name: parameters[name].default for name in wanted} == wanted


def test_bounds_that_take_long_to_reach_are_those_that_their_comments_say():
    assert controls._ABSURD == 1e6
    assert (coordinator._LATELY, coordinator._OFTEN) == (20, 4)


def test_who_is_turned_away_is_told_unless_it_need_not_be():
    assert inspect.signature(Inquiry.turn_away).parameters["tell"].default is True
