"""One client after the other, one intra-op thread: the readable reference."""

from collections.abc import Sequence

from trimtab.core.replies import Tally
from trimtab.simulation.executors.exchange import Exchange


def loop(exchange: Exchange, clients: Sequence[int]) -> Tally:
    """Run one client after the other, in the order of their numbers."""
    e, problem, tally = exchange, exchange.problem, Tally()
    for i in clients:
        upload, state = e.run(i, problem.oracle(i, e.seed, e.r), e.state(i), e.broadcast)
        tally.add(float(problem.weights[i]), upload, state)
        e.keep(i, state)
    return tally
