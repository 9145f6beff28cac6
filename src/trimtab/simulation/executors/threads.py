"""Blocks of clients on as many threads as there are cores, one intra-op thread each."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass

from trimtab.compute.kernel import cores
from trimtab.core.replies import Tally
from trimtab.core.threads import pool
from trimtab.simulation.executors.executor import Exchange, Executor
from trimtab.simulation.executors.fused import Block, run_block

AHEAD = 4  # <= 4 blocks for each thread are under way
ROOM = 4_000_000  # fewer blocks are, if the vectors of their clients have > 4,000,000 numbers


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
                exchange.keep(i, state)
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
