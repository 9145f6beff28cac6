"""Random luck for anything built on `trimtab.commit`: losses, kills at writes, older checkpoints.

An engine gives two factories. `client(folder, i)` has `answer(request)` and `state(accepted)`;
`server(folder, N)` reads what is on disk and has `requests()` by client, `commit(replies)`, `c` and
`accepted` by client. After each life, c must be the mean of the accepted states, bit for bit: the
numbers are whole.
"""

import random
from collections import Counter

import torch

from trimtab.commit import durable

FATES = {
    **{"fine": 12, "request lost": 2, "reply lost": 2, "reply late": 2, "reply doubled": 1},
    **{"request doubled": 2, "request late": 2, "client killed": 3},
}


class Killed(BaseException):
    """As by SIGKILL: nothing may catch it."""


class Luck:
    """One engine with bad luck, drawn from a seed."""

    def __init__(self, folder, client, server, N, seed, monkeypatch):
        self.folder, self.client, self.server, self.N = folder, client, server, N
        self.rng, self.seen = random.Random(seed), Counter()
        self.doomed, self.late_replies, self.late_requests = None, [], []
        self.clients = [client(folder / f"client{i}", i) for i in range(N)]
        monkeypatch.setattr(durable, "fault_point", self.point)

    def point(self, name):
        when, _, what = name.partition(":")[2].partition("-")
        if self.doomed == when and what:
            self.doomed = None
            raise Killed

    def happens(self, chance, what):
        hit = self.rng.random() < chance
        self.seen[what] += hit
        return hit

    def answers(self, i, request):
        fate = self.rng.choices(list(FATES), FATES.values())[0]
        self.seen[fate] += 1
        if fate == "request lost":
            return []
        if fate == "request late":
            self.late_requests.append((i, request))
            return []
        if fate == "client killed":
            self.doomed = self.rng.choice(["before", "within", "after"])
        try:
            reply = self.clients[i].answer(request)
        except Killed:
            self.clients[i] = self.client(self.folder / f"client{i}", i)
            return []
        finally:
            self.doomed = None
        if fate == "request doubled":
            return [reply, self.clients[i].answer(request)]
        if fate == "reply late":
            self.late_replies.append((i, reply))
        return {"reply lost": [], "reply late": [], "reply doubled": [reply, reply]}.get(
            fate, [reply]
        )

    def attempt(self, server):
        replies = []
        for i, request in self.rng.sample(list(server.requests().items()), self.N):
            replies += [(i, reply) for reply in self.answers(i, request)]
            if self.late_requests and self.happens(0.3, "late request delivered"):
                who, late = self.late_requests.pop(0)
                self.late_replies.append((who, self.clients[who].answer(late)))
        if self.late_replies and self.happens(0.5, "late reply delivered"):
            replies.insert(0, self.late_replies.pop(0))
        if self.happens(0.2, "server killed at a write"):
            self.doomed = self.rng.choice(["before", "within", "after"])
        server.commit(replies)

    def live(self, attempts, checkpoint):
        """Go through some attempts; `checkpoint` is the server's file in its folder."""
        before, server = [], self.server(self.folder / "server", self.N)
        for _ in range(attempts):
            try:
                self.attempt(server)
            except Killed:
                server = self.server(self.folder / "server", self.N)
            self.doomed = None
            self.check(server)
            path = self.folder / "server" / checkpoint
            if path.exists():
                before = [*before[-2:], path.read_bytes()]
            if len(before) == 3 and self.happens(0.1, "older checkpoint restored"):
                path.write_bytes(self.rng.choice(before[:2]))
                before, server = [], self.server(self.folder / "server", self.N)
                self.check(server)

    def check(self, server):
        states = [self.clients[i].state(server.accepted[i]) for i in range(self.N)]
        assert torch.equal(server.c * self.N, torch.stack(states).sum(0))
