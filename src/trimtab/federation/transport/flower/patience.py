"""Bear with a server that is busy: Flower's own clients give up at the first 500.

A SuperLink answers 500 when its database is locked for longer than it waits, as it is while large
messages are written to a slow disk. That passes.
"""

import sys
import time
from collections.abc import Callable

import httpx
from flwr.supercore.retry import RetryInvoker, make_simple_http_retry_invoker
from flwr.supercore.retry.retry_invoker import RetryState
from flwr.supercore.version import package_version

FLOWER = "1.41.0"  # the version whose modules are known
LONGEST = 120.0  # seconds of nothing but 500 are no load any more


def check_version() -> None:
    """End if another version of Flower is installed than the one whose names are replaced."""
    if package_version != FLOWER:
        sys.exit(
            f"this trimtab works with Flower {FLOWER}, but {package_version} is installed; run "
            f"`pip install 'flwr=={FLOWER}'`."
        )


def patient(now: Callable[[], float] = time.monotonic) -> RetryInvoker:
    """Return Flower's retries, which bear with 500 for a while, and with any word of TLS."""
    retries = make_simple_http_retry_invoker()
    gives_up, succeeded = retries.should_giveup, retries.on_success
    assert gives_up is not None
    assert succeeded is not None
    since: list[float] = []  # when it was 500, one time after the other

    def should_give_up(error: Exception) -> bool:
        if not isinstance(error, httpx.HTTPStatusError):
            return False
        if error.response.status_code != httpx.codes.INTERNAL_SERVER_ERROR:
            return gives_up(error)
        since.append(now())
        return since[-1] - since[0] > LONGEST

    def on_success(state: RetryState) -> None:
        since.clear()
        succeeded(state)

    retries.should_giveup, retries.on_success = should_give_up, on_success
    return retries
