"""Flower at a site: the SuperNode, and the requests that it announces."""

import time
from pathlib import Path
from threading import Event
from typing import Any

from flwr.app import Context, Error
from flwr.app import Message as FlowerMessage
from flwr.common.constant import ErrorCode
from flwr.common.serde import context_from_proto
from flwr.proto.message_pb2 import PullObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullTaskInputRequest
from flwr.supercore.runtime import RuntimeHttpClient

from trimtab.federation.transport.flower import api
from trimtab.federation.transport.flower.parcel import Parcel, fetch_parcel, push_reply
from trimtab.federation.transport.flower.supernode import PROXY

_CLOSE = 2.0  # the clocks of server and site are compared to within < this many seconds


def supernode_arguments(server: str, port: int, folder: Path, secret: Path) -> list[str]:
    """Return how a SuperNode is started; it starts nothing itself."""
    return [
        *("--superlink", server, "--root-certificates", str(folder / "ca.crt")),
        *("--auth-supernode-private-key", str(folder / "site.key")),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
    ]


def supernode_environment(folder: Path, proxy: str | None) -> dict[str, str]:
    """Return the variables of a SuperNode; its way out is the proxy, or straight."""
    return api.environment(folder / "flower") | {PROXY: proxy or ""}


class Superseded(Exception):
    """A message will not come; `token` is the task of the one that came after it."""

    def __init__(self, token: str | None) -> None:
        super().__init__(token)
        self.token = token


def take(
    tasks: api.Tasks, client: RuntimeHttpClient, folder: Path, stop: Event
) -> tuple[Any, Parcel, Context]:
    """Return the message that a task is about, what it holds, and Flower's context of it.

    A SuperNode announces a message before it has it, and may give it up; what it announces
    next takes its place, which `Superseded` tells.
    """
    task = client.PullTaskInput(PullTaskInputRequest())
    api.identify(task)
    messages = client.PullMessages(PullAppMessagesRequest())
    if not messages.messages_list:
        raise ConnectionError("a task came without its message")
    node = Node(node_id=task.context.node_id)
    about, tree = messages.messages_list[0].metadata, messages.message_object_trees[0]
    about.message_id, about.run_id = tree.object_id, task.run.run_id
    last = PullObjectRequest(node=node, run_id=about.run_id, object_id=tree.object_id)
    while not client.PullObject(last).object_available:
        following = tasks.acquire()
        if following is not None or stop.wait(0.1):
            raise Superseded(following)
    message, parcel = fetch_parcel(client, node, about, tree, folder)
    return message, parcel, context_from_proto(task.context)


def is_over(request: Any, ahead: float) -> bool:
    """Tell whether nobody waits for the reply to a request any more.

    Its times are of the server's clock; this machine's is so many seconds ahead of it.
    """
    about = request.metadata
    return bool(time.time() - ahead > about.created_at + about.ttl - api.GRACE + _CLOSE)


def answer(client: RuntimeHttpClient, request: Any, context: Context, reply: Parcel | str) -> None:
    """Send the reply to a request; a string says why there is none."""
    content = (
        Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reply)
        if isinstance(reply, str)
        else reply.record()
    )
    message = FlowerMessage(content, reply_to=request)
    push_reply(client, context.node_id, context.run_id, message)
