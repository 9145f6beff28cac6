"""The journal and the ledger to the letter."""

import json
import os
from dataclasses import replace

import pytest
import torch

from trimtab import FedAvg
from trimtab.federation.message import Message
from trimtab.federation.storage import files, journal, ledger
from trimtab.federation.storage.files import Damaged
from trimtab.federation.storage.journal import JOURNAL, append, read_all, read_lines
from trimtab.federation.storage.ledger import Ledger, Member, Standing


def line(commit, **facts):
    return {"commit": commit, "kind": "join", "r": 0, **facts}


def numbers(lines):
    return [each["commit"] for each in lines]


def test_a_line_is_in_the_file_when_it_is_made_durable(tmp_path, monkeypatch):
    seen, usual = [], os.fsync

    def fsync(descriptor):
        seen.append((tmp_path / JOURNAL).read_bytes())
        usual(descriptor)

    monkeypatch.setattr(journal.os, "fsync", fsync)
    for commit in (1, 2):
        append(tmp_path, line(commit))
    assert [content.count(b"\n") for content in seen] == [1, 2]
    assert seen[-1] == (tmp_path / JOURNAL).read_bytes()


def test_a_line_after_a_torn_one_begins_anew_and_only_then(tmp_path):
    append(tmp_path, line(1))
    with open(tmp_path / JOURNAL, "ab") as file:
        file.write(b'{"commit": 2, "ki')
    append(tmp_path, line(2))
    append(tmp_path, line(3))
    rows = (tmp_path / JOURNAL).read_bytes().split(b"\n")
    assert len(rows) == 5
    assert rows[1] == b'{"commit": 2, "ki'
    assert rows[-1] == b""
    assert numbers(read_all(tmp_path)) == [1, 2, 3]


def test_a_line_takes_back_those_of_its_number_and_above(tmp_path):
    for commit in (1, 2, 3, 2):
        append(tmp_path, line(commit, say=commit))
    assert numbers(read_all(tmp_path)) == [1, 2]
    assert numbers(read_lines(tmp_path, 1)) == [1]
    assert numbers(read_lines(tmp_path, 2)) == [1, 2]


def test_a_line_of_a_commit_that_counts_may_not_be_torn(tmp_path):
    append(tmp_path, line(1))
    with open(tmp_path / JOURNAL, "ab") as file:
        file.write(b'{"commit": 2, "ki')
    assert numbers(read_all(tmp_path)) == [1]
    assert numbers(read_all(tmp_path, 1)) == [1]
    with pytest.raises(Damaged, match=r"line 2 of .*journal\.jsonl is damaged"):
        read_all(tmp_path, 2)


def test_a_torn_line_with_a_gap_after_it_was_not_torn_by_a_crash(tmp_path):
    append(tmp_path, line(1))
    with open(tmp_path / JOURNAL, "ab") as file:
        file.write(b"torn\n")
    append(tmp_path, line(2))
    assert numbers(read_all(tmp_path)) == [1, 2]
    with open(tmp_path / JOURNAL, "ab") as file:
        file.write(b"torn\n")
    append(tmp_path, line(4))
    with pytest.raises(Damaged, match="line 4 of"):
        read_all(tmp_path)


def test_a_gap_alone_is_no_damage_and_a_first_torn_line_neither(tmp_path):
    append(tmp_path, line(1))
    append(tmp_path, line(5))
    assert numbers(read_all(tmp_path)) == [1, 5]
    other = tmp_path / "other"
    other.mkdir()
    (other / JOURNAL).write_bytes(b"torn\n")
    append(other, line(1))
    assert numbers(read_all(other)) == [1]
    (other / JOURNAL).write_bytes(b"torn\n")
    append(other, line(2))
    with pytest.raises(Damaged, match="line 1 of"):
        read_all(other)


def test_lines_of_0_1_have_no_seal_but_none_follows_one_that_has(tmp_path):
    old = b'{"commit": 1, "kind": "begin"}\n'
    (tmp_path / JOURNAL).write_bytes(old)
    append(tmp_path, line(2))
    assert numbers(read_all(tmp_path)) == [1, 2]
    with open(tmp_path / JOURNAL, "ab") as file:
        file.write(b'{"commit": 3, "kind": "join"}\n')
    with pytest.raises(Damaged, match="line 3 of"):
        read_all(tmp_path)


@pytest.mark.parametrize(
    "row",
    [
        {"commit": "1", "kind": "begin"},
        {"kind": "begin"},
        {"commit": 1},
        {"commit": 1, "kind": 3},
        {"commit": 1, "kind": "round", "r": 1, "cohort": [], "metrics": {}},
        [1],
    ],
)
def test_an_unsealed_line_that_lacks_something_is_none_of_ours(tmp_path, row):
    (tmp_path / JOURNAL).write_text(json.dumps(row) + "\n")
    assert read_all(tmp_path) == []


def test_an_unsealed_line_of_a_round_has_what_is_read_of_it(tmp_path):
    row = {"commit": 1, "kind": "round", "r": 1, "cohort": [], "metrics": {}, "bytes_up": 0}
    (tmp_path / JOURNAL).write_text(json.dumps(row) + "\n")
    assert read_all(tmp_path) == [row]


def test_without_a_journal_there_are_no_lines(tmp_path):
    assert read_all(tmp_path) == []
    assert read_lines(tmp_path, 3) == []


def test_a_torn_line_alone_and_a_first_line_of_any_number_are_no_damage(tmp_path):
    (tmp_path / JOURNAL).write_bytes(b'{"commit": 1, "ki')
    assert read_all(tmp_path) == []
    other = tmp_path / "other"
    other.mkdir()
    append(other, line(5))
    assert numbers(read_all(other)) == [5]


def test_a_standing_begins_with_nothing():
    first = Standing("e", FedAvg(eta_l=0.1, K=1), 0, "uniform", None, ())
    assert (first.commit, first.r, first.epoch, first.clock, first.numbers) == (0, 0, 0, 0, 0)


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
    whole = files.read(path)
    header = {n: value for n, value in (whole.header | changes).items() if value is not None}
    files.write(path, Message(header, whole.arrays), "server:checkpoint")


def test_a_checkpoint_that_lacks_something_is_no_checkpoint(begun, refused):
    folder, _ = begun
    rewritten(folder, experiment=None)
    with refused("is no checkpoint of this trimtab"):
        ledger.read_standing(folder)


def test_a_checkpoint_of_another_format_is_refused(begun, refused):
    folder, _ = begun
    for there in (2, None):
        rewritten(folder, format=there)
        with refused(f"has format {there}, this trimtab reads 1"):
            ledger.read_standing(folder)


def test_what_is_committed_is_what_is_read(begun):
    folder, first = begun
    assert first.p == {"a": 1 / 8, "b": 3 / 8, "c": 4 / 8}
    assert first.testing == 2  # a does, c has not said yet
    assert first.with_sizes({"a": 9, "c": 7}).members == (
        *first.members[:2],
        replace(first.members[2], tested=7),
    )
    accepted = [member.accepted for member in replace(first).accepting("ab", ["a", "c"])]
    assert accepted == ["ab", "start", "ab"]
    assert (first.summary.commit, first.summary.p) == (1, first.p)
    book = Ledger(folder)
    book.commit(replace(first, r=5, epoch=2), "round", cohort=["a"])
    facts = {"commit": 2, "kind": "round", "r": 5, "epoch": 2, "cohort": ["a"]}
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
