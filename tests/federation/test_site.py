"""A site, one request at a time: what it answers, keeps and refuses, and what its words are."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers.federation_in_process import Federation, quadratic, unsynced  # noqa: F401
from tests.helpers.two_exchanges import Server, twice  # noqa: F401
from trimtab import Diverged, FedAvg, RichardsonRomberg, Scaffold, Supervised
from trimtab.algorithms import registry
from trimtab.commit import START
from trimtab.federation.message import Message, ReplyStatus
from trimtab.federation.protocol import site as site_module
from trimtab.federation.protocol.site import Site
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
    """Return a request that was made after this one."""
    facts = {"clock": request["clock"] + 10, "tag": "abc"} | header
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
        {"clock": -1},
        {"clock": 1.0},
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
        said = f"ValueError: {words}: array {name} has shape (3,), but (2,) is expected."
        assert why(later(work, arrays | {name: long}, kind=kind)) == ("failed", said)
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


# -- what is older than what is kept


def test_a_request_that_comes_twice_is_stale_the_second_time(begun):
    federation, requests = begun()
    reply = federation.sites["site0"].answer(requests[-1])
    assert (reply["status"], reply["seen"]) == (ReplyStatus.STALE, requests[-1]["clock"])
    assert "older than the state here" in reply["why"]


def test_the_last_exchange_that_comes_twice_is_stale_too(begun, twice):  # noqa: F811
    """It was refused, as if the site had been started anew, and then it sat out."""
    federation, requests = begun(twice)
    assert [request["exchange"] for request in requests[-2:]] == [0, 1]
    assert federation.sites["site0"].answer(requests[-1])["status"] == ReplyStatus.STALE


def test_an_exchange_that_is_late_does_not_go_upon_a_state_that_was_restored_since(
    begun,
    twice,  # noqa: F811
):
    federation, requests = begun(twice)
    first, second = requests[-2:]
    site, accepted = federation.sites["site0"], federation.server.standing.member("site0").accepted
    again = {"accepted": accepted, "tag": "abc", "clock": second["clock"] + 10}
    assert site.answer(Message(first.header | again, first.arrays))["status"] == "done"
    state = {"0": torch.full((2,), 7.0).double()}
    restore = {"kind": "restore", "tag": "def", "clock": second["clock"] + 20}
    assert site.answer(Message(first.header | restore, state))["status"] == "done"
    assert site.answer(Message(second.header | again, second.arrays))["status"] == "stale"
    shown = site.answer(later(second, {}, kind="control", accepted="def"))
    assert torch.equal(shown.arrays["0"], state["0"])


def test_a_state_that_comes_late_is_not_restored(begun):
    federation, requests = begun()
    site, work = federation.sites["site0"], requests[-1]
    state = {"0": torch.full((2,), 7.0).double()}
    late = Message(work.header | {"kind": "restore", "tag": "abc"}, state)
    assert site.answer(late)["status"] == ReplyStatus.STALE
    show = {"kind": "control", "accepted": "abc"}
    assert site.answer(Message(work.header | show))["status"] == ReplyStatus.MISMATCH
    assert site.answer(later(late, state))["status"] == ReplyStatus.DONE
    assert torch.equal(site.answer(Message(work.header | show)).arrays["0"], state["0"])


def test_a_site_that_keeps_nothing_serves_the_first_number_of_a_clock(begun):
    federation, requests = begun()
    (work,) = (request for request in requests if request["kind"] == "work")
    assert work["accepted"] == START
    other = Site(federation.folder / "anew", "site0", federation.problem)
    for clock, status in ((0, "stale"), (1, "done")):
        assert (
            other.answer(Message(work.header | {"clock": clock}, work.arrays))["status"] == status
        )
    other.close()


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
    reply = site.answer(later(requests[-1], accepted=accepted))
    assert reply["status"] == ReplyStatus.DIVERGED
    assert reply["why"] == "its upload: array 0 holds NaN or infinity."


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("boom.\nmore of it"), "RuntimeError: boom."),
        (RuntimeError("boom"), "RuntimeError: boom."),
        (MemoryError(), "MemoryError: ."),
    ],
    ids=repr,
)
def test_what_goes_wrong_is_a_reply_with_its_first_line(begun, error, words, caplog):
    federation, requests = begun(FedAvg(eta_l=0.1, K=2))
    site = federation.sites["site0"]
    site.problem = broken(site.problem, error)
    reply = site.answer(later(requests[-1]))
    assert (reply["status"], reply["why"]) == (ReplyStatus.FAILED, words)
    assert f"site site0: {words}" in caplog.messages
    told = site.answer(later(requests[-1], refused="its loss is 'low'"))
    assert told["why"] == words  # its own trouble comes first


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
    problem = Watched(module, F.cross_entropy, [(X, y)] * 2)
    federation = Federation(tmp_path, FedAvg(eta_l=0.1, K=1), problem, R=1)
    requests = []

    def noting(sent, timeout):
        requests.extend(request for request in sent.values() if request["kind"] == "work")
        return federation.ask(sent, timeout)

    federation.run(noting)
    seen.clear()
    torch.set_num_threads(2)
    try:
        federation.sites["site1"].answer(requests[-1])
        monkeypatch.setattr(paths, "WORTH_A_THREAD", 1)
        monkeypatch.setattr(paths, "KEEPS_CORES_BUSY", 1)
        federation.sites["site1"].answer(requests[-1])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
        federation.close()
    assert seen == [1, 2]
