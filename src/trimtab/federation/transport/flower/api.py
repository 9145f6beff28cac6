"""Flower, as far as trimtab uses it: the post that carries messages between server and sites.

Its SuperLink and SuperNodes are started as they come. What they would start themselves, an app that
travels over the wire with its code, is not: server and site take the tasks into their own processes
and run the trimtab that is installed there. So nobody can send a site a program.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from threading import Event
from typing import Any

import httpx
from flwr.app import Array, ArrayRecord, Context, RecordDict
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import SubStatus
from flwr.common.serde import context_from_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
)
from flwr.proto.fab_pb2 import Fab
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    Metadata,
    ObjectTree,
    PullObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.auth import load_superexec_auth_secret
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
)
from flwr.supercore.interceptors.http import SuperExecAuthHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity

from trimtab.federation.message import Message, decode, encode

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
_WHOLE = 60.0  # seconds in which a message that was announced must have arrived
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
_APP = b"""\
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
"""


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


def supernode_arguments(server: str, port: int, folder: Path, secret: Path) -> list[str]:
    """Return how a SuperNode is started; it starts nothing itself."""
    return [
        *("--superlink", server, "--root-certificates", str(folder / "ca.crt")),
        *("--auth-supernode-private-key", str(folder / "site.key")),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
    ]


# -- messages


def pack(message: Message) -> RecordDict:
    """Return a message as Flower carries it.

    Header and arrays go apart: what is the same for all sites, the arrays, is then stored once.
    """
    parts = {
        "header": encode(Message(message.header)),
        "arrays": encode(Message({}, message.arrays)),
    }
    return RecordDict({"trimtab": ArrayRecord({k: _array(v) for k, v in parts.items()})})


def unpack(content: RecordDict) -> Message:
    """Read what `pack` wrote; a ValueError says what is wrong with it."""
    records = content.array_records
    if "trimtab" not in records or set(records["trimtab"]) != {"header", "arrays"}:
        raise ValueError("a message cannot be read (it is not one of trimtab's).")
    parts = records["trimtab"]
    return Message(decode(parts["header"].data).header, decode(parts["arrays"].data).arrays)


def _array(data: bytes) -> Array:
    return Array("uint8", (len(data),), "trimtab.safetensors", data)


def fetch(client: RuntimeHttpClient, node: Node, about: Metadata, tree: ObjectTree) -> Any:
    """Return the message whose parts, those of the tree, may be on their way still."""
    ids = [part.object_id for part in iterate_object_tree(tree)]
    pull = make_pull_object_fn_protobuf(client.PullObject, node, about.run_id)
    contents = pull_objects(ids, pull, max_time=_WHOLE, initial_backoff=0.05, backoff_cap=1)
    client.ConfirmMessageReceived(
        ConfirmMessageReceivedRequest(
            node=node, run_id=about.run_id, message_object_id=about.message_id
        )
    )
    message: Any = inflate_object_from_contents(about.message_id, contents)
    message.metadata.__dict__["_message_id"] = about.message_id  # a message does not hold its own
    return message


# -- the SuperLink's Control interface, on loopback


class Control:
    """What the operator asks of the SuperLink."""

    def __init__(self, port: int, authority: Path) -> None:
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
        content, _ = build_fab_from_files(
            {"pyproject.toml": _APP, "trimtab_app.py": b"app = None\n", "README.md": b"trimtab\n"}
        )
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


def wait_until(ready: Any, seconds: float, what: str) -> None:
    """Wait until `ready()` works and is true; a ValueError says what did not happen."""
    until = time.monotonic() + seconds
    while True:
        try:
            if ready():
                return
        except (httpx.HTTPError, OSError):
            pass
        if time.monotonic() > until:
            raise ValueError(f"{what} within {seconds:g} seconds.")
        time.sleep(0.1)


def identify(task: Any) -> None:
    """Let Flower know whose task this process is at."""
    TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
    TaskIdentity.node_id = task.context.node_id


# -- tasks: what Flower would start a process for


def _beat(client: RuntimeHttpClient) -> Callable[[], bool]:
    """Return a heartbeat; Flower's own interrupts the process when a task has expired."""

    def beat() -> bool:
        with suppress(httpx.HTTPError):
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        return True

    return beat


class Superseded(Exception):
    """A message will not come; `token` is the task of the one that came after it."""

    def __init__(self, token: str | None) -> None:
        super().__init__(token)
        self.token = token


class Tasks:
    """The tasks of a SuperLink or SuperNode, taken by this process."""

    def __init__(self, kind: TaskType, port: int, secret: Path, authority: Path | None) -> None:
        self.kind, self.port, self.authority = kind, port, authority
        master = load_superexec_auth_secret(str(secret))
        assert master is not None
        self.client = self._client(
            SuperExecAuthHttpInterceptor(master_secret=master, protected_methods=[_ACQUIRE])
        )

    def acquire(self) -> str | None:
        """Return the token of a task that waits, if there is one."""
        request = AcquireTaskRequest(supported_task_types=[self.kind])
        response = self.client.AcquireTask(request)
        return response.token if response.HasField("task") and response.token else None

    def wait(self, seconds: float) -> str:
        """Return the token of the next task."""
        tokens: list[str] = []

        def acquired() -> bool:
            token = self.acquire()
            tokens.extend([token] if token else [])
            return bool(tokens)

        wait_until(acquired, seconds, "Flower did not hand out its run")
        return tokens[0]

    @contextmanager
    def work(self, token: str) -> Iterator[RuntimeHttpClient]:
        """Hold a task: beat its heart, and say at the end what became of it."""
        client = self._client(RuntimeTokenHttpInterceptor(token))
        heart = HeartbeatSender(_beat(client))
        heart.start()
        status = SubStatus.FAILED
        try:
            yield client
            status = SubStatus.COMPLETED
        finally:
            with suppress(httpx.HTTPError, OSError):
                client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=""))
            if heart.is_running:
                heart.stop()
            client.close()

    def take(self, client: RuntimeHttpClient, stop: Event) -> tuple[Any, Context]:
        """Return the message that a task is about, and Flower's context of it.

        A SuperNode announces a message before it has it, and may give it up; what it announces
        next takes its place, which `Superseded` tells.
        """
        found = client.PullTaskInput(PullTaskInputRequest())
        identify(found)
        messages = client.PullMessages(PullAppMessagesRequest())
        if not messages.messages_list:
            raise ConnectionError("a task came without its message")
        node = Node(node_id=found.context.node_id)
        about, tree = messages.messages_list[0].metadata, messages.message_object_trees[0]
        about.message_id, about.run_id = tree.object_id, found.run.run_id
        last = PullObjectRequest(node=node, run_id=about.run_id, object_id=tree.object_id)
        while not client.PullObject(last).object_available:
            following = self.acquire()
            if following is not None or stop.wait(0.1):
                raise Superseded(following)
        return fetch(client, node, about, tree), context_from_proto(found.context)

    def _client(self, interceptor: Any) -> RuntimeHttpClient:
        return RuntimeHttpClient.from_server_address(
            f"127.0.0.1:{self.port}",
            insecure=self.authority is None,
            root_certificates=None if self.authority is None else self.authority.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), interceptor],
        )

    def close(self) -> None:
        """Close the connection."""
        self.client.close()
