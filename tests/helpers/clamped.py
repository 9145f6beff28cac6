"""The source of an algorithm of one's own, as users write it into their files."""

CLAMPED = '''
from dataclasses import dataclass
from typing import NamedTuple

import torch

from trimtab import Metric, Quadratic, register
from trimtab.core import Positive, StepSize, Steps, validate


class Server(NamedTuple):
    x: torch.Tensor


class Upload(NamedTuple):
    dx: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Clamped:
    """FedAvg with clamped gradients."""

    eta_l: StepSize
    K: Steps
    clip: Positive = 1.0

    def __post_init__(self):
        validate(self)

    def init_server(self, x):
        return Server(x)

    def init_client(self, x):
        return ()

    def local(self, g, state, x):
        y = x
        for k in range(g.steps(self.K)):
            y = y - self.eta_l * g(y, k).clamp(-self.clip, self.clip)
        return Upload(y - x), ()

    def round(self, server, clients):
        (dx,) = clients.run(self.local, server.x).mean()
        return Server(server.x + dx)
'''
