"""Poison, rollback and backups: one site cannot ruin a run, nor an operator rewrite one unseen."""

import shutil

import pytest
import torch

from tests.helpers.federation_in_process import Federation, quadratic, unsynced  # noqa: F401
from tests.helpers.two_exchanges import twice  # noqa: F401
from trimtab import FedAvg, Mime, Momentum, Scaffold, simulate
from trimtab._files import Lock
from trimtab.federation.message import Message
from trimtab.federation.protocol.controls import restart_controls, roll_back
from trimtab.federation.storage.journal import read_chain, rounds_of

SCAFFOLD = Scaffold(eta_l=0.1, K=3)


def advance(federation, count, ask=None):
    rounds = federation.server.run(ask or federation.ask)
    return [next(rounds) for _ in range(count)]


def poisoned(federation, name, factor):
    """Return a transport on which a site multiplies its updates."""

    def ask(requests, timeout):
        for sender, reply in federation.ask(requests, timeout):
            loud = factor if sender == name and reply["kind"] == "work" else 1.0
            yield sender, Message(reply.header, {k: loud * v for k, v in reply.arrays.items()})

    return ask


def kinds(federation):
    return [line["kind"] for line in federation.server.journal]


# -- poison


def test_a_poisoner_is_refused_sits_out_and_is_readmitted(make, caplog):
    federation = make(problem=quadratic(5), R=12, min_sites=3)
    advance(federation, 1)
    ask = poisoned(federation, "site4", 50.0)
    asked = []

    def noting(requests, timeout):
        asked.append("site4" in requests)
        return ask(requests, timeout)

    rounds = advance(federation, 5, noting)
    assert all("site4" not in done.cohort for done in rounds)
    assert asked == [True] * 3 + [False] * 2
    assert "times that of most sites" in rounds[2].absent["site4"]
    assert (
        "site site4 sits out from now on: its updates were refused in 3 rounds in a row"
        in caplog.text
    )
    federation.restart_server()
    assert federation.server.standing.member("site4").suspended
    assert federation.server.standing.summary.suspended == ("site4",)
    federation.server.readmit("site4")
    (done,) = advance(federation, 1)
    assert "site4" in done.cohort
    assert federation.server.standing.member("site4").refused == 0
    federation.run()
    assert federation.server.audit(federation.ask).ok
    *_, last = simulate(
        SCAFFOLD, federation.problem, seed=3, cohorts=federation.cohorts(), executor="loop"
    )
    assert torch.equal(last.x, federation.server.standing.server.x)


def test_a_poisoner_cannot_work_its_way_up(make):
    """Each update is 9 times the one before: the rule on its own last norm would let it pass."""
    federation = make(problem=quadratic(5), R=9, min_sites=3)
    advance(federation, 1)
    loud = []
    for n in range(1, 5):
        (done,) = advance(federation, 1, poisoned(federation, "site4", 9.0**n))
        loud.append("site4" in done.cohort)
    assert loud[0]
    assert not any(loud[2:])


def test_a_refused_update_that_leaves_too_few_repeats_the_round_without_it(make, caplog):
    federation = make(problem=quadratic(4), R=3, min_sites=3)
    advance(federation, 1)
    poison, attempts = poisoned(federation, "site3", 1e3), []

    def ask(requests, timeout):
        attempts.append(sorted(requests))
        there = dict(requests)
        if len(attempts) == 1:
            there.pop("site0")
        return poison(there, timeout)

    (done,) = advance(federation, 1, ask)
    assert attempts == [federation.names, federation.names[:3]]
    assert done.cohort == ("site0", "site1", "site2")
    assert (
        "without site3, whose update was refused: let it leave, or lower min_sites" in caplog.text
    )


def test_the_leaver_takes_its_poison_with_it(make):
    """Its c_i was 8 times too large, which the rule on updates lets pass."""
    federation = make(problem=quadratic(4), R=6)
    advance(federation, 2, poisoned(federation, "site3", 8.0))
    advance(federation, 1)
    federation.server.leave(federation.ask, "site3")
    assert federation.server.audit(federation.ask).ok
    own = [federation.control(name) for name in federation.names[:3]]
    torch.testing.assert_close(federation.server.standing.server.c, sum(own) / 3)


# -- rollback


@pytest.mark.parametrize("algorithm", [SCAFFOLD, FedAvg(eta_l=0.1, K=2)], ids=repr)
def test_a_rollback_goes_on_from_the_round_as_if_the_later_ones_had_not_been(make, algorithm):
    federation = make(algorithm, R=8)
    advance(federation, 6)
    after = federation.server.standing
    federation.server.close()
    folder = federation.folder / "server"
    new = roll_back(folder, 3, keep=10)
    assert (new.r, new.branch, new.commit) == (3, 2, after.commit + 1)
    federation.server = federation.start()
    federation.run()
    assert [line["r"] for line in rounds_of(federation.server.journal)] == list(range(1, 9))
    assert len(read_chain(folder / "journal.jsonl")) == 1 + 6 + 1 + 5 + 1  # the chain is not cut
    assert "restore" not in kinds(federation)
    *_, last = simulate(algorithm, federation.problem, seed=3, cohorts=[[0, 1, 2]] * 8)
    assert torch.equal(last.x, federation.server.standing.server.x)
    if algorithm is SCAFFOLD:
        assert federation.server.audit(federation.ask).ok


def test_a_rollback_beyond_what_is_kept_is_refused(make, refused):
    federation = make(R=8, keep=3)
    advance(federation, 6)
    folder = federation.folder / "server"
    with refused("in use by another process"):
        Lock(folder)
    federation.server.close()
    with refused("round 1 is not kept", "3, 4, 5"):
        roll_back(folder, 1, keep=3)
    with refused("the last round is 6; pass an earlier one"):
        roll_back(folder, 6, keep=3)
    with refused("holds no experiment"):
        roll_back(federation.folder / "none", 1, keep=3)
    roll_back(folder, 3, keep=3)
    federation.server = federation.start()
    federation.run()
    assert federation.server.audit(federation.ask).ok


def test_a_rollback_beyond_a_change_of_sites_begins_a_new_epoch(make):
    federation = make(problem=quadratic(4), N=3, R=8)
    advance(federation, 3)
    federation.sites["site3"] = federation.site("site3")
    federation.server.join(federation.ask, "site3")
    advance(federation, 2)
    x = roll_back_of(federation, 2).server.x
    federation.names.append("site3")
    federation.server = federation.start()
    standing = federation.server.standing
    assert (standing.r, standing.epoch, len(standing.members)) == (2, 1, 4)
    assert torch.equal(standing.server.x, x)
    assert not standing.server.c.any()
    federation.run()
    assert federation.server.audit(federation.ask).ok


def roll_back_of(federation, R):
    federation.server.close()
    return roll_back(federation.folder / "server", R, keep=10)


def test_controls_start_again_where_the_operator_wants_it(make):
    federation = make(R=6)
    advance(federation, 3)
    federation.server.close()
    new = restart_controls(federation.folder / "server", keep=10)
    assert (new.r, new.epoch, new.branch, float(new.server.c.norm())) == (3, 1, 2, 0.0)
    federation.server = federation.start()
    assert [len(done.cohort) for done in federation.run()] == [3, 3, 3]
    assert federation.server.audit(federation.ask).ok


# -- branches


def test_a_repeated_round_whose_broadcast_changed_gets_a_branch_of_its_own(make):
    federation = make(Mime(eta=0.02, K=2, base=Momentum()), problem=quadratic(4), R=3, min_sites=3)
    advance(federation, 1)
    steps = []

    def ask(requests, timeout):
        steps.append({request.header.get("exchange") for request in requests.values()})
        there = dict(requests)
        if len(steps) == 2:  # two sites miss the second exchange of round 2
            there = {name: there[name] for name in ("site0", "site1")}
        if len(steps) == 3:  # and another one the first exchange, when it is repeated
            there.pop("site3")
        return federation.ask(there, timeout)

    rounds = federation.run(ask)
    assert [done.r for done in rounds] == [2, 3]
    (branch,) = (line for line in federation.server.journal if line["kind"] == "branch")
    assert (branch["branch"], branch["r"]) == (2, 1)
    assert "another broadcast" in branch["why"]
    *_, last = simulate(
        federation.algorithm,
        federation.problem,
        seed=3,
        cohorts=federation.cohorts(),
        executor="loop",
    )
    assert torch.equal(last.x, federation.server.standing.server.x)


def test_a_run_that_is_prolonged_measures_its_last_model_in_another_branch(make):
    federation = make(R=2)
    federation.run()
    federation.restart_server(R=4)
    federation.run()
    assert federation.server.outcome.metrics
    assert kinds(federation) == [
        "begin",
        "round",
        "round",
        "end",
        "round",
        "round",
        "branch",
        "end",
    ]


@pytest.mark.parametrize("back", [1, 3])
def test_a_server_restored_from_a_backup_notes_the_gap_and_opens_a_branch(make, back, caplog):
    federation = make(R=9)
    folder, backup = federation.folder / "server", federation.folder / "backup"
    advance(federation, 3)
    federation.server.close()
    shutil.copytree(folder, backup)
    federation.server = federation.start()
    advance(federation, back)
    heads = {federation.server.standing.commit: federation.server.standing.head}
    federation.server.close()
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)
    federation.server = federation.start()
    federation.run()
    assert [line["r"] for line in rounds_of(federation.server.journal)] == list(range(1, 10))
    gaps = [line for line in federation.server.journal if line["kind"] == "gap"]
    assert bool(gaps) == (back == 3)  # one round back, the sites send their stored replies again
    if gaps:
        assert gaps[0]["branch"] == 2
        (told,) = {tuple(place) for place in gaps[0]["sites"].values()}
        assert told[0] == 1
        assert told[1] == max(heads) - 1
        assert "the journal lacks lines that" in caplog.text
    assert federation.server.audit(federation.ask).ok
    *_, last = simulate(
        SCAFFOLD, federation.problem, seed=3, cohorts=federation.cohorts(), executor="loop"
    )
    assert torch.equal(last.x, federation.server.standing.server.x)


def test_a_journal_that_was_rewritten_whole_is_known_to_the_sites(make, caplog):
    federation = make(R=6)
    advance(federation, 3)
    ledger = federation.server._ledger
    ledger.digests = dict.fromkeys(ledger.digests, "0" * 64)
    advance(federation, 1)
    assert "the journal lacks lines that site0 and site1 and site2 know" in caplog.text


def test_a_site_keeps_a_line_for_all_that_left_it(make):
    federation = make(R=2)
    federation.run()
    federation.server.audit(federation.ask)
    lines = [entry.line for entry in read_chain(federation.folder / "site0" / "sent.jsonl")]
    assert [line["kind"] for line in lines] == ["branch", "work", "work", "evaluate", "control"]
    digests = federation.server._ledger.digests
    assert [line["head"] for line in lines] == [digests[line["commit"]] for line in lines]
    assert [line.get("metrics") is not None for line in lines] == [False, True, True, True, False]


# -- metrics


def test_rounds_continue_when_the_budget_of_metrics_is_spent(make):
    federation = make(R=4)
    federation.sites["site0"]._answers.measures = lambda request: request.header.get("r", 9) < 3
    rounds = federation.run()
    assert [len(done.cohort) for done in rounds] == [3] * 4
    assert ["loss" in done.sites["site0"].metrics for done in rounds] == [True, True, False, False]
    assert "loss" in federation.server.outcome.metrics


def test_the_end_comes_although_sites_do_not_measure_the_last_model(make, caplog):
    federation = make(R=1, min_sites=2)

    def ask(requests, timeout):
        if any(request["kind"] == "evaluate" for request in requests.values()):
            return iter(())
        return federation.ask(requests, timeout)

    federation.run(ask)
    assert federation.server.outcome.metrics == {}
    assert "the last metrics are without some sites" in caplog.text
