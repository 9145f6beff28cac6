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
    """Return the lines of what happened up to this commit.

    A line takes back those before it with its number or a higher one, and a line that is not whole
    says nothing.
    """
    try:
        rows = (folder / JOURNAL).read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    lines: list[dict[str, Any]] = []
    for row in rows:
        try:
            line = json.loads(row)
        except ValueError:
            continue
        while lines and lines[-1]["commit"] >= line["commit"]:
            lines.pop()
        lines.append(line)
    return [line for line in lines if line["commit"] <= commit]
