"""Flower's clients without a way out that nobody chose: HTTP_PROXY and the like are for browsers.

A proxy from the environment swallows what is meant for loopback. No torch is needed here.
"""

from collections.abc import Callable
from typing import Any

import httpx
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.supercore.runtime import RuntimeHttpClient


class Straight(ProtobufClient):
    """A client that goes straight to the server, or by the proxy that it is given."""

    def __init__(
        self, base_url: str, *, verify: Any = True, timeout: float = 30.0, **more: Any
    ) -> None:
        super().__init__(base_url, verify=verify, timeout=timeout, **more)
        self._client.close()
        self._client = httpx.Client(
            verify=verify,
            timeout=timeout,
            trust_env=False,
            proxy=self.proxy(),
            event_hooks={"response": self.hooks()},
        )

    def proxy(self) -> str | None:
        """Return the proxy to go by; None: there is none."""
        return None

    def hooks(self) -> list[Callable[[httpx.Response], None]]:
        """Return what is called with each answer."""
        return []


class StraightRuntime(Straight, RuntimeHttpClient):
    """The client of a SuperLink's or SuperNode's tasks."""


class StraightControl(Straight, ControlHttpClient):
    """The client of a SuperLink's Control."""
