"""Atomic files and folder locks: no other module replaces files or locks folders.

A reader sees the old content of a file or the new one, never a part of it, even after a power
failure.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from errno import EISDIR
from math import isfinite
from numbers import Integral
from pathlib import Path
from typing import Any

from trimtab.errors import BadArgument, InUse

with suppress(ImportError):  # Windows has no fcntl; folders are not locked there.
    import fcntl

LOCK = ".lock"  # the locked file in a folder


@contextmanager
def atomic_write(path: Path, before_rename: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Yield a temporary path to write to; on exit, the file there replaces `path` atomically.

    After an exception, `path` has its old content.

    path: the file to replace.
    before_rename: called after the temporary file is durable, before it gets its name.
    """
    part = path.with_name(path.name + ".part")
    if path.is_dir():  # Writing to `part` would succeed, and the error would name it.
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR), str(path))
    try:
        yield part
        sync(part)
        before_rename()
        os.replace(part, path)
    except BaseException:  # Also after Ctrl-C no temporary file must remain.
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    sync(path.parent)  # The new name, too, must survive a power failure.


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file atomically, and create its folder if it does not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file atomically; values that JSON lacks are converted by `plain`."""
    write_file(path, json.dumps(plain(content), indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file of a run; raise ValueError if it is missing or damaged."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        folder = path.parent
        if folder.is_dir():
            raise ValueError(
                f"{folder} holds no run (there is no {path.name}); pass the folder of one."
            ) from None
        what = "is a file" if folder.exists() else "does not exist"
        raise ValueError(f"{folder} {what}; pass the folder of a run.") from None
    except (ValueError, OSError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read ({error}); restore or remove it.") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no JSON object; restore or remove it.")
    return content


def append_line(path: Path, line: dict[str, Any]) -> None:
    """Append a line of JSON to a file."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines up to the first incomplete one, which a crash may leave."""
    lines: list[dict[str, Any]] = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(text))
        except ValueError:
            # Appending is not atomic: a crash can leave half a line, which is the last one.
            break
    return lines


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: NaN and infinity become None, tuples become lists.

    NumPy numbers and tensors of one element become numbers; other objects become text.

    >>> plain({1: (float("nan"), 0.5)})
    {'1': [None, 0.5]}
    """
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        return str(value)
    return number if isfinite(number) else None


def sync(path: Path) -> None:
    """Make the content of a file, or the names in a folder, durable."""
    windows = sys.platform == "win32"
    if windows and path.is_dir():
        return  # Windows opens no folder.
    # Windows flushes no file that is open for reading alone.
    descriptor = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Lock:
    """An exclusive lock of a folder; the operating system releases it when the process ends.

    Raises InUse if another process holds it.

    folder: the folder to lock; created if it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        if folder.is_file():
            raise BadArgument("out", "{folder} is a file; pass another {out}.", folder=folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # flock is released by the kernel even if the process is killed; a file would remain.
            if "fcntl" in globals():
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise InUse(
                f"{folder} is in use by another process; wait for it, or end it first."
            ) from None

    def fileno(self) -> int:
        """Return the file descriptor; a child process that inherits it holds the lock, too."""
        return self._descriptor

    def release(self) -> None:
        """Release the lock; calling it twice is harmless."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *error: object) -> None:
        self.release()
