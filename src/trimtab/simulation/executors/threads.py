"""Run clients with lazy vectors, which fuse linear operations: in sequence, or in threads."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Literal

import torch

from trimtab.compute.kernel import cores
from trimtab.compute.lazy import NotLazyError, eager, lazy, with_lazy_vectors
from trimtab.core import State
from trimtab.core.replies import Tally
from trimtab.core.threads import pool
from trimtab.simulation.executors.executor import Exchange, Executor

Block = tuple[Tally, dict[int, State]]
"""The sum of some clients' uploads, and their new states."""

# At most four blocks per thread are submitted ahead of the one whose result is due, so that threads
# have work while a slow block is waited for, and few results wait in memory.
BLOCKS_AHEAD = 4
# Fewer blocks are, if vectors of their clients would have more than 4 million numbers together
# (16 MB in float32).
NUMBERS_AHEAD = 4_000_000


class Fused(Executor):
    """One client after the other with all intra-op threads; lazy vectors, also at the server."""

    name = "fused"
    threads: Literal["one", "all"] = "all"
    lazy_server = True

    @torch.no_grad()
    def run(self, exchange: Exchange, clients: Sequence[int]) -> Tally:
        """Run one client after the other with lazy vectors."""
        tally, broadcast = Tally(), lazy(exchange.broadcast)
        for i in clients:
            upload, state = run_fused(exchange, i, broadcast)
            tally.add(exchange.weight(i), upload, state)
            exchange.store_state(i, state)
        return tally


def run_fused(e: Exchange, i: int, broadcast: tuple[Any, ...]) -> tuple[Any, State]:
    """Run the program with lazy vectors, or with tensors if it uses operations that these lack."""
    try:
        g = with_lazy_vectors(e.oracle(i))
        upload, state = e.run(i, g, lazy(e.state(i)), broadcast)
        return eager(upload), eager(state)
    except NotLazyError:
        return e.run(i, e.oracle(i), e.state(i), e.broadcast)


@torch.no_grad()
def run_block(exchange: Exchange, clients: Sequence[int]) -> Block:
    """Run one client after the other with lazy vectors; the caller stores the new states."""
    tally, states, broadcast = Tally(), {}, lazy(exchange.broadcast)
    for i in clients:
        upload, states[i] = run_fused(exchange, i, broadcast)
        tally.add(exchange.weight(i), upload, states[i])
    return tally, states


@dataclass(frozen=True)
class Threads(Executor):
    """Blocks of clients in threads. The bits do not depend on the number of threads.

    count: the number of threads; by default one per core.
    """

    name = "threads"
    count: int | None = None

    def run(self, exchange: Exchange, clients: Sequence[int]) -> Tally:
        """Run blocks of clients in threads, and add their sums in order."""
        # At least ten blocks where possible, so that the threads end at about the same time. The
        # size must not depend on the number of threads: it decides the order of the sums.
        size = min(4, max(1, len(clients) // 10))
        blocks = [clients[j : j + size] for j in range(0, len(clients), size)]
        tally, count = Tally(), self.count or cores()
        ahead = max(1, min(BLOCKS_AHEAD, NUMBERS_AHEAD // (size * exchange.problem.d)))
        for part, new in _in_order(exchange, blocks, count, ahead * count):
            tally.merge(part)
            for i, state in new.items():
                exchange.store_state(i, state)
        return tally


def _in_order(
    exchange: Exchange, blocks: Sequence[Sequence[int]], count: int, most: int
) -> Iterator[Block]:
    """Yield the results in order, with at most `most` blocks submitted ahead.

    If a block fails, those that have begun are awaited, and the others are cancelled.
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
