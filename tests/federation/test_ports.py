"""The port of a server is its own from the start."""

import socket

import pytest

pytest.importorskip("flwr")

from trimtab.federation.processes.ports import listener
from trimtab.federation.transport.flower.connections import listen_at


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_nobody_takes_a_port_that_is_bound_and_not_yet_listened_at(address):
    try:
        first = listener(address, 0)
    except OSError:
        pytest.skip(f"{address} is not there")
    port = first.getsockname()[1]
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with first, socket.socket(family) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind((address, port))
        listen_at(first)


def test_a_port_is_opened_again_at_once_after_its_connections():
    first = listener("127.0.0.1", 0)
    listen_at(first)
    port = first.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)) as caller:
        accepted, _ = first.accept()
        accepted.close()  # Who closes first keeps the port for a while.
        assert caller.recv(1) == b""
    first.close()
    with listener("127.0.0.1", port) as again:
        listen_at(again)
