"""The states of one site in one experiment: files whose names say when, what and upon what.

No file is ever changed, and none is removed before its successor is durable: which of them counts
is for the server to say (`accepted`), so that there is no pointer that could be wrong.
"""

import logging
import re
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from trimtab.federation.message import Message
from trimtab.federation.storage import files

log = logging.getLogger("trimtab.federation.storage")

START = "start"  # the tag of the state of a client that was never accepted: algorithm.init_client
KEPT = 3  # a server restored from an older checkpoint finds the state of <= 2 rounds before
_NAME = re.compile(r"(\d{1,20})-([0-9a-f]{1,40})-(start|[0-9a-f]{1,40})\.safetensors")


@dataclass(frozen=True)
class StateFile:
    """A state's file: written for the request of this clock and tag, upon the state `base`."""

    clock: int
    tag: str
    base: str

    @property
    def name(self) -> str:
        """Return the name of the file."""
        return f"{self.clock}-{self.tag}-{self.base}.safetensors"


class States:
    """A folder of states."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def every(self) -> dict[str, StateFile]:
        """Return the states there are, by their tags."""
        if not self.folder.is_dir():
            return {}
        matches = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return {m[2]: StateFile(int(m[1]), m[2], m[3]) for m in matches if m}

    def load(self, tag: str) -> dict[str, Tensor] | None:
        """Return a state, or None if it is not there, or is damaged, which is said."""
        file = self.every().get(tag)
        if file is None:
            return None
        path = self.folder / file.name
        try:
            return files.read(path).arrays
        except FileNotFoundError:
            return None
        except ValueError as error:
            log.warning("%s is damaged (%s); it counts as lost", path, str(error).rstrip("."))
            return None

    def put(self, file: StateFile, arrays: dict[str, Tensor], what: str) -> None:
        """Keep a state, durably."""
        header = {"tag": file.tag, "base": file.base, "clock": file.clock}
        with files.writing(self.folder):
            files.private_folder(self.folder)
            files.write(self.folder / file.name, Message(header, arrays), what)

    def trim(self, accepted: str, pending: str) -> None:
        """Forget all but the pending state, the accepted one, and those it was built upon."""
        every, tag = self.every(), accepted
        kept = {every[pending].name}
        for _ in range(KEPT):
            if tag in every:
                kept.add(every[tag].name)
                tag = every[tag].base
        with files.writing(self.folder):
            for path in self.folder.iterdir():
                if path.name not in kept:
                    path.unlink(missing_ok=True)
