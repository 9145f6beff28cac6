"""Messages in files that survive a crash, sealed, with the points at which a test may kill."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trimtab._files import atomic_write, sync
from trimtab.federation.message import Message, decode, encode
from trimtab.federation.storage import faults
from trimtab.federation.storage.seal import BLANK, KEY, check_seal, sealed


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
    with (
        atomic_write(path, before_rename=lambda: faults.point(f"{who}:within-{name}")) as part,
        open(part, "wb") as file,
    ):
        file.writelines(sealed(encode(message, {KEY: BLANK})))
    faults.point(f"{who}:after-{name}")


def read(path: Path) -> Message:
    """Read what `write` wrote; a ValueError says what is wrong with it."""
    with open(path, "rb") as file:
        check_seal(file)
        file.seek(0)
        return decode(file.read())


def private_folder(folder: Path) -> Path:
    """Make a folder that its owner alone may enter."""
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync(folder.parent)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)
    return folder
