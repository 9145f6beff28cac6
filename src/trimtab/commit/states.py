"""The states of one client: files whose names say when, which and computed from what.

No file is ever changed, and none is removed before its successor is durable: the server says which
of them counts (`Accepted`), so that there is no pointer that could be wrong.
"""

import hashlib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from trimtab._files import sync
from trimtab.commit.durable import write_durably

log = logging.getLogger("trimtab.commit")

START = "start"  # the tag of a client that was never accepted: its state is the algorithm's first
_NAME = re.compile(r"(\d{1,20})-([0-9a-f]{1,40})-(start|[0-9a-f]{1,40})\.safetensors")


class Mismatch(Exception):
    """The client does not have the state that the server counts on."""


class Stale(Exception):
    """A request is not newer than the newest state: what it names as accepted is history."""

    def __init__(self, seen: int) -> None:
        super().__init__(seen)
        self.seen = seen


@dataclass(frozen=True)
class Accepted:
    """The state of a client that counts; the server saves it with x and c, in one atomic write.

    tag: under which the client keeps the state.
    digest: what `digest` returns of it, so that the client cannot show another one later.
    """

    tag: str = START
    digest: str = ""


@dataclass(frozen=True)
class StateFile:
    """The name of a state's file: of the request of this clock and tag, from the state `base`."""

    clock: int
    tag: str
    base: str

    def __str__(self) -> str:
        return f"{self.clock}-{self.tag}-{self.base}.safetensors"


class States:
    """A client's states in one experiment, in a folder of their own.

    folder: where they are; made with mode 0700 when the first state is written.
    keep: how many states are kept besides the newest and the accepted one, so that a server that
        goes back some rounds finds those of its older checkpoint.

    >>> from tempfile import mkdtemp
    >>> states = States(Path(mkdtemp()) / "states")
    >>> kept = Accepted("ab", states.put("ab", {"0": torch.ones(2)}, base=START, clock=1))
    >>> settle(states, kept)
    {'0': tensor([1., 1.])}
    """

    def __init__(self, folder: Path, keep: int = 10) -> None:
        self.folder, self.keep = folder, keep

    def files(self) -> dict[str, StateFile]:
        """Return the states there are, by their tags."""
        if not self.folder.is_dir():
            return {}
        matches = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return {m[2]: StateFile(int(m[1]), m[2], m[3]) for m in matches if m}

    def check_newer(self, clock: int) -> None:
        """Raise Stale unless this clock is above those of all states.

        A late request would start from an old state, and its successor push out the accepted one.
        """
        seen = max((file.clock for file in self.files().values()), default=0)
        if clock <= seen:
            raise Stale(seen)

    def load(self, tag: str) -> tuple[dict[str, Tensor], str] | None:
        """Return a state and its digest; None if it is not there, or damaged, which is logged."""
        file = self.files().get(tag)
        if file is None:
            return None
        path = self.folder / str(file)
        try:
            with safe_open(path, framework="pt") as content:
                there = (content.metadata() or {}).get("digest", "")
                # A clone is aligned as torch does it, which decides the bits of some sums.
                arrays = {name: content.get_tensor(name).clone() for name in content.keys()}  # noqa: SIM118
        except FileNotFoundError:
            return None
        except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
            arrays, there, why = {}, "", str(error).rstrip(".")
        else:
            why = "its checksum is not that of its content"
        if not there or digest(arrays) != there:
            log.warning("%s is damaged (%s); it counts as lost", path, why)
            return None
        return arrays, there

    def put(
        self,
        tag: str,
        arrays: Mapping[str, Tensor],
        *,
        base: str,
        clock: int,
        what: str = "site:pending",
    ) -> str:
        """Keep a state durably, and return its digest.

        tag: a fresh random word of hexadecimal digits; also of a second attempt at a round.
        arrays: the state, by names.
        base: the tag of the state that it was computed from.
        clock: a number of the request that grows from request to request, at a server that was
            restored from a backup too (nanoseconds since 1970, say); `check_newer` looks at it.
        what: the name of the write's fault points.
        """
        name = str(StateFile(clock, tag, base))
        if not _NAME.fullmatch(name):
            raise ValueError(f"{tag!r} is no tag; pass up to 40 hexadecimal digits.")
        if not self.folder.is_dir():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync(self.folder.parent)
        own = digest(arrays)
        # safetensors refuses tensors that share memory, or are not contiguous.
        apart = {
            key: value.detach().clone(memory_format=torch.contiguous_format)
            for key, value in arrays.items()
        }
        write_durably(self.folder / name, [save(apart, {"digest": own})], what)
        return own

    def trim(self, tag: str) -> None:
        """Forget all but this state, the one that it was computed from, and `keep` before that."""
        files, kept, place = self.files(), set[str](), tag
        for _ in range(self.keep + 2):
            if place not in files:
                break
            kept.add(place)
            place = files[place].base
        for other, file in files.items():
            if other not in kept:
                (self.folder / str(file)).unlink(missing_ok=True)


def settle(states: States, accepted: Accepted) -> dict[str, Tensor] | None:
    """Return the state that the server counts on; None if it counts on none yet.

    Raises Mismatch if it is not here, or is another one than the server accepted.
    """
    if accepted.tag == START:
        return None
    found = states.load(accepted.tag)
    if found is None or (accepted.digest and found[1] != accepted.digest):
        raise Mismatch(accepted.tag)
    return found[0]


def digest(arrays: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of named arrays: their names, types, shapes and bytes.

    >>> digest({"0": torch.ones(2)}) == digest({"0": torch.ones(2, 1)})
    False
    """
    whole = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name].detach().cpu().contiguous()
        whole.update(f"{name} {array.dtype} {tuple(array.shape)}\n".encode())
        whole.update(array.reshape(-1).view(torch.uint8).numpy().data)
    return whole.hexdigest()
