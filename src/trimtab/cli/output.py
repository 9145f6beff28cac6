"""What users' code prints goes to standard error: standard output is for what the program says."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress


@contextmanager
def users_output() -> Iterator[None]:
    """Send whatever is printed meanwhile, by Python or by a library, to standard error."""
    sys.stdout.flush()
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        os.dup2(out, 1)
        os.close(out)
