"""Runs with all that can happen to messages, processes and disks, drawn at random.

Some hundreds of them, and thousands with `make soak`.
After each, c = sum p_i c_i, and x is that of the simulator with the recorded cohorts.
"""

import logging
import random
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from tests.helpers.federation_in_process import Federation, quadratic, unsynced  # noqa: F401
from tests.helpers.killed_at import POINTS
from trimtab import Scaffold, simulate
from trimtab.commit import durable
from trimtab.federation.storage.ledger import read_standing
from trimtab.simulation import state_rows

RUNS, PARTS = 2000, 4
ALGORITHMS = [
    Scaffold(eta_l=0.1, K=2, option="I"),
    Scaffold(eta_l=0.1, K=2, eta_g=0.8),
    Scaffold(eta_l=0.1, K=2, lean=True),
]
WEIGHTED = quadratic(3, weights=[1.0, 2.0, 3.0])
PROBLEMS = [quadratic(3, seed=1), quadratic(2, seed=2), WEIGHTED]
FATES = {
    **{"fine": 16, "request lost": 2, "reply lost": 2, "reply late": 2, "reply doubled": 2},
    **{"request doubled": 2, "request late": 2, "site restarted": 2, "site killed": 3},
}
SHM = Path("/dev/shm")


class Killed(BaseException):
    """As by SIGKILL: nothing may catch it."""


class World(Federation):
    """A federation with bad luck."""

    def __init__(self, folder, algorithm, problem, rng, seen, **options):
        super().__init__(folder, algorithm, problem, **options)
        self.rng, self.seen = rng, seen
        self.late_replies, self.late_requests, self.checkpoints = [], [], []
        self.doomed = None  # the point at which whoever runs now is killed

    def site(self, name):
        site = super().site(name)
        n = {name: index + 1 for index, name in enumerate(self.names)}
        site.sizes = lambda index: (n[name], 1)  # as many samples as WEIGHTED has it
        return site

    def point(self, name):
        if name == self.doomed:
            self.doomed = None
            raise Killed

    def unlucky(self, requests, timeout):
        replies = []
        for name, request in self.shuffled(list(requests.items())):
            replies += [(name, reply) for reply in self.exchanged(name, request)]
        if self.late_replies and self.happens(0.5, "late reply delivered"):
            replies.append(self.late_replies.pop(0))
        for name, reply in self.shuffled(replies):
            if self.happens(0.01, "server killed while collecting"):
                raise Killed
            yield name, reply

    def exchanged(self, name, request):
        """Return what comes back for a request."""
        if self.late_requests and self.happens(0.3, "late request delivered"):
            self.deliver_late()
        fate = self.rng.choices(list(FATES), FATES.values())[0]
        self.seen[fate] += 1
        if fate == "request lost":
            return []
        if fate == "request late":
            self.late_requests.append((name, request))
            return []
        if fate == "site killed":
            when = self.rng.choice(["before", "within", "after"])
            self.doomed = f"site:{when}-{self.rng.choice(['pending', 'reply', 'sent'])}"
        try:
            reply = self.sites[name].answer(request)
        except Killed:
            self.restart_site(name)
            return []
        finally:
            self.doomed = None
        if fate == "site restarted":
            self.restart_site(name)
        if fate == "request doubled":
            return [reply, self.sites[name].answer(request)]
        if fate == "reply doubled":
            return [reply, reply]
        if fate == "reply late":
            self.late_replies.append((name, reply))
        return [] if fate in ("reply lost", "reply late") else [reply]

    def deliver_late(self):
        name, request = self.late_requests.pop(self.rng.randrange(len(self.late_requests)))
        self.late_replies.append((name, self.sites[name].answer(request)))

    def happens(self, chance, what):
        hit = self.rng.random() < chance
        self.seen[what] += hit
        return hit

    def shuffled(self, items):
        return self.rng.sample(items, len(items))

    def live(self):
        """Run to the end, whatever happens to the server on the way."""
        while self.server.outcome is None:
            if self.happens(0.25, "server killed at a write"):
                self.doomed_server()
            try:
                for done in self.server.run(self.unlucky):
                    assert done.r <= self.server.R
                    self.between_rounds()
            except Killed:
                self.restart_server()
            self.doomed = None

    def doomed_server(self):
        at = self.rng.choice([point for point in POINTS if point.startswith("server")])
        self.doomed = at

    def between_rounds(self):
        path = self.server.folder / "checkpoint.safetensors"
        self.checkpoints = [*self.checkpoints[-2:], path.read_bytes()]
        if len(self.checkpoints) == 3 and self.happens(0.04, "older checkpoint restored"):
            path.write_bytes(self.checkpoints[self.rng.randrange(2)])
            self.checkpoints = []
            raise Killed
        if self.happens(0.1, "audit on the way"):
            self.audited()
        if self.happens(0.1, "server restarted"):
            raise Killed

    def audited(self):
        audit = self.server.audit(self.steady)
        assert not audit.missing
        assert audit.deviation <= 1e-13 * audit.largest

    def steady(self, requests, timeout):
        for name, request in requests.items():
            yield name, self.sites[name].answer(request)


def one_run(folder, number, seen, monkeypatch):
    rng = random.Random(number)
    algorithm, problem = rng.choice(ALGORITHMS), rng.choice(PROBLEMS)
    weights = "samples" if problem is WEIGHTED else "uniform"
    R = rng.randint(3, 5)
    world = World(folder, algorithm, problem, rng, seen, R=R, weights=weights)
    monkeypatch.setattr(durable, "fault_point", world.point)
    world.live()
    while world.late_requests:
        world.deliver_late()
    world.audited()
    sim = simulate(algorithm, problem, seed=3, cohorts=world.cohorts(), executor="loop")
    *_, last = sim
    assert last.r == world.server.standing.r == world.server.R
    assert torch.equal(last.x, world.server.standing.server.x)
    for i, name in enumerate(world.names):
        if i in sim.states:
            assert torch.equal(sim.states[i], world.control(name))
    world.close()


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.soak) for part in range(1, PARTS))]
)
def test_nothing_is_lost_whatever_happens(part, monkeypatch, quiet):
    monkeypatch.setattr(state_rows, "_BLOCK_ROWS", 4)  # the replays are short
    seen = Counter()
    with TemporaryDirectory(dir=SHM if SHM.is_dir() else None) as folder:
        for number in range(part, RUNS, PARTS):
            place = Path(folder) / str(number)
            one_run(place, number, seen, monkeypatch)
            shutil.rmtree(place)
    assert all(seen[fate] > 20 for fate in seen), seen
    assert len(seen) == len(FATES) + 7, seen


class Upheaval(World):
    """Disks are lost and sites come and go as well; what c_i becomes then is right to rounding."""

    def start(self, **options):
        standing = read_standing(self.folder / "server")
        if standing is not None:
            self.names = [member.name for member in standing.members]
        return super().start(**options)

    def between_rounds(self):
        super().between_rounds()
        if self.happens(0.2, "disk lost"):
            self.lose_disk(self.rng.choice(self.names))
        if self.server.standing.numbers < self.problem.N and self.happens(0.2, "joining"):
            self.join(f"site{self.server.standing.numbers}")
        if len(self.names) > 2 and self.happens(0.2, "leaving"):
            self.leave(self.rng.choice(self.names))

    def audited(self):
        if not self.server.audit(self.steady).missing:  # for then a state waits to be restored
            super().audited()

    def lose_disk(self, name):
        self.sites[name].close()
        shutil.rmtree(self.folder / name)
        self.sites[name] = self.site(name)

    def join(self, name):
        if name not in self.sites:
            self.sites[name] = self.site(name)
        with suppress(ValueError):  # it did not answer
            self.server.join(self.unlucky, name)
            self.names.append(name)

    def leave(self, name):
        with suppress(ValueError):  # neither it nor all the others answered
            self.server.leave(self.unlucky, name)
            self.names.remove(name)

    def site(self, name):
        site = super(World, self).site(name)
        site.sizes = lambda index: (index + 1, 1)
        return site


@pytest.fixture
def quiet():
    """Log nothing; loggers remember that they are disabled unless it is ended this way."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("part", range(2))
def test_the_invariant_survives_lost_disks_joins_and_leaves(part, monkeypatch, quiet):
    seen, problem = Counter(), quadratic(6, seed=4)
    with TemporaryDirectory(dir=SHM if SHM.is_dir() else None) as folder:
        for number in range(part, 120, 2):
            rng = random.Random(number)
            world = Upheaval(
                Path(folder) / str(number),
                rng.choice(ALGORITHMS),
                problem,
                rng,
                seen,
                N=3,
                R=6,
                weights=rng.choice(["uniform", "samples"]),
                on_lost_state=rng.choice(["restore", "restore", "restart"]),
            )
            monkeypatch.setattr(durable, "fault_point", world.point)
            world.live()
            world.restart_server(R=9)
            world.run(world.steady)
            seen["epochs"] += world.server.standing.epoch
            World.audited(world)
            world.close()
    assert min(seen[what] for what in ("disk lost", "joining", "leaving", "epochs")) > 5, seen
