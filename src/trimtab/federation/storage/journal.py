"""The journal: one line for each commit; the file only grows. Nothing here needs torch."""

import json
import os
from pathlib import Path
from typing import Any

JOURNAL = "journal.jsonl"


def append(folder: Path, line: dict[str, Any]) -> None:
    """Add a line, durably."""
    with open(folder / JOURNAL, "a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            torn = file.read() != b"\n"  # by a crash, or a full disk
        else:
            torn = False
        file.write(b"\n" * torn + json.dumps(line).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(folder: Path, commit: int) -> list[dict[str, Any]]:
    """Return the lines of what happened up to this commit."""
    return [line for line in read_all(folder) if line["commit"] <= commit]


def read_all(folder: Path) -> list[dict[str, Any]]:
    """Return all lines that count.

    A line takes back those before it with its number or a higher one. A line that is not whole, or
    says neither which commit nor what it was, says nothing.
    """
    try:
        rows = (folder / JOURNAL).read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    lines: list[dict[str, Any]] = []
    for row in rows:
        try:
            line = json.loads(row)
        except (ValueError, RecursionError):
            continue
        if not _is_line(line):
            continue
        while lines and lines[-1]["commit"] >= line["commit"]:
            lines.pop()
        lines.append(line)
    return lines


def _is_line(line: Any) -> bool:
    if not isinstance(line, dict) or not isinstance(line.get("commit"), int):
        return False
    needed = {"r", "cohort", "metrics", "bytes_up"} if line.get("kind") == "round" else set[str]()
    return isinstance(line.get("kind"), str) and needed <= line.keys()
