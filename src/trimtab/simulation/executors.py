"""Executors: ways to run a program on a cohort. None of them knows an algorithm.

loop      one client after the other, one intra-op thread: the readable reference
wide      the same with all intra-op threads, for modules that keep all cores busy by themselves
batched   chunks of the cohort as one (s, d) computation
workers   blocks of clients on as many threads as there are cores, one intra-op thread each

Each of them adds the uploads as they come, so that a cohort's uploads never exist all at once.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from trimtab.core import Oracle, Program, State, map_leaves
from trimtab.native import cores
from trimtab.problems.problem import Problem, side_by_side
from trimtab.simulation.replies import Tally
from trimtab.threads import one_thread
from trimtab.vectors import eager, lazily, lazy

CHUNK = 20  # clients in one (s, d) computation, if d is small;
ROOM = 4_000_000  # at most so many numbers in one of its vectors


@dataclass(frozen=True)
class Exchange:
    """What is to be done: a program on the clients of one round, with what is sent to them."""

    problem: Problem
    program: Program
    broadcast: tuple[Any, ...]
    state: Callable[[int], State]
    seed: int
    r: int


Outcome = tuple[Tally, dict[int, State]]
Executor = Callable[[Exchange, Sequence[int]], Outcome]


def loop(exchange: Exchange, clients: Sequence[int]) -> Outcome:
    """Run one client after the other, in the order of their numbers."""
    with one_thread():
        return _one_by_one(exchange, clients)


def wide(exchange: Exchange, clients: Sequence[int]) -> Outcome:
    """Run one client after the other, each with all intra-op threads."""
    return _one_by_one(exchange, clients)


def _one_by_one(exchange: Exchange, clients: Sequence[int]) -> Outcome:
    e, problem = exchange, exchange.problem
    tally, states = Tally(), {}
    for i in clients:
        upload, states[i] = e.program(problem.oracle(i, e.seed, e.r), e.state(i), *e.broadcast)
        tally.add(float(problem.weights[i]), upload, states[i])
    return tally, states


def workers(exchange: Exchange, clients: Sequence[int], count: int | None = None) -> Outcome:
    """Run blocks of clients in threads; the bits do not depend on how many threads there are."""
    size = min(4, max(1, len(clients) // 10))  # at least ten blocks to share out, if possible
    blocks = [clients[j : j + size] for j in range(0, len(clients), size)]
    tally = Tally()
    states: dict[int, State] = {}
    with one_thread():
        for part, new in _pool(count or cores()).map(lambda b: _block(exchange, b), blocks):
            tally.merge(part)
            states |= new
    return tally, states


@torch.no_grad()
def _block(exchange: Exchange, clients: Sequence[int]) -> Outcome:
    """Run one client after the other, with vectors that fuse what is linear."""
    e, tally, states = exchange, Tally(), {}
    broadcast = lazy(e.broadcast)
    for i in clients:
        g = lazily(e.problem.oracle(i, e.seed, e.r))
        upload, state = e.program(g, lazy(e.state(i)), *broadcast)
        upload, states[i] = eager(upload), eager(state)
        tally.add(float(e.problem.weights[i]), upload, states[i])
    return tally, states


@cache
def _pool(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "trimtab", initializer=lambda: torch.set_num_threads(1))


def batched(exchange: Exchange, clients: Sequence[int]) -> Outcome:
    """Run chunks of clients as one computation on vectors of shape (s, d)."""
    tally = Tally()
    states: dict[int, State] = {}
    with one_thread():
        size = max(1, min(CHUNK, ROOM // exchange.problem.d))
        for j in range(0, len(clients), size):
            part, new = _chunk(exchange, clients[j : j + size])
            tally.merge(part)
            states |= new
    return tally, states


@torch.no_grad()
def _chunk(exchange: Exchange, clients: Sequence[int]) -> Outcome:
    """Run one chunk: states and uploads have a first dimension for the clients."""
    e, tally = exchange, Tally()
    old = map_leaves(lambda *leaves: torch.stack(leaves), *(e.state(i) for i in clients))
    g = lazily(_oracle(e, clients))
    uploads, new = map(eager, e.program(g, lazy(old), *lazy(e.broadcast)))
    tally.add_rows([float(e.problem.weights[i]) for i in clients], uploads, new)
    return tally, {i: _row(new, row) for row, i in enumerate(clients)}


def _row(tree: State, row: int) -> State:
    return map_leaves(lambda leaf: leaf[row].clone(), tree)  # a view would keep the chunk alive


def _oracle(e: Exchange, clients: Sequence[int]) -> Oracle:
    own = getattr(e.problem, "chunk_oracle", None)
    if own is None:
        return side_by_side([e.problem.oracle(i, e.seed, e.r) for i in clients])
    oracle: Oracle = own(clients, e.seed, e.r)
    return oracle


EXECUTORS: dict[str, Executor] = {
    "loop": loop,
    "wide": wide,
    "batched": batched,
    "workers": workers,
}


def choose(problem: Problem, S: int) -> str:
    """Return the executor for `auto`.

    A problem may say what it wants (`problem.executor`); else small ones take the loop, where
    threads would only wait for each other.
    """
    wanted = getattr(problem, "executor", "loop")
    return "loop" if wanted == "workers" and (S == 1 or cores() == 1) else str(wanted)
