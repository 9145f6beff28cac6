"""How many threads to compute with: one intra-op thread, or a pool of such threads."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ContextDecorator
from functools import cache

import torch

# Numbers of parameters; the table of paths in docs/performance.md has both. With fewer than 10,000
# a thread costs more than it saves. From 2,000,000 on the operations of one client use all cores.
WORTH_A_THREAD = 10_000
KEEPS_CORES_BUSY = 2_000_000


class one_thread(ContextDecorator):  # noqa: N801 (it is used like a function)
    """Compute with one intra-op thread.

    Small products gain nothing from more threads, and on a shared machine they lose a factor of
    ten. With one thread, bits do not depend on the number of cores either.
    """

    def __init__(self, when: bool = True) -> None:
        self.when = when

    def _recreate_cm(self) -> "one_thread":
        # Each call of a decorated function needs an own `before`.
        return one_thread(self.when)

    def __enter__(self) -> None:
        self.before = torch.get_num_threads() if self.when else 1
        if self.before != 1:
            torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        if self.before != 1:
            torch.set_num_threads(self.before)


@cache
def pool(count: int) -> ThreadPoolExecutor:
    """Return a pool of threads with one intra-op thread each; results are the same bits as alone.

    count: the number of threads.
    """
    return ThreadPoolExecutor(count, "trimtab", initializer=lambda: torch.set_num_threads(1))
