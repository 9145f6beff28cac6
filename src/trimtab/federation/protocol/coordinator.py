"""The server: rounds of an algorithm over sites, committed one by one.

Presumed abort; the commit record is the server's checkpoint.

1. A request to site i carries the broadcast, a tag and a clock that are fresh for each attempt, and
   `accepted_i`, the tag of the last state that the server accepted from it.
2. The site starts from the state tagged `accepted_i`; if it has none, it answers `mismatch` and
   does nothing else. A request older than a state it keeps is refused as stale.
3. The site computes, writes its new state durably under the fresh tag, and only then answers with
   the update, the tag, and the tag it started from. It keeps that state, the accepted one, and the
   two before; whatever else it has is of no account.
4. The server takes one reply from each site, with this tag, upon the accepted state, and sound.
   Late, doubled and stale ones are dropped. It spools each to disk at once, and adds them in the
   order of the sites, so that neither memory nor bits depend on who is how fast.
5. The server writes x, c and all accepted tags in one atomic checkpoint, then goes on.

Invariant at every checkpoint: c = sum_i p_i c_i[accepted_i], and every site can still produce
c_i[accepted_i]. A round that ends before its checkpoint, however it ends, never happened.

In a round of several exchanges only those that answered the one before are asked, and the state
becomes pending at the last. Algorithms without client state have nothing to accept.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from time import perf_counter, sleep
from typing import Any, Literal, get_args

import torch

from trimtab._files import Lock
from trimtab.algorithms.registry import encode
from trimtab.core import Algorithm, Vector, leaves
from trimtab.core.hyper import at
from trimtab.core.threads import one_thread
from trimtab.errors import Diverged
from trimtab.federation.events import SiteReport, metrics_text
from trimtab.federation.message import arrays_of
from trimtab.federation.protocol import controls
from trimtab.federation.protocol.claims import NotBelieved, Ranges
from trimtab.federation.protocol.cohort import Cohort, Reached, TooFew
from trimtab.federation.protocol.commits import Commits
from trimtab.federation.protocol.controls import Audit
from trimtab.federation.protocol.enrolment import enrol, hello
from trimtab.federation.protocol.inquiry import Ask, Inquiry, Terms
from trimtab.federation.protocol.measured import is_reached, mean_metrics, report_of
from trimtab.federation.protocol.outcome import FederatedRound, Outcome
from trimtab.federation.protocol.rehearsal import plan
from trimtab.federation.protocol.statistics import Layers, save
from trimtab.federation.storage import files
from trimtab.federation.storage.files import CannotWrite
from trimtab.federation.storage.ledger import Member, Standing
from trimtab.federation.storage.spool import Spool
from trimtab.problems.metrics import Metric

log = logging.getLogger("trimtab.federation.protocol")

_LATELY, _OFTEN = 20, 4  # who lost its state >= 4 times in the last 20 commits sits out

Weights = Literal["uniform", "samples"]
OnLostState = Literal["restore", "restart", "refuse"]


class Coordinator:
    """One experiment, in a folder that belongs to this process alone.

    A folder that holds a checkpoint is continued: algorithm, sites, weights and seed must be the
    same. x is where a new one starts; it is taken to the dtype that the sites compute in. A round
    with fewer than `min_sites` sound replies is repeated. An upload whose norm is above
    `norm_limit` times |x| (or 1, if |x| is less) is absurd. `on_lost_state`: a site whose state is
    gone gets it back (`restore`), all controls begin anew (`restart`), or the run ends (`refuse`).
    """

    def __init__(
        self,
        folder: Path,
        algorithm: Algorithm,
        sites: Sequence[str],
        *,
        x: Vector,
        R: int,
        weights: Weights = "uniform",
        seed: int = 0,
        target: float | None = None,
        metric: Metric | None = None,
        ranges: Ranges | None = None,
        min_sites: int = 1,
        round_timeout: float = 3600.0,
        on_lost_state: OnLostState = "restore",
        norm_limit: float = 1e6,
        pause: float = 5.0,
        terms: Callable[[], Terms] | None = None,
        norms: Layers | None = None,
    ) -> None:
        if len(set(sites)) != len(sites) or not sites:
            raise ValueError(f"sites={list(sites)}; pass distinct names, at least one.")
        if not 1 <= min_sites <= len(sites):
            raise ValueError(f"min_sites={min_sites}; pass a number from 1 to {len(sites)}.")
        if weights not in get_args(Weights):
            raise ValueError(f"weights={weights!r}; pass 'uniform' or 'samples'.")
        if on_lost_state not in get_args(OnLostState):
            raise ValueError(f"on_lost_state={on_lost_state!r}; pass restore, restart or refuse.")
        self.folder, self.algorithm, self.sites = folder, algorithm, list(sites)
        self.x, self.R, self.weights, self.seed = x, R, weights, seed
        self.target, self.min_sites, self.round_timeout = target, min_sites, round_timeout
        self.on_lost_state, self.norm_limit, self.pause = on_lost_state, norm_limit, pause
        self.metric = metric  # what the target is of; else accuracy, or loss
        self.ranges = {} if ranges is None else ranges  # of the metrics that sites report
        self.terms = terms  # upon which sites take part; a site with a policy wants them
        self.norms = Layers({}) if norms is None else norms  # layers of BatchNorm
        self.outcome: Outcome | None = None
        self._untold: dict[str, str] = {}
        self._lock = Lock(files.private_folder(folder))
        try:
            self._commits = Commits(folder, pause)
            self._commits.check_same(
                algorithm=encode(algorithm), sites=list(sites), weights=weights, seed=seed
            )
        except BaseException:
            self._lock.release()
            raise
        self._spool = Spool(folder / "spool")

    def close(self) -> None:
        """Give the folder up."""
        self._lock.release()

    @property
    def standing(self) -> Standing:
        """What was committed last."""
        if self._commits.standing is None:
            raise ValueError(f"{self.folder}: the experiment has not begun; run it first.")
        return self._commits.standing

    @property
    def journal(self) -> list[dict[str, Any]]:
        """One line for each commit."""
        return self._commits.lines

    # -- rounds

    def run(self, ask: Ask) -> Iterator[FederatedRound]:
        """Go through the rounds, each of them committed, until the target or R rounds.

        Between two of them, `audit`, `join` and `leave` may be called. At the end, `outcome` tells
        how it ended.
        """
        self.outcome = None
        while self._commits.standing is None:
            self._commits.settle(partial(self._begin, ask))
        reached = False
        while self.standing.r < self.R and not reached:
            cohort, done = self._cohort(ask), None
            try:
                done = self._round(cohort)
            except Reached:
                reached = True
            except TooFew:
                log.warning(
                    "round %d has %d sound replies, fewer than min_sites=%d; it is repeated",
                    cohort.r,
                    len(cohort.alive),
                    self.min_sites,
                )
            except CannotWrite as error:
                log.error("%s; the round is repeated", error)
            lost = cohort.inquiry.lost - self._forgetful()
            if lost:
                self._commits.settle(partial(self._recover, ask, lost))
            if done is not None:
                yield done
            elif not reached:
                sleep(self.pause)
        while self.outcome is None:
            self._commits.settle(partial(self._end, ask, reached))

    @torch.no_grad()
    def _round(self, cohort: Cohort) -> FederatedRound:
        started, standing, r = perf_counter(), self.standing, cohort.r
        try:
            with one_thread():
                server = at(standing.algorithm, r).round(standing.server, cohort)
        except TooFew:
            most = 2 * len(cohort.inquiry.diverged) > len(standing.members)
            if most and not cohort.alive:
                raise Diverged(standing.algorithm, r) from None
            raise
        if not all(bool(torch.isfinite(leaf).all()) for leaf in leaves(server)):
            raise Diverged(standing.algorithm, r)
        names = [member.name for member in cohort.alive]
        members = standing.members
        if cohort.plan.stateful:
            members = standing.accepting(cohort.attempt.tag, names)
        done = FederatedRound(
            r=r,
            x=server.x,
            server=server,
            cohort=tuple(names),
            bytes_down=cohort.bytes_down,
            bytes_up=cohort.bytes_up,
            seconds=perf_counter() - started,
            drift=cohort.drift,
            cosine=cohort.cosine,
            metrics=cohort.metrics,
            sites=cohort.reports,
            absent=dict(cohort.inquiry.absent),
        )
        facts = done.to_journal()
        facts |= {"clients": [m.index for m in cohort.alive], "answered": cohort.answered}
        if controls.has_controls(standing):
            facts |= {"control": float(server.c.norm())}
        sizes = {name: report.tested for name, report in cohort.reports.items()}
        new = replace(standing, server=server, members=members, r=r).with_sizes(sizes)
        self._commits.commit(new, "round", **facts)
        return done

    def _cohort(self, ask: Ask) -> Cohort:
        x = self.standing.server.x
        return Cohort(
            self.standing,
            plan(self.standing.algorithm, x.numel(), x.dtype),
            self._inquiry(ask),
            self._spool,
            min_sites=self.min_sites,
            norm_limit=self.norm_limit,
            target=self.target,
            metric=self.metric,
        )

    # -- before, between and after

    def audit(self, ask: Ask) -> Audit:
        """Compare c with the sum of p_i c_i over all sites."""
        peak = max((line.get("control") or 0.0 for line in self.journal), default=0.0)
        return controls.audit(self.standing, self._inquiry(ask), peak)

    def join(self, ask: Ask, name: str) -> None:
        """Take a site in; it counts from the next round on."""
        new = controls.joined(self.standing, name, weight=1.0)
        inquiry = self._inquiry(ask)
        answers = hello(new, inquiry, new.members[-1:])
        if name not in answers:
            why = inquiry.absent[name]
            raise ValueError(f"site {name!r} does not answer ({why}); start it, then let it join.")
        x = new.server.x
        if answers[name].dtype != x.dtype:
            raise ValueError(f"site {name!r} computes in {answers[name].dtype}, not in {x.dtype}.")
        if new.weights == "samples":
            new = controls.joined(self.standing, name, weight=answers[name].n)
        self._commits.decide(new, "join", site=name, weights=new.p)

    def leave(self, ask: Ask, name: str) -> None:
        """Let a site go; it does not count from the next round on."""
        if 1 < len(self.standing.members) <= self.min_sites:
            raise ValueError(
                f"{name!r} cannot leave: min_sites={self.min_sites} sites are needed; lower that."
            )
        new = controls.left(self.standing, self._inquiry(ask), name)
        self._commits.decide(new, "leave", site=name, weights=new.p)

    def _begin(self, ask: Ask) -> None:
        """Enrol the sites, and make the first checkpoint."""
        members = tuple(Member(name, index, 1.0) for index, name in enumerate(self.sites))
        first = Standing(
            experiment=token_hex(8),
            algorithm=self.algorithm,
            seed=self.seed,
            weights=self.weights,
            server=self.algorithm.init_server(self.x),
            members=members,
            numbers=len(members),
        )
        needed = len(members) if self.weights == "samples" else self.min_sites
        first = enrol(first, partial(self._inquiry, ask), needed, self.pause)
        self._commits.commit(first, "begin", algorithm=repr(self.algorithm), weights=first.p)

    def _forgetful(self) -> set[str]:
        """Return the sites that lose their state again and again: nothing is done for them now."""
        last = self.journal[-_LATELY:]
        recoveries = [line["sites"] for line in last if line["kind"] in ("restore", "restart")]
        times = Counter(name for sites in recoveries for name in sites)
        return {name for name, count in times.items() if count >= _OFTEN}

    def _recover(self, ask: Ask, lost: set[str]) -> None:
        """Give sites whose state is gone a new one, as the operator has chosen."""
        standing, names = self.standing, ", ".join(sorted(lost))
        if self.on_lost_state == "refuse":
            raise LostState(
                f"the state of {names} is gone; resume with on_lost_state='restore' to give it "
                "back from c and the other sites, or 'restart' to start all controls anew."
            )
        if self.on_lost_state == "restart" or not controls.has_controls(standing):
            self._commits.commit(controls.restarted(standing), "restart", sites=sorted(lost))
            log.warning("the state of %s was gone; all controls start anew", names)
            return
        inquiry = self._inquiry(ask)
        restored = controls.restored(standing, inquiry, lost)
        if restored is None:
            log.warning("the state of %s is gone; it waits for %s", names, sorted(inquiry.absent))
        else:
            self._commits.commit(restored, "restore", sites=sorted(lost - inquiry.absent.keys()))
            log.warning("the state of %s was gone; it is restored", names)

    def _end(self, ask: Ask, reached: bool) -> None:
        """Let the sites measure the last x; without enough of them it is not the end yet."""
        standing, reports = self.standing, dict[str, SiteReport]()
        statistics = self.norms.gather(self._inquiry(ask), standing, self.min_sites)
        if statistics is None:
            sleep(self.pause)
            return
        arrays = arrays_of((standing.server.x, *statistics.values()))
        inquiry = self._inquiry(ask)
        for member, reply in inquiry.replies(standing, "evaluate", standing.members, arrays):
            try:
                reports[member.name] = report_of(member, reply)
            except NotBelieved as error:
                inquiry.turn_away(member.name, str(error))
                continue
            log.info("site %s: %s", member.name, metrics_text(reports[member.name].metrics))
        if len(reports) < self.min_sites:
            log.warning(
                "%d sites measured the last x, fewer than min_sites=%d; they are asked again",
                len(reports),
                self.min_sites,
            )
            sleep(self.pause)
            return
        if inquiry.absent:
            without = "; ".join(f"{name}: {why}" for name, why in inquiry.absent.items())
            log.warning("the last metrics are without some sites (%s)", without)
        metrics = mean_metrics(list(reports.values()))
        reached = reached or is_reached(reports, self.target, self.metric, standing.testing)
        save(self.folder, standing.r, statistics)
        self._commits.commit(standing, "end", metrics=metrics, reached=reached)
        self.outcome = Outcome(standing.r, reached, metrics)

    def _inquiry(self, ask: Ask) -> Inquiry:
        terms = None if self.terms is None else self.terms()
        return Inquiry(
            *(ask, self.round_timeout, self._commits.clock, self.ranges, terms, self._untold)
        )


class LostState(ValueError):
    """A site's state is gone, and the operator has chosen to be asked."""
