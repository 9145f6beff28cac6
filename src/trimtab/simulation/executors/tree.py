"""Run clients in virtual shards, whose sums are added in a fixed binary tree.

The number of a client decides to which of V virtual shards it belongs. Each shard adds its clients
in order, and the shards are added pairwise: 0 with 1, 2 with 3, then these two, and so on. The bits
depend on V and not on the number of machines, so a cluster must give those of `Tree`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trimtab.core.replies import Tally
from trimtab.errors import BadArgument
from trimtab.problems.problem import Problem
from trimtab.simulation.executors.executor import Exchange, Executor

# The default V. A shard is on one machine, so that V is also the largest number of machines that
# share the work.
SHARDS = 16
Node = tuple[int, int]
"""A subtree: its first shard, and the number of its leaves, which is a power of two."""


@dataclass(frozen=True)
class Tree(Executor):
    """Shard by shard in this process: the reference for executors on several machines.

    shards: the number V of virtual shards.
    inner: the executor of the clients of a shard; "auto" chooses it by the problem and S.
    """

    shards: int = SHARDS
    inner: str | Executor = "auto"
    name: str = field(init=False)

    def __post_init__(self) -> None:
        check_shards(self.shards)
        object.__setattr__(self, "name", f"tree-{self.shards}")

    def begin(self, problem: Problem, S: int) -> Executor:
        """Return a copy whose inner executor is chosen for the problem and S."""
        from trimtab.simulation.executors import executor_of

        return replace(self, inner=executor_of(self.inner, problem, S))

    def run(self, exchange: Exchange, clients: Sequence[int]) -> Tally:
        """Run the program shard by shard, and add the shards in the tree."""
        assert isinstance(self.inner, Executor)
        tally = added(shard_sums(self.inner, exchange, clients, self.shards), self.shards)
        assert tally is not None
        return tally

    def facts(self) -> dict[str, Any]:
        """Return the number of shards."""
        return {"shards": self.shards}


def check_shards(shards: Any) -> None:
    """Raise BadArgument unless `shards` is a whole number >= 1."""
    if isinstance(shards, bool) or not isinstance(shards, int) or shards < 1:
        raise BadArgument("shards", "{shards:{_given}}; pass a whole number >= 1.", _given=shards)


def shard_of(client: int, V: int) -> int:
    """Return the shard of a client."""
    # Neighbours are in different shards, so that all shards have work.
    return client % V


def clients_by_shard(clients: Sequence[int], V: int) -> dict[int, list[int]]:
    """Return the clients by shard, without empty shards.

    >>> clients_by_shard([0, 1, 5, 8], 4)
    {0: [0, 8], 1: [1, 5]}
    """
    groups: dict[int, list[int]] = {}
    for i in clients:
        groups.setdefault(shard_of(i, V), []).append(i)
    return dict(sorted(groups.items()))


def shard_sums(
    inner: Executor, exchange: Exchange, clients: Sequence[int], V: int
) -> dict[Node, Tally]:
    """Run the program on clients and return the sum of each shard that is not empty."""
    return {(v, 1): inner.run(exchange, own) for v, own in clients_by_shard(clients, V).items()}


def subtrees(begin: int, end: int) -> Iterator[Node]:
    """Return the largest subtrees that make up the shards from `begin` to before `end`.

    >>> list(subtrees(5, 11)), list(subtrees(0, 6))
    ([(5, 1), (6, 2), (8, 2), (10, 1)], [(0, 4), (4, 2)])
    """
    while begin < end:
        size = begin & -begin or 1 << end.bit_length()
        while begin + size > end:
            size //= 2
        yield begin, size
        begin += size


def added(sums: Mapping[Node, Tally], V: int) -> Tally | None:
    """Return the sum of all shards, given the sums of some subtrees; None if there are none."""
    return _added(sums, (0, 1 << (V - 1).bit_length()))


def parts(sums: Mapping[Node, Tally], begin: int, end: int) -> dict[Node, Tally]:
    """Return the sums of the largest subtrees in a range of shards."""
    found = {node: _added(sums, node) for node in subtrees(begin, end)}
    return {node: tally for node, tally in found.items() if tally is not None}


def _added(sums: Mapping[Node, Tally], node: Node) -> Tally | None:
    if node in sums:
        return sums[node]
    first, size = node
    if size == 1:
        return None
    left, right = (_added(sums, (first + j * (size // 2), size // 2)) for j in (0, 1))
    if left is None or right is None:
        return left if right is None else right
    left.merge(right)  # In place: nodes are added once, so that no sum is needed again.
    return left
