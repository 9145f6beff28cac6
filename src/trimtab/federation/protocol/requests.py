"""Requests to some sites: what is sent, and which of the replies count."""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from time import monotonic
from typing import Any

from torch import Tensor

from trimtab.algorithms.registry import encode
from trimtab.commit import START
from trimtab.core import nbytes
from trimtab.federation.log import printable
from trimtab.federation.message import (
    Message,
    ReplyStatus,
    other_protocol,
    this_trimtab,
)
from trimtab.federation.protocol.checks import (
    NotBelieved,
    Ranges,
    Report,
    read_report,
    shown,
    whole,
)
from trimtab.federation.protocol.rehearsal import plan
from trimtab.federation.storage.journal import KEEP
from trimtab.federation.storage.ledger import Member, Seen, Standing

log = logging.getLogger("trimtab.federation.protocol")

Ask = Callable[[Mapping[str, Message], float], Iterator[tuple[str, Message]]]
"""What the coordinator needs of a `transport.Transport`: its method `ask`."""

MOST = 1 << 53  # Numbers of branches, commits and rounds are at most this.
_HEAD = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Terms:
    """The terms on which sites take part: the problem file, and the keys of the other sites."""

    problem: str  # its digest
    fingerprints: Mapping[str, str]  # by the names of the sites

    def of(self, members: Sequence[Member]) -> dict[str, Any]:
        """Return what a request says of them."""
        sites = {m.name: self.fingerprints.get(m.name, "") for m in members}
        return {"problem": self.problem, "sites": sites}


@dataclass
class Inquiry:
    """One attempt to ask some sites, in one exchange or several.

    tag: what its requests and replies have in common.
    absent: the sites that did not answer, and why.
    lost: the sites whose state is gone.
    diverged: the sites that computed NaN or infinity.
    seen: what the sites were told of the journal, by name.
    """

    ask: Ask
    timeout: float
    ranges: Ranges | None = None  # of the metrics that sites report; None: any
    terms: Terms | None = None
    untold: dict[str, str] = field(default_factory=dict)  # why a site's last reply was not taken
    keep: int = KEEP  # how many states sites keep
    tag: str = field(default_factory=lambda: token_hex(6))
    absent: dict[str, str] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    diverged: set[str] = field(default_factory=set)
    seen: dict[str, Seen] = field(default_factory=dict)

    def replies(
        self,
        standing: Standing,
        kind: str,
        members: Sequence[Member],
        arrays: dict[str, Tensor] | None = None,
        most: int | None = None,
        **facts: Any,
    ) -> Iterator[tuple[Member, Report]]:
        """Ask some sites, and yield their answers as they arrive, one for each at most.

        The arrays of an answer have at most `most` bytes; None (default): as model and kind say.
        Late, doubled and foreign replies are dropped; a site with an invalid reply sits out.
        """
        common = {"kind": kind, "tag": self.tag, "keep": self.keep}
        common |= {"experiment": standing.experiment, "algorithm": encode(standing.algorithm)}
        common |= {name: getattr(standing, name) for name in ("branch", "commit", "head")}
        common |= this_trimtab() | facts
        common |= {} if self.terms is None else self.terms.of(standing.members)
        most = _reply_bytes(standing, kind, facts) if most is None else most
        requests = {m.name: Message(common | self._own(m), arrays or {}, most) for m in members}
        waiting = {member.name: member for member in members}
        silent = f"no answer within {self.timeout:g} s"
        self.absent |= dict.fromkeys(waiting, silent)
        until = monotonic() + self.timeout
        for name, reply in self.ask(requests, self.timeout) if requests else ():
            same = {"tag": self.tag, "kind": kind}.items() <= reply.header.items()
            if name not in waiting or not same:
                log.info("site %s: a late or doubled reply is dropped", name)
                continue
            self.untold.pop(name, None)
            member = waiting.pop(name)
            try:
                why = self._trouble(member, reply)
                report = read_report(reply, self.ranges) if why is None else None
            except NotBelieved as error:
                why, report = str(error), None
            if report is not None:
                del self.absent[name]
                yield member, report
            else:
                self.turn_away(name, str(why), tell=reply.header.get("status") == ReplyStatus.DONE)
            if not waiting:
                break
        if monotonic() < until:  # Nothing more can come before the time is over.
            gone = [name for name in waiting if self.absent[name] == silent]
            self.absent |= dict.fromkeys(gone, "it is not connected, or its reply was lost")

    def _own(self, member: Member) -> dict[str, Any]:
        """Return the part of a request that only this site gets."""
        facts = {"site": member.name, "index": member.index}
        facts |= {"accepted": member.accepted.tag, "digest": member.accepted.digest}
        return facts | ({"refused": self.untold[member.name]} if member.name in self.untold else {})

    def turn_away(self, name: str, why: str, tell: bool = True) -> None:
        """Let a site sit out, and log it; tell: whether the next request tells the site why."""
        self.absent[name] = why
        if tell:
            self.untold[name] = why
        log.warning("site %s sits out: %s", name, why)

    def _trouble(self, member: Member, reply: Message) -> str | None:
        """Return what is wrong with the reply of a site; None if nothing is."""
        header = reply.header
        status = header.get("status")
        if header.get("site") != member.name:
            return f"it claims the name {shown(header.get('site'))}"
        if versions := other_protocol(header):
            ours, theirs = versions
            return f"it has trimtab {theirs}, the server {ours}; install versions of one protocol"
        self._note_seen(member.name, header.get("seen"))
        if status == ReplyStatus.MISMATCH:
            if member.accepted.tag == START:
                return "it says that its state is gone, but the server counts on none"
            self.lost.add(member.name)
        if status == ReplyStatus.DIVERGED:
            self.diverged.add(member.name)
        if status != ReplyStatus.DONE:
            return _line(header.get("why", f"it replies {shown(status)}"))
        if header.get("base", member.accepted.tag) != member.accepted.tag:
            return "it computed its update from another state than the accepted one"
        return None

    def _note_seen(self, name: str, claim: Any) -> None:
        if claim is None:
            return
        if not isinstance(claim, list) or len(claim) != 3:
            raise NotBelieved(f"it was told {shown(claim)} of the journal, which cannot be")
        branch, commit = (whole("place in the journal", value, 0, MOST) for value in claim[:2])
        if not isinstance(claim[2], str) or not _HEAD.fullmatch(claim[2]):
            raise NotBelieved(f"its line of the journal is {shown(claim[2])}, which is no digest")
        self.seen[name] = Seen(branch, commit, claim[2])


def _reply_bytes(standing: Standing, kind: str, facts: Mapping[str, Any]) -> int:
    """Return how many bytes the arrays of a reply have: they follow from model and exchange."""
    if kind not in ("work", "control"):
        return 0
    x = standing.server.x
    like = plan(standing.algorithm, x.numel(), x.dtype)
    return nbytes(like.exchanges[facts["exchange"]].upload if kind == "work" else like.client)


def _line(text: Any) -> str:
    """Return what a site says as one line that a log can hold."""
    return printable(" ".join(str(text).split()), 400).rstrip(".")
