"""The process that runs the rounds: the coordinator on one side, Flower on the other.

It is told what to do through its standard input (one message), and tells what happens on its
standard output, one JSON object a line. If it dies, it is started again and goes on from the
coordinator's checkpoint, in a new run of Flower.
"""

import json
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import httpx
from flwr.common.serde import run_from_proto
from flwr.proto.runtime_pb2 import PullTaskInputRequest
from flwr.supercore.constant import TaskType
from flwr.superlink.grid import HttpGrid

from trimtab._files import plain
from trimtab.federation.encoding import build
from trimtab.federation.log import LOGGER, handled
from trimtab.federation.message import Message
from trimtab.federation.processes.worker import receive
from trimtab.federation.protocol.controls import Audit, has_controls
from trimtab.federation.protocol.coordinator import Coordinator, FederatedRound
from trimtab.federation.setup.operator_folder import Federation, dismissed
from trimtab.federation.storage.ledger import read_standing
from trimtab.federation.transport.flower import api
from trimtab.federation.transport.flower.fleet import Fleet

log = logging.getLogger("trimtab.federation.processes")

_GATHER = 20.0  # seconds in which all sites are waited for at the start


class _Teller(logging.Handler):
    """Hands log lines on as events."""

    def __init__(self, out: IO[str]) -> None:
        super().__init__()
        self.out = out

    def emit(self, record: logging.LogRecord) -> None:
        level = "warn" if record.levelno >= logging.WARNING else "say"
        self.tell(level, line=record.getMessage().rstrip(".") + ".")

    def tell(self, event: str, **facts: Any) -> None:
        self.out.write(json.dumps(plain({"event": event} | facts)) + "\n")
        self.out.flush()


def main() -> None:
    """Do one job: run, audit, join or leave."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the user's file prints goes to the log
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    teller = _Teller(out)
    message = receive(sys.stdin.buffer)
    if message is None:
        sys.exit(1)
    LOGGER.propagate = False  # the root logger belongs to problem.py
    try:
        with handled(teller):
            _do(message.header, teller)
    except (ValueError, ArithmeticError) as error:
        teller.tell("error", line=str(error))
        sys.exit(2)


def _do(job: dict[str, Any], teller: _Teller) -> None:
    federation = Federation.read(Path(job["folder"]))
    coordinator = coordinator_of(federation, job)
    try:
        with _grid(federation, job["port"]) as grid:
            nodes = nodes_of(federation, job["port"])
            fleet = Fleet(grid, nodes)
            names = list(federation.sites)
            fleet.wait_for(names, len(names), _GATHER)
            if job["kind"] == "run":
                _rounds(coordinator, federation, fleet, job, teller)
            else:
                _tell_audit(teller, coordinator.audit(fleet.ask))
    finally:
        coordinator.close()


def _rounds(
    coordinator: Coordinator, federation: Federation, fleet: Fleet, job: dict[str, Any], t: _Teller
) -> None:
    def ask(requests: Mapping[str, Message], timeout: float) -> Iterator[tuple[str, Message]]:
        fleet.wait_for(list(requests), min(job["min_sites"], len(requests)), timeout)
        yield from fleet.ask(requests, timeout)

    if coordinator.journal:
        _welcome(coordinator, federation, fleet, job["port"])
    for done in coordinator.run(ask):
        t.tell("round", **facts_of(done))
        _welcome(coordinator, federation, fleet, job["port"])
    if has_controls(coordinator.standing):
        _tell_audit(t, coordinator.audit(fleet.ask))
    assert coordinator.outcome is not None
    t.tell("end", **vars(coordinator.outcome))


def _welcome(coordinator: Coordinator, federation: Federation, fleet: Fleet, port: int) -> None:
    """Let sites in and out, as the operator's file says now."""
    now = Federation.read(federation.folder)
    there = [member.name for member in coordinator.standing.members]
    for name in [name for name in now.leaving if name not in there]:
        dismissed(now, name)  # it had left when a process was killed before it could say so
    leaving = [name for name in there if name in now.leaving]
    coming = [name for name in now.sites if name not in there and name not in now.leaving]
    if not leaving and not coming:
        return
    fleet.nodes |= nodes_of(now, port)
    try:
        for name in leaving:
            coordinator.leave(fleet.ask, name)
            log.info(f"site {name} has left.")
            dismissed(now, name)
        online = fleet.online()
        for name in coming:
            if name in online:
                coordinator.join(fleet.ask, name)
                log.info(f"site {name} has joined.")
    except ValueError as error:
        log.warning(str(error))


def coordinator_of(federation: Federation, job: dict[str, Any]) -> Coordinator:
    """Return the coordinator of the operator's folder."""
    state = federation.folder / job["state"]
    standing = read_standing(state)
    known = [name for name in federation.sites if name not in federation.leaving]
    if standing is not None:
        known = [member.name for member in standing.members]
    return Coordinator(
        state,
        build(job["algorithm"]),
        known,
        x=federation.problem.server_problem().x0(job["seed"]),
        R=job["R"],
        weights=federation.weights,  # type: ignore[arg-type]
        seed=job["seed"],
        target=job["target"],
        min_sites=min(job["min_sites"], len(known)),
        round_timeout=job["round_timeout"],
        on_lost_state=job["on_lost_state"],
        pause=2.0,
    )


def facts_of(done: FederatedRound) -> dict[str, Any]:
    """Return what is told of a round."""
    facts = {k: v for k, v in vars(done).items() if k not in ("x", "server", "sites")}
    return facts | {"sites": {name: asdict(told) for name, told in done.sites.items()}}


def _tell_audit(teller: _Teller, audit: Audit) -> None:
    teller.tell("audit", **asdict(audit))


# -- Flower


def nodes_of(federation: Federation, port: int) -> dict[str, int]:
    """Return the number of each site's node; register those that Flower does not know yet."""
    control = api.Control(port, federation.keys / "ca.crt")
    try:
        known = control.nodes()
        return {
            name: int(known[key].node_id) if key in known else control.register(name, key)
            for name, key in federation.sites.items()
        }
    finally:
        control.close()


@contextmanager
def _grid(federation: Federation, port: int) -> Iterator[HttpGrid]:
    """Open a run of Flower, close the one that a process killed before may have left."""
    authority = federation.keys / "ca.crt"
    control = api.Control(port, authority)
    last = federation.folder / "run" / "flower-run"
    if last.exists():
        with suppress(httpx.HTTPError, ValueError):
            control.stop_run(int(last.read_text()))
    run = control.start_run()
    last.write_text(str(run))
    tasks = api.Tasks(TaskType.SERVER_APP, port, federation.folder / "secret", authority=authority)
    token = tasks.wait(60)
    with tasks.work(token) as client:
        found = client.PullTaskInput(PullTaskInputRequest())
        api.identify(found)
        grid = HttpGrid(f"127.0.0.1:{port}", root_certificates=authority.read_bytes(), token=token)
        grid.set_run(run_from_proto(found.run))
        try:
            yield grid
        finally:
            grid.close()
            last.unlink(missing_ok=True)
            tasks.close()
            control.close()
