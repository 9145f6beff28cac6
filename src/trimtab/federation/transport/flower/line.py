"""A site's line to its server: Flower's Fleet API, spoken with Flower's own client.

The site only calls out. It activates its node, sends heartbeats, looks for requests, which the
server answers as soon as there is one, and pushes replies. It never asks for a run or an app, so no
code can travel. Its node's number is kept in a file: after a crash Flower takes the node to be
connected still, and lets no other in until it was deactivated.
Private names of Flower are imported here, in `objects.py` and in `server.py`. No torch is needed.
"""

import logging
import queue
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import unquote

import httpx
from flwr.app import Error, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from trimtab.federation.log import printable
from trimtab.federation.storage.keys import load_site_key
from trimtab.federation.transport.flower.notices import COPY, NOTICE
from trimtab.federation.transport.flower.objects import (
    HEADER_DOWN,
    Incoming,
    Outgoing,
    Parcel,
    record_of,
)
from trimtab.federation.transport.flower.proxies import no_proxy
from trimtab.federation.transport.flower.site_keys import Clocks

log = logging.getLogger("trimtab.federation.transport")

GRACE = 10.0  # Flower keeps a request for this many seconds after nobody waits for its reply
_CLOSE = 2.0  # the clocks of server and site are compared to within < this many seconds
_BEAT = 10.0  # a site that vanished is offline after 20 seconds; it beats every 4
_AGAIN = 1.0  # after a lost connection the server is called again every >= 1 second
_MOST = 1 << 34  # the arrays of a request have <= 16 GiB


@dataclass
class Request:
    """A request of the server, and what it holds."""

    message: FlowerMessage
    parcel: Parcel


class Line:
    """The line of one site, until `stop` is set."""

    def __init__(
        self,
        server: str,
        authority: Path,
        key: Path,
        folder: Path,
        stop: threading.Event,
        proxy: str | None = None,
    ) -> None:
        private = load_site_key(key.read_bytes())
        public = private.public_key()
        self.server, self.folder, self.stop = server, folder, stop
        self.clocks = Clocks("this machine's", "the server's")
        self.connected, self.activations = False, 0
        self._said, self._losses = "", 0  # what the log says of the line; in a row
        self._public = public_key_to_bytes(public)
        self._number = folder / "node"
        self._node: Node | None = None
        self._found: queue.Queue[tuple[Any, ObjectTree]] = queue.Queue()
        with no_proxy(proxy):
            self._client = FleetHttpClient.from_server_address(
                server,
                False,
                authority.read_bytes(),
                [
                    RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                    NodeAuthHttpInterceptor(private, public),
                    _Told(self.clocks),
                ],
            )

    def requests(self) -> Iterator[Request]:
        """Go through the requests of the server; a later one takes the place of one that waits."""
        threads = [
            threading.Thread(target=work, name="line", daemon=True)
            for work in (self._look, self._beat)
        ]
        for thread in threads:
            thread.start()
        while not self.stop.is_set():
            try:
                about, tree = self._found.get(timeout=0.2)
            except queue.Empty:
                continue
            if self._found.empty():
                request = self._fetch(about, tree)
                if request is not None:
                    yield request

    def close(self) -> None:
        """Say goodbye, so that the server need not find out by itself."""
        self.stop.set()
        if self._node is not None:
            with suppress(httpx.HTTPError, ValueError):
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
        self._client.close()

    def is_over(self, request: Request) -> bool:
        """Return whether nobody waits for the reply to a request any more.

        Its times are of the server's clock; this machine's is so many seconds ahead of it.
        """
        about = request.message.metadata
        now = time.time() - self.clocks.ahead
        return bool(now > about.created_at + about.ttl - GRACE + _CLOSE)

    def answer(self, request: Request, reply: Parcel | str) -> None:
        """Send the reply to a request; a string says why there is none."""
        content: RecordDict | Error
        if isinstance(reply, str):
            content = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reply)
        else:
            content = record_of(reply.header, reply)
        message: Any = FlowerMessage(content, reply_to=request.message)
        out, run = Outgoing.of(message), request.message.metadata.run_id
        while not self.stop.is_set() and not self.is_over(request):
            try:
                self._push(out, run)
                return
            except httpx.HTTPStatusError as error:
                if error.response.status_code < 500:
                    log.warning(f"the server did not take a reply ({_line(error)}).")
                    return
            except (httpx.HTTPError, ObjectPushError):
                pass  # Flower takes the same reply again.
            self.stop.wait(_AGAIN)

    def _push(self, out: Outgoing, run: int) -> None:
        node = self._node or Node(node_id=out.about.metadata.src_node_id)
        pushed = self._client.PushMessages(
            PushMessagesRequest(
                node=node, messages_list=[out.about], message_object_trees=[out.tree]
            )
        )
        push = make_push_object_fn_protobuf(self._client.PushObject, node, run, pushed.session_id)
        for name in pushed.objects_to_push:
            push(name, out.objects[name].deflate())

    # -- requests

    def _look(self) -> None:
        """Look for requests; the server answers when there is one, or after some seconds."""
        while not self.stop.is_set():
            try:
                if self._node is None:
                    self._activate()
                found = self._client.PullMessages(PullMessagesRequest(node=self._node))
            # A client that was closed meanwhile raises RuntimeError.
            except (httpx.HTTPError, OSError, ValueError, RuntimeError) as error:
                # A look that died may have taken a request, which is lost. The server asks those
                # again that connected anew since.
                self._node, self.connected = None, False
                self._say(_why(error, self.server))
                self.stop.wait(_AGAIN)
                continue
            for pair in zip(found.messages_list, found.message_object_trees, strict=True):
                self._found.put(pair)

    def _activate(self) -> None:
        if self._number.exists():
            with suppress(httpx.HTTPStatusError, ValueError):
                number = int(self._number.read_text())
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=number))
        activated = self._client.ActivateNode(
            ActivateNodeRequest(public_key=self._public, heartbeat_interval=_BEAT)
        )
        self._number.write_text(str(activated.node_id))
        self._node = Node(node_id=activated.node_id)
        self.connected, self.activations, self._losses = True, self.activations + 1, 0
        if self._said:
            log.info(f"the server at {self.server} can be reached again.")
            self._said = ""

    def _say(self, why: str) -> None:
        """Log what is wrong, once; one lost connection is nothing."""
        self._losses += 1
        if self._losses > 1 and why != self._said and not self.stop.is_set():
            log.warning(why)
            self._said = why

    def _beat(self) -> None:
        while not self.stop.wait(0.4 * _BEAT):
            node = self._node
            if node is not None:
                with suppress(httpx.HTTPError, ValueError, RuntimeError):
                    self._client.SendNodeHeartbeat(
                        SendNodeHeartbeatRequest(node=node, heartbeat_interval=_BEAT)
                    )

    def _fetch(self, about: Any, tree: ObjectTree) -> Request | None:
        """Pull a request; None if it does not come, or a later one has."""
        node, run = Node(node_id=about.metadata.dst_node_id), about.metadata.run_id
        about.metadata.message_id = tree.object_id
        pull = make_pull_object_fn_protobuf(self._client.PullObject, node, run)
        incoming, pause = None, 0.01
        try:
            incoming = Incoming(tree, pull, self.folder, header=HEADER_DOWN, most=_MOST)
            request = Request(message_from_proto(about), incoming.parcel)
            while not self.stop.is_set() and self._found.empty() and not self.is_over(request):
                try:
                    if incoming.advance():
                        self._client.ConfirmMessageReceived(
                            ConfirmMessageReceivedRequest(
                                node=node, run_id=run, message_object_id=tree.object_id
                            )
                        )
                        return request
                except httpx.TransportError:
                    pause = _AGAIN
                self.stop.wait(pause)
                pause = min(2 * pause, 0.5)
        except Exception as error:  # Whatever the server sends, the site lives on.
            log.warning(f"a request was lost on its way ({_line(error)}).")
        if incoming is not None:
            incoming.parcel.close()
        return None


class _Told:
    """Notes what the server says beside its answers: of the time, and how this site stands."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks, self.copy = clocks, token_hex(8)  # of all that have this key, this process
        self._before = ""

    def intercept(self, context: Any, call_next: Any) -> httpx.Response:
        """Pass a request on."""
        context.request.headers[COPY] = self.copy
        response: httpx.Response = call_next(context)
        with suppress(KeyError, ValueError):
            theirs = parsedate_to_datetime(response.headers["date"]).timestamp()
            self.clocks.note(time.time() - theirs)  # a date has whole seconds
        notice = printable(unquote(response.headers.get(NOTICE, "")), 400)
        if notice != self._before:
            if notice:
                log.warning(notice)
            else:
                log.info("the server has nothing against this site any more.")
            self._before = notice
        return response


def _why(error: Exception, server: str) -> str:
    """Return why the server at this address did not answer as it should."""
    if isinstance(error, httpx.HTTPStatusError):
        status = error.response.status_code
        if status >= 500:
            return f"the server at {server} is busy or starting (HTTP {status}); trying on."
        return f"the server at {server} does not let this site in (HTTP {status}); trying on."
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        if "expired" in cause.verify_message:
            return (
                f"refused the server at {server}: its certificate has expired; the operator writes "
                "a new one with `trimtab federate renew`."
            )
        return (
            f"refused the server at {server}: {cause.verify_message.rstrip('.')}; it is not the "
            "server for which this site's archive was made."
        )
    if isinstance(cause, ssl.SSLError):
        return f"the server at {server} does not speak TLS as it should ({cause.reason or cause})."
    why = getattr(cause, "strerror", None) or printable(str(error), 200) or type(error).__name__
    return f"the server at {server} cannot be reached ({why}); trying on."


def _line(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"HTTP {error.response.status_code}"
    return printable(f"{type(error).__name__}: {error}", 300).rstrip(".")
