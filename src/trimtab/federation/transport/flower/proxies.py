"""The way out of a client of Flower: the proxy that was chosen, or none.

httpx takes proxies from the environment when a client is made. Those of the environment are for
browsers: one of them swallows what is meant for loopback.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_NAMES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_one = threading.Lock()


@contextmanager
def no_proxy(but: str | None = None) -> Iterator[None]:
    """Let clients that are made meanwhile go straight, or by the proxy `but`."""
    with _one:
        before = {name: os.environ.pop(name) for name in _NAMES if name in os.environ}
        if but is not None:
            os.environ["https_proxy"] = but
        try:
            yield
        finally:
            os.environ.pop("https_proxy", None)
            os.environ.update(before)
