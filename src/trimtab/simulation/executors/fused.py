"""One client after the other, with vectors that fuse what is linear."""

from collections.abc import Sequence
from typing import Any, Literal

import torch

from trimtab.compute.lazy import NotLazyError, eager, lazy, with_lazy_vectors
from trimtab.core import State
from trimtab.core.replies import Tally
from trimtab.simulation.executors.executor import Exchange, Executor

Block = tuple[Tally, dict[int, State]]
"""What some clients have sent, added up, and their new states."""


class Fused(Executor):
    """All of PyTorch's threads for each client in turn; lazy vectors, also at the server."""

    name = "fused"
    threads: Literal["one", "all"] = "all"
    lazy_server = True

    @torch.no_grad()
    def run(self, exchange: Exchange, clients: Sequence[int]) -> Tally:
        """Run one client after the other, with vectors that fuse what is linear."""
        tally, broadcast = Tally(), lazy(exchange.broadcast)
        for i in clients:
            upload, state = run_fused(exchange, i, broadcast)
            tally.add(exchange.weight(i), upload, state)
            exchange.keep(i, state)
        return tally


def run_fused(e: Exchange, i: int, broadcast: tuple[Any, ...]) -> tuple[Any, State]:
    """Run the program with lazy vectors, or else with tensors."""
    try:
        g = with_lazy_vectors(e.oracle(i))
        upload, state = e.run(i, g, lazy(e.state(i)), broadcast)
        return eager(upload), eager(state)
    except NotLazyError:
        return e.run(i, e.oracle(i), e.state(i), e.broadcast)


@torch.no_grad()
def run_block(exchange: Exchange, clients: Sequence[int]) -> Block:
    """Run one client after the other, with vectors that fuse what is linear."""
    tally, states, broadcast = Tally(), {}, lazy(exchange.broadcast)
    for i in clients:
        upload, states[i] = run_fused(exchange, i, broadcast)
        tally.add(exchange.weight(i), upload, states[i])
    return tally, states
