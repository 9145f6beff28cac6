"""The server believes nobody: what a site says is data with a type, a range and a length."""

import json
import logging

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.federation_in_process import Federation, quadratic, unsynced  # noqa: F401
from trimtab import FedNova, Scaffold
from trimtab.commit import Accepted
from trimtab.federation.events import SiteReport
from trimtab.federation.log import Lines, printable
from trimtab.federation.message import Message, ReplyStatus, decode, encode
from trimtab.federation.protocol.checks import (
    NotBelieved,
    Report,
    is_reached,
    outliers,
    read_report,
    shown,
)
from trimtab.problems.metrics import ACCURACY, BUILTIN_METRICS, LOSS, ranges_of

SCAFFOLD = Scaffold(eta_l=0.1, K=3)
RANGES = ranges_of({}, None) | {"loss": LOSS}


@pytest.fixture
def federation(tmp_path):
    made = Federation(tmp_path, SCAFFOLD, quadratic(N=4), R=3, ranges=RANGES)
    yield made
    made.close()


def saying(federation, name, kinds=("work", "evaluate"), **claims):
    """Return a transport on which one site's replies of some kinds say this."""

    def ask(requests, timeout):
        for sender, reply in federation.ask(requests, timeout):
            lies = claims if sender == name and reply["kind"] in kinds else {}
            yield sender, Message(reply.header | lies, reply.arrays)

    return ask


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"tested": 10**400}, "its tested is a number of more than 60 digits"),
        ({"tested": -1}, "its tested is -1, outside 0"),
        ({"tested": True}, "its tested is True, which is no whole number"),
        ({"tested": "10"}, "its tested is '10', which is no whole number"),
        ({"n": 1 << 60}, "its n is"),
        ({"seconds": 1e300}, "its seconds is 1e+300, outside"),
        ({"seconds": None}, "its seconds is None, which is no number"),
        ({"dtype": ["float64"]}, "its dtype is ['float64'], which is no name"),
        ({"dtype": "float\n64"}, "which is no name"),
        ({"metrics": [1.0]}, "its metrics are [1.0], which is no table of numbers"),
        ({"metrics": {"loss": "low"}}, "its loss is 'low', which is no number"),
        ({"metrics": {"loss": 10**400}}, "its loss is a number of more than 60 digits"),
        ({"metrics": {"accuracy": 1.5}}, "its accuracy is 1.5, outside"),
        ({"metrics": {"auc": -0.5}}, "its auc is -0.5, outside"),
        ({"metrics": {"a" * 65: 1.0}}, "which is no name"),
        ({"metrics": {"a\x1b[31m": 1.0}}, "which is no name"),
        ({"metrics": {str(i): 1.0 for i in range(65)}}, "it has 65 metrics, more than 64"),
    ],
)
def test_what_cannot_be_is_not_believed_and_the_site_sits_out(federation, claims, words):
    with pytest.raises(NotBelieved) as error:
        read_report(Message(claims), RANGES)
    assert words in str(error.value)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 200
    first = next(federation.server.run(saying(federation, "site2", **claims)))
    assert "site2" not in first.cohort
    assert words in first.absent["site2"]


def test_what_can_be_is_believed():
    header = {"tested": 5, "n": 7, "d": 3, "dtype": "float64", "seconds": 0.5, "start": True}
    header |= {"metrics": {"loss": 2, "accuracy": 1.0 + 1e-9, "undefined": None}}
    report = read_report(Message(header), RANGES)
    assert (report.tested, report.n, report.d, report.dtype) == (5, 7, 3, "float64")
    assert report.metrics == {"loss": 2.0, "accuracy": 1.0 + 1e-9}
    assert report.start


def test_a_function_of_the_users_ends_where_it_likes():
    assert ranges_of({}, None)["accuracy"] is ACCURACY
    assert "accuracy" not in ranges_of({"accuracy": lambda outputs, targets: 95.0}, None)
    assert ranges_of({"auc": BUILTIN_METRICS["auc"].function}, LOSS)["auc"].high == 1.0


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**30, max_value=10**320)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=80), inner),
    max_leaves=8,
)
NAMES = ("status", "site", "tag", "base", "why", "seen", "metrics", "tested", "seconds", "start")
NAMES += ("protocol", "trimtab", "n", "d", "dtype", "kind", "experiment", "exchange")
NAMES += ("state", "digest")
QUIET = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@QUIET
@given(header=st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=9), JSON, max_size=6))
def test_whatever_a_site_says_it_takes_part_or_sits_out(tmp_path_factory, header):
    folder = tmp_path_factory.mktemp("said")
    federation = Federation(folder, SCAFFOLD, quadratic(N=4), R=1, ranges=RANGES)
    try:
        (done,) = federation.run(saying(federation, "site1", **header))
        assert set(done.cohort) >= {"site0", "site2", "site3"}
        why = done.absent.get("site1", "")
        assert why.isprintable()
        assert len(why) < 500
        assert torch.isfinite(done.x).all()
        json.dumps(federation.server.journal, allow_nan=False)
        assert federation.server.standing.branch < 10**6
    finally:
        federation.close()


REQUEST = (
    "kind",
    "tag",
    "branch",
    "commit",
    "head",
    "keep",
    "digest",
    "experiment",
    "algorithm",
    "exchange",
    "r",
    "seed",
    "x",
    "site",
)
REQUEST += ("index", "accepted", "protocol", "trimtab")


@QUIET
@given(header=st.dictionaries(st.sampled_from(REQUEST), JSON, min_size=1, max_size=4))
def test_whatever_a_request_says_a_site_answers(tmp_path_factory, header):
    federation = Federation(tmp_path_factory.mktemp("asked"), SCAFFOLD, quadratic(), R=1)
    try:
        requests = {}

        def noting(sent, timeout):
            requests.update({r["kind"]: r for r in sent.values()})
            return federation.ask(sent, timeout)

        federation.run(noting)
        for honest in requests.values():
            site = federation.sites[honest["site"]]
            reply = site.answer(Message(honest.header | header, honest.arrays))
            assert reply["status"] in set(ReplyStatus)
            assert len(str(reply.header.get("why", ""))) < 2000
    finally:
        federation.close()


def test_a_site_that_tests_on_more_than_it_enrolled_with_sits_out(federation, caplog):
    next(federation.server.run(federation.ask))
    assert federation.server.standing.member("site1").tested == 1
    second = next(federation.server.run(saying(federation, "site1", tested=2)))
    assert "it tests on 2 samples, but enrolled with 1" in second.absent["site1"]


def test_no_single_site_declares_victory(federation, caplog):
    federation.restart_server(target=-1e6, metric=LOSS)
    lie = {"metrics": {"loss": -1e99}}
    rounds = list(federation.server.run(saying(federation, "site3", **lie)))
    assert len(rounds) == 3
    assert not federation.server.outcome.reached
    assert "would be met by the numbers of site3 alone" in caplog.text


def test_with_few_witnesses_the_log_says_whose_numbers_decide(caplog):
    good, silent = SiteReport({"accuracy": 0.9}, 10, 0, 0), SiteReport({}, 10, 0, 0)
    with caplog.at_level(logging.WARNING):
        assert is_reached({"a": good, "b": good, "c": silent}, 0.8, None)
    assert "met by the numbers of a and b alone" in caplog.text
    caplog.clear()
    assert is_reached({"a": good, "b": good, "c": good}, 0.8, None)
    assert not caplog.text
    bad = SiteReport({"accuracy": 0.2}, 1, 0, 0)
    assert not is_reached({"a": good, "b": bad, "c": bad}, 0.8, None)
    assert not is_reached({"a": good, "b": bad, "c": bad}, None, None)


def test_updates_out_of_all_proportion_are_not_taken(federation, caplog):
    next(federation.server.run(federation.ask))

    def louder(factor):
        def ask(requests, timeout):
            for name, reply in federation.ask(requests, timeout):
                loud = factor if name == "site0" and reply["kind"] == "work" else 1.0
                yield name, Message(reply.header, {k: loud * v for k, v in reply.arrays.items()})

        return ask

    with caplog.at_level(logging.WARNING):
        second = next(federation.server.run(louder(1e4)))
    assert "site0" not in second.cohort
    assert "times that of most sites" in second.absent["site0"]
    assert "site0" not in second.sites
    third = next(federation.server.run(federation.ask))
    assert len(third.cohort) == 4
    audit = federation.server.audit(federation.ask)
    assert audit.deviation <= 1e-12 * max(1.0, audit.largest)


def test_arrays_are_compared_by_their_names(tmp_path):
    algorithm = FedNova(eta_l=0.05, K=300)  # its uploads hold a number far above the vectors' norms
    made = Federation(tmp_path, algorithm, quadratic(N=3), R=3, ranges=RANGES)

    def shuffled(requests, timeout):
        for j, (name, reply) in enumerate(made.ask(requests, timeout)):
            order = sorted(reply.arrays, reverse=bool(j % 2))
            yield name, Message(reply.header, {key: reply.arrays[key] for key in order})

    assert [len(done.cohort) for done in made.run(shuffled)] == [3, 3, 3]
    made.close()


def norms(**each):
    return {name: {"0": norm} for name, norm in each.items()}


@pytest.mark.parametrize(
    ("own", "before", "refused"),
    [
        (9.9, 0.1, False),
        (10.1, 0.1, True),  # above 10 x the median
        (19.0, 2.0, False),
        (21.0, 2.0, True),  # above 10 x the site's own last norm
        (29.9, 100.0, False),
        (30.1, 100.0, True),  # above 30 x the median, whatever the site sent before
    ],
)
def test_an_update_is_compared_with_the_median_and_the_sites_own_last_one(own, before, refused):
    found = outliers(norms(a=1.0, b=1.0, c=own), 1.0, {"c": {"0": before}}, {"0": 1e9})
    assert set(found) == ({"c"} if refused else set())


def test_rounding_is_no_outlier_and_a_newcomer_is_compared_with_first_updates():
    assert outliers(norms(a=1e-12, b=1e-13, c=1e-9), 1.0, {}) == {}
    moving = norms(a=1e-12, b=1e-13, c=0.05)
    known = {"c": {"0": 1e-3}}
    assert set(outliers(moving, 1.0, known)) == {"c"}  # also one that was away
    assert set(outliers(moving, 1.0, known, {"0": 0.01})) == {"c"}
    assert outliers(moving, 1.0, {}, {"0": 0.01}) == {}
    assert set(outliers(moving, 1.0, {}, {"0": 0.004})) == {"c"}
    assert outliers(norms(a=1.0, b=1e9), 1.0, {}) == {}  # two cannot be told apart


def test_a_place_in_the_journal_that_a_site_invents_costs_one_branch(federation):
    lie = {"seen": [7, 9, "0" * 64]}
    lying = saying(federation, "site1", **lie)
    rounds = list(federation.server.run(lying))
    assert [len(done.cohort) for done in rounds] == [4, 4, 4]
    gaps = [line for line in federation.server.journal if line["kind"] == "gap"]
    assert [(line["branch"], line["sites"]) for line in gaps] == [(8, {"site1": lie["seen"]})]
    assert federation.server.standing.branch == 8


@pytest.mark.parametrize("place", [[1 << 53, 9, "0" * 64], [100_002, 9, "0" * 64]])
def test_a_branch_that_is_absurdly_far_ahead_is_not_believed(federation, place):
    next(federation.server.run(saying(federation, "site1", seen=place)))
    assert federation.server.standing.branch == 1


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (3, "it was told 3 of the journal, which cannot be"),
        ([1, 2], "it was told [1, 2] of the journal"),
        ([-1, 2, "0" * 64], "its place in the journal is -1, outside 0"),
        ([1, 2, "x"], "its line of the journal is 'x', which is no digest"),
    ],
)
def test_a_place_in_the_journal_that_is_none_makes_its_site_sit_out(federation, place, words):
    first = next(federation.server.run(saying(federation, "site1", seen=place)))
    assert words in first.absent["site1"]


def test_a_line_of_the_log_is_one_line():
    lines = []
    handler = Lines(lines.append)
    text = "a\n2026-01-01T00:00:00Z site b has left.\x1b[2K" + "x" * 5000
    handler.emit(logging.LogRecord("a", logging.INFO, "", 0, "%s", (text,), None))
    assert len(lines) == 1
    assert lines[0].isprintable()
    assert len(lines[0]) < 2100
    assert printable("schön …") == "schön …"
    assert shown("\x00") == "'\\x00'"


# -- one site among several: nothing that it says decides for all


def test_a_header_that_is_too_deep_to_be_shown_is_no_message(federation):
    """Python reads JSON of 950 levels, and cannot show it: that ended the run."""
    deep = []
    for _ in range(300):  # What a test can write depends on how deep its own stack is.
        deep = [deep]
    for name in ("status", "why", "trimtab", "protocol", "tested"):
        with pytest.raises(ValueError, match="levels deep"):
            decode(encode(Message({name: deep})))
    assert decode(encode(Message({"metrics": {"a": [[1]]}}))).header


def test_a_metric_that_nobody_else_has_is_no_victory(federation, caplog):
    federation.restart_server(target=-1e9)  # of the loss: out of reach
    lie = {"metrics": {"accuracy": 1.0, "loss": 1.0}}
    assert len(list(federation.server.run(saying(federation, "site3", **lie)))) == 3
    assert not federation.server.outcome.reached


def test_a_site_that_is_alone_in_a_round_does_not_end_the_run():
    lone = {"a": SiteReport({"loss": -1e9}, 10, 0, 0)}
    assert is_reached(lone, 0.1, LOSS, witnesses=2)
    assert not is_reached(lone, 0.1, LOSS, witnesses=3)  # the others test, but are away
    silent = SiteReport({}, 10, 0, 0)
    assert not is_reached(lone | {"b": silent, "c": silent}, 0.1, LOSS, witnesses=3)


def test_a_site_that_says_it_diverged_does_not_end_the_run_while_others_are_away(federation):
    asked = []

    def ask(requests, timeout):
        asked.append(len(requests))
        for name, reply in federation.ask(requests, timeout):
            if reply["kind"] == "work" and len(asked) < 5:
                if name == "site2":
                    yield name, Message(reply.header | {"status": "diverged", "why": "NaN"})
            else:
                yield name, reply

    assert [done.r for done in federation.server.run(ask)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("claims", "arrays"),
    [({"start": True}, {}), ({}, {"0": torch.full((2,), 1e9, dtype=torch.float64)})],
    ids=["start", "absurd"],
)
def test_a_control_that_cannot_be_the_accepted_one_is_not_added(federation, claims, arrays):
    next(federation.server.run(federation.ask))

    def ask(requests, timeout):
        for name, reply in federation.ask(requests, timeout):
            lie = name == "site1" and reply["kind"] == "control"
            yield name, Message(reply.header | claims, arrays) if lie else reply

    audit = federation.server.audit(ask)
    assert not audit.ok
    assert set(audit.missing) == {"site1"}
    federation.server.leave(ask, "site1")
    assert federation.server.audit(federation.ask).ok


def test_a_site_that_loses_its_state_all_the_time_is_not_served_for_ever(tmp_path):
    made = Federation(tmp_path, SCAFFOLD, quadratic(N=3), R=12, on_lost_state="restart")
    lie = {"status": "mismatch", "why": "gone"}
    rounds = list(made.server.run(saying(made, "site1", kinds=("work",), **lie)))
    assert len(rounds) == 12
    assert made.server.standing.epoch == 0  # it never had a state that could be gone
    assert "the server counts on none" in rounds[-1].absent["site1"]
    made.close()


def test_who_forgets_now_and_then_is_helped_and_who_always_does_is_not(tmp_path):
    made = Federation(tmp_path, SCAFFOLD, quadratic(N=3), R=40, on_lost_state="restart")

    def ask(requests, timeout):
        for name, reply in made.ask(requests, timeout):
            old = requests[name]["accepted"] != "start"
            lie = name == "site1" and reply["kind"] == "work" and old
            yield name, Message({**reply.header, "status": "mismatch"}) if lie else reply

    rounds = list(made.server.run(ask))
    assert len(rounds) == 40
    assert 4 <= made.server.standing.epoch <= 12
    made.close()


@pytest.mark.parametrize(
    ("name", "most"), [("tested", 1 << 48), ("n", 1 << 48), ("d", 1 << 48), ("seconds", 1e8)]
)
def test_a_claim_is_believed_up_to_its_bound(name, most):
    assert getattr(read_report(Message({name: most})), name) == most
    for value in (most + 1, -0.5 if name == "seconds" else -1):
        with pytest.raises(NotBelieved, match=f"its {name} is .*, outside 0 … "):
            read_report(Message({name: value}))


def test_what_a_reply_does_not_say_is_nothing():
    assert read_report(Message({})) == Report({}, {}, 0, 0, 0, "", 0.0, False, Accepted())


def test_names_are_believed_up_to_64_letters_and_64_of_them():
    long, many = {"a" * 64: 1.0}, {str(i): 1.0 for i in range(64)}
    assert read_report(Message({"metrics": long})).metrics == long
    assert read_report(Message({"metrics": many})).metrics == many


def test_what_is_shown_has_at_most_40_letters_and_60_digits():
    assert shown("x" * 38) == f"'{'x' * 38}'"
    assert shown("x" * 39) == f"'{'x' * 39} …"
    for way in (1, -1):
        assert shown(way * (10**60 - 1)) == f"{'-' * (way < 0)}{'9' * (40 - (way < 0))} …"
        assert shown(way * 10**60) == "a number of more than 60 digits"


@pytest.mark.parametrize("way", [1, -1])
def test_a_metric_may_be_beyond_its_range_by_rounding_alone(way):
    end = 1.0 if way > 0 else 0.0
    near, beyond = end + way * 0.9e-6, end + way * 1.5e-6
    ranges = {"accuracy": ACCURACY}
    assert read_report(Message({"metrics": {"accuracy": near}}), ranges).metrics["accuracy"] == near
    with pytest.raises(NotBelieved, match="outside 0 … 1"):
        read_report(Message({"metrics": {"accuracy": beyond}}), ranges)
