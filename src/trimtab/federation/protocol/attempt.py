"""One attempt at a round: the sites as an algorithm sees them, `clients.run` over machines."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import nan
from statistics import median
from typing import Any

from torch import Tensor
from torch.linalg import vector_norm

from trimtab.commit import START, Accepted, digest
from trimtab.core import Program, State, leaves, nbytes
from trimtab.core.oracle import ServerDraws, server_random
from trimtab.core.replies import Tally
from trimtab.federation.events import RoundCommitted, SiteReport
from trimtab.federation.message import Message, NotFinite, arrays_of, check_arrays, filled
from trimtab.federation.protocol.checks import (
    ENOUGH,
    NotBelieved,
    Report,
    is_reached,
    mean_metrics,
    outliers,
    report_of,
)
from trimtab.federation.protocol.rehearsal import Exchange, Plan
from trimtab.federation.protocol.requests import Inquiry
from trimtab.federation.storage.ledger import Ledger, Member, Spool, Standing
from trimtab.problems.metrics import Metric


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
        plan: Plan,
        inquiry: Inquiry,
        ledger: Ledger,
        *,
        min_sites: int,
        norm_limit: float,
        target: float | None,
        metric: Metric | None = None,
        refused: Collection[str] = (),
    ) -> None:
        self.standing, self.plan, self.inquiry, self.ledger = standing, plan, inquiry, ledger
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
                norms[member.name] = {name: _norm(array) for name, array in reply.arrays.items()}
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
            members.append(m)
        if self.plan.stateful and not first and len(names) >= ENOUGH:
            own = [self.norms[name] for name in names]
            first = {place: median(norms[place] for norms in own) for place in own[0]}
        return replace(self.standing, server=server, members=tuple(members), r=self.r, first=first)

    def result(self, seconds: float) -> RoundCommitted:
        """Return what is told of this round."""
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


def _norm(array: Tensor) -> float:
    """Return the norm of a vector; a number, as that of a client's steps, is compared with none."""
    return float(vector_norm(array)) if array.dim() else 0.0


def _name(program: Program) -> Any:
    return getattr(program, "__qualname__", None)
