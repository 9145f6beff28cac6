"""The process that runs the rounds: the coordinator on one side, the transport on the other.

The process reads its job from a line of JSON on its standard input and writes events to its
standard output, one per line. If it dies, the supervisor starts it again, and it continues from
the coordinator's checkpoint, in a new run of Flower.
"""

import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import torch

from trimtab._processes import Teller, start_heartbeat
from trimtab.algorithms.registry import decode
from trimtab.core import nbytes
from trimtab.federation.events import (
    Event,
    Failed,
    ReplySize,
    to_json,
)
from trimtab.federation.log import LOGGER, handled
from trimtab.federation.message import Message
from trimtab.federation.protocol.attempt import Terms
from trimtab.federation.protocol.checks import defined_metrics
from trimtab.federation.protocol.controls import has_controls
from trimtab.federation.protocol.coordinator import Coordinator
from trimtab.federation.protocol.rehearsal import plan
from trimtab.federation.protocol.statistics import Layers
from trimtab.federation.setup.job import Job
from trimtab.federation.setup.operator import Federation
from trimtab.federation.storage.ledger import read_standing
from trimtab.federation.storage.policy import digest_of
from trimtab.federation.storage.roster import RosterFile
from trimtab.federation.transport import Transport
from trimtab.federation.transport.flower.fleet import Fleet
from trimtab.federation.transport.flower.server import SuperLink
from trimtab.problems.problem import own_metric

log = logging.getLogger("trimtab.federation.processes")

_GATHER = 20.0  # all sites are waited for at the start, <= this many seconds
_CLOSE = 90.0  # at the end they are waited for <= 90 s: one that crashed comes back after a minute
_PAUSE = 0.5  # sites that did not answer at the end are asked again >= this many seconds later


def main() -> None:
    """Do the job that standard input names: a run, or an audit."""
    start_heartbeat()
    teller = Teller.of_stdout()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    line = sys.stdin.readline()
    if not line:
        sys.exit(1)
    asked = json.loads(line)
    LOGGER.propagate = False  # the root logger belongs to problem.py
    try:
        with handled(teller):
            federation = Federation.read(Path(asked["folder"]))
            for event in _events(federation, asked["port"], Job(**asked["job"])):
                teller.tell(**to_json(event))
    except (ValueError, ArithmeticError) as error:
        teller.tell(**to_json(Failed.of(error)))
        sys.exit(2)


def _events(federation: Federation, port: int, job: Job) -> Iterator[Event | ReplySize]:
    folder = federation.folder
    superlink = SuperLink(port, federation.keys / "ca.crt", folder / "secret")
    coordinator = coordinator_of(federation, job)
    yield ReplySize(largest_reply(coordinator))
    try:
        with superlink.run(last=folder / "run" / "flower-run") as run:
            fleet = Fleet(run, superlink.nodes_of)
            fleet.admit(federation.sites)
            names = list(federation.sites)
            fleet.wait_for(names, len(names), _GATHER)
            if job.kind == "run":
                yield from events_of_run(coordinator, RosterFile(folder), fleet, job)
            else:
                yield coordinator.audit(partial(_ask_all, fleet))
    finally:
        coordinator.close()


def events_of_run(
    coordinator: Coordinator, roster: RosterFile, transport: Transport, job: Job
) -> Iterator[Event]:
    """Run rounds to the end, and audit the controls; sites come and go as the roster says."""
    seen = roster.read().sites

    def ask(requests: Mapping[str, Message], timeout: float) -> Iterator[tuple[str, Message]]:
        nonlocal seen
        # A site may get another key between two attempts at a round.
        before, seen = seen, roster.read().sites
        changed = {name: key for name, key in seen.items() if before.get(name, key) != key}
        if changed:
            transport.admit(changed)
            log.info(f"{', '.join(changed)} has another key from now on.")
        if any(request["kind"] in ("statistics", "evaluate") for request in requests.values()):
            yield from _ask_all(transport, requests, timeout)
        else:
            least = min(job.min_sites, len(requests))
            transport.wait_for(list(requests), least, timeout)
            work = all(request["kind"] == "work" for request in requests.values())
            # A round continues without sites that delay the others; all other requests need all.
            yield from transport.ask(requests, timeout, least if work else None)

    if coordinator.journal:
        _follow_roster(coordinator, roster, transport)
    for done in coordinator.run(ask):
        yield done
        _follow_roster(coordinator, roster, transport)
    if has_controls(coordinator.standing):
        yield coordinator.audit(partial(_ask_all, transport))
    assert coordinator.outcome is not None
    yield coordinator.outcome


def _ask_all(
    transport: Transport, requests: Mapping[str, Message], timeout: float
) -> Iterator[tuple[str, Message]]:
    """Ask every site, and for a while those again that do not answer, for they may come back.

    After a crash Flower takes a site to be connected that is not, until its heartbeat is overdue.
    """
    left, until = dict(requests), time.monotonic() + min(_CLOSE, timeout)
    while left:
        transport.wait_for(list(left), len(left), until - time.monotonic())
        for name, reply in transport.ask(dict(left), timeout):
            yield name, reply
            left.pop(name, None)
        if time.monotonic() > until:
            break
        time.sleep(_PAUSE if left else 0.0)


def _follow_roster(coordinator: Coordinator, file: RosterFile, transport: Transport) -> None:
    """Let sites in and out, as the operator's file says now."""
    roster = file.read()
    members = [member.name for member in coordinator.standing.members]
    for name in set(roster.readmit) & set(members):
        coordinator.readmit(name)
        log.info(f"site {name} is asked again.")
        file.readmitted(name)
    for name in roster.left(members):
        file.forget(name)  # A process was killed after the site had left and before this.
    leaving = [name for name in members if name in roster.leaving]
    coming = roster.joining(members)
    if not leaving and not coming:
        return
    transport.admit(roster.sites)
    online = transport.online()
    for name in (*leaving, *(name for name in coming if name in online)):
        try:
            if name in leaving:
                coordinator.leave(transport.ask, name)
                file.forget(name)
            else:
                coordinator.join(transport.ask, name)
        except ValueError as error:  # It concerns this site alone.
            log.warning(str(error))
        else:
            log.info(f"site {name} has {'left' if name in leaving else 'joined'}.")


def coordinator_of(federation: Federation, job: Job) -> Coordinator:
    """Return the coordinator of the operator's folder."""
    state = federation.folder / job.state
    problem = federation.problem.server_problem()  # its file may register the algorithm
    standing, metric = read_standing(state), own_metric(problem)
    known = federation.roster.remaining
    if standing is not None:
        known = [member.name for member in standing.members]
    return Coordinator(
        state,
        decode(job.algorithm),
        known,
        x=problem.x0(job.seed),
        R=job.R,
        weights=federation.weights,  # type: ignore[arg-type]
        seed=job.seed,
        target=job.target,
        metric=metric,
        ranges=defined_metrics(problem),
        min_sites=min(job.min_sites, len(known)),
        round_timeout=job.round_timeout,
        on_lost_state=job.on_lost_state,  # type: ignore[arg-type]
        pause=2.0,
        terms=terms_of(federation),
        keep=job.keep,
        norms=Layers.of(problem),
    )


def largest_reply(coordinator: Coordinator) -> int:
    """Return how many bytes the arrays of a reply have at most, in whatever dtype sites compute."""
    like = plan(coordinator.algorithm, coordinator.x.numel(), torch.float64)
    return max(nbytes(tree) for tree in (like.client, *(e.upload for e in like.exchanges)))


def terms_of(federation: Federation) -> Callable[[], Terms]:
    """Return what tells the terms of now: the problem file is that of the start."""
    problem = digest_of((federation.folder / "problem.py").read_bytes())
    roster = RosterFile(federation.folder)
    return lambda: Terms(problem, roster.read().fingerprints)
