"""Write an algorithm of your own, let the contract check it, and run it.

SCAFFOLD whose local steps shrink within a round. With steps of different lengths the displacement
x - y over K eta_l is no longer the mean gradient, so the formula of option II would give wrong
controls; here c_i is the mean of the raw gradients itself. The contract tells the two apart.

An algorithm is a frozen dataclass of hyper-parameters with three methods (`init_server`,
`init_client`, `round`) and programs for the clients (here `local`). Takes about 5 s and prints

    accepted: ShrinkingScaffold(eta_l=0.3, K=10, decay=0.8, eta_g=1.0)
    refused: ByDisplacement: c_i is not the mean of its raw gradients after a round; …
    Scaffold           |x - x*| = 1e-04 after 50 rounds
    ShrinkingScaffold  |x - x*| = 2e-05 after 50 rounds
    ByDisplacement     |x - x*| = 1e-03 after 50 rounds
"""

from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch

from trimtab import Scaffold, simulate
from trimtab.core import Clients, NonNegative, Oracle, Share, Steps, StepSize, Vector, validate
from trimtab.problems.catalogue import quadratic_problem
from trimtab.testing import ContractError, check_algorithm, check_controls


class Server(NamedTuple):
    x: Vector  # the model; every server state has it
    c: Vector


class Upload(NamedTuple):
    dx: Vector  # y - x, by that name
    dc: Vector


@dataclass(frozen=True, kw_only=True)
class ShrinkingScaffold:
    """SCAFFOLD with local steps eta_l, eta_l decay, eta_l decay^2, ..."""

    eta_l: StepSize
    K: Steps
    decay: Share = 0.8
    eta_g: NonNegative = 1.0

    def __post_init__(self) -> None:
        validate(self)  # by the types of the fields

    def init_server(self, x: Vector) -> Server:
        return Server(x, c=torch.zeros_like(x))

    def init_client(self, x: Vector) -> Vector:
        return torch.zeros_like(x)  # c_i

    def local(self, g: Oracle, c_i: Vector, x: Vector, c: Vector) -> tuple[Upload, Vector]:
        y, total = x, torch.zeros_like(x)
        for k in range(self.K):
            gradient = g(y, k)
            y = y - self.eta_l * self.decay**k * (gradient - c_i + c)
            total = total + gradient
        sent = g.sent(Upload(y - x, total / self.K - c_i))
        return sent, c_i + sent.dc  # a client keeps what it sent

    def round(self, server: Server, clients: Clients) -> Server:
        x, c = server
        replies = clients.run(self.local, x, c)
        dx, dc = replies.mean()
        return Server(x + self.eta_g * dx, c + replies.share * dc)


class ByDisplacement(ShrinkingScaffold):
    """The obvious mistake: c_i as if all steps had the length eta_l."""

    def local(self, g: Oracle, c_i: Vector, x: Vector, c: Vector) -> tuple[Upload, Vector]:
        (dx, _), _ = super().local(g, c_i, x, c)
        sent = g.sent(Upload(dx, -c - dx / (self.K * self.eta_l)))
        return sent, c_i + sent.dc


def main(R: int = 50) -> None:
    mine, mistake = ShrinkingScaffold(eta_l=0.3, K=10), ByDisplacement(eta_l=0.3, K=10)
    check_algorithm(mine)  # what every algorithm keeps
    check_controls(mine)  # what those with control variates keep besides
    print("accepted:", mine)
    try:
        check_controls(mistake)
    except ContractError as sentence:
        print("refused:", sentence)

    problem = quadratic_problem()  # ten clients in R^20, no noise; five of them a round
    for algorithm in (Scaffold(eta_l=0.3, K=10), mine, mistake):
        *_, last = islice(simulate(algorithm, problem, S=5), R)
        distance = problem.evaluate(last.x)["distance"]
        print(f"{type(algorithm).__name__:18} |x - x*| = {distance:.0e} after {R} rounds")


if __name__ == "__main__":
    main()
