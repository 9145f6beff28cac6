"""The SuperLink's process: Flower's app on loopback, and behind the guard on the public port.

The operator's process has the public sockets, so that the port stays ours while the SuperLink is
started again. It sends one JSON object a line, settings first, then who is let in and how large
replies are; this process reports lines for the log, and what it has counted. No torch is needed.
"""

import asyncio
import contextlib
import json
import resource
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from trimtab._processes import Teller
from trimtab.federation.log import LOGGER, handled
from trimtab.federation.storage.roster import RosterFile
from trimtab.federation.transport.flower.connections import Connections
from trimtab.federation.transport.flower.guard import App, Guard
from trimtab.federation.transport.flower.notices import Notices
from trimtab.federation.transport.flower.server import run_superlink


@dataclass(frozen=True)
class Settings:
    """How a SuperLink is run."""

    listeners: Sequence[int]  # the public sockets, by their descriptors
    arguments: Sequence[str]  # of flower-superlink, which listens on loopback
    certificate: str
    key: str
    folder: str  # the operator's, whose roster says how sites stand
    sites: Mapping[str, str]  # public keys
    limit: int = 1 << 20  # a reply has <= this many bytes


def main() -> None:
    """Be a SuperLink until standard input ends."""
    _raise_limit()
    told = Teller.of_stdout()
    LOGGER.propagate = False
    with handled(told):
        settings = Settings(**json.loads(sys.stdin.readline()))

        def serve(app: App, **more: Any) -> None:
            asyncio.run(_serve(app, settings, told, more))

        run_superlink(settings.arguments, serve)


async def _serve(app: App, settings: Settings, told: Teller, flower: dict[str, Any]) -> None:
    notices = Notices(RosterFile(Path(settings.folder)).read)
    guard = Guard(app, settings.sites, notices, settings.limit)
    listeners = [socket.socket(fileno=number) for number in settings.listeners]
    local = uvicorn.Server(
        uvicorn.Config(
            guard.local,
            interface="asgi3",
            host=flower["host"],
            port=flower["port"],
            ssl_certfile=flower["ssl_certfile"],
            ssl_keyfile=flower["ssl_keyfile"],
            log_config=flower["log_config"],
            access_log=False,
            ws="none",
            timeout_graceful_shutdown=1,
        )
    )
    loop = asyncio.get_running_loop()
    threading.Thread(
        target=_listen_to_operator, args=(guard, told, loop, local), daemon=True
    ).start()
    connections = Connections(guard.answer, guard.refusals)
    outside = connections.serve(listeners, Path(settings.certificate), Path(settings.key))
    task = loop.create_task(outside)
    try:
        await local.serve()
    finally:
        task.cancel()


def _listen_to_operator(
    guard: Guard, told: Teller, loop: asyncio.AbstractEventLoop, local: uvicorn.Server
) -> None:
    """Read what the operator's process says, in a thread; end with it."""

    def take(asked: dict[str, Any]) -> None:
        if "sites" in asked:
            guard.keys.admit(asked["sites"])
        if "limit" in asked:
            guard.limit = asked["limit"]
        if "count" in asked:
            told.tell(up=guard.up, down=guard.down, seen=guard.seen)

    with contextlib.suppress(RuntimeError):  # the event loop has ended
        for line in sys.stdin:
            loop.call_soon_threadsafe(take, json.loads(line))
    local.should_exit = True


def _raise_limit() -> None:
    """Have as many descriptors as may be had."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
