"""Checksums of what is on disk: written with every durable file, looked at whenever one is read.

A sealed file holds the SHA-256 of itself, with zeros in that place. In a safetensors file it stands
among the metadata, in JSON it is the last entry, and each line of the journal has its own. A file
without one was written by trimtab 0.1, and is read as it is. Nothing here needs torch.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from trimtab._files import plain, read_json, write_file

KEY = "sha256"
BLANK = "0" * 64
_PIECE = 1 << 20  # a file is read <= 1 MiB at a time
_IN_HEAD = re.compile(rb'(?<!\\)"sha256":\s?"([0-9a-f]{64})"')  # a key that is in no other string
_AT_THE_END = re.compile(rb', "sha256": "([0-9a-f]{64})"}$')


class Damaged(ValueError):
    """A file is not what was written."""


# -- safetensors: the head is 8 bytes of its length, then JSON


def sealed(data: bytes) -> Iterator[memoryview | bytes]:
    """Yield the parts of a safetensors file whose metadata have a blank seal, with it filled in."""
    place = _place(data[: 8 + int.from_bytes(data[:8], "little")])
    assert place is not None, "whoever encodes leaves room for the seal"
    view = memoryview(data)
    yield view[: place[0]]
    yield hashlib.sha256(data).hexdigest().encode()
    yield view[place[1] :]


def check_seal(file: IO[bytes]) -> None:
    """Read a safetensors file to its end, and raise Damaged if its seal is not its own."""
    head = file.read(8)
    head += file.read(min(int.from_bytes(head, "little"), _size(file)))
    place = _place(head)
    if place is None:
        return
    digest = hashlib.sha256(head[: place[0]] + BLANK.encode() + head[place[1] :])
    while piece := file.read(_PIECE):
        digest.update(piece)
    if digest.hexdigest().encode() != head[place[0] : place[1]]:
        raise Damaged("its checksum is not that of its content")


def _place(head: bytes) -> tuple[int, int] | None:
    found = _IN_HEAD.search(head)
    return found.span(1) if found else None


def _size(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


# -- JSON


def write_sealed(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file whole, with its seal at the end."""
    write_file(path, sealed_text(content))


def sealed_text(content: Mapping[str, Any]) -> str:
    """Return JSON with its seal at the end."""
    own = {name: value for name, value in content.items() if name != KEY}
    text = json.dumps(plain(own) | {KEY: BLANK}, indent=2, ensure_ascii=False) + "\n"
    return _replaced(text, BLANK, _digest(text))


def read_sealed(path: Path) -> dict[str, Any]:
    """Read a JSON object; one that was changed since it was written is refused."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} cannot be read (it is no JSON object); restore or remove it.")
    if KEY not in content:
        return content
    text, digest = path.read_text(encoding="utf-8"), str(content.pop(KEY))
    if _digest(_replaced(text, digest, BLANK)) != digest:
        raise Damaged(
            f"{path} is damaged (its checksum is not that of its content); restore it from a "
            f'backup, or if you changed it yourself remove its last entry, "{KEY}".'
        )
    return content


def _replaced(text: str, old: str, new: str) -> str:
    """Return a text with another word in the place of the last one of its kind."""
    before, _, after = text.rpartition(old)
    return before + new + after


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# -- lines of the journal


def sealed_line(line: Mapping[str, Any]) -> bytes:
    """Return a line of JSON with its seal at the end.

    >>> is_whole(sealed_line({"commit": 1})), is_whole(b'{"commit": 1}')
    (True, None)
    """
    text = json.dumps(dict(line))
    return f'{text[:-1]}, "{KEY}": "{_digest(text)}"}}'.encode()


def is_whole(row: bytes) -> bool | None:
    """Tell whether a line is what was written; None if it has no seal."""
    found = _AT_THE_END.search(row)
    if not found:
        return None
    return hashlib.sha256(row[: found.start()] + b"}").hexdigest().encode() == found[1]
