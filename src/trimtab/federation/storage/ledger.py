"""What the server knows, on disk: the checkpoint, which is the commit record, and the journal.

checkpoint.safetensors  the server's state, the sites and their accepted tags; replaced atomically
journal.jsonl           one line for each commit: rounds with their cohorts, joins, leaves, restarts

A line is written before its checkpoint; a line beyond the checkpoint never happened.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trimtab._files import plain
from trimtab.algorithms import registry
from trimtab.core import Algorithm, State
from trimtab.federation.message import Message, arrays_of, filled
from trimtab.federation.storage import faults, files, journal
from trimtab.federation.storage.states import START
from trimtab.federation.storage.summary import (
    CHECKPOINT,
    FORMAT,
    Summary,
    check_format,
    without_summary,
)
from trimtab.problems.problem import normalised


@dataclass(frozen=True)
class Member:
    """A registered site: its number, its weight before they are normalised, its accepted state."""

    name: str
    index: int
    weight: float
    accepted: str = START
    tested: int | None = None  # test samples, as it said first; None: it has not said yet


@dataclass(frozen=True)
class Standing:
    """All that the rounds to come depend on."""

    experiment: str
    algorithm: Algorithm
    seed: int
    weights: str  # the rule: uniform or samples
    server: State
    members: tuple[Member, ...]  # in the order of their numbers
    commit: int = 0
    r: int = 0
    epoch: int = 0  # how often the controls were started anew
    clock: int = 0  # of the last request
    numbers: int = 0  # how many sites there have ever been

    @property
    def p(self) -> dict[str, float]:
        """Return the weights p_i, which sum to 1, by the names of the sites."""
        p = normalised([member.weight for member in self.members], len(self.members))
        return {m.name: float(p_i) for m, p_i in zip(self.members, p, strict=True)}

    @property
    def summary(self) -> Summary:
        """What is shown of it where there is no time for all."""
        return Summary(repr(self.algorithm), self.commit, self.r, self.epoch, self.p)

    @property
    def testing(self) -> int:
        """How many sites measure x on samples of their own."""
        return sum(member.tested != 0 for member in self.members)

    def member(self, name: str) -> Member:
        """Return a site by its name."""
        for member in self.members:
            if member.name == name:
                return member
        known = ", ".join(member.name for member in self.members)
        raise ValueError(f"there is no site {name!r}; the sites are {known}.")

    def with_sizes(self, tested: Mapping[str, int]) -> "Standing":
        """Return the standing with the test samples of sites that had not said them before."""
        members = (
            replace(m, tested=tested.get(m.name)) if m.tested is None else m for m in self.members
        )
        return replace(self, members=tuple(members))

    def accepting(self, tag: str, names: list[str]) -> tuple[Member, ...]:
        """Return the members, with this tag accepted from those of these names."""
        return tuple(replace(m, accepted=tag) if m.name in names else m for m in self.members)


class Ledger:
    """The server's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.standing: Standing | None = None
        self.lines: list[dict[str, Any]] = []
        self.reload()

    def reload(self) -> None:
        """Take what is on disk for what happened."""
        self.standing = read_standing(self.folder)
        self.lines = read_journal(self.folder, self.standing)

    def commit(self, standing: Standing, kind: str, **facts: Any) -> None:
        """Make a new standing the one that counts."""
        standing = replace(standing, commit=standing.commit + 1)
        line = {"commit": standing.commit, "kind": kind, "r": standing.r}
        line = plain(line | {"epoch": standing.epoch} | facts)
        path = self.folder / CHECKPOINT
        with files.writing(self.folder):
            faults.point("server:before-journal")
            journal.append(self.folder, line)
            faults.point("server:after-journal")
            files.write(path, _message(standing), "server:checkpoint")
        self.standing, self.lines = standing, [*self.lines, line]


def read_journal(folder: Path, standing: Standing | None) -> list[dict[str, Any]]:
    """Return the lines of what happened up to this standing."""
    return journal.read_lines(folder, standing.commit) if standing else []


def read_standing(folder: Path) -> Standing | None:
    """Return the standing in a folder; None if the experiment has not begun."""
    path = folder / CHECKPOINT
    try:
        message = files.read(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        why = str(error).rstrip(".")
        raise ValueError(f"{path} is damaged ({why}); restore it from a backup.") from None
    check_format(path, message.header)
    facts = without_summary(message.header)
    del facts["format"]
    try:
        algorithm = registry.decode(facts.pop("algorithm"))
        members = tuple(Member(**member) for member in facts.pop("members"))
        server = filled(algorithm.init_server(message.arrays["0"]), message.arrays)
        return Standing(**facts, algorithm=algorithm, members=members, server=server)
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is no checkpoint of this trimtab ({error}); restore it from a backup."
        ) from None


def _message(standing: Standing) -> Message:
    names = ("experiment", "seed", "weights", "commit", "r", "epoch", "clock", "numbers")
    facts = {name: getattr(standing, name) for name in names}
    facts |= {"format": FORMAT, "algorithm": registry.encode(standing.algorithm)}
    facts |= {"members": [asdict(member) for member in standing.members]}
    return Message(facts | standing.summary.to_header(), arrays_of(standing.server))
