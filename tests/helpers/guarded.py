"""A guard with a small app in place of Flower's, in a thread or as a process of its own.

As a process it is a SuperLink's: `guarded_process` starts it.
"""

import asyncio
import base64
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from trimtab.federation.processes.ports import listener
from trimtab.federation.processes.superlink import SuperLinkProcess
from trimtab.federation.storage.roster import Roster
from trimtab.federation.transport.flower import superlink
from trimtab.federation.transport.flower.connections import Connections
from trimtab.federation.transport.flower.guard import Guard
from trimtab.federation.transport.flower.notices import Notices
from trimtab.federation.transport.flower.superlink import Settings


class Echo:
    """Answers what it gets: the path and the body; `answers` has others by path."""

    def __init__(self):
        self.status, self.answers, self.asked = 200, {}, []

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            part = await receive()
            body, more = body + part.get("body", b""), part.get("more_body", False)
        path = scope["path"]
        self.asked.append(path)
        answer = self.answers.get(path, path.encode() + b" " + body)
        content = answer(body) if callable(answer) else answer
        headers = [(b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": content})


class Guarded:
    """A guard that serves in a thread."""

    def __init__(self, folder, sites, port=0, app=None, roster=None, **options):
        self.app = app or Echo()
        notices = Notices(lambda: roster or Roster(dict(sites), (), {}))
        self.guard = Guard(self.app, sites, notices, **options)
        self.listener = listener("127.0.0.1", port)
        self.port = self.listener.getsockname()[1]
        certificates = folder / "server.crt", folder / "server.key"
        self.connections = Connections(self.guard.answer, self.guard.refusals)
        self.loop, started = asyncio.new_event_loop(), threading.Event()

        async def serve():
            self.task = asyncio.ensure_future(
                self.connections.serve([self.listener], *certificates)
            )
            started.set()
            await asyncio.wait([self.task])
            # Handshakes that are under way end with the loop, as they do in `asyncio.run`.
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await asyncio.sleep(0.05)  # Transports close one step later.

        self.thread = threading.Thread(target=lambda: self.loop.run_until_complete(serve()))
        self.thread.start()
        started.wait(10)

    def call(self, function, *arguments):
        """Call a function in the event loop's thread, and wait for it."""
        done = threading.Event()
        self.loop.call_soon_threadsafe(lambda: (function(*arguments), done.set()))
        assert done.wait(10)

    def push(self):
        """Let the guard think that the rounds have pushed a message."""

        async def push():
            scope = {"type": "http", "path": "/v1/runtime/push-messages"}
            await self.guard.local(scope, nothing, ignored)

        asyncio.run_coroutine_threadsafe(push(), self.loop).result(10)

    def look_for_replies(self):
        """Look as the rounds do; return what ends when they are answered."""
        scope = {"type": "http", "path": "/v1/runtime/pull-messages"}
        work = self.guard.local(scope, nothing, ignored)
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def close(self):
        def end():
            for connection in list(self.connections.open):
                connection.transport.abort()
            self.task.cancel()

        self.call(end)
        self.thread.join(10)
        self.loop.close()
        self.listener.close()


async def nothing():
    return {"type": "http.request", "body": b"", "more_body": False}


async def ignored(part):
    pass


def signed(private, public, ahead=0.0):
    """Return the headers with which a site signs, at a time by its own clock."""
    at = (datetime.now(UTC) + timedelta(seconds=ahead)).isoformat()
    signature = load_ssh_private_key(private, None).sign(at.encode(), ec.ECDSA(hashes.SHA256()))
    return {
        "flwr-public-key": base64.b64encode(public.encode()).decode(),
        "flwr-timestamp": at,
        "flwr-signature": base64.b64encode(signature).decode(),
    }


def guarded_process(folder, sites):
    """Return a SuperLink's process, not started, whose app is the small one."""
    opened = listener("127.0.0.1", 0)
    settings = Settings(
        listeners=[opened.fileno()],
        arguments=[],
        certificate=str(folder / "server.crt"),
        key=str(folder / "server.key"),
        folder=str(folder),
        sites=sites,
        limit=100 << 20,
    )
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    process = SuperLinkProcess([opened], settings, environment, folder / "superlink.log")
    own = f"{superlink.__name__}:main"
    process.command = [f"{__name__}:main" if part == own else part for part in process.command]
    return process


def main():
    """Be a SuperLink with the small app."""

    def run(arguments, serve):
        serve(
            Echo(), host="127.0.0.1", port=0, ssl_certfile=None, ssl_keyfile=None, log_config=None
        )

    superlink.run_superlink = run
    superlink.main()
