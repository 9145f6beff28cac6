"""One attempt to ask some sites: what is sent, which replies count, and a round made of them."""

import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from secrets import token_hex
from statistics import median
from time import monotonic
from typing import Any

from torch import Tensor
from torch.linalg import vector_norm

from trimtab.algorithms.registry import encode
from trimtab.commit import START, Accepted, digest
from trimtab.core import Program, State, leaves, nbytes
from trimtab.core.oracle import ServerDraws, server_random
from trimtab.core.replies import Tally
from trimtab.federation.events import RoundCommitted, SiteReport
from trimtab.federation.log import printable
from trimtab.federation.message import (
    Message,
    NotFinite,
    ReplyStatus,
    arrays_of,
    check_arrays,
    filled,
    other_protocol,
    this_trimtab,
)
from trimtab.federation.protocol.checks import (
    ENOUGH,
    NotBelieved,
    Ranges,
    Report,
    is_reached,
    mean_metrics,
    outliers,
    read_report,
    report_of,
    shown,
    whole,
)
from trimtab.federation.protocol.rehearsal import Exchange, Plan, plan
from trimtab.federation.storage.journal import KEEP
from trimtab.federation.storage.ledger import Ledger, Member, Seen, Spool, Standing
from trimtab.problems.metrics import Metric

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
    like = plan_of(standing)
    return nbytes(like.exchanges[facts["exchange"]].upload if kind == "work" else like.client)


def plan_of(standing: Standing) -> Plan:
    """Return the exchanges of a round."""
    x = standing.server.x
    return plan(standing.algorithm, x.numel(), x.dtype)


def _line(text: Any) -> str:
    """Return what a site says as one line that a log can hold."""
    return printable(" ".join(str(text).split()), 400).rstrip(".")


# -- a round


class TooFew(Exception):
    """Too few sites answered for the round to count."""


class Reached(Exception):
    """The x that the sites received meets the target: no further round is needed."""


class OtherBroadcast(Exception):
    """The sites were asked for this round of the branch with another broadcast."""


class Cohort(ServerDraws):
    """One attempt at a round. Its replies are spooled, and added in the order of the sites."""

    def __init__(
        self,
        standing: Standing,
        inquiry: Inquiry,
        ledger: Ledger,
        *,
        min_sites: int,
        norm_limit: float,
        target: float | None,
        metric: Metric | None = None,
        refused: Collection[str] = (),
    ) -> None:
        self.standing, self.inquiry, self.ledger = standing, inquiry, ledger
        self.plan = plan_of(standing)
        self.spool = Spool(ledger.folder / "spool")
        self.min_sites, self.target, self.metric = min_sites, target, metric
        self.scale = max(1.0, float(vector_norm(standing.server.x)))
        self.limit = norm_limit * self.scale
        self.r = standing.r + 1
        self.draws = server_random(standing.seed, self.r)
        self.refused = set(refused)  # in this attempt, and in those at this round before
        self.alive: Sequence[Member] = [
            m for m in standing.members if not m.suspended and m.name not in refused
        ]
        self.states: dict[str, Accepted] = {}  # to be accepted
        self.norms: dict[str, dict[str, float]] = {}  # of the updates that were taken
        self.answered: list[list[str]] = []  # in each exchange
        self.reports: dict[str, SiteReport] = {}
        self.bytes_down = self.bytes_up = 0
        self.drift = self.cosine = nan

    def run(self, program: Program, *broadcast: Any) -> Tally:
        """Ask the sites that answered every exchange of this round so far."""
        number = len(self.answered)
        exchange = self.plan.exchanges[number]
        assert _name(program) == _name(exchange.program), "a round goes as it was rehearsed"
        where, arrays = _with_x(arrays_of(broadcast), self.standing.server.x)
        if not self.ledger.ask_once(f"{self.r}.{number}", f"{where} {digest(arrays)}"):
            raise OtherBroadcast
        self.bytes_down += len(self.alive) * nbytes(broadcast)
        self.spool.clear()
        self.alive = self._collect(number, where, arrays)
        self.answered.append([member.name for member in self.alive])
        if len(self.alive) < self.min_sites:
            raise TooFew
        witnesses = self.standing.testing
        if number == 0 and is_reached(self.reports, self.target, self.metric, witnesses):
            raise Reached
        return self._reduce(exchange)

    def _collect(self, number: int, where: str, arrays: dict[str, Tensor]) -> Sequence[Member]:
        """Spool the replies as they come; return the sites that answered, in their order."""
        norms: dict[str, dict[str, float]] = {}
        facts = {"exchange": number, "r": self.r, "seed": self.standing.seed}
        replies = self.inquiry.replies(self.standing, "work", self.alive, arrays, x=where, **facts)
        for member, reply in replies:
            if self._sound(member, reply, number):
                self.spool.put(member.index, Message({}, reply.arrays))
                norms[member.name] = {k: float(vector_norm(v)) for k, v in reply.arrays.items()}
                self.states[member.name] = reply.accepted
        last = {m.name: _of_exchange(m.norms, number) for m in self.alive}
        first = _of_exchange(self.standing.first, number)
        for name, why in outliers(norms, self.scale, last, first).items():
            self.reports.pop(name, None)
            del norms[name]
            self.refused.add(name)
            self.inquiry.turn_away(name, why)
        for name, own in norms.items():
            kept = {f"{number}.{place}": norm for place, norm in own.items()}
            self.norms[name] = self.norms.get(name, {}) | kept
        return [member for member in self.alive if member.name in norms]

    def standing_after(self, server: State) -> Standing:
        """Return the standing after this round."""
        names = {member.name for member in self.alive}
        states = {name: self.states[name] for name in names} if self.plan.stateful else {}
        sizes = {name: report.tested for name, report in self.reports.items()}
        members, first = [], self.standing.first
        for m in self.standing.with_sizes(sizes).accepting(states):
            if m.name in names:
                m = replace(m, norms=self.norms[m.name], refused=0)
            elif m.name in self.refused:
                m = replace(m, refused=m.refused + 1)
                if m.suspended:
                    log.warning(
                        "site %s sits out from now on: its updates were refused in %d rounds in a "
                        "row; `trimtab federate readmit` or `leave`",
                        m.name,
                        m.refused,
                    )
            members.append(m)
        if self.plan.stateful and not first and len(names) >= ENOUGH:
            own = [self.norms[name] for name in names]
            first = {place: median(norms[place] for norms in own) for place in own[0]}
        return replace(self.standing, server=server, members=tuple(members), r=self.r, first=first)

    def result(self, seconds: float) -> RoundCommitted:
        """Return the event of this round."""
        return RoundCommitted(
            r=self.r,
            cohort=tuple(member.name for member in self.alive),
            bytes_down=self.bytes_down,
            bytes_up=self.bytes_up,
            seconds=seconds,
            drift=self.drift,
            cosine=self.cosine,
            metrics=self.metrics,
            sites=self.reports,
            absent=dict(self.inquiry.absent),
        )

    @property
    def without(self) -> str:
        """What a log adds if updates were refused."""
        if not self.refused:
            return ""
        names = ", ".join(sorted(self.refused))
        return f" without {names}, whose update was refused: let it leave, or lower min_sites"

    def _sound(self, member: Member, reply: Report, number: int) -> bool:
        """Return whether an upload and its report are valid; if not, the site sits out."""
        exchanges, kept = self.plan.exchanges, reply.accepted
        try:
            check_arrays("its upload", reply.arrays, leaves(exchanges[number].upload), self.limit)
            shows_state = kept.tag != START and kept.digest
            if self.plan.stateful and number + 1 == len(exchanges) and not shows_state:
                raise NotBelieved("it does not say which state it has kept")
            self._note(member, reply)
        except ValueError as error:
            whose = self.inquiry.diverged if isinstance(error, NotFinite) else self.refused
            whose.add(member.name)
            self.inquiry.turn_away(member.name, str(error).rstrip("."))
            return False
        return True

    def _note(self, member: Member, reply: Report) -> None:
        report = report_of(member, reply)
        self.bytes_up += report.bytes_up
        first = self.reports.get(member.name)
        if first is not None:  # metrics come with the first exchange of a round
            seconds, bytes_up = first.seconds + report.seconds, first.bytes_up + report.bytes_up
            report = replace(first, seconds=seconds, bytes_up=bytes_up)
        self.reports[member.name] = report

    def _reduce(self, exchange: Exchange) -> Tally:
        tally, p = Tally(), self.standing.p
        for member in self.alive:
            arrays = self.spool.take(member.index).arrays
            tally.add(p[member.name], filled(exchange.upload, arrays))
        self.drift, self.cosine = tally.drift, tally.cosine
        return tally

    @property
    def metrics(self) -> dict[str, float]:
        """The means over sites, weighted by their test samples, at the x that they received."""
        return mean_metrics(list(self.reports.values()))


def _with_x(arrays: dict[str, Any], x: Any) -> tuple[str, dict[str, Any]]:
    """Return where among the arrays x is; add it if it is not there."""
    for name, leaf in arrays.items():
        if leaf.data_ptr() == x.data_ptr() and leaf.shape == x.shape:
            return name, arrays
    return "x", {**arrays, "x": x}


def _of_exchange(norms: Mapping[str, float], number: int) -> dict[str, float]:
    start = f"{number}."
    return {k.removeprefix(start): v for k, v in norms.items() if k.startswith(start)}


def _name(program: Program) -> Any:
    return getattr(program, "__qualname__", None)
