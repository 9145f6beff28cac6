"""Federated Richardson-Romberg: cancel FedAvg's first-order bias by extrapolating in the step size.

Mangold et al., "Refined Analysis of Federated Averaging's Bias and Federated Richardson-Romberg
Extrapolation", 2025.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from trimtab.algorithms.fedavg import FedAvg
from trimtab.core import Clients, Oracle, Vector


class Server(NamedTuple):
    fine: Vector  # FedAvg's x at eta_l
    coarse: Vector  # FedAvg's x at 2 eta_l

    @property
    def x(self) -> Vector:
        return 2 * self.fine - self.coarse


class Upload(NamedTuple):
    dx: Vector
    dx_coarse: Vector


@dataclass(frozen=True)
class RichardsonRomberg:
    """2 x(eta_l) - x(2 eta_l) of two FedAvgs with the same cohorts and mini-batches."""

    fedavg: FedAvg

    def __post_init__(self) -> None:
        if not isinstance(self.fedavg, FedAvg):
            raise ValueError(
                f"RichardsonRomberg: pass a FedAvg to extrapolate, not {self.fedavg!r}."
            )

    @property
    def coarse(self) -> FedAvg:
        return replace(self.fedavg, eta_l=2 * self.fedavg.eta_l)

    def init_server(self, x: Vector) -> Server:
        return Server(fine=x, coarse=x)

    def init_client(self, x: Vector) -> tuple[()]:
        return ()

    def local(self, g: Oracle, _: tuple[()], x: Vector, x2: Vector) -> tuple[Upload, tuple[()]]:
        (dx,), _ = self.fedavg.local(g, (), x)
        (dx2,), _ = self.coarse.local(g, (), x2)
        return Upload(dx, dx2), ()

    def round(self, server: Server, clients: Clients) -> Server:
        x, x2 = server
        dx, dx2 = clients.run(self.local, x, x2).mean()
        return Server(x + self.fedavg.eta_g * dx, x2 + self.fedavg.eta_g * dx2)
