"""The journal and the ledger to the letter: what rejects mutants of them."""

import json
import os

import pytest

from trimtab.federation.storage import journal
from trimtab.federation.storage.journal import JOURNAL, append, read_all, read_lines
from trimtab.federation.storage.seal import Damaged


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
