"""Chains of lines, each with the digest of the line before it; and how far an experiment is.

journal.jsonl  at the server: one line for each commit; the checkpoint has the digest of the last
sent.jsonl     at a site: one line for each reply that left it

A chain only grows. A line that was altered, removed or inserted is noticed, because the next one,
or the checkpoint, has another digest. Nothing here needs torch.
"""

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trimtab.federation.storage.files import KEY, Damaged, check_seal

JOURNAL, SENT, CHECKPOINT = "journal.jsonl", "sent.jsonl", "checkpoint.safetensors"
FORMAT = 2
KEEP, MOST_KEPT = 10, 100  # commits that a rollback can go back by default, and at most
_SUMMARY = "summary"
_MOST = 100_000_000  # A head has at most this many bytes, as safetensors itself demands.
_AT_THE_END = re.compile(rb', "sha256": "([0-9a-f]{64})"}$')


@dataclass(frozen=True)
class Entry:
    """A line of a chain.

    line: what it says.
    before: the digest of the line before it; empty for the first.
    digest: its own.
    """

    line: dict[str, Any]
    before: str
    digest: str


def append(path: Path, line: dict[str, Any], before: str) -> Entry:
    """Add a line to a chain, durably, after the line of the digest `before`."""
    text = json.dumps(line | {"before": before})
    entry = Entry(json.loads(json.dumps(line)), before, hashlib.sha256(text.encode()).hexdigest())
    with open(path, "a+b") as file:
        torn = False
        if file.tell():
            file.seek(-1, os.SEEK_END)
            torn = file.read() != b"\n"  # A crash, or a full disk, left half a line.
        row = f'{text[:-1]}, "{KEY}": "{entry.digest}"}}\n'
        file.write(b"\n" * torn + row.encode())
        file.flush()
        os.fsync(file.fileno())
    return entry


def read_chain(path: Path) -> list[Entry]:
    """Return the lines of a chain; raise Damaged if one was altered or is missing.

    A line that a crash has torn is skipped. A line that was never committed is replaced by the next
    one with the same line before it. The first line may have any line before it: a chain goes on
    after its file was moved away.
    """
    try:
        rows = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    entries: list[Entry] = []
    for number, row in enumerate(rows, 1):
        found = _AT_THE_END.search(row)
        if not found:
            continue
        text = row[: found.start()] + b"}"
        if hashlib.sha256(text).hexdigest().encode() != found[1]:
            raise damaged(path, f"line {number} is not what was written")
        try:
            line = json.loads(text)
            entry = Entry(line, str(line.pop("before")), found[1].decode())
        except (ValueError, AttributeError, KeyError, RecursionError):
            raise damaged(path, f"line {number} is not what was written") from None
        if entries and entry.before == entries[-1].before:
            entries.pop()
        elif entries and entry.before != entries[-1].digest:
            raise damaged(path, f"a line before line {number} is missing or was altered")
        entries.append(entry)
    return entries


def damaged(path: Path, why: str) -> Damaged:
    """Return the error of a chain that is not what was written."""
    return Damaged(
        f"{path} is damaged ({why}); restore the file from a backup, or move it away to continue "
        "without its record."
    )


def committed(folder: Path, head: str) -> tuple[list[Entry], int]:
    """Return the journal's lines, and how many of them are after the line that a checkpoint names.

    One line after it was written before a crash, and its checkpoint never was: it does not count.
    Several are there if an older checkpoint was restored: they count, for a chain is never cut.
    """
    path = folder / JOURNAL
    entries = read_chain(path)
    places = [number for number, entry in enumerate(entries) if entry.digest == head]
    if not places and (not path.exists() or (entries and entries[0].before == head)):
        return [], 0  # The file is missing, or was moved away.
    if not places:
        raise damaged(path, "the line of the last commit is missing or was altered")
    after = len(entries) - 1 - places[0]
    return (entries[:-1], 0) if after == 1 else (entries, after)


def read_lines(folder: Path, head: str) -> list[dict[str, Any]]:
    """Return what the journal says up to the line of this digest."""
    entries, after = committed(folder, head)
    return [entry.line for entry in entries[: len(entries) - after]]


def rounds_of(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines of the rounds that led to the model; a rollback takes rounds back.

    >>> lines = [{"kind": "round", "r": 1}, {"kind": "round", "r": 2}, {"kind": "rollback", "r": 1}]
    >>> rounds_of(lines)
    [{'kind': 'round', 'r': 1}]
    """
    rounds: list[dict[str, Any]] = []
    for line in lines:
        while rounds and rounds[-1]["r"] > line["r"]:
            rounds.pop()
        if line["kind"] == "round":
            rounds.append(line)
    return rounds


# -- what is shown of a checkpoint: the head of its file, 8 bytes of its length and then JSON


@dataclass(frozen=True)
class Summary:
    """How far an experiment is, and which sites it counts on."""

    algorithm: str  # as Python shows it
    commit: int
    r: int
    epoch: int
    head: str  # the digest of the journal's last line
    p: dict[str, float]  # the weights by the names of the sites, in their order
    suspended: tuple[str, ...] = ()  # sites whose updates were refused too often

    def to_header(self) -> dict[str, Any]:
        """Return what the ledger adds to a checkpoint's header."""
        return {_SUMMARY: {name: asdict(self)[name] for name in ("algorithm", "p", "suspended")}}


def without_summary(header: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint's header without its summary."""
    return {name: value for name, value in header.items() if name != _SUMMARY}


def check_format(path: Path, header: dict[str, Any]) -> None:
    """Refuse a checkpoint of another format."""
    there = header.get("format")
    if there != FORMAT:
        raise ValueError(f"{path} has format {there}, this trimtab reads {FORMAT}; use that one's.")


def read_summary(folder: Path, name: str = CHECKPOINT) -> Summary | None:
    """Return the summary of the checkpoint in a folder; None if the experiment has not begun."""
    path = folder / name
    try:
        header = _header(path)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); restore it from a backup.") from None
    check_format(path, header)
    try:
        facts = {name: header[name] for name in ("commit", "r", "epoch", "head")}
        return Summary(**facts, **header[_SUMMARY])
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is no checkpoint of this trimtab ({error}); restore it from a backup."
        ) from None


def _header(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        check_seal(file)
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        if length > _MOST:
            raise ValueError("its head is too long")
        head = json.loads(file.read(length))
        size = os.fstat(file.fileno()).st_size
    ends = [entry["data_offsets"][1] for name, entry in head.items() if name != "__metadata__"]
    if 8 + length + max(ends, default=0) != size:
        raise ValueError("it has been cut off")
    header = json.loads(head["__metadata__"]["trimtab"])
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    return header
