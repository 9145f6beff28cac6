"""MimeMVR: Mime's corrected local steps along a momentum with variance reduction.

Karimireddy et al., "Mime: Mimicking Centralized Stochastic Algorithms in Federated Learning", 2020,
with the momentum of Cutkosky and Orabona (2019). The form is ours: the slides name it only.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from trimtab.core import Clients, Oracle, Share, Steps, StepSize, Vector, validate


class Server(NamedTuple):
    x: Vector
    xp: Vector  # the x before
    m: Vector
    w: Vector  # the number 0 before the first round, then 1


class Upload(NamedTuple):
    dx: Vector


@dataclass(frozen=True, kw_only=True)
class MimeMvr:
    """Mime with MVR; a = 1 is Mime without momentum."""

    eta: StepSize
    K: Steps
    a: Share = 0.1

    def __post_init__(self) -> None:
        validate(self)

    def init_server(self, x: Vector) -> Server:
        return Server(x, xp=x, m=torch.zeros_like(x), w=x.new_zeros(()))

    def init_client(self, x: Vector) -> tuple[()]:
        return ()

    def gradients(self, g: Oracle, _: Any, x: Vector, xp: Vector) -> tuple[Any, tuple[()]]:
        return (g(x), g(xp)), ()

    def local(self, g: Oracle, _: Any, x: Vector, m: Vector) -> tuple[Upload, tuple[()]]:
        y = x
        for k in range(g.steps(self.K)):
            y = y - self.eta * (m + g(y, k) - g(x, k))  # one k, one mini-batch
        return Upload(y - x), ()

    def round(self, server: Server, clients: Clients) -> Server:
        x, xp, m, w = server
        c, cp = clients.run(self.gradients, x, xp).mean()
        m = c + w * (1 - self.a) * (m - cp)
        (dx,) = clients.run(self.local, x, m).mean()
        return Server(x + dx, x, m, torch.ones_like(w))
