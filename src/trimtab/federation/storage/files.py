"""Files that survive a crash, and folders that belong to one process."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trimtab.federation.message import Message, encode
from trimtab.federation.storage import faults


class CannotWrite(Exception):
    """A disk is full or read-only; what was there before still is."""


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Tell errors of a disk from all others."""
    try:
        yield
    except OSError as error:
        why = (error.strerror or str(error)).rstrip(".")
        raise CannotWrite(
            f"{folder} cannot be written ({why}): nothing is lost, but make room there"
        ) from None


def write(path: Path, message: Message, what: str) -> None:
    """Write a message so that it is there whole, even after a power failure, or not at all.

    `what` names the points at which a test may kill the process.
    """
    who, _, name = what.partition(":")
    faults.point(f"{who}:before-{name}")
    part = path.with_name(path.name + ".part")
    try:
        with open(part, "wb") as file:
            file.write(encode(message))
            file.flush()
            os.fsync(file.fileno())
        faults.point(f"{who}:within-{name}")
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
    faults.point(f"{who}:after-{name}")


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def private_folder(folder: Path) -> Path:
    """Make a folder that its owner alone may enter."""
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_folder(folder.parent)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)
    return folder


class Lock:
    """A folder held by this process; the system lets go of it when the process ends."""

    def __init__(self, folder: Path) -> None:
        self._file = open(private_folder(folder) / "lock", "a")  # noqa: SIM115
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise ValueError(
                f"{folder} is in use by another process; end that one first."
            ) from None

    def release(self) -> None:
        """Let others have the folder."""
        self._file.close()
