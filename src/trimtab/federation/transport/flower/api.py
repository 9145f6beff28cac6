"""Flower, as far as server and site both use it: messages, and tasks taken from its processes.

Its SuperLink and SuperNodes are started as they come. What they would start themselves, an app that
travels over the wire with its code, is not: server and site take the tasks into their own processes
and run the trimtab that is installed there. So nobody can send a site a program.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.constant import SubStatus
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    Metadata,
    ObjectTree,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.auth import load_superexec_auth_secret
from flwr.supercore.constant import TaskType
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
from trimtab.federation.transport.flower.straight import StraightRuntime

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
GRACE = 10.0  # Flower keeps a request for this many seconds after nobody waits for its reply
SMALL = 256 << 10  # a message goes whole if it has <= 256 KiB
WHOLE = 300.0  # a message that was announced arrives within <= this many seconds
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


def environment(home: Path) -> dict[str, str]:
    """Return the variables for every process of Flower: quiet, offline, its files in one folder."""
    return {**QUIET, "FLWR_HOME": str(home), "PYTHONUNBUFFERED": "1"}


# -- messages


def pack(message: Message) -> RecordDict:
    """Return a message as Flower carries it.

    Each part of it costs a request, so a small one goes whole. Of a larger one header and arrays go
    apart: what is the same for all sites, the arrays, is then stored once.
    """
    header, arrays = encode(Message(message.header)), encode(Message({}, message.arrays))
    if len(header) + len(arrays) <= SMALL:
        return RecordDict({"trimtab": ConfigRecord({"header": header, "arrays": arrays})})
    parts = {"header": _array(header), "arrays": _array(arrays)}
    return RecordDict({"trimtab": ArrayRecord(parts)})


def unpack(content: RecordDict) -> Message:
    """Read what `pack` wrote; a ValueError says what is wrong with it."""
    record: Any = content.get("trimtab")
    if not isinstance(record, ArrayRecord | ConfigRecord) or set(record) != {"header", "arrays"}:
        raise ValueError("a message cannot be read (it is not one of trimtab's).")
    header, arrays = (_bytes(record[name]) for name in ("header", "arrays"))
    return Message(decode(header).header, decode(arrays).arrays)


def _bytes(part: Any) -> bytes:
    data = part.data if isinstance(part, Array) else part
    if not isinstance(data, bytes):
        raise ValueError("a message cannot be read (a part of it is no bytes).")
    return data


def _array(data: bytes) -> Array:
    return Array("uint8", (len(data),), "trimtab.safetensors", data)


def fetch(client: RuntimeHttpClient, node: Node, about: Metadata, tree: ObjectTree) -> Any:
    """Return the message whose parts, those of the tree, may be on their way still."""
    ids = [part.object_id for part in iterate_object_tree(tree)]
    pull = make_pull_object_fn_protobuf(client.PullObject, node, about.run_id)
    contents = pull_objects(ids, pull, max_time=WHOLE, initial_backoff=0.05, backoff_cap=1)
    client.ConfirmMessageReceived(
        ConfirmMessageReceivedRequest(
            node=node, run_id=about.run_id, message_object_id=about.message_id
        )
    )
    message: Any = inflate_object_from_contents(about.message_id, contents)
    message.metadata.__dict__["_message_id"] = about.message_id  # a message does not hold its own
    return message


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

    def _client(self, interceptor: Any) -> RuntimeHttpClient:
        return StraightRuntime.from_server_address(
            f"127.0.0.1:{self.port}",
            insecure=self.authority is None,
            root_certificates=None if self.authority is None else self.authority.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), interceptor],
        )

    def close(self) -> None:
        """Close the connection."""
        self.client.close()
