"""A run of Flower in this process, and its clock: sites reply at times that the test chooses."""

from types import SimpleNamespace

import pytest
from flwr.app import Message as FlowerMessage
from flwr.app import MessageType
from flwr.common.serde import message_from_proto
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError
from flwr.supercore.task_identity import TaskIdentity

from trimtab.federation.message import Message, encode_arrays, encode_header, this_trimtab
from trimtab.federation.transport.flower import fleet as fleets
from trimtab.federation.transport.flower.fleet import Fleet
from trimtab.federation.transport.flower.objects import Outgoing, Parcel, record_of

NEVER = 1e9


class Clock:
    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class FakeRun:
    """Sites by the number of their node; `delays` says how long each takes to reply.

    `spoil[node](out, objects)` may change what a reply announces and its objects.
    """

    def __init__(self, clock, nodes):
        self.clock, self.since = clock, dict.fromkeys(nodes, "then")
        self.delays, self.spoil = dict.fromkeys(nodes, 0.0), {}
        self.store, self.pulled, self.confirmed = {}, [], []
        self.sent = []  # node, when its reply is announced, the reply

    def online(self):
        return dict(self.since)

    def push(self, contents, ttl):
        names = {}
        for node, content in contents.items():
            message = FlowerMessage(
                content, dst_node_id=node, message_type=MessageType.TRAIN, ttl=ttl
            )
            request = Outgoing.of(message)
            names[node] = request.about.metadata.message_id
            reply = self.reply(node, message_from_proto(request.about))
            self.sent.append((node, self.clock.now + self.delays[node], reply))
        return names

    def reply(self, node, request):
        known = this_trimtab() | {"tag": "t", "site": f"site{node}", "status": "done"}
        header = encode_header(known)
        parcel = Parcel(None).fill([encode_arrays({})])
        made = FlowerMessage(record_of(header, parcel), reply_to=request)
        out = Outgoing.of(made)
        objects = {name: part.deflate() for name, part in out.objects.items()}
        if node in self.spoil:
            out, objects = self.spoil[node](out, objects)
        self.store |= objects
        return out

    def replies(self, names):
        found = [
            entry
            for entry in self.sent
            if entry[1] <= self.clock.now and entry[2].about.metadata.reply_to_message_id in names
        ]
        self.sent = [entry for entry in self.sent if entry not in found]
        return [(out.about, out.tree) for _, _, out in found]

    def pull(self, name):
        self.pulled.append(name)
        if name not in self.store:
            raise ObjectPullError(name, "the object could not be found.")
        if self.store[name] == b"":
            raise ObjectUnavailableError(name)
        return self.store[name]

    def confirm(self, name):
        self.confirmed.append(name)


@pytest.fixture
def place(monkeypatch):
    """Three sites in a fleet over such a run."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    clock = Clock()
    monkeypatch.setattr(fleets, "time", clock)
    run = FakeRun(clock, [1, 2, 3])
    fleet = Fleet(run, lambda sites: {name: int(name[-1]) for name in sites})
    fleet.admit(dict.fromkeys(["site1", "site2", "site3"], "key"))
    return SimpleNamespace(clock=clock, run=run, fleet=fleet)


def ask(place, timeout=60.0, least=None, most=0, arrays=None):
    """Ask all three; return the replies, and how long that took."""
    began = place.clock.now
    requests = {
        f"site{n}": Message({"tag": "t", "site": f"site{n}"}, arrays or {}, most) for n in (1, 2, 3)
    }
    replies = dict(place.fleet.ask(requests, timeout, least))
    return replies, place.clock.now - began
