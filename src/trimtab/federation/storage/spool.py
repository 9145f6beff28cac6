"""Replies on disk until all are there, so that their order and number cost no memory."""

from pathlib import Path
from shutil import rmtree

from trimtab.federation.message import Message, decode, encode
from trimtab.federation.storage.files import writing


class Spool:
    """A folder of replies by the number of the site; nothing in it outlives the process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def clear(self) -> None:
        """Forget all replies."""
        rmtree(self.folder, ignore_errors=True)
        with writing(self.folder):
            self.folder.mkdir(mode=0o700)

    def put(self, index: int, reply: Message) -> None:
        """Keep a reply."""
        with writing(self.folder):
            (self.folder / str(index)).write_bytes(encode(reply))

    def take(self, index: int) -> Message:
        """Return a reply, and forget it."""
        path = self.folder / str(index)
        reply = decode(path.read_bytes())
        path.unlink()
        return reply
