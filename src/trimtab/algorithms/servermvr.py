"""ServerMvr: momentum with variance reduction, run centrally on the mean full gradient.

Cutkosky and Orabona, "Momentum-Based Variance Reduction in Non-Convex SGD", 2019, as the baseline
that Karimireddy et al., "Mime", 2020, name; they give no equations, and this form is ours.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from trimtab.core import Clients, Oracle, Share, StepSize, Vector, validate


class Server(NamedTuple):
    x: Vector
    xp: Vector  # the x before
    m: Vector
    w: Vector  # the number 0 before the first round, then 1


class Upload(NamedTuple):
    gradient: Vector  # at x
    before: Vector  # at xp


@dataclass(frozen=True, kw_only=True)
class ServerMvr:
    """MVR without local steps; a = 1 is SGD."""

    eta: StepSize
    a: Share = 0.1

    def __post_init__(self) -> None:
        validate(self)

    def init_server(self, x: Vector) -> Server:
        return Server(x, xp=x, m=torch.zeros_like(x), w=x.new_zeros(()))

    def init_client(self, x: Vector) -> tuple[()]:
        return ()

    def local(self, g: Oracle, _: tuple[()], x: Vector, xp: Vector) -> tuple[Upload, tuple[()]]:
        return Upload(g(x), g(xp)), ()

    def round(self, server: Server, clients: Clients) -> Server:
        x, xp, m, w = server
        c, cp = clients.run(self.local, x, xp).mean()  # over one cohort
        m = c + w * (1 - self.a) * (m - cp)
        return Server(x - self.eta * m, x, m, torch.ones_like(w))
