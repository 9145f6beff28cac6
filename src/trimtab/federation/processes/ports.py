"""Ports of the server, and a site's way out."""

import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from trimtab.errors import BadArgument
from trimtab.federation.log import printable


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
    """Return a socket that is bound and does not listen yet; :: is for IPv4 as well."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            only = int(address != "::" or not socket.has_dualstack_ipv6())
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
        made.bind((address, port))
        # From here on the port is ours alone, although nobody listens at it yet.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except BaseException:
        made.close()
        raise
    return made
