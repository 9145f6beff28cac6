"""An algorithm of two exchanges in a round, whose clients' state changes in both."""

from dataclasses import dataclass

import pytest
import torch

from trimtab import Scaffold
from trimtab.algorithms import registry

Server = type(Scaffold(eta_l=1, K=1).init_server(torch.zeros(1)))


@dataclass(frozen=True, kw_only=True)
class Twice:
    """Client state that changes in both of two exchanges: it counts how often it was asked."""

    def init_server(self, x):
        return Server(x, torch.zeros_like(x))

    def init_client(self, x):
        return torch.zeros_like(x)

    def first(self, g, n_i, x):
        return (g(x),), n_i + 1

    def second(self, g, n_i, x, c):
        return (n_i + 1 - n_i % 2 + g(x) * 0,), n_i + 1

    def round(self, server, clients):
        clients.run(self.first, server.x)
        (n,) = clients.run(self.second, server.x, server.c).mean()
        return server._replace(c=n)


@pytest.fixture
def twice(monkeypatch):
    """Register it for a test, and return it."""
    kind = registry.Kind("twice", Twice, "Twice", "#000", "Twice")
    monkeypatch.setitem(registry._own, "twice", kind)
    return Twice()
