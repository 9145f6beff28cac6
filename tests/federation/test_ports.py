"""The port of a server is its own from the start."""

import socket

import pytest

pytest.importorskip("flwr")

from trimtab.federation.processes.ports import listener


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_nobody_else_takes_a_port(address):
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
        with socket.create_connection((address, port)):  # who comes early waits
            pass


def test_an_address_that_is_for_all_takes_both_protocols():
    if not socket.has_dualstack_ipv6():
        pytest.skip("IPv6 is not there")
    with listener("::", 0) as opened:
        for address in ("127.0.0.1", "::1"):
            socket.create_connection((address, opened.getsockname()[1])).close()


def test_a_port_is_opened_again_at_once_after_its_connections():
    first = listener("127.0.0.1", 0)
    port = first.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)) as caller:
        accepted, _ = first.accept()
        accepted.close()  # Who closes first keeps the port for a while.
        assert caller.recv(1) == b""
    first.close()
    listener("127.0.0.1", port).close()
