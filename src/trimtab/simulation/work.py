"""What clients compute: the samples over which gradients were taken.

g(y, k) costs the samples of mini-batch k, g(y) all n_i; a problem without samples counts gradients.
"""

from collections.abc import Callable, Sequence
from math import ceil

from trimtab.core import Gradient, Vector
from trimtab.problems.problem import Problem

Size = Callable[[int | None], int]
"""The samples of mini-batch k of a client; of None, all it has."""


class Work:
    """The work of each client in one exchange.

    A client that starts again, because its program did something that its vectors could not, is
    counted from its last start. Several threads may count different clients.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._done: dict[int, int] = {}
        self._elsewhere = 0

    @property
    def total(self) -> int:
        """The work of all clients."""
        return sum(self._done.values()) + self._elsewhere

    def add(self, total: int) -> None:
        """Count what was computed, and counted, elsewhere: by a kernel, or on another machine."""
        self._elsewhere += total

    def counted(self, i: int, gradient: Gradient) -> Gradient:
        """Return the oracle of a client that starts, which counts what it is asked."""
        done, size = self._done, self._size(i)
        done[i] = 0

        def g(y: Vector, k: int | None = None) -> Vector:
            done[i] += size(k)
            return gradient(y, k)

        return g

    def counted_rows(self, clients: Sequence[int], gradient: Gradient) -> Gradient:
        """Return the oracle of several clients at once, which counts what each is asked."""
        done, sizes = self._done, [(i, self._size(i)) for i in clients]
        for i in clients:
            done[i] = 0

        def g(y: Vector, k: int | None = None) -> Vector:
            for i, size in sizes:
                done[i] += size(k)
            return gradient(y, k)

        return g

    def _size(self, i: int) -> Size:
        samples = self._problem.samples
        if samples is None:
            return lambda k: 1
        n, b = samples(i)
        if self._problem.sampling != "reshuffle" or n <= b:
            return lambda k: n if k is None else b
        in_a_pass = ceil(n / b)
        return lambda k: n if k is None else min(b, n - b * (k % in_a_pass))
