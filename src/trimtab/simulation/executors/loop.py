"""One client after the other, one intra-op thread: the readable reference."""

from collections.abc import Sequence

from trimtab.core.replies import Tally
from trimtab.simulation.executors.executor import Exchange, Executor


class Loop(Executor):
    """The reference for all other executors; the sites of a federation reproduce its bits."""

    name = "loop"

    def run(self, exchange: Exchange, clients: Sequence[int]) -> Tally:
        """Run one client after the other, in the order of their numbers."""
        e, tally = exchange, Tally()
        for i in clients:
            upload, state = e.run(i, e.oracle(i), e.state(i), e.broadcast)
            tally.add(e.weight(i), upload, state)
            e.store_state(i, state)
        return tally
