"""Ports of the server, and a site's way out."""

import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from trimtab.errors import BadArgument
from trimtab.federation.log import printable

_BACKLOG = 256  # <= this many connections wait until they are accepted


def check_proxy(address: str) -> None:
    """Refuse what is no address of an HTTP proxy.

    >>> check_proxy("http://proxy.example.org:3128")
    """
    try:
        found = urlsplit(address)
        host, port = found.hostname, found.port
    except ValueError:
        host, port = None, None
    if host is None or port is None or found.scheme != "http":
        raise BadArgument(
            "proxy",
            "{proxy:{address}}: no proxy's address; pass {proxy:http://HOST:PORT}.",
            address=printable(address.rpartition("@")[2], 80),
        )


def free_port() -> int:
    """Return a port on loopback that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def addresses_of(hosts: Sequence[str]) -> list[str]:
    """Return where to listen for those who reach the server under these names.

    >>> addresses_of(["127.0.0.1"]), addresses_of(["::1", "localhost"])
    (['127.0.0.1'], ['::1', '127.0.0.1'])
    """
    loopback = {"localhost": "127.0.0.1", "127.0.0.1": "127.0.0.1", "::1": "::1"}
    if set(hosts) <= set(loopback):
        return list(dict.fromkeys(loopback[host] for host in hosts))
    return ["::" if socket.has_dualstack_ipv6() else "0.0.0.0"]


def listener(address: str, port: int) -> socket.socket:
    """Return a socket that listens; :: is for IPv4 as well, where the system can do that."""
    six = ":" in address
    return socket.create_server(
        (address, port),
        family=socket.AF_INET6 if six else socket.AF_INET,
        backlog=_BACKLOG,
        dualstack_ipv6=address == "::" and socket.has_dualstack_ipv6(),
    )
