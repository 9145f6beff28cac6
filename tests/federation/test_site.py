"""A site, one request at a time: what it answers, keeps and refuses, and what its words are."""

import re
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers.federation_in_process import Federation, quadratic, unsynced  # noqa: F401
from tests.helpers.two_exchanges import Server, twice  # noqa: F401
from trimtab import Diverged, FedAvg, RichardsonRomberg, Scaffold, Supervised
from trimtab.algorithms import registry
from trimtab.federation.message import Message, ReplyStatus
from trimtab.federation.protocol import answers
from trimtab.federation.protocol import site as site_module
from trimtab.federation.protocol.site import Site
from trimtab.federation.storage.journal import read_chain
from trimtab.federation.storage.policy import parse_policy
from trimtab.problems import paths

SCAFFOLD = Scaffold(eta_l=0.1, K=3)


@pytest.fixture
def begun(tmp_path):
    """Start a federation, run some rounds, and return it with the requests to its first site."""
    made = []

    def begun(algorithm=SCAFFOLD, rounds=1, **options):
        federation = Federation(tmp_path / str(len(made)), algorithm, quadratic(), **options)
        made.append(federation)
        requests = []

        def noting(sent, timeout):
            requests.extend(sent[name] for name in ("site0",) if name in sent)
            return federation.ask(sent, timeout)

        going = federation.server.run(noting)
        for _ in range(rounds):
            next(going)
        return federation, requests

    yield begun
    for federation in made:
        federation.close()


def later(request, arrays=None, **header):
    """Return a request that was made after this one, in the next branch."""
    facts = {"branch": request["branch"] + 1, "tag": "abc"} | header
    return Message(request.header | facts, request.arrays if arrays is None else arrays)


def broken(problem, error):
    """Return a problem whose gradients cannot be computed."""

    class Broken:
        def __getattr__(self, name):
            return getattr(problem, name)

        def oracle(self, i, seed, r):
            raise error

    return Broken()


# -- what is asked


@pytest.mark.parametrize(
    "change",
    [
        {"kind": 3},
        {"kind": ["work"]},
        {"experiment": 3},
        {"tag": None},
        {"accepted": ["start"]},
        {"accepted": ""},
        {"branch": -1},
        {"commit": 1.0},
        {"keep": 101},
        {"digest": "0"},
        {"head": None},
        {"index": -1},
        {"index": True},
        {"index": 3},  # N, one too many
        {"exchange": -1},
        {"exchange": True},
        {"r": -1},
        {"seed": "0"},
        {"seed": -(1 << 64) - 1},
    ],
    ids=repr,
)
def test_a_request_of_the_wrong_kind_is_refused_and_no_failure(begun, change):
    federation, requests = begun()
    reply = federation.sites["site0"].answer(later(requests[-1], **change))
    assert reply["status"] == ReplyStatus.REFUSED


@pytest.mark.parametrize(
    "change",
    [{"index": 2}, {"seed": -5}, {"seed": 1 << 64}, {"seed": -(1 << 64)}, {"r": 1 << 53}],
    ids=repr,
)
def test_a_request_at_the_end_of_a_range_is_served(begun, change):
    federation, requests = begun(FedAvg(eta_l=0.1, K=2))
    assert federation.sites["site0"].answer(later(requests[-1], **change))["status"] == "done"


def test_arrays_from_the_server_are_checked_and_the_words_say_which(begun):
    federation, requests = begun()
    work, site = requests[-1], federation.sites["site0"]
    long, bad = torch.ones(3).double(), torch.tensor([1.0, torch.nan]).double()

    def why(request):
        reply = site.answer(request)
        assert reply["status"] != ReplyStatus.DONE
        return reply["status"], reply["why"]

    for kind, name, words in (
        ("work", "1", "the server's broadcast"),
        ("evaluate", "0", "the server's x"),
        ("restore", "0", "the server's state"),
    ):
        arrays = dict(work.arrays) if kind == "work" else {"0": work.arrays["0"]}
        said = f"{words}: array {name} has shape (3,), but (2,) is expected."
        assert why(later(work, arrays | {name: long}, kind=kind)) == ("refused", said)
        said = f"{words}: array {name} holds NaN or infinity."
        assert why(later(work, arrays | {name: bad}, kind=kind)) == ("diverged", said)


def test_an_x_that_comes_beside_its_broadcast_is_checked_too(begun):
    federation, requests = begun(RichardsonRomberg(FedAvg(eta_l=0.1, K=2)), rounds=2)
    work, site = requests[-1], federation.sites["site0"]
    assert work["x"] == "x"  # the broadcast has other vectors than x
    assert site.answer(later(work))["status"] == "done"
    reply = site.answer(later(work, work.arrays | {"x": torch.ones(3).double()}))
    assert "the server's x: array 0 has shape (3,), but (2,) is expected." in reply["why"]
    arrays = {name: array for name, array in work.arrays.items() if name != "x"}
    assert site.answer(later(work, arrays))["why"] == "a request came without x."


# -- each exchange is answered once


def lines(federation, name="site0"):
    """Return what a site's chain says."""
    return [entry.line for entry in read_chain(federation.folder / name / "sent.jsonl")]


def test_the_same_request_gets_the_stored_reply_and_another_none(begun):
    federation, requests = begun(rounds=2)
    site, work = federation.sites["site0"], requests[-1]
    usual, site.problem = site.problem, broken(site.problem, AssertionError("computed again"))
    again = site.answer(Message(work.header | {"tag": "abc"}, work.arrays))
    accepted = federation.server.standing.member("site0").accepted
    assert (again["status"], again["tag"]) == ("done", "abc")
    assert (again["state"], again["digest"]) == (accepted.tag, accepted.digest)
    site.problem = usual
    moved = {name: array + 1e-12 for name, array in work.arrays.items()}
    for changed in (
        Message(work.header, moved),
        Message(work.header | {"seed": 4}, work.arrays),
        Message(work.header | {"index": 1}, work.arrays),
    ):
        reply = site.answer(changed)
        assert reply["status"] == "refused"
        assert reply["why"] == "it has answered round 2 of branch 1 to another broadcast."
        assert not reply.arrays
    assert [line["r"] for line in lines(federation) if line["kind"] == "work"] == [1, 2]


@pytest.mark.parametrize("restarted", [False, True])
def test_rounds_and_branches_only_rise(begun, restarted):
    federation, requests = begun(rounds=3)
    first, last = (r for r in requests if r["kind"] == "work" and r["r"] in (1, 3))
    if restarted:
        federation.restart_site("site0")
    site = federation.sites["site0"]
    assert site.answer(first)["why"] == "it has answered round 3 of branch 1."
    assert site.answer(later(last))["status"] == "done"
    reply = site.answer(Message(last.header | {"r": 4}, last.arrays))
    assert (reply["status"], reply["why"]) == ("refused", "it is at branch 2; branch 1 is over.")
    assert reply["seen"] == [2, last["commit"], last["head"]]


def test_a_stored_reply_that_is_lost_is_computed_again_to_the_same_bits(begun):
    federation, requests = begun()
    site, work = federation.sites["site0"], requests[-1]
    before = site.answer(work)
    for path in (site.folder / work["experiment"] / "replies").iterdir():
        path.write_bytes(path.read_bytes()[:-3])
    after = site.answer(Message(work.header | {"tag": "abc"}, work.arrays))
    assert after["status"] == "done"
    assert all(torch.equal(after.arrays[name], x) for name, x in before.arrays.items())


def test_the_state_between_two_exchanges_is_durable(begun, twice):  # noqa: F811
    federation, requests = begun(twice, rounds=2)
    first, second = requests[-2:]
    accepted = federation.server.standing.member("site0").accepted
    again = {"accepted": accepted.tag, "digest": accepted.digest, "tag": "abc", "branch": 2}
    assert federation.sites["site0"].answer(Message(first.header | again, first.arrays))
    federation.restart_site("site0")
    reply = federation.sites["site0"].answer(Message(second.header | again, second.arrays))
    assert reply["status"] == "done"
    assert float(reply.arrays["0"][0]) == 5  # exchanges so far, two rounds of two, and one
    other = Message(second.header | again | {"r": 9}, second.arrays)
    assert "the exchange before" in federation.sites["site0"].answer(other)["why"]


def test_a_site_with_the_record_of_another_experiment_answers_as_before(begun):
    federation, requests = begun(FedAvg(eta_l=0.1, K=2))
    site, work = federation.sites["site0"], requests[-1]
    assert site.answer(Message(work.header | {"experiment": "other"}, work.arrays))["seen"] == [
        *(1, work["commit"], work["head"])
    ]
    assert [line["experiment"] for line in lines(federation) if line["kind"] == "branch"] == [
        *(work["experiment"], "other")
    ]


def test_branches_and_metrics_are_counted_over_all_experiments(begun):
    federation, requests = begun(FedAvg(eta_l=0.1, K=2))
    site, work = federation.sites["site0"], requests[-1]
    text = "branches = 4\nmetrics = 3\nbatch = [2, 9]"
    site.close()
    policy = parse_policy(text, "p")
    site = federation.sites["site0"] = Site(site.folder, "site0", federation.problem, policy)
    facts = {"problem": "p", "sites": {}}
    statuses = []
    for name in ("a", "b", "c", "a", "d", "e"):
        branch = len(statuses) + 1
        asked = work.header | facts | {"experiment": name, "branch": branch}
        statuses.append(site.answer(Message(asked, work.arrays)))
    assert [reply["status"] for reply in statuses] == ["done"] * 4 + ["refused"] * 2
    assert ["metrics" in reply.header for reply in statuses[:4]] == [True] * 3 + [False]
    assert statuses[-1]["why"] == (
        "policy.toml, line 1: branches = 4; 4 are spent for this problem file."
    )
    other = parse_policy(text, "another")
    site.close()
    site = federation.sites["site0"] = Site(site.folder, "site0", federation.problem, other)
    asked = work.header | {"problem": "another", "experiment": "e", "sites": {}}
    assert site.answer(Message(asked, work.arrays))["status"] == "done"


@pytest.mark.parametrize(
    ("text", "measured"),
    [
        ("metrics = 3", [True, True, True, False, False]),
        ("metrics_per_experiment = 2", [True, True, False, True, True]),
        ("metrics_per_day = 1", [True, False, False, False, True]),
    ],
)
def test_metrics_are_counted_in_all_in_an_experiment_and_in_a_day(
    begun, text, measured, monkeypatch
):
    federation, requests = begun(FedAvg(eta_l=0.1, K=2))
    old, work = federation.sites["site0"], requests[-1]
    old.close()
    policy = parse_policy(f"{text}\nbatch = [2, 9]", "p")
    found = []
    for name, r, day in [("a", 1, 1), ("a", 2, 1), ("a", 3, 1), ("b", 1, 1), ("b", 2, 2)]:
        monkeypatch.setattr(answers, "_now", lambda day=day: f"2026-01-0{day}T12:00:00Z")
        site = Site(old.folder, "site0", federation.problem, policy)  # the counts are durable
        facts = {"problem": "p", "sites": {}, "experiment": name, "branch": 1, "r": r}
        reply = site.answer(Message(work.header | facts, work.arrays))
        site.close()
        assert reply["status"] == "done"
        found.append("metrics" in reply.header)
    assert found == measured


def test_the_last_model_is_measured_once_in_a_branch(begun):
    federation, requests = begun(FedAvg(eta_l=0.1, K=2), rounds=2, R=2)
    site, work = federation.sites["site0"], requests[-1]
    x = work.arrays["0"]
    ask = Message(work.header | {"kind": "evaluate"}, {"0": x})
    first = site.answer(ask)
    assert first["metrics"].keys() == {"loss"}
    assert site.answer(ask)["metrics"] == first["metrics"]
    reply = site.answer(Message(ask.header, {"0": x + 1}))
    assert reply["why"] == "it has answered the last model of branch 1 to another broadcast."
    assert site.answer(later(ask, {"0": x + 1}))["status"] == "done"
    assert sum("metrics" in line for line in lines(federation)) == 4


def test_metrics_leave_with_three_digits(begun):
    federation, requests = begun(FedAvg(eta_l=0.1, K=2))
    (work,) = (request for request in requests if request["kind"] == "work")
    exact = federation.problem.evaluate(work.arrays["0"] + 1, client=0)["loss"]
    ask = later(work, {"0": work.arrays["0"] + 1}, kind="evaluate")
    loss = federation.sites["site0"].answer(ask)["metrics"]["loss"]
    assert loss == float(f"{exact:.3g}")
    assert loss != exact


def test_draws_come_from_the_sites_secret(begun):
    federation, requests = begun(FedAvg(eta_l=0.1, K=2))
    (work,) = (request for request in requests if request["kind"] == "work")

    def update(place, secret, **header):
        site = Site(federation.folder / place, "site0", federation.problem, secret=secret)
        reply = site.answer(Message(work.header | header, work.arrays))
        site.close()
        return reply.arrays["0"]

    one = update("one", b"one")
    assert torch.equal(one, update("again", b"one"))
    assert torch.equal(one, update("seeded", b"one", seed=8))  # the server's seed changes nothing
    assert not torch.equal(one, update("two", b"two"))
    assert not torch.equal(one, update("branch", b"one", branch=2))
    assert not torch.equal(one, update("other", b"one", experiment="other"))
    assert not torch.equal(update("plain", None), update("plain seeded", None, seed=8))


# -- what is computed


@dataclass(frozen=True, kw_only=True)
class Forgetting:
    """An algorithm whose uploads are sound, and whose state is not."""

    def init_server(self, x):
        return Server(x, torch.zeros_like(x))

    def init_client(self, x):
        return torch.zeros_like(x)

    def local(self, g, c_i, x):
        return (g(x) * 0,), c_i / g(x) / 0

    def round(self, server, clients):
        (dx,) = clients.run(self.local, server.x).mean()
        return server._replace(x=server.x + dx)


def test_a_state_that_is_not_finite_is_neither_kept_nor_counted(begun, monkeypatch):
    kind = registry.Kind("forgetting", Forgetting, "Forgetting", "#000", "Forgetting")
    monkeypatch.setitem(registry._own, "forgetting", kind)
    with pytest.raises(Diverged, match="Forgetting"):  # as all sites say
        begun(Forgetting())


def test_a_site_says_itself_that_it_diverges(begun):
    federation, requests = begun()
    site = federation.sites["site0"]
    problem = site.problem

    class Diverging:
        def __getattr__(self, name):
            return getattr(problem, name)

        def oracle(self, i, seed, r):
            return lambda y, k=None: y / 0

    site.problem = Diverging()
    accepted = federation.server.standing.member("site0").accepted
    facts = {"accepted": accepted.tag, "digest": accepted.digest}
    reply = site.answer(later(requests[-1], **facts))
    assert reply["status"] == ReplyStatus.DIVERGED
    assert reply["why"] == "its upload: array 0 holds NaN or infinity."


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("boom of patient 7"), "RuntimeError"),
        (KeyError("patient 7"), "KeyError"),
        (MemoryError(), "MemoryError"),
    ],
    ids=repr,
)
def test_what_goes_wrong_leaves_as_a_class_and_a_number(begun, error, words, caplog):
    federation, requests = begun(FedAvg(eta_l=0.1, K=2))
    site = federation.sites["site0"]
    site.problem = broken(site.problem, error)
    reply = site.answer(later(requests[-1]))
    assert reply["status"] == ReplyStatus.FAILED
    number = re.fullmatch(rf"{words}; the site's log has it as error (\d+)\.", reply["why"])[1]
    assert "patient" not in str(reply.header)
    assert f"site site0 cannot answer; error {number}" in caplog.text
    assert str(error) in caplog.text
    told = site.answer(later(requests[-1], refused="its loss is 'low'"))
    assert told["why"].startswith(words)  # its own trouble comes first


def test_a_reply_says_how_long_the_work_and_the_measuring_took(begun, monkeypatch):
    federation, requests = begun(FedAvg(eta_l=0.1, K=2))
    times = iter([10.0, 11.0, 13.5])
    monkeypatch.setattr(site_module, "perf_counter", lambda: next(times))
    reply = federation.sites["site0"].answer(later(requests[-1]))
    assert (reply["seconds_measuring"], reply["seconds"]) == (1.0, 2.5)
    assert reply["metrics"].keys() == {"loss"}
    assert (reply["kind"], reply["tag"], reply["site"]) == ("work", "abc", "site0")


def test_a_problem_without_samples_counts_as_one(begun):
    federation, requests = begun(FedAvg(eta_l=0.1, K=2))
    reply = federation.sites["site0"].answer(later(requests[-1], kind="hello"))
    assert (reply["n"], reply["tested"], reply["d"]) == (1, 1, 2)


def test_a_small_model_has_one_thread_and_a_large_one_all(tmp_path, monkeypatch):
    seen = []

    class Watched(Supervised):
        def oracle(self, i, seed, r):
            seen.append(torch.get_num_threads())
            return super().oracle(i, seed, r)

    X, y = torch.randn(8, 2), torch.arange(8) % 2
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1))  # which has no kernel
    problem = Watched(module, F.cross_entropy, [(X, y)] * 2, test=(X, y))
    federation = Federation(tmp_path, FedAvg(eta_l=0.1, K=1), problem, R=1)
    requests = []

    def noting(sent, timeout):
        requests.extend(request for request in sent.values() if request["kind"] == "work")
        return federation.ask(sent, timeout)

    federation.run(noting)
    seen.clear()
    torch.set_num_threads(2)
    try:
        federation.sites["site1"].answer(later(requests[-1]))
        monkeypatch.setattr(paths, "WORTH_A_THREAD", 1)
        monkeypatch.setattr(paths, "KEEPS_CORES_BUSY", 1)
        federation.sites["site1"].answer(later(requests[-1], branch=3))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
        federation.close()
    assert seen == [1, 2]
