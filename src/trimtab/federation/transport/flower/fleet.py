"""The sites, as the coordinator asks them: requests go out over Flower, replies come one at a time.

A reply is known by the node it comes from, which Flower knows by its key, whatever it says itself.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from flwr.app import Message as FlowerMessage
from flwr.app import MessageType
from flwr.proto.message_pb2 import Metadata, ObjectTree
from flwr.proto.runtime_pb2 import GetNodesRequest, PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.superlink.grid import HttpGrid

from trimtab.federation.message import Message
from trimtab.federation.transport.flower import api

log = logging.getLogger("trimtab.federation.transport")

_POLL = 0.2  # a reply is noticed <= this many seconds after it came
_LOOK = 2.0  # a node that was started anew is noticed <= this many seconds later
NodesOf = Callable[[Mapping[str, str]], dict[str, int]]  # registers keys; returns nodes by site


class Fleet:
    """The nodes of the sites: the `Transport` of Flower."""

    def __init__(self, grid: HttpGrid, nodes_of: NodesOf) -> None:
        self.grid, self._nodes_of = grid, nodes_of
        self.nodes: dict[str, int] = {}
        self._client: Any = grid._runtime_client

    def admit(self, sites: Mapping[str, str]) -> None:
        """Carry messages to these sites from now on; they are known by their public keys."""
        self.nodes |= self._nodes_of(sites)

    def online(self) -> dict[str, str]:
        """Return the sites that are connected, and since when."""
        names = {node: name for name, node in self.nodes.items()}
        connected = self._client.GetNodes(GetNodesRequest()).nodes
        return {names[n.node_id]: n.last_activated_at for n in connected if n.node_id in names}

    def wait_for(self, names: Collection[str], least: int, seconds: float) -> None:
        """Wait until at least so many of these sites are connected; say who is missing."""
        until, logged = time.monotonic() + seconds, list[str]()
        while True:
            there = self.online()
            missing = [name for name in names if name not in there]
            if len(names) - len(missing) >= least or time.monotonic() > until:
                return
            if missing != logged:
                log.info(f"waiting for {', '.join(missing)} to connect.")
                logged = missing
            time.sleep(0.5)

    def ask(self, requests: Mapping[str, Message], timeout: float) -> Iterator[tuple[str, Message]]:
        """Send each request; yield replies as they arrive, until all that can come have come.

        A site that is not connected is not waited for. One that was started anew since it was
        asked is asked once more: it may have lost the request.
        """
        until = time.monotonic() + timeout
        since = self.online()
        waiting: dict[str, tuple[str, str]] = {}  # the request's id: the site, and since when
        for name, request in requests.items():
            if name in since:
                waiting[self._push(name, request, timeout)] = name, since[name]
            else:
                log.info(f"site {name} is not connected; it sits this round out.")
        looked = time.monotonic()
        while waiting and time.monotonic() < until:
            for about, tree in self._arrived(list(waiting)):
                name, _ = waiting.pop(about.reply_to_message_id)
                reply = self._fetch(about, tree, name)
                if reply is not None:
                    yield name, reply
            if time.monotonic() - looked > _LOOK:
                looked, now = time.monotonic(), self.online()
                for sent, (name, then) in list(waiting.items()):
                    if now.get(name, then) != then:
                        waiting.pop(sent)
                        anew = self._push(name, requests[name], until - time.monotonic())
                        waiting[anew] = name, now[name]
                        log.info(f"site {name} was started anew; it is asked once more.")
            if waiting:
                time.sleep(_POLL)
        for name, _ in waiting.values():
            log.warning(f"site {name} did not answer within {timeout:g} seconds.")

    def _push(self, name: str, request: Message, ttl: float) -> str:
        message = FlowerMessage(
            api.pack(request),
            dst_node_id=self.nodes[name],
            message_type=MessageType.TRAIN,
            ttl=max(0.0, ttl) + api.GRACE,
        )
        (sent,) = self.grid.push_messages([message])
        if not sent:
            raise ConnectionError(f"Flower did not take the request for site {name}")
        return str(sent)

    def _arrived(self, sent: list[str]) -> list[tuple[Metadata, ObjectTree]]:
        """Return what is known of the replies to these requests that are there by now."""
        pulled = self._client.PullMessages(PullAppMessagesRequest(message_ids=sent))
        about = [message.metadata for message in pulled.messages_list]
        found = list(zip(about, pulled.message_object_trees, strict=True))
        return [pair for pair in found if pair[0].reply_to_message_id in sent]

    def _fetch(self, about: Metadata, tree: ObjectTree, name: str) -> Message | None:
        """Return a reply that has been announced; None if there is none that can be read."""
        try:
            message = api.fetch(self._client, self.grid.node, about, tree)
        except ObjectPullError as error:
            log.warning(f"the reply of site {name} was lost on its way ({error}).")
            return None
        assert isinstance(message, FlowerMessage)
        if message.has_error():
            log.warning(f"site {name} gave no reply ({_reason(message)}).")
            return None
        if about.src_node_id != self.nodes[name]:
            log.warning(f"refused a reply to {name}'s request: another node sent it.")
            return None
        try:
            return api.unpack(message.content)
        except ValueError as error:
            log.warning(f"refused the reply of site {name}: {error}")
            return None


def _reason(message: FlowerMessage) -> str:
    reason = str(message.error.reason or "").strip().splitlines()
    return (reason[0] if reason else f"error {message.error.code}").rstrip(".")
