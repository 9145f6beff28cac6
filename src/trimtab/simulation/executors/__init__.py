"""Executors: ways to run a program on a cohort. None of them knows an algorithm.

loop      one client after the other, one intra-op thread: the readable reference
wide      the same with all intra-op threads, for modules that keep all cores busy by themselves,
          and with fused vectors; with the other executors the server has one thread too
batched   chunks of the cohort as one (s, d) computation
workers   blocks of clients on as many threads as there are cores, one intra-op thread each

Each of them adds the uploads and hands on the new states as they come, so that those of a whole
cohort never exist all at once.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch

from trimtab.compute.kernel import BadDataError, cores
from trimtab.compute.lazy import NotAlikeError, NotLazyError, Rows, eager, lazily, lazy
from trimtab.compute.tape import Tape, Tapes, filled, numbers
from trimtab.core import Oracle, Program, State, leaves, map_leaves
from trimtab.core.replies import Tally
from trimtab.core.threads import pool
from trimtab.problems.problem import Problem, side_by_side

WAVE = 128  # clients that a kernel runs at once
CHUNK = 20  # clients in one (s, d) computation, if d is small;
ROOM = 4_000_000  # at most so many numbers in one of its vectors
AHEAD = 4  # blocks for each worker that may be under way


@dataclass(frozen=True)
class Exchange:
    """What is to be done: a program on the clients of one round, with what is sent to them."""

    problem: Problem
    program: Program
    broadcast: tuple[Any, ...]
    state: Callable[[int], State]
    keep: Callable[[int, State], None]  # takes a copy of the client's new state,
    room: Callable[[State], State | None]  # unless it was written into what this lends
    seed: int
    r: int
    tapes: Tapes

    def run(
        self, i: int, g: Callable[..., Any], state: State, broadcast: tuple[Any, ...]
    ) -> tuple[Any, State]:
        """Run the program as client i, whose number an error of its data has."""
        try:
            return self.program(g, state, *broadcast)
        except BadDataError as error:
            raise error.of(i) from None


Block = tuple[Tally, dict[int, State]]
Executor = Callable[[Exchange, Sequence[int]], Tally]


def loop(exchange: Exchange, clients: Sequence[int]) -> Tally:
    """Run one client after the other, in the order of their numbers."""
    e, problem, tally = exchange, exchange.problem, Tally()
    for i in clients:
        upload, state = e.run(i, problem.oracle(i, e.seed, e.r), e.state(i), e.broadcast)
        tally.add(float(problem.weights[i]), upload, state)
        e.keep(i, state)
    return tally


@torch.no_grad()
def wide(exchange: Exchange, clients: Sequence[int]) -> Tally:
    """Run one client after the other, with vectors that fuse what is linear."""
    tally, broadcast = Tally(), lazy(exchange.broadcast)
    for i in clients:
        upload, state = _fused(exchange, i, broadcast)
        tally.add(float(exchange.problem.weights[i]), upload, state)
        exchange.keep(i, state)
    return tally


def _fused(e: Exchange, i: int, broadcast: tuple[Any, ...]) -> tuple[Any, State]:
    """Run the program with lazy vectors, or else with tensors."""
    try:
        g = lazily(e.problem.oracle(i, e.seed, e.r))
        upload, state = e.run(i, g, lazy(e.state(i)), broadcast)
        return eager(upload), eager(state)
    except NotLazyError:
        return e.run(i, e.problem.oracle(i, e.seed, e.r), e.state(i), e.broadcast)


def workers(exchange: Exchange, clients: Sequence[int], count: int | None = None) -> Tally:
    """Run blocks of clients in threads; the bits do not depend on how many threads there are."""
    size = min(4, max(1, len(clients) // 10))  # at least ten blocks to share out, if possible
    blocks = [clients[j : j + size] for j in range(0, len(clients), size)]
    tally = Tally()
    for part, new in _in_order(exchange, blocks, count or cores()):
        tally.merge(part)
        for i, state in new.items():
            exchange.keep(i, state)
    return tally


def _in_order(exchange: Exchange, blocks: Sequence[Sequence[int]], count: int) -> Iterator[Block]:
    """Go through the results; of blocks that wait for a slow one there are a few, not all."""
    running: deque[Future[Block]] = deque()
    for block in blocks:
        running.append(pool(count).submit(_block, exchange, block))
        if len(running) > AHEAD * count:
            yield running.popleft().result()
    while running:
        yield running.popleft().result()


@torch.no_grad()
def _block(exchange: Exchange, clients: Sequence[int]) -> Block:
    """Run one client after the other, with vectors that fuse what is linear."""
    tally, states, broadcast = Tally(), {}, lazy(exchange.broadcast)
    for i in clients:
        upload, states[i] = _fused(exchange, i, broadcast)
        tally.add(float(exchange.problem.weights[i]), upload, states[i])
    return tally, states


def batched(exchange: Exchange, clients: Sequence[int]) -> Tally:
    """Run chunks of clients as one computation: a kernel's, or on vectors of shape (s, d)."""
    tally, tape, d = Tally(), _tape(exchange, clients[0]), exchange.problem.d
    for wave in _slices(clients, max(8, min(WAVE, 4 * ROOM // d))):
        part = None if tape is None else _play(exchange, tape, wave)
        if part is not None:
            tally.merge(part)
            continue
        for chunk in _slices(wave, max(1, min(CHUNK, ROOM // d))):
            tally.merge(_chunk(exchange, chunk))
    return tally


def _slices(clients: Sequence[int], most: int) -> Iterator[Sequence[int]]:
    """Go through slices of about the same size: a small one at the end leaves cores idle."""
    size = ceil(len(clients) / ceil(len(clients) / most))
    return (clients[j : j + size] for j in range(0, len(clients), size))


def _tape(e: Exchange, client: int) -> Tape | None:
    """Return the program's tape, if the problem has a kernel to play it."""
    if getattr(e.problem, "kernel", None) is None:
        return None
    return e.tapes.trace(e.program, e.state(client), e.broadcast, e.problem.d)


def _play(e: Exchange, tape: Tape, clients: Sequence[int]) -> Tally | None:
    """Let the problem's kernel run the tape; None if it cannot for these clients."""
    sent = leaves(e.broadcast)
    uploads, states = numbers(tape.upload), numbers(tape.state)
    like = filled(tape.state, [sent[0] for _ in tape.code.outputs])
    new = [_room(e, like) for _ in clients]
    try:
        found = e.problem.play(  # type: ignore[attr-defined]
            tape,
            clients,
            e.seed,
            e.r,
            [[*leaves(e.state(i)), *sent] for i in clients],
            [[*(None for _ in uploads), *leaves(state)] for state in new],
        )
    except BadDataError as error:
        raise error.of(clients[error.place]) from None
    if found is None:
        return None
    sums, squares = found
    moves = numbers(getattr(tape.upload, "dx", ()))
    tally = Tally()
    tally.add_sums(
        [float(e.problem.weights[i]) for i in clients],
        filled(tape.upload, sums),
        filled(tape.state, sums),
        [sum(row[j] for j in moves) for row in squares] if moves else [],
        [sum(row[j] for j in states) for row in squares] if states else [],
    )
    for i, state in zip(clients, new, strict=True):
        e.keep(i, state)
    return tally


def _room(e: Exchange, like: State) -> State:
    lent = e.room(like) if leaves(like) else like
    return map_leaves(torch.empty_like, like) if lent is None else lent


@torch.no_grad()
def _chunk(exchange: Exchange, clients: Sequence[int]) -> Tally:
    """Run one chunk: its vectors have a first dimension for the clients."""
    e, tally = exchange, Tally()
    try:
        uploads, new = _rows(e, clients)
    except BadDataError as error:
        raise error.of(clients[error.place]) from None
    except NotLazyError:
        tally, own = _block(e, clients)
    else:
        tally.add_rows([float(e.problem.weights[i]) for i in clients], uploads, new)
        own = {i: map_leaves(lambda leaf, j=j: leaf[j], new) for j, i in enumerate(clients)}
    for i, state in own.items():
        e.keep(i, state)
    return tally


def _rows(e: Exchange, clients: Sequence[int]) -> tuple[Any, State]:
    """Return uploads and new states with a row for each client, if all of it is vectors."""
    s, d = len(clients), e.problem.d
    states = [e.state(i) for i in clients]
    given = leaves((states[0], e.broadcast))
    if any(leaf.shape != (d,) or not leaf.is_floating_point() for leaf in given):
        raise NotAlikeError("a tensor that is no vector")
    old = map_leaves(lambda *leaves: torch.stack(leaves), *states)
    sent = map_leaves(lambda leaf: leaf.expand(s, d), e.broadcast)
    g = lazily(_oracle(e, clients), Rows)
    found = uploads, new = eager(e.program(g, lazy(old, Rows), *lazy(sent, Rows)))
    if any(leaf.shape != (s, d) for leaf in leaves(found)):
        raise NotAlikeError("a tensor that is the same for all clients")
    return uploads, new


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
_ALL_THREADS = frozenset({"wide"})  # these compute with as many intra-op threads as PyTorch has


def choose(problem: Problem, S: int) -> str:
    """Return the executor for `auto`.

    A problem may say what it wants (`problem.executor`); else small ones take the loop, where
    threads would only wait for each other. The number of cores is not asked for: the same command
    gives the same bits wherever it runs.
    """
    wanted = getattr(problem, "executor", "loop")
    return "loop" if wanted == "workers" and S == 1 else str(wanted)


def bits_depend_on_threads(executor: str) -> bool:
    """Tell whether another number of cores, or of PyTorch's threads, may give other bits."""
    return executor in _ALL_THREADS
