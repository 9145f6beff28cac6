"""A site's policy: what is outside of it is refused with its line, before anything is computed."""

import resource
import signal
import time
from dataclasses import replace
from datetime import datetime

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from tests.helpers.federation_in_process import Federation, quadratic, unsynced  # noqa: F401
from trimtab import (
    Decay,
    Epochs,
    FedAvg,
    Rounding,
    Scaffnew,
    Scaffold,
    Scheduled,
    Supervised,
    Through,
)
from trimtab.federation.message import Message, ReplyStatus
from trimtab.federation.protocol import policy as checks
from trimtab.federation.protocol import site as site_module
from trimtab.federation.protocol.attempt import Terms
from trimtab.federation.protocol.policy import (
    OutsidePolicy,
    check_algorithm,
    check_request,
    limit_memory,
)
from trimtab.federation.protocol.site import Site
from trimtab.federation.storage.policy import (
    FEWEST,
    Policy,
    approve_digest,
    check_algorithms,
    default_policy,
    parse_policy,
    read_policy,
)

SCAFFOLD = Scaffold(eta_l=0.1, K=3)
NOON = datetime(2026, 5, 4, 12, 0)
KEYS = {"site0": "SHA256:00", "site1": "SHA256:11", "site2": "SHA256:22"}


def policy(text=""):
    return parse_policy(f"# ours\n{text}", problem="abc")


class Governed(Federation):
    """A federation whose sites have policies, and whose server says its terms."""

    policies: dict = {}  # noqa: RUF012

    def __init__(self, folder, policies, algorithm=SCAFFOLD, problem=None, **options):
        self.policies = policies
        problem = quadratic() if problem is None else problem
        options = {"R": 3, "terms": lambda: Terms("abc", KEYS)} | options
        super().__init__(folder, algorithm, problem, **options)

    def site(self, name):
        return Site(self.folder / name, name, self.problem, self.policies.get(name, policy()))


# -- the file


def test_the_default_is_shown_line_by_line_and_read_as_it_is_written():
    made = parse_policy(default_policy(), problem="abc")
    assert made.problem == "abc"
    assert made.lines["problem"] == "approved.sha256: abc"
    assert made.algorithms is None
    assert made.batch[0] >= FEWEST
    assert made.lines["K"] == "policy.toml, line 6: K = [1, 10000]"
    assert made.lines["sites"].endswith(": [sites]")
    assert all(made.is_open_at(minute) for minute in range(24 * 60))
    assert "says nothing of it, so K = [1, 10000]" in parse_policy("").lines["K"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("K = [0, 5]", ("line 2: K = [0, 5]", "from 1 on")),
        ("K = [5, 2]", ("line 2: K = [5, 2]",)),
        ("K = [1.5, 2]", ("line 2",)),
        ("K = [true, 2]", ("line 2",)),
        ("K = 5", ("[least, most]",)),
        ("batch = [1, 9]", ("line 2: batch = [1, 9]", "the update of one sample is that sample")),
        ('hours = "25:00-26:00"', ("HH:MM-HH:MM",)),
        ('hours = "08:00-08:00"', ("HH:MM-HH:MM",)),
        ('hours = "08:61-09:00"', ("HH:MM-HH:MM",)),
        ("seconds = 0", ("line 2: seconds = 0",)),
        ("seconds = inf", ("line 2",)),
        ('memory = "much"', ("GB",)),
        ("algorithms = []", ('"any"',)),
        ("algorithms = [1]", ('"any"',)),
        ('[sites]\noslo = "12"', ("fingerprint",)),
        ("metrics = -1", ("line 2: metrics = -1", "a whole number, from 0 on")),
        ("branches = 1.5", ("line 2",)),
        ("frobnicate = 1", ("'frobnicate'", "it may have algorithms, K")),
        ('problem = "12"', ("line 2: problem = ", "approved.sha256 now; remove this line")),
        ("K = [1,", ("policy.toml cannot be read", "fix it")),
    ],
)
def test_a_policy_that_cannot_be_is_one_sentence(text, words, refused):
    with refused(*words):
        policy(text)


def test_hours_may_go_over_midnight():
    night = policy('hours = "20:30-06:00"')
    assert [night.is_open_at(60 * h + 30) for h in (19, 20, 23, 0, 5, 6, 12)] == [
        *(False, True, True, True, True, False, False)
    ]


def test_programs_write_the_default_and_never_change_a_policy(tmp_path):
    (tmp_path / "policy.toml").touch(0o600)
    (tmp_path / "policy.toml").write_text("K = [2, 20]  # ours\n")
    for digest in ("a" * 64, "b" * 64):
        approve_digest(tmp_path, digest)
        assert (read_policy(tmp_path).problem, read_policy(tmp_path).K) == (digest, (2, 20))
    assert (tmp_path / "policy.toml").read_text() == "K = [2, 20]  # ours\n"
    (tmp_path / "policy.toml").unlink()
    assert read_policy(tmp_path).K == (1, 10000)
    assert (tmp_path / "policy.toml").read_text() == default_policy()


def test_a_policy_that_others_may_read_or_change_is_not_used(tmp_path, refused):
    read_policy(tmp_path)
    for mode in (0o640, 0o604, 0o620, 0o610):
        (tmp_path / "policy.toml").chmod(mode)
        with refused("policy.toml can be read or changed by other users", f"mode {mode:04o}"):
            read_policy(tmp_path)


def test_an_algorithm_that_does_not_exist_is_named(monkeypatch, refused):
    check_algorithms(policy())
    check_algorithms(policy('algorithms = ["fedavg", "Scaffold"]'))
    with refused("line 2: algorithms", "'scafold' is not an algorithm (did you mean scaffold?)"):
        check_algorithms(policy('algorithms = ["fedavg", "scafold"]'))
    monkeypatch.setattr("trimtab.algorithms.registry._own", {"scafold": None})
    check_algorithms(policy('algorithms = ["scafold"]'))  # the problem file registers it


# -- requests


def asked(**header):
    return Message({"site": "site0", "problem": "abc", "sites": KEYS} | header)


@pytest.mark.parametrize(
    ("text", "header", "words"),
    [
        ("", {"problem": "other"}, "approved.sha256: abc; the server's problem file is 'other'"),
        ("", {"problem": None}, "the server's problem file is None"),
        ('[sites]\nsite1 = "SHA256:11"', {}, "line 2: [sites]; 'site2' takes part with key"),
        ('[sites]\nsite1 = "SHA256:11"', {"sites": None}, "does not say which sites take part"),
        ('[sites]\nsite1 = "SHA256:12"\nsite2 = "SHA256:22"', {}, "'site1' takes part with key"),
        ('hours = "20:00-06:00"', {}, 'line 2: hours = "20:00-06:00"; it is 12:00'),
    ],
)
def test_a_request_outside_the_policy_is_refused_with_its_line(text, header, words):
    with pytest.raises(OutsidePolicy) as error:
        check_request(policy(text), asked(**header), NOON)
    assert words in str(error.value)
    assert str(error.value).startswith(("policy.toml", "approved.sha256"))


@pytest.mark.parametrize(
    ("clock", "served"), [("08:29", False), ("08:30", True), ("09:09", True), ("09:10", False)]
)
def test_the_hours_are_kept_to_the_minute(clock, served):
    now = datetime.strptime(f"2026-05-04 {clock}", "%Y-%m-%d %H:%M")
    hours = policy('hours = "08:30-09:10"')
    if served:
        check_request(hours, asked(), now)
    else:
        with pytest.raises(OutsidePolicy, match=f"it is {clock}"):
            check_request(hours, asked(), now)


@pytest.mark.parametrize(("batch", "served"), [(1, False), (2, True), (100, True), (101, False)])
def test_batches_are_kept_to_the_sample(batch, served):
    limits = policy("batch = [2, 100]")
    if served:
        checks.check_round(limits, 1, batch)
    else:
        with pytest.raises(OutsidePolicy, match=f"a mini-batch has {batch} samples"):
            checks.check_round(limits, 1, batch)


def test_a_request_within_the_policy_is_not_refused():
    others = '[sites]\nsite1 = "SHA256:11"\nsite2 = "SHA256:22"'
    check_request(policy(others), asked(), NOON)
    check_request(policy(), asked(sites="whatever"), NOON)


def test_algorithms_are_named_whatever_they_are_wrapped_in():
    only = policy('algorithms = ["FedAvg"]')
    wrapped = Through(FedAvg(eta_l=0.1, K=5), (Rounding(0.1),))
    check_algorithm(only, wrapped, int)
    with pytest.raises(OutsidePolicy, match=r'algorithms = \["FedAvg"\]; .* asks for scaffold'):
        check_algorithm(only, Through(SCAFFOLD, (Rounding(0.1),)), int)


def test_steps_are_counted_also_as_epochs_and_as_one_where_there_is_no_K():
    with pytest.raises(OutsidePolicy, match=r"K = \[2, 50\]; the server asks for 60 local steps"):
        check_algorithm(policy("K = [2, 50]"), FedAvg(eta_l=1, K=Epochs(3)), lambda K: K.steps(20))
    with pytest.raises(OutsidePolicy, match="asks for 1 local steps"):
        check_algorithm(policy("K = [2, 50]"), Scaffnew(eta_l=0.1, p=0.5), int)


Range = st.tuples(st.integers(1, 60), st.integers(1, 60)).map(sorted)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(K=st.integers(1, 60), allowed=Range, r=st.integers(1, 60), rounds=Range)
def test_a_site_works_exactly_within_its_ranges(K, allowed, r, rounds):
    limits = policy(f"K = {allowed}\nrounds = {rounds}")
    inside = allowed[0] <= K <= allowed[1] and rounds[0] <= r <= rounds[1]
    try:
        checks.check_round(limits, r, None)
        check_algorithm(limits, FedAvg(eta_l=0.1, K=K), int)
    except OutsidePolicy as error:
        assert not inside
        assert "policy.toml, line" in str(error)  # noqa: PT017
    else:
        assert inside


# -- the site


def test_a_site_refuses_and_both_logs_have_the_line(tmp_path, caplog):
    made = Governed(tmp_path, {"site1": policy("K = [1, 2]")})
    rounds = made.run()
    line = "policy.toml, line 2: K = [1, 2]; the server asks for 3 local steps"
    assert [done.cohort for done in rounds] == [("site0", "site2")] * 3
    assert all(line in done.absent["site1"] for done in rounds)
    assert f"site site1: {line}." in caplog.messages  # the site's own
    assert f"site site1 sits out: {line}" in caplog.messages  # the server's
    assert not (tmp_path / "site1" / made.server.standing.experiment).exists()
    made.close()


def test_nothing_is_computed_for_a_request_that_is_refused(tmp_path, monkeypatch):
    """A billion steps would take days already in the rehearsal of a round."""
    huge = Scaffold(eta_l=0.1, K=10**9)
    made = Governed(tmp_path, {}, algorithm=SCAFFOLD)
    requests = {}

    def noting(sent, timeout):
        requests.update({r["kind"]: r for r in sent.values() if r["site"] == "site0"})
        return made.ask(sent, timeout)

    made.run(noting)
    monkeypatch.setattr("trimtab.federation.protocol.site.plan", lambda *_: pytest.fail("planned"))
    from trimtab.algorithms.registry import encode

    for kind in ("hello", "work", "evaluate"):
        header = requests[kind].header | {"algorithm": encode(huge)}
        reply = made.sites["site0"].answer(Message(header, requests[kind].arrays))
        assert reply["status"] == ReplyStatus.REFUSED
        assert "K = [1, 10000]; the server asks for 1000000000 local steps" in reply["why"]
    made.close()


def test_steps_that_come_in_an_array_are_counted_too(tmp_path):
    made = Governed(tmp_path, {"site1": policy("K = [1, 2]")}, Scaffnew(eta_l=0.1, p=0.05), R=4)
    out = [done for done in made.run() if "site1" not in done.cohort]
    assert out
    assert all("policy.toml, line 2: K = [1, 2]" in done.absent["site1"] for done in out)
    made.close()


def test_small_batches_are_refused_for_they_show_their_samples(tmp_path):
    X, y = torch.randn(12, 3, dtype=torch.float64), torch.arange(12) % 2
    problem = Supervised(lambda: nn.Linear(3, 2).double(), F.cross_entropy, [(X, y)] * 3, batch=1)
    policies = {"site1": policy("batch = [2, 100]")}
    made = Governed(tmp_path, policies, FedAvg(eta_l=0.1, K=1), problem)
    made.sites["site0"].policy = made.sites["site2"].policy = None
    (*_, last) = made.run()
    assert (
        "policy.toml, line 2: batch = [2, 100]; a mini-batch has 1 samples"
        in (last.absent["site1"])
    )
    made.close()
    default = policy()
    assert default.batch[0] > 1


def test_a_server_without_terms_is_not_served_by_a_site_with_a_policy(tmp_path):
    made = Governed(tmp_path, {"site0": None, "site2": None}, terms=None, R=1)
    (done,) = made.run()
    assert "the server's problem file is None" in done.absent["site1"]
    assert done.cohort == ("site0", "site2")
    made.close()


def test_work_that_takes_too_long_is_given_up_and_the_site_stays(tmp_path):
    made = Governed(tmp_path, {"site1": policy("seconds = 2")})
    slow = made.sites["site1"]
    real = slow.problem.oracle

    class Slow:
        def __getattr__(self, name):
            return getattr(made.problem, name)

        def oracle(self, i, seed, r):
            g = real(i, seed, r)
            return lambda y, k=None: (time.sleep(2.5 if r == 2 and not k else 0.0), g(y, k))[1]

    slow.problem = Slow()
    cohorts = [done.cohort for done in made.run()]
    assert [len(cohort) for cohort in cohorts] == [3, 2, 3]
    assert made.server.audit(made.ask).ok
    made.close()


def test_no_alarm_goes_off_after_the_work():
    before = signal.getsignal(signal.SIGALRM)
    with checks.in_time(policy("seconds = 600")):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
        assert signal.getsignal(signal.SIGALRM) is not before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to …"),
            "policy.toml, line 2: memory = 1; it was not enough",
        ),
        (MemoryError(), "policy.toml, line 2: memory = 1; it was not enough"),
        (RuntimeError("boom"), "RuntimeError; the site's log has it as error 7"),
    ],
    ids=repr,
)
def test_memory_that_is_not_enough_is_a_refusal(tmp_path, monkeypatch, error, words):
    monkeypatch.setattr(site_module, "randbelow", lambda most: 7)
    made = Governed(tmp_path, {"site1": policy("memory = 1")})

    class Hungry:
        def __getattr__(self, name):
            return getattr(made.problem, name)

        def oracle(self, i, seed, r):
            raise error

    made.sites["site1"].problem = Hungry()
    (*_, last) = made.run()
    assert last.absent["site1"] == words
    made.close()


def test_a_hello_is_held_to_the_first_round_that_the_policy_allows(tmp_path):
    """Steps that fall from round to round are enough at first, and too few in the last."""
    falling = Scheduled(FedAvg(eta_l=0.1, K=8), K=Decay(0.5))
    limits = policy("K = [4, 8]\nrounds = [1, 50]")
    made, statuses = Governed(tmp_path, {"site1": limits}, falling), []

    def noting(requests, timeout):
        for name, reply in made.ask(requests, timeout):
            if (name, reply["kind"]) == ("site1", "hello"):
                statuses.append(reply["status"])
            yield name, reply

    assert [len(done.cohort) for done in made.run(noting)] == [3, 3, 2]
    assert statuses == [ReplyStatus.DONE]
    made.close()


@pytest.mark.parametrize(
    ("memory", "hard", "asked"),
    [
        (1.0, resource.RLIM_INFINITY, [(1 << 30, resource.RLIM_INFINITY)]),
        (1.0, 2 << 30, [(1 << 30, 2 << 30)]),
        (2.0, 2 << 30, []),  # the system allows no more anyway
        (3.0, 2 << 30, []),
        (0.0, resource.RLIM_INFINITY, []),  # as much as there is
    ],
)
def test_a_process_may_have_as_much_memory_as_the_policy_says(monkeypatch, memory, hard, asked):
    limits = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (hard, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limit: limits.append((which, limit)))
    limit_memory(replace(policy(), memory=memory))
    assert limits == [(resource.RLIMIT_DATA, limit) for limit in asked]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=80) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(header=st.dictionaries(st.sampled_from(("problem", "sites", "refused", "r")), JSON))
def test_whatever_a_request_claims_the_policy_answers(tmp_path_factory, header):
    pinned = policy('[sites]\nsite1 = "SHA256:11"\nsite2 = "SHA256:22"')
    made = Governed(tmp_path_factory.mktemp("asked"), {"site0": pinned}, R=1)
    requests = {}

    def noting(sent, timeout):
        requests.update({r["kind"]: r for r in sent.values() if r["site"] == "site0"})
        return made.ask(sent, timeout)

    (done,) = made.run(noting)
    assert "site0" in done.cohort
    honest = requests["work"]
    reply = made.sites["site0"].answer(Message(honest.header | header, honest.arrays))
    assert reply["status"] in set(ReplyStatus)
    if {"problem", "sites"} & header.keys():
        assert reply["status"] == ReplyStatus.REFUSED
    assert str(reply.header.get("why", "")).isprintable()
    made.close()


def test_a_reply_that_was_not_taken_is_told_to_its_site(tmp_path, caplog):
    made = Governed(tmp_path, {}, R=3)

    def spoiling(requests, timeout):
        for name, reply in made.ask(requests, timeout):
            wrong = name == "site1" and reply["kind"] == "work" and requests[name]["r"] == 1
            yield name, Message(reply.header | ({"tested": -1} if wrong else {}), reply.arrays)

    made.run(spoiling)
    told = "site site1: the server did not take the reply before: its tested is -1, outside 0"
    assert sum(told in message for message in caplog.messages) == 1
    made.close()


def test_a_policy_is_a_value():
    assert isinstance(policy(), Policy)
    assert replace(policy(), memory=2.0).bytes == 2 << 30
