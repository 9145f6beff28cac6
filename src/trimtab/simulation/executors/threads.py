"""Clients one after the other, with vectors that fuse what is linear; and in threads."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Literal

import torch

from trimtab.compute.kernel import cores
from trimtab.compute.lazy import NotLazyError, eager, lazily, lazy
from trimtab.core import State
from trimtab.core.replies import Tally
from trimtab.core.threads import pool
from trimtab.simulation.executors.executor import Exchange, Executor

Block = tuple[Tally, dict[int, State]]
"""What some clients have sent, added up, and their new states."""

AHEAD = 4  # <= 4 blocks for each thread are under way
ROOM = 4_000_000  # fewer blocks are, if the vectors of their clients have > 4,000,000 numbers


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
            exchange.store_state(i, state)
        return tally


def run_fused(e: Exchange, i: int, broadcast: tuple[Any, ...]) -> tuple[Any, State]:
    """Run the program with lazy vectors, or else with tensors."""
    try:
        g = lazily(e.oracle(i))
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


@dataclass(frozen=True)
class Threads(Executor):
    """Blocks of clients in threads; the bits do not depend on how many threads there are."""

    name = "threads"
    count: int | None = None  # None: one for each core

    def run(self, exchange: Exchange, clients: Sequence[int]) -> Tally:
        """Run blocks of clients in threads, and count them in order."""
        size = min(4, max(1, len(clients) // 10))  # at least ten blocks to share out, if possible
        blocks = [clients[j : j + size] for j in range(0, len(clients), size)]
        tally, count = Tally(), self.count or cores()
        ahead = max(1, min(AHEAD, ROOM // (size * exchange.problem.d)))
        for part, new in _in_order(exchange, blocks, count, ahead * count):
            tally.merge(part)
            for i, state in new.items():
                exchange.store_state(i, state)
        return tally


def _in_order(
    exchange: Exchange, blocks: Sequence[Sequence[int]], count: int, most: int
) -> Iterator[Block]:
    """Go through the results; of blocks that wait for a slow one there are a few, not all.

    If one fails, those that have begun are waited for, and the others do not begin.
    """
    running: deque[Future[Block]] = deque()
    try:
        for block in blocks:
            running.append(pool(count).submit(run_block, exchange, block))
            if len(running) > most:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        wait([future for future in running if not future.cancel()])
