"""The server: rounds of an algorithm over sites, committed one by one.

Presumed abort; the commit record is the server's checkpoint.

1. A request to site i carries the broadcast, the branch and number of the round, a tag that is
   fresh for each attempt, the journal's head, and `accepted_i`, the tag and digest of the last
   state that the server accepted from the site.
2. The site starts from the state `accepted_i`; if it does not have it, it answers `mismatch` and
   does nothing else.
3. The site computes, writes its new state and its reply durably, and only then answers: with the
   update, the tag and digest of the new state, and the tag that it started from. It keeps that
   state, the accepted one, and the `keep` before.
4. The server takes one reply from each site, with the attempt's tag, computed from the accepted
   state, and valid. Late and doubled ones are dropped. It spools each to disk at once, and adds
   them in the order of the sites, so that neither memory nor bits depend on their speed.
5. The server writes x, c, all accepted tags with their digests and the journal's head in one atomic
   checkpoint, then goes on.
6. Invariant at every checkpoint: c = sum_i p_i c_i[accepted_i], and every site can still produce
   c_i[accepted_i]. A round that ends before its checkpoint, however it ends, never happened.
7. In a round of several exchanges only sites that answered the one before are asked; the state
   becomes pending at the last. Algorithms without client state have nothing to accept.
8. A state that a site shows later has the accepted digest, or does not count. A site that leaves is
   not asked: c is the sum of the others' states, or a new epoch begins (c = 0, all c_i = 0).
9. A site answers each (experiment, branch, round, exchange) once: the same broadcast again gets the
   stored reply, another one is refused. A branch is a number that only rises. The server opens a
   new one for a rollback, a restored backup, or a repeated round whose broadcast changed.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from time import perf_counter, sleep
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from trimtab._files import Lock
from trimtab.algorithms.registry import encode
from trimtab.commit import digest
from trimtab.core import Algorithm, Vector, leaves
from trimtab.core.hyper import at
from trimtab.core.threads import one_thread
from trimtab.errors import Diverged
from trimtab.federation.events import AuditDone, Ended, RoundCommitted, SiteReport, metrics_text
from trimtab.federation.message import arrays_of
from trimtab.federation.protocol import controls
from trimtab.federation.protocol.attempt import (
    Ask,
    Cohort,
    Inquiry,
    OtherBroadcast,
    Reached,
    Terms,
    TooFew,
)
from trimtab.federation.protocol.checks import (
    NotBelieved,
    Ranges,
    is_reached,
    mean_metrics,
    report_of,
)
from trimtab.federation.protocol.controls import enrol, hello
from trimtab.federation.protocol.statistics import Layers, save
from trimtab.federation.storage.files import CannotWrite, private_folder
from trimtab.federation.storage.journal import KEEP
from trimtab.federation.storage.ledger import Ledger, Member, Spool, Standing
from trimtab.problems.metrics import Metric

log = logging.getLogger("trimtab.federation.protocol")

_LATELY, _OFTEN = 20, 4  # A site that lost its state >= 4 times in the last 20 commits sits out.
_ENDS = 10  # The last x is sent at most 10 times to sites that do not measure it.
# What is asked besides the rounds takes a site no longer than 3 rounds, or 90 seconds, in which one
# that crashed comes back; what it measures at the end, 10 minutes. A silent site stretches nothing.
_TIMES, _SHORT, _LONG = 3.0, 90.0, 600.0

Weights = Literal["uniform", "samples"]
OnLostState = Literal["restore", "restart", "refuse"]


class Coordinator:
    """One experiment, in a folder that belongs to this process alone.

    A folder that holds a checkpoint is continued: algorithm, sites, weights and seed must be the
    same.

    folder: the coordinator's folder.
    algorithm: the algorithm.
    sites: the names of the sites, in the order of the clients.
    x: where a new experiment starts; it is taken to the dtype that the sites compute in.
    R: the number of rounds.
    weights: the rule for p_i, "uniform" or "samples"; default uniform.
    seed: of the algorithm's random numbers; default 0.
    target: the metric to reach; default none.
    metric: the metric that the target is of; default accuracy, or loss.
    ranges: the metrics that the problem defines; default any.
    min_sites: the fewest valid replies of a round, which is repeated with fewer; default 1.
    round_timeout: seconds until a round is closed; default 3600.
    on_lost_state: a site whose state is gone gets it back ("restore", the default), all controls
        start again ("restart"), or the run ends ("refuse").
    norm_limit: an upload above this times |x| (or 1, if |x| is less) is absurd; default 1e6.
    pause: seconds between two attempts; default 5.
    terms: returns the terms on which sites take part; a site with a policy needs them.
    keep: how many checkpoints and states are kept for a rollback; default 10.
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
        keep: int = KEEP,
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
        self.metric, self.ranges, self.terms, self.keep = metric, ranges, terms, keep
        self.norms = Layers({}) if norms is None else norms  # layers of BatchNorm
        self.outcome: Ended | None = None
        self._untold: dict[str, str] = {}
        self._compared: set[str] = set()  # sites that noted a gap in the journal, in this run
        self._refused: tuple[int, set[str]] = 0, set()  # in the attempts at this round
        self._attempts = 0  # at rounds, in this process
        self._helped: dict[str, tuple[int, int]] = {}  # how often in vain, until which attempt
        self._lock = Lock(private_folder(folder))
        try:
            self._ledger = Ledger(folder, keep)
            self._ledger.check_same(
                algorithm=encode(algorithm), sites=list(sites), weights=weights, seed=seed
            )
        except BaseException:
            self._lock.release()
            raise

    def close(self) -> None:
        """Give the folder up."""
        self._lock.release()

    @property
    def standing(self) -> Standing:
        """What was committed last."""
        if self._ledger.standing is None:
            raise ValueError(f"{self.folder}: the experiment has not begun; run it first.")
        return self._ledger.standing

    @property
    def journal(self) -> list[dict[str, Any]]:
        """One line for each commit."""
        return self._ledger.lines

    # -- rounds

    def run(self, ask: Ask) -> Iterator[RoundCommitted]:
        """Go through the rounds, each of them committed, until the target or R rounds.

        Between two of them, `audit`, `join` and `leave` may be called. At the end, `outcome` tells
        how it ended.
        """
        self.outcome = None
        while self._ledger.standing is None:
            self._settle(partial(self._begin, ask))
        if self._ledger.ahead:
            self._settle(self._ledger.continue_journal)
        if self.target is not None and not self.standing.testing:
            raise ValueError(
                f"target={self.target:g}, but no site has test data, without which none measures "
                "anything; drop the target, or give one of them test data."
            )
        reached = False
        while self.standing.r < self.R and not reached:
            self._attempts += 1
            cohort, done, pause = self._cohort(ask), None, True
            try:
                done = self._round(cohort)
            except Reached:
                reached = True
            except OtherBroadcast:
                why = f"round {cohort.r} is repeated with another broadcast"
                self._settle(partial(self._ledger.open_branch, why))
                pause = False
            except TooFew:
                log.warning(
                    "round %d has %d valid replies, fewer than min_sites=%d; it is repeated%s",
                    cohort.r,
                    len(cohort.alive),
                    self.min_sites,
                    cohort.without,
                )
            except CannotWrite as error:
                log.error("%s; the round is repeated", error)
            self._refused = cohort.r, cohort.refused
            lost = cohort.inquiry.lost - self._not_helped()
            if lost:
                self._settle(partial(self._recover, ask, lost))
            seen = cohort.inquiry.seen.items()
            new = {name: place for name, place in seen if name not in self._compared}
            if gaps := self._ledger.unknown(new):
                self._compared |= gaps.keys()
                self._settle(partial(self._ledger.note_gap, gaps))
            if done is not None:
                yield done
            elif not reached and pause:
                sleep(self.pause)
        tries = 0
        while self.outcome is None:
            tries += 1
            self._settle(partial(self._end, ask, reached, tries >= _ENDS))

    @torch.no_grad()
    def _round(self, cohort: Cohort) -> RoundCommitted:
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
        done = cohort.result(perf_counter() - started)
        facts = {k: v for k, v in asdict(done).items() if k not in ("r", "wire")}
        facts |= {"clients": [m.index for m in cohort.alive], "answered": cohort.answered}
        if controls.has_controls(standing):
            facts |= {"control": float(server.c.norm())}
        new = cohort.standing_after(server)
        self._ledger.commit(new, "round", **facts)
        return done

    def _cohort(self, ask: Ask) -> Cohort:
        return Cohort(
            self.standing,
            self._inquiry(ask, self.round_timeout),
            self._ledger,
            min_sites=self.min_sites,
            norm_limit=self.norm_limit,
            target=self.target,
            metric=self.metric,
            refused=self._refused[1] if self._refused[0] == self.standing.r + 1 else set(),
        )

    # -- before, between and after

    def audit(self, ask: Ask) -> AuditDone:
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
        self._decide(new, "join", site=name, weights=new.p)

    def leave(self, ask: Ask, name: str) -> None:
        """Let a site go; it does not count from the next round on."""
        if 1 < len(self.standing.members) <= self.min_sites:
            raise ValueError(
                f"{name!r} cannot leave: min_sites={self.min_sites} sites are needed; lower that."
            )
        new = controls.left(self.standing, self._inquiry(ask), name)
        self._decide(new, "leave", site=name, weights=new.p)
        Spool(self.folder / "spool").delete()  # It may hold an update of the site.

    def readmit(self, name: str) -> None:
        """Ask a site again whose updates were refused too often."""
        self.standing.member(name)
        members = tuple(
            replace(m, refused=0, norms={}) if m.name == name else m for m in self.standing.members
        )
        self._decide(replace(self.standing, members=members), "readmit", site=name)

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
        self._ledger.commit(first, "begin", algorithm=repr(self.algorithm), weights=first.p)

    def _not_helped(self) -> set[str]:
        """Return the sites for whose state nothing is done now.

        They lose it again and again, or helping them failed n times in a row, for which all sites
        wait: then it is tried again after 2^(n - 1) attempts at a round.
        """
        last = self.journal[-_LATELY:]
        recoveries = [line["sites"] for line in last if line["kind"] in ("restore", "restart")]
        times = Counter(name for sites in recoveries for name in sites)
        later = {name for name, (_, until) in self._helped.items() if self._attempts < until}
        return later | {name for name, count in times.items() if count >= _OFTEN}

    def _recover(self, ask: Ask, lost: set[str]) -> None:
        """Give sites whose state is gone a new one, as the operator has chosen."""
        standing, names = self.standing, ", ".join(sorted(lost))
        if self.on_lost_state == "refuse":
            raise controls.LostState(
                f"the state of {names} is gone; resume with on_lost_state='restore' to give it "
                "back from c and the other sites, or 'restart' to start all controls anew."
            )
        if self.on_lost_state == "restart" or not controls.has_controls(standing):
            self._ledger.commit(controls.restarted(standing), "restart", sites=sorted(lost))
            log.warning("the state of %s was gone; all controls start anew", names)
            return
        inquiry = self._inquiry(ask)
        restored = controls.restored(standing, inquiry, lost)
        for name in lost:
            vain = 1 + self._helped.pop(name, (0, 0))[0]
            if restored is None or name in inquiry.absent:
                self._helped[name] = vain, self._attempts + 2 ** (vain - 1)
        if restored is None:
            log.warning("the state of %s is gone; it waits for %s", names, sorted(inquiry.absent))
        else:
            self._ledger.commit(restored, "restore", sites=sorted(lost - inquiry.absent.keys()))
            log.warning("the state of %s was gone; it is restored", names)

    def _end(self, ask: Ask, reached: bool, last: bool) -> None:
        """Let the sites measure the last x; without enough of them they are asked again."""
        standing, reports = self.standing, dict[str, SiteReport]()
        self._ask_once("statistics", {"0": standing.server.x})
        statistics = self.norms.gather(self._inquiry(ask, _LONG), self.standing, self.min_sites)
        if statistics is None and not last:
            sleep(self.pause)
            return
        arrays = arrays_of((standing.server.x, *(statistics or {}).values()))
        self._ask_once("evaluate", arrays)
        standing = self.standing
        inquiry = self._inquiry(ask, _LONG)
        for member, reply in inquiry.replies(standing, "evaluate", standing.members, arrays):
            try:
                reports[member.name] = report_of(member, reply)
            except NotBelieved as error:
                inquiry.turn_away(member.name, str(error))
                continue
            log.info("site %s: %s", member.name, metrics_text(reports[member.name].metrics))
        if len(reports) < self.min_sites and not last:
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
        save(self.folder, standing.r, statistics or {})
        self._ledger.commit(standing, "end", metrics=metrics, reached=reached)
        Spool(self.folder / "spool").delete()
        self.outcome = Ended(standing.r, reached, metrics)

    def _ask_once(self, kind: str, arrays: dict[str, Tensor]) -> None:
        """Note what is about to be sent at the end; in a new branch if it was something else."""
        if not self._ledger.ask_once(kind, digest(arrays)):
            self._ledger.open_branch("what the sites receive after the last round is another one")
            self._ledger.ask_once(kind, digest(arrays))

    def _inquiry(self, ask: Ask, least: float = _SHORT) -> Inquiry:
        """Return an inquiry that takes as long as 3 rounds, and so many seconds at least."""
        took = [line["seconds"] for line in self.journal[-_LATELY:] if line["kind"] == "round"]
        timeout = min(self.round_timeout, max(least, _TIMES * max(took, default=0.0)))
        terms = None if self.terms is None else self.terms()
        return Inquiry(ask, timeout, self.ranges, terms, self._untold, self.keep)

    # -- commits

    def _decide(self, standing: Standing, kind: str, **facts: Any) -> None:
        """Commit what the operator wants; raise ValueError if it did not happen."""
        try:
            self._ledger.commit(standing, kind, **facts)
        except CannotWrite as error:
            raise ValueError(f"{error}, then repeat this.") from None

    def _settle(self, action: Callable[[], None]) -> None:
        """Do what ends with a commit; wait for a disk that cannot be written."""
        try:
            action()
        except CannotWrite as error:
            log.error("%s; this is repeated", error)
            sleep(self.pause)
