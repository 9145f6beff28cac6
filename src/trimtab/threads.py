"""One intra-op thread where more would only get in each other's way."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


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
