"""The sites, as the coordinator asks them: requests go out over Flower, replies come one at a time.

A reply is known by the node it comes from, which Flower knows by its key, whatever it says itself.
Whatever goes wrong while one reply is fetched and read concerns its site alone.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trimtab.federation.log import printable
from trimtab.federation.message import (
    Message,
    ReplyStatus,
    decode_arrays,
    decode_header,
    encode_arrays,
    encode_header,
    this_trimtab,
)
from trimtab.federation.transport.flower.objects import HEADER_UP, Incoming, Parcel, record_of

if TYPE_CHECKING:
    from flwr.proto.message_pb2 import Message as ProtoMessage
    from flwr.proto.message_pb2 import ObjectTree

    from trimtab.federation.transport.flower.server import Run

log = logging.getLogger("trimtab.federation.transport")

_POLL = 0.02  # between two looks, each of which waits until something comes
_LOOK = 2.0  # a node that was started anew is noticed <= this many seconds later
_TIMES = (
    3.0  # after enough replies the others are waited for <= 3 times as long as the slowest took
)
_LEAST = 5.0  # but >= 5 seconds: a pause of a machine or a network is no silence
_SILENT = 3  # a site that was silent >= 3 times in a row is asked and not waited for
NodesOf = Callable[[Mapping[str, str]], dict[str, int]]  # registers keys; returns nodes by site


@dataclass
class _Asked:
    """The requests of one exchange that are under way."""

    since: dict[str, str]  # the sites that are waited for or may answer yet, by when they connected
    names: dict[str, str] = field(default_factory=dict)  # the site of each request
    coming: "list[_Coming]" = field(default_factory=list)


class Fleet:
    """The nodes of the sites: the `Transport` of Flower."""

    def __init__(self, run: "Run", nodes_of: NodesOf) -> None:
        self.run, self._nodes_of = run, nodes_of
        self.nodes: dict[str, int] = {}
        self._silent: dict[str, tuple[int, str]] = {}  # how often in a row, connected since when

    def admit(self, sites: Mapping[str, str]) -> None:
        """Carry messages to these sites from now on; they are known by their public keys."""
        self.nodes |= self._nodes_of(sites)

    def online(self) -> dict[str, str]:
        """Return the sites that are connected, and since when."""
        names = {node: name for name, node in self.nodes.items()}
        return {names[node]: at for node, at in self.run.online().items() if node in names}

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
            time.sleep(0.2)

    def ask(
        self, requests: Mapping[str, Message], timeout: float, least: int | None = None
    ) -> Iterator[tuple[str, Message]]:
        """Send each request; yield replies as they arrive, until all that can come have come.

        A site that is not connected is not waited for. One that connected anew since it was asked
        is asked once more: it may have lost the request. After `least` replies the others are
        waited for three times as long as the slowest of these took; sites that were silent three
        times in a row are asked, and waited for only until there are `least` replies.
        """
        began = time.monotonic()
        until, since, replied = began + timeout, self.online(), 0
        asked = _Asked({name: since[name] for name in requests if name in since})
        for name in requests.keys() - since.keys():
            log.info(f"site {name} is not connected; it sits this round out.")
        self._push(asked, {name: requests[name] for name in asked.since}, timeout)
        looked = time.monotonic()
        while asked.since and time.monotonic() < until:
            enough = least is not None and replied >= least
            if enough and all(self._is_silent(name, at) for name, at in asked.since.items()):
                break
            self._look(asked)
            for name, reply in self._come(asked, requests):
                self._silent.pop(name, None)
                replied += reply.header.get("status") == ReplyStatus.DONE
                if least is not None and replied >= least:
                    limit = max(_LEAST, _TIMES * (time.monotonic() - began))
                    until = min(until, began + limit)
                yield name, reply
            if time.monotonic() - looked > _LOOK:
                looked, now = time.monotonic(), self.online()
                anew = {n: now[n] for n, at in asked.since.items() if now.get(n, at) != at}
                asked.since |= anew
                self._push(asked, {n: requests[n] for n in anew}, until - time.monotonic())
                for name in anew:
                    log.info(f"site {name} connected anew; it is asked once more.")
            if asked.since:
                time.sleep(_POLL)
        for name, at in asked.since.items():
            before, then = self._silent.get(name, (0, at))
            times = before + 1 if then == at else 1
            self._silent[name] = times, at
            said = "; from now on it is not waited for" if times == _SILENT else ""
            took = time.monotonic() - began
            log.warning(f"site {name} did not answer within {took:.3g} seconds{said}.")
        for coming in asked.coming:
            coming.close()

    def _is_silent(self, name: str, at: str) -> bool:
        """Return whether a site was silent too often; one that connected anew begins anew."""
        times, then = self._silent.get(name, (0, at))
        return times >= _SILENT and then == at

    def _push(self, asked: _Asked, requests: Mapping[str, Message], ttl: float) -> None:
        """Send requests, whose arrays are the same for all sites that are asked at once."""
        if not requests:
            return
        first = next(iter(requests.values()))
        # Flower refuses an object whose name is known with other children: with the tag of the
        # attempt in them, no site can have named the objects of this attempt before.
        salt = str(first.header.get("tag", ""))
        arrays = Parcel(None).fill([encode_arrays(first.arrays, salt)])
        chunks = arrays.chunks()
        contents = {}
        for name, request in requests.items():
            assert request.arrays is first.arrays, "the sites of one exchange get the same arrays"
            header = encode_header(request.header)
            contents[self.nodes[name]] = record_of(header, arrays, chunks)
        names = {node: name for name, node in self.nodes.items()}
        sent = self.run.push(contents, ttl)
        asked.names |= {message: names[node] for node, message in sent.items()}
        arrays.close()

    def _look(self, asked: _Asked) -> None:
        """See which replies have been announced."""
        for about, tree in self.run.replies(list(asked.names)):
            name = asked.names.pop(about.metadata.reply_to_message_id)
            if about.metadata.src_node_id != self.nodes[name]:
                log.warning(f"refused a reply to {name}'s request: another node sent it.")
            elif name in asked.since:
                asked.coming.append(_Coming(name, about, tree))

    def _come(
        self, asked: _Asked, requests: Mapping[str, Message]
    ) -> Iterator[tuple[str, Message]]:
        """Yield the announced replies that are complete by now.

        Whatever goes wrong with one of them is the reply of that site: it sits out, and others are
        not concerned.
        """
        for coming in list(asked.coming):
            if coming.site not in asked.since:
                coming.close()
                asked.coming.remove(coming)
                continue
            request = requests[coming.site]
            try:
                reply = coming.advance(self.run, request.most)
            except Exception as error:
                said = printable(str(error), 300).rstrip(".") or "no reason is given"
                why = f"its reply cannot be read ({type(error).__name__}: {said})"
                reply = _lost(coming.site, request, why)
            if reply is not None:
                coming.close()
                asked.coming.remove(coming)
                del asked.since[coming.site]
                yield coming.site, reply


class _Coming:
    """A reply that was announced; its objects may be on their way still."""

    def __init__(self, site: str, about: "ProtoMessage", tree: "ObjectTree") -> None:
        self.site, self.about, self.tree = site, about, tree
        self._incoming: Incoming | None = None

    def advance(self, run: "Run", most: int) -> Message | None:
        """Pull what is there by now; return the reply if that is all."""
        if self.about.HasField("error"):
            reason = self.about.error.reason.strip().splitlines()
            raise ValueError(f"{reason[0] if reason else f'error {self.about.error.code}'}")
        if self._incoming is None:
            self._incoming = Incoming(self.tree, run.pull, None, header=HEADER_UP, most=most)
        if not self._incoming.advance():
            return None
        run.confirm(self.tree.object_id)
        parcel = self._incoming.parcel
        return Message(decode_header(parcel.header, HEADER_UP), decode_arrays(parcel.arrays()))

    def close(self) -> None:
        """Give its memory back."""
        if self._incoming is not None:
            self._incoming.parcel.close()


def _lost(site: str, request: Message, why: str) -> Message:
    """Return a reply in place of one that cannot be read."""
    known = {"site": site, "tag": request.header.get("tag"), "status": ReplyStatus.FAILED}
    return Message(this_trimtab() | known | {"why": why})
