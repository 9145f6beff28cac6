"""Flower's own SuperNode, as it comes, behind the guard: a way back, should Flower close the line.

Its ClientApp, which travels as code, sends back what it got.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.helpers.whole_federation import Serving, Whole
from trimtab.federation.message import Message
from trimtab.federation.processes.ports import free_port
from trimtab.federation.setup.site import secret
from trimtab.federation.transport.flower import server as servers
from trimtab.federation.transport.flower.fleet import Fleet
from trimtab.federation.transport.flower.server import SuperLink, environment

pytestmark = [
    pytest.mark.federation,
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern"),  # of a library that Flower uses
]

ECHO = b"""
from flwr.app import Message
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    return Message(message.content, reply_to=message)
"""


@pytest.mark.parametrize("numbers", [10, 2_000_000])
def test_a_stock_supernode_gets_requests_and_brings_replies(tmp_path, monkeypatch, numbers):
    monkeypatch.setitem(servers._APP, "trimtab_app.py", ECHO)
    whole = Whole(tmp_path, "a")
    site, keys = tmp_path / "sites" / "a", whole.federation.keys
    arrays = {"0": torch.randn(numbers)}
    request = Message({"kind": "work", "tag": "t"}, arrays, 4 * numbers)
    supernode = None
    with Serving(whole) as server:
        server.superlink.bound(4 * numbers)
        superlink = SuperLink(server.port, keys / "ca.crt", secret(whole.operator))
        try:
            with superlink.run(whole.operator / "run" / "flower-run") as run:
                fleet = Fleet(run, superlink.nodes_of)
                fleet.admit(whole.federation.sites)
                supernode = start(tmp_path, site, server.superlink.public_port)
                fleet.wait_for(["a"], 1, 60)
                assert list(fleet.online()) == ["a"], whole.logs()
                for _ in range(2):
                    ((name, reply),) = fleet.ask({"a": request}, 120)
                    assert (name, reply.header) == ("a", request.header)
                    assert torch.equal(reply.arrays["0"], arrays["0"])
        finally:
            if supernode is not None:
                os.killpg(supernode.pid, signal.SIGKILL)  # what it has started, too
                supernode.wait()
        assert "refused" not in whole.log()


def start(folder, site, port):
    tools = Path(sys.executable).parent
    command = [tools / "flower-supernode", "--superlink", f"127.0.0.1:{port}"]
    command += ["--root-certificates", site / "ca.crt"]
    command += ["--auth-supernode-private-key", site / "site.key"]
    command += ["--host", "127.0.0.1", "--port", str(free_port()), "--isolation", "subprocess"]
    path = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    with open(folder / "supernode.log", "ab") as log:
        return subprocess.Popen(
            list(map(str, command)),
            env={**os.environ, **environment(folder / "flower"), **path},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
