"""The sites of one round, as an algorithm sees them: `clients.run` over machines."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from math import nan
from typing import Any

from torch import Tensor
from torch.linalg import vector_norm

from trimtab.core import Program, leaves, nbytes
from trimtab.core.oracle import ServerDraws, server_random
from trimtab.core.replies import Tally
from trimtab.federation.events import SiteReport
from trimtab.federation.message import Message, NotFinite, arrays_of, check_arrays, filled
from trimtab.federation.protocol.claims import Report
from trimtab.federation.protocol.inquiry import Attempt, Inquiry
from trimtab.federation.protocol.measured import is_reached, mean_metrics, report_of
from trimtab.federation.protocol.outliers import outliers
from trimtab.federation.protocol.rehearsal import Exchange, Plan
from trimtab.federation.storage.ledger import Member, Standing
from trimtab.federation.storage.spool import Spool
from trimtab.problems.metrics import Metric


class TooFew(Exception):
    """Too few sites answered for the round to count."""


class Reached(Exception):
    """The x that the sites received meets the target: no further round is needed."""


class Cohort(ServerDraws):
    """One attempt at a round. Its replies are spooled, and added in the order of the sites."""

    def __init__(
        self,
        standing: Standing,
        plan: Plan,
        inquiry: Inquiry,
        spool: Spool,
        *,
        min_sites: int,
        norm_limit: float,
        target: float | None,
        metric: Metric | None = None,
    ) -> None:
        self.standing, self.plan, self.inquiry, self.spool = standing, plan, inquiry, spool
        self.min_sites, self.target, self.metric = min_sites, target, metric
        self.scale = max(1.0, float(vector_norm(standing.server.x)))
        self.limit = norm_limit * self.scale
        self.attempt = Attempt.fresh(inquiry.clock)
        self.r = standing.r + 1
        self.draws = server_random(standing.seed, self.r)
        self.alive: Sequence[Member] = standing.members
        self.answered: list[list[str]] = []  # in each exchange
        self.reports: dict[str, SiteReport] = {}
        self.bytes_down = self.bytes_up = 0
        self.drift = self.cosine = nan

    def run(self, program: Program, *broadcast: Any) -> Tally:
        """Reach the sites that answered every exchange of this round so far."""
        number = len(self.answered)
        exchange = self.plan.exchanges[number]
        assert _name(program) == _name(exchange.program), "a round goes as it was rehearsed"
        self.bytes_down += len(self.alive) * nbytes(broadcast)
        self.spool.clear()
        self.alive = self._collect(number, exchange, broadcast)
        self.answered.append([member.name for member in self.alive])
        if len(self.alive) < self.min_sites:
            raise TooFew
        witnesses = self.standing.testing
        if number == 0 and is_reached(self.reports, self.target, self.metric, witnesses):
            raise Reached
        return self._reduce(exchange)

    def _collect(self, number: int, exchange: Exchange, broadcast: Any) -> Sequence[Member]:
        """Spool the replies as they come; return who sent one, in the order of the sites."""
        norms: dict[str, list[float]] = {}
        facts = {"exchange": number, "r": self.r, "seed": self.standing.seed}
        where, arrays = _with_x(arrays_of(broadcast), self.standing.server.x)
        replies = self.inquiry.replies(
            self.standing, "work", self.alive, arrays, self.attempt, x=where, **facts
        )
        for member, reply in replies:
            if self._sound(member, reply, exchange):
                self.spool.put(member.index, Message({}, reply.arrays))
                norms[member.name] = [_norm(a) for _, a in sorted(reply.arrays.items())]
        for name, why in outliers(norms, self.scale, self._unsettled(norms)).items():
            self.reports.pop(name, None)
            del norms[name]
            self.inquiry.turn_away(name, why)
        return [member for member in self.alive if member.name in norms]

    def _unsettled(self, names: Collection[str]) -> set[str]:
        """Return the sites whose state is not that of the last round, so that they may move far."""
        accepted = {m.name: m.accepted for m in self.alive if m.name in names}
        usual = Counter(accepted.values()).most_common(1)
        return {name for name, tag in accepted.items() if tag != usual[0][0]}

    def _sound(self, member: Member, reply: Report, exchange: Exchange) -> bool:
        """Check an upload, and note what is reported; the site sits out if either is not sound."""
        try:
            check_arrays("its upload", reply.arrays, leaves(exchange.upload), self.limit)
            self._note(member, reply)
        except NotFinite as error:
            self.inquiry.diverged.add(member.name)
            self.inquiry.turn_away(member.name, str(error).rstrip("."))
            return False
        except ValueError as error:
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


def _norm(array: Tensor) -> float:
    """Return the norm of a vector; a number, as that of a client's steps, is compared with none."""
    return float(vector_norm(array)) if array.dim() else 0.0


def _name(program: Program) -> Any:
    return getattr(program, "__qualname__", None)
