"""One intra-op thread where more would only get in each other's way; a pool of such threads."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache

import torch

WORTH_A_THREAD = 10_000  # a client with d >= 10,000 numbers is worth a thread of its own
KEEPS_CORES_BUSY = 2_000_000  # one with d >= 2,000,000 keeps all cores busy by itself


@contextmanager
def one_thread(when: bool = True) -> Iterator[None]:
    """Compute with one intra-op thread.

    Small products gain nothing from more threads, and on a shared machine they lose a factor of
    ten. With one thread, bits do not depend on the number of cores either.
    """
    before = torch.get_num_threads()
    if when and before != 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if when and before != 1:
            torch.set_num_threads(before)


@cache
def pool(count: int) -> ThreadPoolExecutor:
    """Return so many threads with one intra-op thread each; what they compute has the same bits."""
    return ThreadPoolExecutor(count, "trimtab", initializer=lambda: torch.set_num_threads(1))
