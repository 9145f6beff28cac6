"""Large-batch SGD: one step per round along the mean of the full local gradients.

The baseline of Karimireddy et al. (2020), section 7.
"""

from dataclasses import dataclass
from typing import NamedTuple

from trimtab.core import Clients, Oracle, StepSize, Vector, validate


class Server(NamedTuple):
    x: Vector


class Upload(NamedTuple):
    gradient: Vector


@dataclass(frozen=True, kw_only=True)
class Sgd:
    """Large-batch SGD."""

    eta: StepSize

    def __post_init__(self) -> None:
        validate(self)

    def init_server(self, x: Vector) -> Server:
        return Server(x)

    def init_client(self, x: Vector) -> tuple[()]:
        return ()

    def local(self, g: Oracle, state: tuple[()], x: Vector) -> tuple[Upload, tuple[()]]:
        return Upload(g(x)), ()

    def round(self, server: Server, clients: Clients) -> Server:
        (x,) = server
        (gradient,) = clients.run(self.local, x).mean()
        return Server(x - self.eta * gradient)
