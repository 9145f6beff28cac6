"""Ports: a free one on this machine, and whether the server's can be reached, and by which way."""

import socket
import ssl
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from trimtab.errors import BadArgument
from trimtab.federation.log import printable


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy that carries connections by CONNECT."""

    host: str
    port: int
    login: str | None = None  # as basic authorization writes it

    def connect(self, host: str, port: int, timeout: float) -> socket.socket:
        """Return a connection through the proxy; an OSError says what it does not do."""
        link = socket.create_connection((self.host, self.port), timeout)
        try:
            target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            login = f"Proxy-Authorization: Basic {self.login}\r\n" if self.login else ""
            link.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{login}\r\n".encode())
            head = b""
            while b"\r\n\r\n" not in head and len(head) < 1 << 16:
                part = link.recv(1)  # what follows the head is no longer the proxy's
                if not part:
                    break
                head += part
            status = printable(head.partition(b"\r\n")[0].decode("latin-1"), 80)
            if status.split()[1:2] != ["200"]:
                raise OSError(f"the proxy at {self.host}:{self.port} answers {status!r}")
        except BaseException:
            link.close()
            raise
        return link


def proxy_of(address: str) -> Proxy:
    """Read the address of a proxy.

    >>> proxy_of("http://proxy.example.org:3128").port
    3128
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
    login = None
    if found.username is not None:
        login = b64encode(f"{unquote(found.username)}:{unquote(found.password or '')}".encode())
    return Proxy(host, port, None if login is None else login.decode("ascii"))


def probe(server: str, authority: Path, timeout: float = 5.0, proxy: Proxy | None = None) -> str:
    """Return what is wrong with the way to the server; nothing, if nothing is."""
    host, _, port = server.rpartition(":")
    host = host.strip("[]")
    context = ssl.create_default_context(cafile=str(authority))
    try:
        with (
            proxy.connect(host, int(port), timeout)
            if proxy
            else socket.create_connection((host, int(port)), timeout) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return ""
    except ssl.SSLCertVerificationError as error:
        if "expired" in error.verify_message:
            return (
                f"refused the server at {server}: its certificate has expired; the operator writes "
                "a new one with `trimtab federate renew`."
            )
        return (
            f"refused the server at {server}: {error.verify_message.rstrip('.')}; it is not the "
            "server for which this site's archive was made."
        )
    except ssl.SSLError as error:
        return f"the server at {server} does not speak TLS as it should ({error.reason or error})."
    except OSError as error:
        return f"the server at {server} cannot be reached ({error.strerror or error}); trying on."


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
