"""What the server knows, on disk: the checkpoint, which is the commit record, and the journal.

checkpoint.safetensors  the server's state, the sites and their accepted states; replaced atomically
checkpoints/            the ones before, by the number of their commit, for a rollback
journal.jsonl           one line for each commit: rounds with their cohorts, joins, leaves, restarts
asked.json              the digests of what the round under way, and the end, have sent

A line is written before its checkpoint; a line beyond the checkpoint never happened.
"""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from shutil import copyfile, rmtree
from typing import Any

from trimtab._files import plain, read_json
from trimtab.algorithms import registry
from trimtab.commit import Accepted, durable
from trimtab.core import Algorithm, State
from trimtab.federation.message import Message, arrays_of, decode, encode, filled
from trimtab.federation.storage import journal
from trimtab.federation.storage.files import (
    BLANK,
    KEY,
    CannotWrite,
    check_seal,
    private_folder,
    sealed,
    writing,
)
from trimtab.federation.storage.journal import (
    CHECKPOINT,
    FORMAT,
    JOURNAL,
    KEEP,
    Entry,
    Summary,
    check_format,
    read_lines,
    read_summary,
    without_summary,
)
from trimtab.problems.problem import normalised

log = logging.getLogger("trimtab.federation.storage")

SUSPENDED = 3  # A site whose updates were refused in 3 rounds in a row is asked no more.
_ASKED = "asked.json"
_JUMP = 100_000  # A server that was restored lacks at most so many branches.
_FIRST = Accepted()  # of a client that was never accepted


@dataclass(frozen=True)
class Member:
    """A registered site.

    name, index: its name and number.
    weight: its weight before the weights are normalised.
    accepted: the state that the server accepted from it last.
    tested: its test samples, as it reported first; None until then.
    norms: the norms of its last accepted update, by exchange and array.
    refused: how many rounds in a row its update was refused.
    """

    name: str
    index: int
    weight: float
    accepted: Accepted = _FIRST
    tested: int | None = None
    norms: Mapping[str, float] = field(default_factory=dict)
    refused: int = 0

    @property
    def suspended(self) -> bool:
        """Whether it is not asked until the operator readmits it."""
        return self.refused >= SUSPENDED


@dataclass(frozen=True)
class Standing:
    """All that the next rounds depend on."""

    experiment: str
    algorithm: Algorithm
    seed: int
    weights: str  # the rule: uniform or samples
    server: State
    members: tuple[Member, ...]  # in the order of their numbers
    commit: int = 0
    r: int = 0
    epoch: int = 0  # how often the controls were started again
    branch: int = 1  # A site answers each round of a branch once.
    head: str = ""  # the digest of the journal's last line
    numbers: int = 0  # how many sites there have ever been
    first: Mapping[str, float] = field(default_factory=dict)  # median norms of first updates

    @property
    def p(self) -> dict[str, float]:
        """Return the weights p_i, which sum to 1, by the names of the sites."""
        p = normalised([member.weight for member in self.members], len(self.members))
        return {m.name: float(p_i) for m, p_i in zip(self.members, p, strict=True)}

    @property
    def summary(self) -> Summary:
        """What is shown of it where there is no time for all."""
        suspended = tuple(m.name for m in self.members if m.suspended)
        facts = self.commit, self.r, self.epoch, self.head
        return Summary(repr(self.algorithm), *facts, self.p, suspended)

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
        """Return the standing with the test samples of sites that had not reported them before."""
        members = (
            replace(m, tested=tested.get(m.name)) if m.tested is None else m for m in self.members
        )
        return replace(self, members=tuple(members))

    def accepting(self, states: Mapping[str, Accepted]) -> tuple[Member, ...]:
        """Return the members, with these states accepted from the sites of these names."""
        return tuple(replace(m, accepted=states.get(m.name, m.accepted)) for m in self.members)


@dataclass(frozen=True)
class Seen:
    """The last place of the journal that a site was told."""

    branch: int
    commit: int
    head: str


class Ledger:
    """The server's folder."""

    def __init__(self, folder: Path, keep: int = KEEP) -> None:
        self.folder, self.keep = folder, keep
        self.standing: Standing | None = None
        self.lines: list[dict[str, Any]] = []
        self.digests: dict[int, str] = {}  # of the lines, by commit
        self.ahead = 0  # lines after the checkpoint, which is older than the journal
        self._head = ""
        self.reload()

    def reload(self) -> None:
        """Take what is on disk for what happened."""
        self.standing = read_standing(self.folder)
        self.lines, self.digests = [], {}
        self._head, self.ahead = "", 0
        if self.standing is None:
            return
        entries, self.ahead = journal.committed(self.folder, self.standing.head)
        self._head = self.standing.head
        if not entries or entries[0].before:
            log.warning("%s: lines of the journal are missing", self.folder / JOURNAL)
        for entry in entries:
            self._note(entry)

    # -- branches, and gaps in the journal

    def open_branch(self, why: str) -> None:
        """Commit the next branch, in which sites answer again."""
        assert self.standing is not None
        new = replace(self.standing, branch=self.standing.branch + 1)
        self.commit(new, "branch", why=why)
        log.info("branch %d begins: %s", new.branch, why)

    def continue_journal(self) -> None:
        """Go on in a new branch from a checkpoint that is older than the journal."""
        assert self.standing is not None
        lines, branch = self.ahead, 1 + max(line["branch"] for line in self.lines)
        self.commit(replace(self.standing, branch=branch), "gap", lines=lines)
        log.warning(
            "the checkpoint is %d commits older than the journal; branch %d begins", lines, branch
        )

    def unknown(self, seen: Mapping[str, Seen]) -> dict[str, Seen]:
        """Return the places that sites were told of and that the journal does not have.

        A place before the journal's first line is none, nor is a branch that is far ahead.
        """
        assert self.standing is not None
        most, oldest = self.standing.branch + _JUMP, min(self.digests, default=0)
        return {
            name: place
            for name, place in seen.items()
            if self.digests and self.digests.get(place.commit) != place.head
            if place.commit >= oldest and place.branch <= most
        }

    def note_gap(self, gaps: Mapping[str, Seen]) -> None:
        """Commit what sites were told and the journal does not have, in a new branch if needed."""
        assert self.standing is not None
        newest = max(place.branch for place in gaps.values())
        branch = self.standing.branch if newest < self.standing.branch else newest + 1
        told = {name: [place.branch, place.commit, place.head] for name, place in gaps.items()}
        self.commit(replace(self.standing, branch=branch), "gap", sites=told)
        log.warning(
            "the journal lacks lines that %s know: it was changed, or the server was restored from "
            "a backup; the journal notes it, and branch %d is used",
            " and ".join(gaps),
            branch,
        )

    def check_same(self, **settings: Any) -> None:
        """Refuse to continue another experiment than the one in the folder."""
        there = self.standing
        if there is None:
            return
        known = {
            "algorithm": registry.encode(there.algorithm),
            "sites": [member.name for member in there.members],
            "weights": there.weights,
            "seed": there.seed,
        }
        for name, value in settings.items():
            if known[name] != value:
                raise ValueError(
                    f"{self.folder} holds an experiment with {name}={known[name]}, not {value}; "
                    "resume it with its own settings, or begin another in another folder."
                )

    def commit(self, standing: Standing, kind: str, **facts: Any) -> None:
        """Make a new standing the one that counts; raise CannotWrite if it could not be written."""
        before = self.standing
        number = max([standing.commit, *self.digests]) + 1
        standing = replace(standing, commit=number)
        line = plain({"commit": number, "kind": kind, "r": standing.r, "branch": standing.branch})
        line |= plain({"epoch": standing.epoch} | facts)
        try:
            with writing(self.folder):
                private_folder(self.folder)
                durable.fault_point("server:before-journal")
                entry = journal.append(self.folder / JOURNAL, line, self._head)
                durable.fault_point("server:after-journal")
                standing = replace(standing, head=entry.digest)
                self._keep(before)
                write(self.folder / CHECKPOINT, _message(standing), "server:checkpoint")
        except CannotWrite:
            # What is on disk says whether the commit happened.
            self.reload()
            if self.standing is None or self.standing.commit != number:
                raise
            return
        self.standing, self.ahead = standing, 0
        self._note(entry)

    def _note(self, entry: Entry) -> None:
        self.lines.append(entry.line)
        self.digests[entry.line["commit"]] = self._head = entry.digest

    def _keep(self, before: Standing | None) -> None:
        """Keep the checkpoint that is about to be replaced, for a rollback."""
        if before is None or not self.keep:
            return
        folder = private_folder(self.folder / "checkpoints")
        path = folder / f"{before.commit}.safetensors"
        path.unlink(missing_ok=True)
        try:
            os.link(self.folder / CHECKPOINT, path)
        except OSError:  # Some file systems have no links.
            copyfile(self.folder / CHECKPOINT, path)
        for path in _by_commit(folder)[: -self.keep]:
            path.unlink()

    # -- what was sent

    def ask_once(self, place: str, own: str) -> bool:
        """Note durably what is about to be sent to a place of the branch, as sites answer it once.

        False if something else was sent there before.

        place: "3.0" for the first exchange of round 3, or the kind of a request at the end.
        own: the digest of what is sent.
        """
        assert self.standing is not None
        path, branch = self.folder / _ASKED, self.standing.branch
        try:
            there = read_json(path)
            sent = there["sent"] if there["branch"] == branch else {}
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
        ):  # A file that cannot be read says nothing.
            sent = {}
        if place in sent:
            return bool(sent[place] == own)
        round_, exchange, _ = place.partition(".")
        if exchange:  # Other rounds are over.
            sent = {k: v for k, v in sent.items() if k.partition(".")[0] == round_ or "." not in k}
        text = json.dumps({"branch": branch, "sent": sent | {place: own}}).encode()
        with writing(self.folder):
            durable.write_durably(path, [text], "server:asked")
        return True


def read_journal(folder: Path, standing: Standing | None) -> list[dict[str, Any]]:
    """Return the lines of what happened up to this standing."""
    return read_lines(folder, standing.head) if standing else []


def kept_rounds(folder: Path) -> dict[int, Path]:
    """Return the kept checkpoints by their rounds; the newest, where a round was repeated."""
    found = {}
    for path in _by_commit(folder / "checkpoints"):
        summary = read_summary(path.parent, path.name)
        assert summary is not None
        found[summary.r] = path
    return found


def read_standing(folder: Path, name: str = CHECKPOINT) -> Standing | None:
    """Return the standing in a folder; None if the experiment has not begun."""
    path = folder / name
    try:
        message = read(path)
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
        members = tuple(
            Member(**member | {"accepted": Accepted(**member["accepted"])})
            for member in facts.pop("members")
        )
        server = filled(algorithm.init_server(message.arrays["0"]), message.arrays)
        return Standing(**facts, algorithm=algorithm, members=members, server=server)
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is no checkpoint of this trimtab ({error}); restore it from a backup."
        ) from None


def _message(standing: Standing) -> Message:
    names = ("experiment", "seed", "weights", "commit", "r", "epoch", "branch", "head")
    facts = {name: getattr(standing, name) for name in (*names, "numbers", "first")}
    facts |= {"format": FORMAT, "algorithm": registry.encode(standing.algorithm)}
    facts |= {"members": [asdict(member) for member in standing.members]}
    return Message(facts | standing.summary.to_header(), arrays_of(standing.server))


def _by_commit(folder: Path) -> list[Path]:
    """Return the kept checkpoints in the order of their commits."""
    paths = [path for path in folder.glob("*.safetensors") if path.stem.isdigit()]
    return sorted(paths, key=lambda path: int(path.stem))


# -- messages in files


def write(path: Path, message: Message, what: str) -> None:
    """Write a message with its checksum, so that it is there whole, or not at all.

    what: the name of the write's fault points; see `write_durably`.
    """
    durable.write_durably(path, sealed(encode(message, {KEY: BLANK})), what)


def read(path: Path) -> Message:
    """Read what `write` wrote; a ValueError says what is wrong with it."""
    with open(path, "rb") as file:
        check_seal(file)
        file.seek(0)
        return decode(file.read())


class Spool:
    """Replies on disk until all are there, so that their order and number cost no memory.

    Nothing in the folder outlives the process.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def delete(self) -> None:
        """Forget all replies, and the folder."""
        rmtree(self.folder, ignore_errors=True)

    def clear(self) -> None:
        """Forget all replies."""
        self.delete()
        with writing(self.folder):
            self.folder.mkdir(mode=0o700)

    def put(self, index: int, reply: Message) -> None:
        """Keep the reply of the site of this number."""
        with writing(self.folder):
            (self.folder / str(index)).write_bytes(encode(reply))

    def take(self, index: int) -> Message:
        """Return a reply, and forget it."""
        path = self.folder / str(index)
        reply = decode(path.read_bytes())
        path.unlink()
        return reply
