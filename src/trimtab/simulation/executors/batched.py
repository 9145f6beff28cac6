"""Run chunks of a cohort as one computation: by the kernel, or on tensors of shape (s, d)."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import ceil
from typing import Any

import torch

from trimtab.compute import kernel
from trimtab.compute.kernel import BadDataError
from trimtab.compute.lazy import NotBatchableError, NotLazyError, eager, lazy, with_lazy_vectors
from trimtab.compute.lazy_rows import LazyRows
from trimtab.compute.tape import Tape, Traced, fill
from trimtab.core import Epochs, State, Vector, leaves, map_leaves
from trimtab.core.oracle import ClientOracle
from trimtab.core.replies import Tally
from trimtab.problems.problem import stack_oracles
from trimtab.simulation.executors.executor import Exchange, Executor
from trimtab.simulation.executors.threads import run_block

# One call of the kernel runs at most 256 clients, fewer if their vectors are long: the Python of a
# call costs little beside them, and the new states of a cohort do not all wait in memory.
WAVE = 256
# A chunk of (s, d) tensors has at most 20 clients; more of them, while a tensor has at most 250,000
# numbers (1 MB in float32) and stays in the cache; fewer, if it would have more than 4 million.
CHUNK = 20
CACHED_NUMBERS = 250_000
CHUNK_NUMBERS = 4_000_000


class Batched(Executor):
    """Chunks of clients as one computation: by the kernel, or on tensors of shape (s, d)."""

    name = "batched"

    def run(self, exchange: Exchange, clients: Sequence[int]) -> Tally:
        """Run the program's tape in the kernel if possible, otherwise chunk by chunk.

        Clients that make the same number of local steps are run together.
        """
        problem, tally = exchange.problem, Tally()
        layers, d = problem.kernel, problem.d
        play = None if layers is None else partial(problem.play, layers)
        most = max(1, min(max(CHUNK, CACHED_NUMBERS // d), CHUNK_NUMBERS // d))
        for alike, traced in _by_steps(exchange, clients):
            # At least 8 clients per wave, however large their vectors: cores must not be idle.
            for wave in _slices(alike, max(8, min(WAVE, 4 * CHUNK_NUMBERS // d))):
                if play is not None and _ran_in_kernel(exchange, play, traced.tape, wave, tally):
                    continue
                for chunk in _slices(wave, most):
                    tally.merge(_chunk(exchange, chunk))
        return tally


def _by_steps(e: Exchange, clients: Sequence[int]) -> list[tuple[Sequence[int], Traced]]:
    """Group clients that make the same numbers of local steps, each group with its trace."""
    first = _traced(e, clients[0])
    if not e.slow and not first.in_epochs:
        return [(clients, first)]
    groups: dict[tuple[int, ...], list[int]] = {}
    for i in clients:
        groups.setdefault(tuple(map(e.local_steps(i), first.requested)), []).append(i)
    return [(alike, _traced(e, alike[0])) for alike in groups.values()]


def _slices(clients: Sequence[int], most: int) -> Iterator[Sequence[int]]:
    """Return slices of about the same size: a small one at the end would leave cores idle."""
    if len(clients) <= most:
        return iter((clients,))
    size = ceil(len(clients) / ceil(len(clients) / most))
    return (clients[j : j + size] for j in range(0, len(clients), size))


def _traced(e: Exchange, client: int) -> Traced:
    """Trace the program for the numbers of local steps that a client makes."""
    local_steps, unequal = e.local_steps(client), bool(e.slow)
    return e.tapes.trace(e.program, e.state(client), e.broadcast, e.problem.d, local_steps, unequal)


def _ran_in_kernel(
    e: Exchange, play: Callable[..., Any], tape: Tape | None, clients: Sequence[int], tally: Tally
) -> bool:
    """Run the tape in the kernel and add its sums to `tally`; False if the kernel cannot."""
    if tape is None:
        return False
    # Numbers in the broadcast, such as a count of rounds, are constants of the tape.
    sent = [leaf for leaf in leaves(e.broadcast) if leaf.dim()]
    new = e.new_state()
    vectors = [*leaves(new), *sent]
    if not vectors:
        return False
    given = _given(e, clients, new, sent, vectors)
    places, stage_states = _allocate_outputs(e, tape, vectors[0], clients)
    weights = e.weights(clients)
    try:
        result = play(tape, clients, weights, e.seed, e.r, given, places)
    except BadDataError as error:
        raise error.for_client(clients[error.position]) from None
    if result is None:
        return False
    sums, squares, work = result
    of_output = sums.unbind(0)
    e.work.add(work)
    tally.add_sums(
        weights,
        fill(tape.upload, of_output),
        fill(tape.state, of_output),
        _squares_of(tape.dx_outputs, squares),
        _squares_of(tape.state_outputs, squares),
    )
    stage_states()
    return True


def _given(
    e: Exchange, clients: Sequence[int], new: State, sent: list[Vector], vectors: list[Vector]
) -> Sequence[Sequence[Vector | None]]:
    """Return the input vectors of each client: those of its state, then those of the broadcast.

    They are passed as addresses if the store has those of the states. `vectors` are the inputs of
    a new client.
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

    return kernel.ClientVectors(at, len(clients), d, dtype, row)


def _allocate_outputs(
    e: Exchange, tape: Tape, vector: Vector, clients: Sequence[int]
) -> tuple[Sequence[Sequence[Vector | None]], Callable[[], None]]:
    """Return where outputs are written, and a function that stages the new states.

    New states are written to memory of the store; beyond its limit to new memory, which it copies.
    """
    s, d, dtype, store = len(clients), e.problem.d, vector.dtype, e.store
    nowhere: list[Vector | None] = [None for _ in tape.upload_outputs]
    zeros = [0 for _ in nowhere]
    if not tape.state_outputs:
        return kernel.ClientVectors(
            array("Q", zeros * s), s, d, dtype, lambda j: nowhere
        ), lambda: None
    like = fill(tape.state, [vector for _ in tape.code.outputs])
    own = None if store is None else store.allocate_rows(like, s)
    if store is not None and own is not None:
        at = array("Q", [place for row in own for place in (*zeros, *row)])

        def row(j: int) -> list[Vector | None]:
            return [*nowhere, *leaves(store.allocated_row(j))]

        return kernel.ClientVectors(at, s, d, dtype, row), partial(store.stage_allocated, clients)
    allocated = e.allocate_states(like, s)
    states = allocated + [map_leaves(torch.empty_like, like) for _ in range(s - len(allocated))]

    def stage_states() -> None:
        for i, state in zip(clients, states, strict=True):
            e.store_state(i, state)

    return [[*nowhere, *leaves(state)] for state in states], stage_states


def _squares_of(outputs: list[int], squares: Sequence[Sequence[float]]) -> Sequence[float]:
    """Return for each client the squared norm of some outputs together."""
    if not outputs:
        return []
    if len(outputs) == 1:
        return squares[outputs[0]]
    return [sum(each) for each in zip(*(squares[j] for j in outputs), strict=True)]


@torch.no_grad()
def _chunk(exchange: Exchange, clients: Sequence[int]) -> Tally:
    """Run one chunk on tensors with a row per client, or client by client if that is impossible."""
    e, tally = exchange, Tally()
    try:
        uploads, new = _rows(e, clients)
    except BadDataError as error:
        raise error.for_client(clients[error.position]) from None
    except NotLazyError:
        tally, own = run_block(e, clients)
    else:
        tally.add_rows([e.weight(i) for i in clients], uploads, new)
        own = {i: map_leaves(lambda leaf, j=j: leaf[j], new) for j, i in enumerate(clients)}
    for i, state in own.items():
        e.store_state(i, state)
    return tally


def _rows(e: Exchange, clients: Sequence[int]) -> tuple[Any, State]:
    """Return uploads and new states with a row per client.

    Raises NotBatchableError if a tensor is not a vector of length d: it has no row per client.
    """
    s, d = len(clients), e.problem.d
    states = [e.state(i) for i in clients]
    given = [*leaves(states[0]), *(leaf for leaf in leaves(e.broadcast) if leaf.dim())]
    if any(leaf.shape != (d,) or not leaf.is_floating_point() for leaf in given):
        raise NotBatchableError("a tensor that is not a vector")
    old = map_leaves(lambda *leaves: torch.stack(leaves), *states)
    sent = map_leaves(lambda leaf: leaf.expand(s, d) if leaf.dim() else leaf, e.broadcast)
    g = with_lazy_vectors(_oracle(e, clients), LazyRows)
    replies = uploads, new = eager(e.program(g, lazy(old, LazyRows), *lazy(sent, LazyRows)))
    if any(leaf.shape != (s, d) for leaf in leaves(replies)):
        raise NotBatchableError("a tensor that is the same for all clients")
    return uploads, new


def _oracle(e: Exchange, clients: Sequence[int]) -> ClientOracle:
    """Return the oracle of a chunk: gradients and random numbers with a row per client."""
    each, d = [e.draws(i) for i in clients], e.problem.d

    def draw(what: Any, like: Any) -> Any:
        if like.shape[-1:] != (d,):
            raise NotBatchableError("random numbers that are not a vector")
        rows = like.expand(len(clients), d)
        return torch.stack([draws(what, row) for draws, row in zip(each, rows, strict=True)])

    def count(K: int | Epochs) -> int:
        steps = {e.local_steps(i)(K) for i in clients}
        if len(steps) > 1:
            raise NotBatchableError("clients that make different numbers of steps")
        return steps.pop()

    chunk_oracle = e.problem.chunk_oracle
    if chunk_oracle is None:
        gradient = stack_oracles([e.oracle(i) for i in clients])
    else:
        gradient = e.work.counted_rows(clients, chunk_oracle(clients, e.seed, e.r))
    return ClientOracle(gradient, draw, count=count, unequal=bool(e.slow))
