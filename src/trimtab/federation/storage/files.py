"""Files on disk: their checksums, written with every durable file and checked at every reading.

A file with a checksum holds the SHA-256 of itself, with zeros in that place. In a safetensors file
it stands among the metadata, in JSON it is the last entry, and each line of a chain has its own
(`journal.py`). Nothing here needs torch.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from trimtab._files import plain, read_json, sync, write_file

KEY = "sha256"
BLANK = "0" * 64
_PIECE = 1 << 20  # a file is read <= 1 MiB at a time
_IN_HEAD = re.compile(rb'(?<!\\)"sha256":\s?"([0-9a-f]{64})"')  # a key that is in no other string


class Damaged(ValueError):
    """A file is not what was written."""


class CannotWrite(Exception):
    """A disk is full or read-only; what was there before still is."""


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raise CannotWrite for an error of a disk, and no other error."""
    try:
        yield
    except OSError as error:
        why = (error.strerror or str(error)).rstrip(".")
        raise CannotWrite(
            f"{folder} cannot be written ({why}): nothing is lost, but make room there"
        ) from None


def private_folder(folder: Path) -> Path:
    """Make a folder that its owner alone may enter."""
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync(folder.parent)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)
    return folder


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
