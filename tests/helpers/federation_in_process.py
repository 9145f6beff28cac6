"""A federation in one process: sites, a server, and a transport with faults."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from trimtab import Quadratic
from trimtab.commit import States
from trimtab.federation.log import LOGGER
from trimtab.federation.message import decode, encode
from trimtab.federation.protocol.coordinator import Coordinator
from trimtab.federation.protocol.site import Site
from trimtab.federation.storage.journal import rounds_of


def quadratic(N=3, d=2, seed=0, sigma=0.3, weights=None, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    A = torch.rand(N, d, generator=draw, dtype=dtype) + 0.2
    b = torch.randn(N, d, generator=draw, dtype=dtype)
    return Quadratic(A=torch.diag_embed(A), b=b, sigma=sigma, weights=weights)


def names(N):
    return [f"site{i}" for i in range(N)]


@pytest.fixture(autouse=True)
def unsynced(monkeypatch):
    """Spare the disk where no power failure is looked at; import it for a whole file.

    What is logged reaches pytest, whatever a process of the rounds has done to its logger before.
    """
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(LOGGER, "propagate", True)


MOST = 400  # a test asks its sites <= 400 times: a server that goes round in circles is stopped


class Federation:
    """N sites and a server; either can be started anew at any time.

    It is also a `transport.Transport` to the sites.
    """

    def __init__(self, folder: Path, algorithm, problem, N=None, **options):
        self.folder, self.algorithm, self.problem = folder, algorithm, problem
        self.asked = 0
        self.names = names(problem.N if N is None else N)
        self.options = {"R": 10, "x": problem.x0(0), "pause": 0.0, "seed": 3} | options
        self.sites = {name: self.site(name) for name in self.names}
        self.server = self.start()

    def site(self, name):
        return Site(self.folder / name, name, self.problem)

    def start(self, **options):
        self.options |= options
        return Coordinator(self.folder / "server", self.algorithm, self.names, **self.options)

    def restart_server(self, **options):
        self.server.close()
        self.server = self.start(**options)

    def restart_site(self, name):
        self.sites[name].close()
        self.sites[name] = self.site(name)

    def ask(self, requests, timeout, least=None):
        """Carry every message as bytes, there and back."""
        self.asked += 1
        assert self.asked <= MOST, "the server asks for ever"
        for name, request in requests.items():
            if name in self.sites:
                yield name, decode(encode(self.sites[name].answer(decode(encode(request)))))

    def online(self):
        return dict.fromkeys(self.sites, "since ever")

    def wait_for(self, names, least, seconds):
        assert len(set(names) & set(self.sites)) >= least

    def admit(self, sites):
        self.admitted = dict(sites)

    def run(self, ask=None):
        """Run to the end; return the event of each round, with the server's state after it."""
        rounds = []
        for done in self.server.run(ask or self.ask):
            server = self.server.standing.server
            rounds.append(SimpleNamespace(**vars(done), server=server, x=server.x))
        return rounds

    def control(self, name):
        """Return the accepted c_i of a site, as the site itself has it."""
        member = self.server.standing.member(name)
        folder = self.folder / name / self.server.standing.experiment
        return States(folder).load(member.accepted.tag)[0]["0"]

    def cohorts(self):
        return [line["clients"] for line in rounds_of(self.server.journal)]

    def close(self):
        self.server.close()
        for site in self.sites.values():
            site.close()
