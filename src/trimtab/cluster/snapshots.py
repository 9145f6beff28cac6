"""Which files hold the states of which virtual shards; each has only what the ones before lack."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from trimtab._files import write_json
from trimtab.cluster.shard import Piece

WHOLE = 3  # a chain of files with > 3 x as many rows as clients is written anew


class Owner(Protocol):
    """Whoever owns a range of virtual shards."""

    begin: int
    end: int


@dataclass
class Chain:
    """The files of one virtual shard, the oldest first, and the round they go up to."""

    pieces: list[Piece] = field(default_factory=list)
    r: int = -1

    @property
    def rows(self) -> int:
        """How many states there are in all files."""
        return sum(piece.rows for piece in self.pieces)


class Snapshots:
    """The chains of all virtual shards in a folder that all machines see.

    A file is removed once neither the chains nor any checkpoint that is still there names it. What
    checkpoints name is written beside the files.
    """

    def __init__(self, folder: Path | None, V: int) -> None:
        self.folder = folder
        self.chains = [Chain() for _ in range(V)]
        self._made = set[str]()  # files that this driver was told of

    def due_whole(self) -> list[int]:
        """Return the virtual shards whose chains are to be written anew."""
        return [
            v for v, chain in enumerate(self.chains) if chain.pieces and chain.rows > self._most(v)
        ]

    def _most(self, v: int) -> int:
        return WHOLE * max(piece.rows for piece in self.chains[v].pieces)

    def add(
        self, begin: int, end: int, r: int, pieces: dict[int, Piece], whole: Sequence[int]
    ) -> None:
        """Note what an actor has written."""
        for v in range(begin, end):
            chain, piece = self.chains[v], pieces.get(v)
            if piece is not None:
                chain.pieces = [piece] if v in whole else [*chain.pieces, piece]
                self._made.add(piece.name)
            chain.r = r

    def oldest(self, owners: Sequence[Owner]) -> int:
        """Return the round that all shards have a snapshot of."""
        return min(self.round_of(owner) for owner in owners)

    def round_of(self, owner: Owner) -> int:
        """Return the round that an actor would go on from."""
        return min(self.chains[v].r for v in range(owner.begin, owner.end))

    def paths(self, begin: int, end: int) -> list[str]:
        """Return the files of some virtual shards, the older ones first."""
        if self.folder is None:
            return []
        chains = self.chains[begin:end]
        return [str(self.folder / piece.name) for chain in chains for piece in chain.pieces]

    # -- checkpoints

    def kept(self, checkpoint: Path) -> dict[str, Any]:
        """Return what a checkpoint is to name, and keep these files as long as it is there."""
        assert self.folder is not None
        files = {str(v): [p.name for p in chain.pieces] for v, chain in enumerate(self.chains)}
        rows = {str(v): [p.rows for p in chain.pieces] for v, chain in enumerate(self.chains)}
        path = checkpoint.resolve()
        note = f"kept-{sha256(str(path).encode()).hexdigest()[:12]}.json"
        now = sorted(name for names in files.values() for name in names)
        # Until the new checkpoint is whole, the one before it may be the one that is read.
        before = _note(self.folder / note).get("files", [])
        said = {"checkpoint": str(path), "files": now, "before": before}
        write_json(self.folder / note, said)
        return {"folder": str(self.folder), "files": files, "rows": rows}

    def adopt(self, kept: dict[str, Any], r: int) -> None:
        """Go on from what a checkpoint names."""
        if len(kept["files"]) != len(self.chains):
            raise ValueError(
                f"the snapshots in {kept['folder']} are of {len(kept['files'])} shards, not "
                f"{len(self.chains)}; pass the number of shards that they were made with."
            )
        for v, chain in enumerate(self.chains):
            named = zip(kept["files"][str(v)], kept["rows"][str(v)], strict=True)
            chain.pieces, chain.r = [Piece(*each) for each in named], r
            self._made.update(piece.name for piece in chain.pieces)

    def tidy(self) -> None:
        """Remove files that nobody names any more, of those that this driver knows."""
        assert self.folder is not None
        named = {piece.name for chain in self.chains for piece in chain.pieces}
        for note in self.folder.glob("kept-*.json"):
            named |= _names(note)
        for name in self._made - named:
            (self.folder / name).unlink(missing_ok=True)
            self._made.discard(name)


def _names(note: Path) -> set[str]:
    """Return the files that a checkpoint names, if it is still there."""
    said = _note(note)
    there = bool(said) and Path(said["checkpoint"]).exists()
    return {*said["files"], *said["before"]} if there else set()


def _note(path: Path) -> dict[str, Any]:
    try:
        said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return said
