"""The journal: one line for each commit; the file only grows. Nothing here needs torch."""

import json
import os
from pathlib import Path
from typing import Any

from trimtab.federation.storage.seal import KEY, Damaged, is_whole, sealed_line

JOURNAL = "journal.jsonl"


def append(folder: Path, line: dict[str, Any]) -> None:
    """Add a line, durably."""
    with open(folder / JOURNAL, "a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            torn = file.read() != b"\n"  # by a crash, or a full disk
        else:
            torn = False
        file.write(b"\n" * torn + sealed_line(line) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(folder: Path, commit: int) -> list[dict[str, Any]]:
    """Return the lines of what happened up to this commit."""
    return [line for line in read_all(folder, commit) if line["commit"] <= commit]


def read_all(folder: Path, commit: int = 0) -> list[dict[str, Any]]:
    """Return all lines that count; those up to this commit must be there.

    A line takes back those before it with its number or a higher one. One that a crash has torn
    says nothing, for its commit never was; one that was changed since it was written is refused.
    """
    try:
        rows = (folder / JOURNAL).read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    lines: list[dict[str, Any]] = []
    torn, sealed = 0, False  # the number of the last torn line, and whether any had a seal
    for number, row in enumerate(rows, 1):
        whole = is_whole(row)
        line = _parsed(row, trusted=whole is True)
        if whole is False or (whole is None and line is not None and sealed):
            raise _damaged(folder, number)
        if line is None:
            torn = number if row else torn
            continue
        while lines and lines[-1]["commit"] >= line["commit"]:
            lines.pop()
        if torn and line["commit"] > (lines[-1]["commit"] if lines else 0) + 1:
            raise _damaged(folder, torn)  # what a crash tears is written again: there is no gap
        sealed, torn = sealed or whole is True, 0
        lines.append(line)
    if torn and commit > (lines[-1]["commit"] if lines else 0):
        raise _damaged(folder, torn)  # the checkpoint counts on a line that was written before it
    return lines


def _parsed(row: bytes, trusted: bool) -> dict[str, Any] | None:
    """Return what a line says; None if it is none of ours. trusted: its seal says that it is."""
    try:
        line = json.loads(row)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or not isinstance(line.get("commit"), int):
        return None
    needed = {"r", "cohort", "metrics", "bytes_up"} if line.get("kind") == "round" else set[str]()
    if not trusted and not (isinstance(line.get("kind"), str) and needed <= line.keys()):
        return None
    return {name: value for name, value in line.items() if name != KEY}


def _damaged(folder: Path, number: int) -> Damaged:
    return Damaged(
        f"line {number} of {folder / JOURNAL} is damaged (it is not what was written); restore the "
        "file from a backup, or remove that line to go on without its record."
    )
