"""The journal and the ledger to the letter."""

import os
from dataclasses import replace

import pytest
import torch

from trimtab import FedAvg
from trimtab.commit import Accepted
from trimtab.federation.message import Message
from trimtab.federation.storage import journal, ledger
from trimtab.federation.storage.files import Damaged
from trimtab.federation.storage.journal import JOURNAL, append, committed, read_chain
from trimtab.federation.storage.ledger import Ledger, Member, Standing, kept_rounds


def line(commit, **facts):
    return {"commit": commit, "kind": "join", "r": 0, **facts}


def numbers(lines):
    return [each["commit"] for each in lines]


def chain(path, *commits, before=""):
    """Write lines of these numbers, one after the other; return their digests."""
    digests = []
    for commit in commits:
        before = append(path, line(commit), before).digest
        digests.append(before)
    return digests


def in_chain(path):
    return numbers(entry.line for entry in read_chain(path))


def test_a_line_is_in_the_file_when_it_is_made_durable(tmp_path, monkeypatch):
    seen, usual, path = [], os.fsync, tmp_path / JOURNAL

    def fsync(descriptor):
        seen.append(path.read_bytes())
        usual(descriptor)

    monkeypatch.setattr(journal.os, "fsync", fsync)
    chain(path, 1, 2)
    assert [content.count(b"\n") for content in seen] == [1, 2]
    assert seen[-1] == path.read_bytes()


def test_a_line_after_a_torn_one_begins_anew_and_only_then(tmp_path):
    path = tmp_path / JOURNAL
    (first,) = chain(path, 1)
    with open(path, "ab") as file:
        file.write(b'{"commit": 2, "ki')
    chain(path, 2, 3, before=first)
    rows = path.read_bytes().split(b"\n")
    assert len(rows) == 5
    assert rows[1] == b'{"commit": 2, "ki'
    assert rows[-1] == b""
    assert in_chain(path) == [1, 2, 3]


def test_a_line_that_was_not_committed_is_replaced(tmp_path):
    path = tmp_path / JOURNAL
    first, _ = chain(path, 1, 2)
    (other,) = chain(path, 2, before=first)
    chain(path, 3, before=other)
    assert in_chain(path) == [1, 2, 3]
    assert read_chain(path)[1].digest == other


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("how", ["altered", "removed", "doubled", "unsealed", "exchanged"])
def test_a_line_that_is_altered_or_missing_is_reported(tmp_path, number, how):
    path = tmp_path / JOURNAL
    head = chain(path, 1, 2, 3, 4)[-1]
    rows = path.read_bytes().splitlines()
    row = rows[number - 1]
    rows[number - 1 : number] = {
        "altered": [row.replace(b'"join"', b'"quit"')],
        "removed": [],
        "doubled": [row, row.replace(b'"r": 0', b'"r": 1')],
        "unsealed": [row.partition(b', "sha256"')[0] + b"}"],
        "exchanged": [rows[number]],
    }[how]
    path.write_bytes(b"\n".join(rows) + b"\n")
    if number == 1 and how in ("removed", "unsealed", "exchanged"):  # as after a move of the file
        assert committed(tmp_path, head)[0][0].before
        return
    with pytest.raises(Damaged, match=r"journal\.jsonl is damaged \(.*line .* move it away"):
        committed(tmp_path, head)


def test_the_last_line_is_that_of_the_checkpoint(tmp_path):
    path = tmp_path / JOURNAL
    digests = chain(path, 1, 2, 3)
    assert [len(committed(tmp_path, head)[0]) for head in digests] == [3, 2, 3]
    assert [committed(tmp_path, head)[1] for head in digests] == [2, 0, 0]
    for head, lines in zip(digests, (1, 2, 3), strict=True):
        assert len(journal.read_lines(tmp_path, head)) == lines
    with pytest.raises(Damaged, match="the line of the last commit is missing"):
        committed(tmp_path, "0" * 64)
    assert committed(tmp_path / "none", "0" * 64) == ([], 0)


def test_rounds_that_were_taken_back_do_not_count():
    kinds = [("begin", 0), *(("round", r) for r in (1, 2, 3)), ("rollback", 1), ("round", 2)]
    lines = [{"kind": kind, "r": r, "n": n} for n, (kind, r) in enumerate(kinds)]
    assert [entry["n"] for entry in journal.rounds_of(lines)] == [1, 5]


def test_a_standing_begins_with_nothing():
    first = Standing("e", FedAvg(eta_l=0.1, K=1), 0, "uniform", None, ())
    assert (first.commit, first.r, first.epoch, first.branch, first.numbers) == (0, 0, 0, 1, 0)


@pytest.fixture
def begun(tmp_path):
    """Return a folder with a checkpoint, and what it holds."""
    algorithm = FedAvg(eta_l=0.1, K=1)
    server = algorithm.init_server(torch.zeros(2))
    members = (Member("a", 0, 1.0, tested=4), Member("b", 1, 3.0, tested=0), Member("c", 2, 4.0))
    Ledger(tmp_path).commit(Standing("e", algorithm, 0, "uniform", server, members), "begin")
    return tmp_path, ledger.read_standing(tmp_path)


def rewritten(folder, **changes):
    """Write the checkpoint anew, with some entries of its header changed, or None left out."""
    path = folder / ledger.CHECKPOINT
    whole = ledger.read(path)
    header = {n: value for n, value in (whole.header | changes).items() if value is not None}
    ledger.write(path, Message(header, whole.arrays), "server:checkpoint")


def test_a_checkpoint_that_lacks_something_is_no_checkpoint(begun, refused):
    folder, _ = begun
    rewritten(folder, experiment=None)
    with refused("is no checkpoint of this trimtab"):
        ledger.read_standing(folder)


def test_a_checkpoint_of_another_format_is_refused(begun, refused):
    folder, _ = begun
    for there in (1, None):
        rewritten(folder, format=there)
        with refused(f"has format {there}, this trimtab reads 2"):
            ledger.read_standing(folder)


def test_what_is_committed_is_what_is_read(begun):
    folder, first = begun
    assert first.p == {"a": 1 / 8, "b": 3 / 8, "c": 4 / 8}
    assert first.testing == 2  # a does, c has not said yet
    assert first.with_sizes({"a": 9, "c": 7}).members == (
        *first.members[:2],
        replace(first.members[2], tested=7),
    )
    given = Accepted("ab", "0" * 64)
    accepted = [member.accepted for member in first.accepting({"a": given, "c": given})]
    assert accepted == [given, Accepted(), given]
    assert (first.summary.commit, first.summary.p) == (1, first.p)
    book = Ledger(folder)
    book.commit(replace(first, r=5, epoch=2), "round", cohort=["a"])
    facts = {"commit": 2, "kind": "round", "r": 5, "branch": 1, "epoch": 2, "cohort": ["a"]}
    assert book.lines[-1] == Ledger(folder).lines[-1] == facts
    assert (book.standing.commit, book.standing.r) == (2, 5)


@pytest.mark.parametrize("place", ["before-journal", "after-journal", "before-checkpoint"])
def test_a_crash_before_its_checkpoint_undoes_a_commit(begun, monkeypatch, place):
    folder, first = begun

    def die(name):
        if name == f"server:{place}":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("trimtab.commit.durable.fault_point", die)
        with pytest.raises(KeyboardInterrupt):
            Ledger(folder).commit(first, "join", site="d")
    written = 1 if place == "before-journal" else 2
    assert len((folder / JOURNAL).read_bytes().splitlines()) == written
    again = Ledger(folder)
    assert (again.standing.commit, numbers(again.lines)) == (1, [1])
    again.commit(again.standing, "leave", site="a")
    assert [row["kind"] for row in Ledger(folder).lines] == ["begin", "leave"]


def test_the_last_checkpoints_are_kept(begun):
    folder, _ = begun
    book = Ledger(folder, keep=3)
    for r in range(1, 7):
        book.commit(replace(book.standing, r=r), "round")
    kept = kept_rounds(folder)
    assert sorted(kept) == [3, 4, 5]
    assert [ledger.read_standing(path.parent, path.name).r for path in kept.values()] == [3, 4, 5]
    assert {path.parent.stat().st_mode & 0o777 for path in kept.values()} == {0o700}


def test_a_journal_without_its_first_lines_is_reported(begun, caplog):
    folder, _ = begun
    (folder / JOURNAL).rename(folder / "elsewhere")
    book = Ledger(folder)
    assert "lines of the journal are missing" in caplog.text
    book.commit(book.standing, "join", site="d")
    caplog.clear()
    assert numbers(Ledger(folder).lines) == [2]
    assert "lines of the journal are missing" in caplog.text


def test_what_was_sent_is_kept_or_nothing(begun):
    folder, _ = begun
    book = Ledger(folder)
    assert book.ask_once("2.0", "a")
    assert book.ask_once("2.1", "b")
    assert book.ask_once("evaluate", "c")
    book = Ledger(folder)
    said = [book.ask_once(*place) for place in (("2.0", "a"), ("2.1", "x"), ("evaluate", "x"))]
    assert said == [True, False, False]
    assert book.ask_once("3.0", "d")
    assert book.ask_once("2.1", "x")  # That round is over.
    assert not book.ask_once("evaluate", "x")
    book.open_branch("a test")
    assert book.ask_once("evaluate", "x")
    (folder / "asked.json").write_text('{"branch": 2}x')
    assert book.ask_once("evaluate", "y")
