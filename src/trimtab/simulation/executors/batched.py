"""Chunks of a cohort as one computation: a kernel's, or on vectors of shape (s, d)."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import ceil
from typing import Any

import torch

from trimtab.compute import kernel
from trimtab.compute.kernel import BadDataError
from trimtab.compute.lazy import NotAlikeError, NotLazyError, eager, lazily, lazy
from trimtab.compute.lazy_rows import LazyRows
from trimtab.compute.tape import Tape, Traced, filled
from trimtab.core import Epochs, State, Vector, leaves, map_leaves
from trimtab.core.oracle import ClientOracle
from trimtab.core.replies import Tally
from trimtab.problems.problem import side_by_side
from trimtab.simulation.executors.executor import Exchange, Executor
from trimtab.simulation.executors.fused import run_block

WAVE = 128  # a kernel runs <= 128 clients at once
CHUNK = 20  # a chunk of large vectors has <= 20 clients
NEAR = 250_000  # a chunk of small ones has more, while they have <= 250,000 numbers in the cache
ROOM = 4_000_000  # a chunk of very large ones has fewer: its vectors have <= 4,000,000 numbers


class Batched(Executor):
    """Chunks of clients as one computation: a kernel's, or on vectors of shape (s, d)."""

    name = "batched"

    def run(self, exchange: Exchange, clients: Sequence[int]) -> Tally:
        """Let the kernel play the program's tape where it can; else run chunk by chunk.

        Clients that make the same number of local steps are run together.
        """
        problem, tally = exchange.problem, Tally()
        layers, d = problem.kernel, problem.d
        play = None if layers is None else partial(problem.play, layers)
        for alike, traced in _by_steps(exchange, clients):
            for wave in _slices(alike, max(8, min(WAVE, 4 * ROOM // d))):
                if play is not None and _played(exchange, play, traced.tape, wave, tally):
                    continue
                for chunk in _slices(wave, max(1, min(max(CHUNK, NEAR // d), ROOM // d))):
                    tally.merge(_chunk(exchange, chunk))
        return tally


def _by_steps(e: Exchange, clients: Sequence[int]) -> list[tuple[Sequence[int], Traced]]:
    """Return clients in groups that make the same numbers of local steps, with what they do."""
    first = _traced(e, clients[0])
    if not e.slow and not first.in_epochs:
        return [(clients, first)]
    groups: dict[tuple[int, ...], list[int]] = {}
    for i in clients:
        groups.setdefault(tuple(map(e.pace(i), first.asked)), []).append(i)
    return [(alike, _traced(e, alike[0])) for alike in groups.values()]


def _slices(clients: Sequence[int], most: int) -> Iterator[Sequence[int]]:
    """Go through slices of about the same size: a small one at the end leaves cores idle."""
    if len(clients) <= most:
        return iter((clients,))
    size = ceil(len(clients) / ceil(len(clients) / most))
    return (clients[j : j + size] for j in range(0, len(clients), size))


def _traced(e: Exchange, client: int) -> Traced:
    """Return what the program does for the numbers of steps that a client makes."""
    pace, unequal = e.pace(client), bool(e.slow)
    return e.tapes.trace(e.program, e.state(client), e.broadcast, e.problem.d, pace, unequal)


def _played(
    e: Exchange, play: Callable[..., Any], tape: Tape | None, clients: Sequence[int], tally: Tally
) -> bool:
    """Let the problem's kernel run the tape, and count it; False if it cannot for these clients."""
    if tape is None:
        return False
    sent = [leaf for leaf in leaves(e.broadcast) if leaf.dim()]
    new = e.fresh()
    vectors = [*leaves(new), *sent]
    if not vectors:
        return False
    given = _given(e, clients, new, sent, vectors)
    places, keep = _rooms(e, tape, vectors[0], clients)
    weights = e.weights(clients)
    try:
        played = play(tape, clients, weights, e.seed, e.r, given, places)
    except BadDataError as error:
        raise error.of(clients[error.place]) from None
    if played is None:
        return False
    sums, squares, work = played
    of_output = sums.unbind(0)
    e.work.add(work)
    tally.add_sums(
        weights,
        filled(tape.upload, of_output),
        filled(tape.state, of_output),
        _squares_of(tape.moves, squares),
        _squares_of(tape.states, squares),
    )
    keep()
    return True


def _given(
    e: Exchange, clients: Sequence[int], new: State, sent: list[Vector], vectors: list[Vector]
) -> Sequence[Sequence[Vector | None]]:
    """Return the vectors from which clients start: of their states, then of the broadcast.

    Known by where they lie, if the store knows where states do. `vectors` are those of a new one.
    """
    store, d, dtype = e.store, e.problem.d, vectors[0].dtype
    readable = all(leaf.shape == (d,) and kernel.readable(leaf, dtype) for leaf in vectors)
    own = store.addresses(clients, new) if store is not None and readable else None
    if store is None or own is None:
        return [[*leaves(state), *sent] for state in e.states(clients)]
    of_sent = [leaf.data_ptr() for leaf in sent]
    at = array("Q", [place for row in own for place in (*row, *of_sent)])

    def row(j: int) -> list[Vector]:
        state = store.latest(clients[j])
        return [*leaves(new if state is None else state), *sent]

    return kernel.Placed(at, len(clients), d, dtype, row)


def _rooms(
    e: Exchange, tape: Tape, vector: Vector, clients: Sequence[int]
) -> tuple[Sequence[Sequence[Vector | None]], Callable[[], None]]:
    """Return where outputs are written, and what lets the store keep the new states.

    These are written where the store says; beyond its limit in new memory, which it copies.
    """
    s, d, dtype, store = len(clients), e.problem.d, vector.dtype, e.store
    nowhere: list[Vector | None] = [None for _ in tape.uploads]
    zeros = [0 for _ in nowhere]
    if not tape.states:
        return kernel.Placed(array("Q", zeros * s), s, d, dtype, lambda j: nowhere), lambda: None
    like = filled(tape.state, [vector for _ in tape.code.outputs])
    own = None if store is None else store.lend(like, s)
    if store is not None and own is not None:
        at = array("Q", [place for row in own for place in (*zeros, *row)])
        lent = kernel.Placed(at, s, d, dtype, lambda j: [*nowhere, *leaves(store.lent(j))])
        return lent, partial(store.stage_lent, clients)
    rooms = e.rooms(like, s)
    states = rooms + [map_leaves(torch.empty_like, like) for _ in range(s - len(rooms))]

    def keep() -> None:
        for i, state in zip(clients, states, strict=True):
            e.keep(i, state)

    return [[*nowhere, *leaves(state)] for state in states], keep


def _squares_of(outputs: list[int], squares: Sequence[Sequence[float]]) -> Sequence[float]:
    """Return the squared norm of some outputs together, of each client."""
    if not outputs:
        return []
    if len(outputs) == 1:
        return squares[outputs[0]]
    return [sum(each) for each in zip(*(squares[j] for j in outputs), strict=True)]


@torch.no_grad()
def _chunk(exchange: Exchange, clients: Sequence[int]) -> Tally:
    """Run one chunk: its vectors have a first dimension for the clients."""
    e, tally = exchange, Tally()
    try:
        uploads, new = _rows(e, clients)
    except BadDataError as error:
        raise error.of(clients[error.place]) from None
    except NotLazyError:
        tally, own = run_block(e, clients)
    else:
        tally.add_rows([e.weight(i) for i in clients], uploads, new)
        own = {i: map_leaves(lambda leaf, j=j: leaf[j], new) for j, i in enumerate(clients)}
    for i, state in own.items():
        e.keep(i, state)
    return tally


def _rows(e: Exchange, clients: Sequence[int]) -> tuple[Any, State]:
    """Return uploads and new states with a row for each client, if all of it is vectors."""
    s, d = len(clients), e.problem.d
    states = [e.state(i) for i in clients]
    given = [*leaves(states[0]), *(leaf for leaf in leaves(e.broadcast) if leaf.dim())]
    if any(leaf.shape != (d,) or not leaf.is_floating_point() for leaf in given):
        raise NotAlikeError("a tensor that is no vector")
    old = map_leaves(lambda *leaves: torch.stack(leaves), *states)
    sent = map_leaves(lambda leaf: leaf.expand(s, d) if leaf.dim() else leaf, e.broadcast)
    g = lazily(_oracle(e, clients), LazyRows)
    replies = uploads, new = eager(e.program(g, lazy(old, LazyRows), *lazy(sent, LazyRows)))
    if any(leaf.shape != (s, d) for leaf in leaves(replies)):
        raise NotAlikeError("a tensor that is the same for all clients")
    return uploads, new


def _oracle(e: Exchange, clients: Sequence[int]) -> ClientOracle:
    """Return the oracle of a chunk: gradients and random numbers with a row for each client."""
    each, d = [e.draws(i) for i in clients], e.problem.d

    def draw(what: Any, like: Any) -> Any:
        if like.shape[-1:] != (d,):
            raise NotAlikeError("random numbers that are no vector")
        rows = like.expand(len(clients), d)
        return torch.stack([draws(what, row) for draws, row in zip(each, rows, strict=True)])

    def count(K: int | Epochs) -> int:
        steps = {e.pace(i)(K) for i in clients}
        if len(steps) > 1:
            raise NotAlikeError("clients that make different numbers of steps")
        return steps.pop()

    chunk_oracle = e.problem.chunk_oracle
    if chunk_oracle is None:
        gradient = side_by_side([e.oracle(i) for i in clients])
    else:
        gradient = e.work.counted_rows(clients, chunk_oracle(clients, e.seed, e.r))
    return ClientOracle(gradient, draw, count=count, unequal=bool(e.slow))
