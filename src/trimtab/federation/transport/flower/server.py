"""Flower at the server: the SuperLink's app, the sites' keys, and the run in which messages travel.

The SuperLink runs as it comes; what it would start itself, an app that travels over the wire with
its code, is not. The run that is opened here is of an empty app, and its one task is taken by the
process of the rounds. So nobody can send a site a program.
Private names of Flower are imported here, in `objects.py` and in `line.py`.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import httpx
from flwr.app import Message, MessageType, RecordDict
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import SUPERLINK_NODE_ID, SubStatus
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
)
from flwr.proto.fab_pb2 import Fab
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    GetNodesRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushAppMessagesRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.auth import load_superexec_auth_secret
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
)
from flwr.supercore.interceptors.http import SuperExecAuthHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity

from trimtab.federation.transport.flower.objects import Outgoing
from trimtab.federation.transport.flower.proxies import no_proxy

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
_BEAT = 10.0  # Flower takes a task for lost after 60 seconds without a heartbeat
_PATIENCE = 120.0  # a SuperLink that is started again or busy is asked again for <= 120 seconds
_AGAIN = 0.5  # every >= 0.5 seconds
_GRACE = 10.0  # Flower keeps a request for this many seconds after nobody waits for its reply
_APP = {
    "pyproject.toml": b"""\
[project]
name = "trimtab"
version = "1.0.0"
description = "An empty app: each side runs the trimtab that is installed there."
license = "Apache-2.0"
dependencies = ["flwr>=1.41.0"]

[tool.flwr.app]
publisher = "trimtab"

[tool.flwr.app.components]
serverapp = "trimtab_app:app"
clientapp = "trimtab_app:app"
""",
    "trimtab_app.py": b"app = None\n",
    "README.md": b"trimtab\n",
}
T = TypeVar("T")


def environment(home: Path) -> dict[str, str]:
    """Return the variables for every process of Flower: quiet, offline, its files in one folder."""
    return {**QUIET, "FLWR_HOME": str(home), "PYTHONUNBUFFERED": "1"}


def superlink_arguments(folder: Path, port: int, certificates: Path, secret: Path) -> list[str]:
    """Return how the SuperLink is started: on loopback only, with keys, and without installers."""
    return [
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--ssl-ca-certfile", str(certificates / "ca.crt")),
        *("--ssl-certfile", str(certificates / "server.crt")),
        *("--ssl-keyfile", str(certificates / "server.key")),
        *("--database", str(folder / "superlink.db")),
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
        *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
    ]


def run_superlink(arguments: Sequence[str], serve: Callable[..., None]) -> None:
    """Start Flower's SuperLink in this process; `serve(app, **settings)` is given its app.

    Flower ends in `uvicorn.run`, and that public name is replaced while it is called.
    """
    import uvicorn
    from flwr.superlink.cli import flower_superlink

    served = []

    def run(app: Any, **settings: Any) -> None:
        served.append(app)
        serve(app, **settings)

    sys.argv[1:] = arguments
    original = uvicorn.run
    uvicorn.run = run
    try:
        flower_superlink()
    finally:
        uvicorn.run = original
    if not served:
        sys.exit(
            "Flower's SuperLink did not hand over its app; run `pip install 'flwr==1.41.0'`, the "
            "version that this trimtab works with."
        )


def wait_until(ready: Callable[[], Any], seconds: float, what: str) -> None:
    """Wait until `ready()` works and is true; a ValueError says what did not happen."""
    until = time.monotonic() + seconds
    while True:
        with suppress(httpx.HTTPError, OSError):
            if ready():
                return
        if time.monotonic() > until:
            raise ValueError(f"{what} within {seconds:g} seconds.")
        time.sleep(0.1)


def _patiently(call: Callable[[Any], T], request: Any) -> T:
    """Call Flower; where the SuperLink is away or busy, again for a while."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            return call(request)
        except httpx.HTTPError as error:
            status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else 503
            if status < 500 or time.monotonic() > until:
                raise
            time.sleep(_AGAIN)


@dataclass(frozen=True)
class SuperLink:
    """How the SuperLink of a federation is reached: on loopback, at a port."""

    port: int
    authority: Path
    secret: Path

    def nodes_of(self, sites: Mapping[str, str]) -> dict[str, int]:
        """Return the number of each site's node; register the keys that Flower does not know."""
        control = Control(self.port, self.authority)
        try:
            known = control.nodes()
            return {
                name: int(known[key].node_id) if key in known else control.register(name, key)
                for name, key in sites.items()
            }
        finally:
            control.close()

    @contextmanager
    def run(self, last: Path) -> Iterator["Run"]:
        """Open a run of Flower; close the one of `last` that a killed process may have left."""
        control = Control(self.port, self.authority)
        if last.exists():
            with suppress(httpx.HTTPError, ValueError):
                control.stop_run(int(last.read_text()))
        last.write_text(str(control.start_run()))
        try:
            with self._task() as client:
                yield Run(client)
        finally:
            last.unlink(missing_ok=True)
            control.close()

    @contextmanager
    def _task(self) -> Iterator[RuntimeHttpClient]:
        """Take the one task of the run that was opened, and say at its end what became of it."""
        tokens: list[str] = []
        master = load_superexec_auth_secret(str(self.secret))
        assert master is not None
        taking = self._client(
            SuperExecAuthHttpInterceptor(master_secret=master, protected_methods=[_ACQUIRE])
        )

        def acquired() -> bool:
            request = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
            response = taking.AcquireTask(request)
            tokens.extend([response.token] if response.HasField("task") and response.token else [])
            return bool(tokens)

        wait_until(acquired, 60, "Flower did not hand out its run")
        taking.close()
        client, over = self._client(RuntimeTokenHttpInterceptor(tokens[0])), threading.Event()

        def beat() -> None:
            while not over.wait(_BEAT):
                with suppress(httpx.HTTPError):
                    client.SendTaskHeartbeat(SendTaskHeartbeatRequest())

        threading.Thread(target=beat, name="task", daemon=True).start()
        status = SubStatus.FAILED
        try:
            yield client
            status = SubStatus.COMPLETED
        finally:
            over.set()
            with suppress(httpx.HTTPError, OSError):
                client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=""))
            client.close()

    def _client(self, interceptor: Any) -> RuntimeHttpClient:
        with no_proxy():
            return RuntimeHttpClient.from_server_address(
                f"127.0.0.1:{self.port}",
                insecure=False,
                root_certificates=self.authority.read_bytes(),
                interceptors=[
                    RuntimeVersionHttpInterceptor(component_name="flwr-serverapp"),
                    interceptor,
                ],
            )


class Run:
    """The run in which messages travel, as its one task sees it."""

    def __init__(self, client: RuntimeHttpClient) -> None:
        self.client, self.node = client, Node(node_id=SUPERLINK_NODE_ID)
        task = _patiently(client.PullTaskInput, PullTaskInputRequest())
        self.id = int(task.run.run_id)
        # A message of Flower takes its run from here.
        TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
        TaskIdentity.node_id = task.context.node_id

    def online(self) -> dict[int, str]:
        """Return the nodes that are connected, and since when."""
        nodes = _patiently(self.client.GetNodes, GetNodesRequest()).nodes
        return {int(node.node_id): str(node.last_activated_at) for node in nodes}

    def push(self, contents: Mapping[int, RecordDict], ttl: float) -> dict[int, str]:
        """Send each node its message; return their names."""
        out = {
            node: Outgoing.of(
                Message(
                    content,
                    dst_node_id=node,
                    message_type=MessageType.TRAIN,
                    ttl=max(0.0, ttl) + _GRACE,
                )
            )
            for node, content in contents.items()
        }
        pushed = _patiently(
            self.client.PushMessages,
            PushAppMessagesRequest(
                messages_list=[message.about for message in out.values()],
                message_object_trees=[message.tree for message in out.values()],
            ),
        )
        if not all(pushed.message_ids):
            raise ConnectionError("Flower did not take a request.")
        push = make_push_object_fn_protobuf(
            lambda request: _patiently(self.client.PushObject, request),
            self.node,
            self.id,
            pushed.session_id,
        )
        objects = {name: part for message in out.values() for name, part in message.objects.items()}
        for name in pushed.objects_to_push:
            push(name, objects[name].deflate())
        return dict(zip(out, pushed.message_ids, strict=True))

    def replies(self, names: Sequence[str]) -> list[tuple[ProtoMessage, ObjectTree]]:
        """Return the replies to these messages that have been announced since the last look."""
        pulled = _patiently(self.client.PullMessages, PullAppMessagesRequest(message_ids=names))
        found = zip(pulled.messages_list, pulled.message_object_trees, strict=True)
        return [pair for pair in found if pair[0].metadata.reply_to_message_id in names]

    def pull(self, name: str) -> bytes:
        """Return an object; ObjectUnavailableError says that it is on its way."""
        pull = make_pull_object_fn_protobuf(
            lambda request: _patiently(self.client.PullObject, request), self.node, self.id
        )
        return pull(name)

    def confirm(self, name: str) -> None:
        """Let Flower delete a message."""
        _patiently(
            self.client.ConfirmMessageReceived,
            ConfirmMessageReceivedRequest(node=self.node, run_id=self.id, message_object_id=name),
        )


class Control:
    """What the operator asks of the SuperLink."""

    def __init__(self, port: int, authority: Path) -> None:
        with no_proxy():
            self.client = ControlHttpClient.from_server_address(
                f"127.0.0.1:{port}",
                insecure=False,
                root_certificates=authority.read_bytes(),
                interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
            )

    def nodes(self) -> dict[str, Any]:
        """Return the registered nodes by their public keys."""
        listed = self.client.ListNodes(ListNodesRequest()).nodes_info
        known = [node for node in listed if node.status != "unregistered"]
        return {node.public_key.decode("ascii"): node for node in known}

    def register(self, name: str, public_key: str) -> int:
        """Let a key in; return the number of its node."""
        request = RegisterNodeRequest(public_key=public_key.encode("ascii"), name=name)
        return int(self.client.RegisterNode(request).node_id)

    def start_run(self) -> int:
        """Open a run, the frame in which Flower carries messages."""
        content, _ = build_fab_from_files(_APP)
        fab = Fab(hash_str=sha256(content).hexdigest(), content=content)
        response = self.client.StartRun(StartRunRequest(fab=fab))
        if not response.HasField("run_id"):
            raise RuntimeError("Flower did not start a run")
        return int(response.run_id)

    def stop_run(self, run: int) -> None:
        """Close a run."""
        self.client.StopRun(StopRunRequest(run_id=run))

    def close(self) -> None:
        """Close the connection."""
        self.client.close()
