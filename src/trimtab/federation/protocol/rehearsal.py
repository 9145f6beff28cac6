"""What a round of an algorithm asks of its clients, found out by a rehearsal.

Programs cannot be sent, and are not: server and site each rehearse a round of the same algorithm on
a few zeros, and so agree on its exchanges (which program, which broadcast, which upload) by their
place alone. Two rehearsals of different lengths tell which dimensions are d.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from trimtab.core import Algorithm, Epochs, Program, State, Vector, leaves, map_leaves
from trimtab.core.oracle import ClientOracle
from trimtab.core.replies import Tally


@dataclass(frozen=True)
class Exchange:
    """One call of `clients.run`; its tensors have shape and dtype, but no numbers."""

    program: Program
    broadcast: tuple[Any, ...]
    upload: Any


@dataclass(frozen=True)
class Plan:
    """The exchanges of a round, and the state of a client."""

    exchanges: tuple[Exchange, ...]
    client: State

    @property
    def stateful(self) -> bool:
        """Whether clients remember something from round to round."""
        return bool(leaves(self.client))


def plan(algorithm: Algorithm, d: int, dtype: torch.dtype) -> Plan:
    """Rehearse a round.

    >>> from trimtab import FedAvg
    >>> [e.upload.dx.shape for e in plan(FedAvg(eta_l=0.1, K=5), 3, torch.float32).exchanges]
    [torch.Size([3])]
    """
    hashable: Any = algorithm
    return _rehearsed(hashable, d, dtype)


@lru_cache(maxsize=16)
def _rehearsed(algorithm: Any, d: int, dtype: torch.dtype) -> Plan:
    short, long = (_rehearsal(algorithm, torch.zeros(n, dtype=dtype)) for n in (2, 3))

    def sized(a: Tensor, b: Tensor) -> Tensor:
        shape = [m if m == n else d for m, n in zip(a.shape, b.shape, strict=True)]
        return torch.empty(shape, dtype=a.dtype, device="meta")

    exchanges = [
        Exchange(
            a.program,
            map_leaves(sized, a.broadcast, b.broadcast),
            map_leaves(sized, a.upload, b.upload),
        )
        for a, b in zip(short.exchanges, long.exchanges, strict=True)
    ]
    return Plan(tuple(exchanges), map_leaves(sized, short.client, long.client))


def _rehearsal(algorithm: Algorithm, x: Vector) -> Plan:
    client = algorithm.init_client(x)
    clients = _Rehearsal(client)
    algorithm.round(algorithm.init_server(x), clients)
    return Plan(tuple(clients.exchanges), client)


class _Rehearsal:
    """Clients whose gradients are zero."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.exchanges: list[Exchange] = []

    def run(self, program: Program, *broadcast: Any) -> Tally:
        g = ClientOracle(_zero, lambda _, like: torch.zeros_like(like), count=_one_step)
        upload, self.state = program(g, self.state, *broadcast)
        self.exchanges.append(Exchange(program, broadcast, upload))
        tally = Tally()
        tally.add(1.0, upload)
        return tally

    def normal(self, like: Vector) -> Vector:
        return torch.zeros_like(like)

    uniform = normal


def _one_step(K: int | Epochs) -> int:
    """Return 1: how many steps there are changes no shape, and K may be large."""
    return 1


def _zero(y: Vector, k: int | None = None) -> Vector:
    return torch.zeros_like(y)
