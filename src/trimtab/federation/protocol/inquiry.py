"""A question to some sites: what is sent, and which of the replies count."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from time import monotonic, time_ns
from typing import Any

from torch import Tensor

from trimtab.algorithms.registry import encode
from trimtab.core import nbytes
from trimtab.federation.log import printable
from trimtab.federation.message import (
    Message,
    ReplyStatus,
    same_protocol,
    this_trimtab,
    versions,
)
from trimtab.federation.protocol.claims import (
    NotBelieved,
    Ranges,
    Report,
    read_report,
    shown,
    whole,
)
from trimtab.federation.protocol.rehearsal import plan
from trimtab.federation.storage.ledger import Member, Standing
from trimtab.federation.storage.states import START

log = logging.getLogger("trimtab.federation.protocol")

Ask = Callable[[Mapping[str, Message], float], Iterator[tuple[str, Message]]]
"""What the coordinator needs of a `transport.Transport`: its method `ask`."""


@dataclass
class RequestClock:
    """Numbers that only grow, also beyond a restart from an older checkpoint.

    What a site has seen moves the numbers of its own requests alone: it cannot spoil the others'.
    """

    last: int
    ahead: dict[str, int] = field(default_factory=dict)  # of sites that have seen later requests

    def tick(self) -> int:
        """Return a number above all before."""
        self.last = max(time_ns(), self.last + 1)
        return self.last

    def of_site(self, name: str, clock: int) -> int:
        """Return the number of a request to a site: above all that it has seen."""
        if name in self.ahead:
            clock = self.ahead[name] = max(clock, self.ahead[name] + 1)
        return clock

    def pass_by(self, name: str, seen: int) -> None:
        """Go beyond a number that a site has seen."""
        self.ahead[name] = max(self.ahead.get(name, seen), seen)


@dataclass(frozen=True)
class Attempt:
    """What makes a request and its replies one of a kind."""

    clock: int
    tag: str

    @staticmethod
    def fresh(clock: RequestClock) -> "Attempt":
        """Return one that never was before."""
        return Attempt(clock.tick(), token_hex(6))


@dataclass(frozen=True)
class Terms:
    """Upon what sites take part: the problem file, by its digest, and with whom, by their keys."""

    problem: str
    fingerprints: Mapping[str, str]  # by the names of the sites

    def of(self, members: Sequence[Member]) -> dict[str, Any]:
        """Return what a request says of them."""
        sites = {m.name: self.fingerprints.get(m.name, "") for m in members}
        return {"problem": self.problem, "sites": sites}


@dataclass
class Inquiry:
    """A question to some sites, or several; it remembers who did not answer, and why."""

    ask: Ask
    timeout: float
    clock: RequestClock
    ranges: Ranges = field(default_factory=dict)  # of the metrics that sites report
    terms: Terms | None = None
    untold: dict[str, str] = field(default_factory=dict)  # why a site's last reply was not taken
    absent: dict[str, str] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)  # those whose state is gone
    diverged: set[str] = field(default_factory=set)

    def replies(
        self,
        standing: Standing,
        kind: str,
        members: Sequence[Member],
        arrays: dict[str, Tensor] | None = None,
        attempt: Attempt | None = None,
        most: int | None = None,
        **facts: Any,
    ) -> Iterator[tuple[Member, Report]]:
        """Ask some sites, and go through their answers as they arrive, one for each at most.

        The arrays of an answer have at most `most` bytes; None (default): as model and kind say.

        Late, doubled and foreign replies are dropped; who says what cannot be sits out.
        """
        attempt = attempt or Attempt.fresh(self.clock)
        common = {"kind": kind, "tag": attempt.tag}
        common |= {"experiment": standing.experiment, "algorithm": encode(standing.algorithm)}
        common |= this_trimtab() | facts
        common |= {} if self.terms is None else self.terms.of(standing.members)
        same = arrays or {}
        most = _reply_bytes(standing, kind, facts) if most is None else most
        requests = {m.name: Message(common | self._own(m, attempt), same, most) for m in members}
        waiting = {member.name: member for member in members}
        silent = f"no answer within {self.timeout:g} s"
        self.absent |= dict.fromkeys(waiting, silent)
        until = monotonic() + self.timeout
        for name, reply in self.ask(requests, self.timeout) if requests else ():
            if name not in waiting or reply.header.get("tag") != attempt.tag:
                log.info("site %s: a late or doubled reply is dropped", name)
                continue
            self.untold.pop(name, None)
            try:
                why = self._trouble(waiting[name], reply)
                report = read_report(reply, self.ranges) if why is None else None
            except NotBelieved as error:
                why, report = str(error), None
            if why == _STALE:
                continue  # perhaps a request was doubled, and the reply to the first is on its way
            member = waiting.pop(name)
            if report is not None:
                del self.absent[name]
                yield member, report
            else:
                self.turn_away(name, str(why), tell=reply.header.get("status") == ReplyStatus.DONE)
            if not waiting:
                break
        if monotonic() < until:  # nothing more can come before the time is over
            gone = [name for name in waiting if self.absent[name] == silent]
            self.absent |= dict.fromkeys(gone, "it is not connected, or its reply was lost")

    def _own(self, member: Member, attempt: Attempt) -> dict[str, Any]:
        """Return what only this site is told."""
        facts = {"site": member.name, "index": member.index, "accepted": member.accepted}
        facts |= {"refused": self.untold[member.name]} if member.name in self.untold else {}
        return facts | {"clock": self.clock.of_site(member.name, attempt.clock)}

    def turn_away(self, name: str, why: str, tell: bool = True) -> None:
        """Let a site sit out, and say so; also to itself with the next request, if it must know."""
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
        if not same_protocol(header):
            ours, theirs = versions(header)
            return f"it has trimtab {theirs}, the server {ours}; install versions of one protocol"
        if status == ReplyStatus.STALE:
            self.clock.pass_by(member.name, whole("seen", header.get("seen"), 0, _END_OF_TIME))
            self.absent[member.name] = "it has seen later requests; the next one will be later"
            return _STALE
        if status == ReplyStatus.MISMATCH:
            if member.accepted == START:
                return "it says that its state is gone, but the server counts on none"
            self.lost.add(member.name)
        if status == ReplyStatus.DIVERGED:
            self.diverged.add(member.name)
        if status != ReplyStatus.DONE:
            return _line(header.get("why", f"it replies {shown(status)}"))
        if header.get("base", member.accepted) != member.accepted:
            return "its update is upon another state than the accepted one"
        return None


def _reply_bytes(standing: Standing, kind: str, facts: Mapping[str, Any]) -> int:
    """Return how many bytes the arrays of a reply have: they follow from model and exchange."""
    if kind not in ("work", "control"):
        return 0
    x = standing.server.x
    like = plan(standing.algorithm, x.numel(), x.dtype)
    return nbytes(like.exchanges[facts["exchange"]].upload if kind == "work" else like.client)


_STALE = "stale"
_END_OF_TIME = 1 << 62  # a clock is <= this: nanoseconds since 1970, in the year 2116


def _line(text: Any) -> str:
    """Return what a site says as one line that a log can hold."""
    return printable(" ".join(str(text).split()), 400).rstrip(".")
