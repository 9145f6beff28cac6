"""The states of one site in one experiment: files whose names say when, what and upon what.

No file is ever changed, and none is removed before its successor is durable: which of them counts
is for the server to say (`accepted`), so that there is no pointer that could be wrong.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from trimtab.federation.message import Message, decode
from trimtab.federation.storage import files as durable

START = "start"  # the tag of the state of a client that was never accepted: algorithm.init_client
KEPT = 3  # accepted states that a server restored from an older checkpoint may go back to
_NAME = re.compile(r"(\d{1,20})-([0-9a-f]{1,40})-(start|[0-9a-f]{1,40})\.safetensors")


@dataclass(frozen=True)
class Version:
    """One state: written for the request of this clock and tag, upon the state tagged base."""

    clock: int
    tag: str
    base: str

    @property
    def file(self) -> str:
        """Return the name of its file."""
        return f"{self.clock}-{self.tag}-{self.base}.safetensors"


class Versions:
    """A folder of states."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def every(self) -> dict[str, Version]:
        """Return the states there are, by their tags."""
        if not self.folder.is_dir():
            return {}
        found = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return {m[2]: Version(int(m[1]), m[2], m[3]) for m in found if m}

    def load(self, tag: str) -> dict[str, Tensor] | None:
        """Return a state, or None if it is not there, or is damaged."""
        version = self.every().get(tag)
        try:
            return decode((self.folder / version.file).read_bytes()).arrays if version else None
        except (FileNotFoundError, ValueError):
            return None

    def put(self, version: Version, arrays: dict[str, Tensor], what: str) -> None:
        """Keep a state, durably."""
        header = {"tag": version.tag, "base": version.base, "clock": version.clock}
        with durable.writing(self.folder):
            durable.private_folder(self.folder)
            durable.write(self.folder / version.file, Message(header, arrays), what)

    def trim(self, accepted: str, pending: str) -> None:
        """Forget all but the pending state, the accepted one, and those it was built upon."""
        every, tag = self.every(), accepted
        kept = {every[pending].file}
        for _ in range(KEPT):
            if tag in every:
                kept.add(every[tag].file)
                tag = every[tag].base
        with durable.writing(self.folder):
            for path in self.folder.iterdir():
                if path.name not in kept:
                    path.unlink(missing_ok=True)
