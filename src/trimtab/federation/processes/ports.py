"""Ports: a free one on this machine, and whether the server's can be reached."""

import socket
import ssl
from pathlib import Path


def probe(server: str, authority: Path, timeout: float = 5.0) -> str:
    """Return what is wrong with the way to the server; nothing, if nothing is."""
    host, _, port = server.rpartition(":")
    host = host.strip("[]")
    context = ssl.create_default_context(cafile=str(authority))
    try:
        with (
            socket.create_connection((host, int(port)), timeout) as plain,
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
