"""What carries messages between server and sites; flower/ is the one that is used.

A new one implements `Transport`. Imports protocol, storage and message; knows no setup.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # it imports torch, which the SuperLink does without
    from trimtab.federation.message import Message


class Transport(Protocol):
    """The way to the sites, while it is open; `ask` is what `Coordinator.run` is given."""

    def online(self) -> Mapping[str, str]:
        """Return the sites that are connected, and since when."""
        ...

    def wait_for(self, names: Collection[str], least: int, seconds: float) -> None:
        """Wait until at least so many of these sites are connected, at most so many seconds."""
        ...

    def ask(
        self, requests: "Mapping[str, Message]", timeout: float, least: int | None = None
    ) -> "Iterator[tuple[str, Message]]":
        """Send each request to the site of that name; yield replies as they arrive.

        It ends when `timeout` seconds have passed or nothing more can come; sites that let others
        wait, after `least` of them have replied, are not waited for. All requests have the same
        arrays. Replies may be late, twice, or missing. The name is that of the sender by its key,
        whatever the message says. A reply that cannot be read is one with the status `failed`.
        """
        ...

    def admit(self, sites: Mapping[str, str]) -> None:
        """Carry messages to these sites from now on; they are known by their public keys."""
        ...
