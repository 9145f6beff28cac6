"""Flower at the server: the SuperLink, the sites' keys, and the run in which messages travel."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import run_from_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
)
from flwr.proto.fab_pb2 import Fab
from flwr.proto.runtime_pb2 import PullTaskInputRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
)
from flwr.superlink.grid import HttpGrid

from trimtab.federation.transport.flower import api
from trimtab.federation.transport.flower.fleet import Fleet
from trimtab.federation.transport.flower.patience import patient
from trimtab.federation.transport.flower.straight import StraightControl, StraightRuntime

_APP = b"""\
[project]
name = "trimtab"
version = "1.0.0"
description = "An empty app: each side runs the trimtab that is installed there."
license = "Apache-2.0"
dependencies = ["flwr>=1.41.0"]

[tool.flwr.app]
publisher = "trimtab"

[tool.flwr.app.components]
serverapp = "trimtab_app:app"
clientapp = "trimtab_app:app"
"""


def superlink_arguments(folder: Path, port: int, certificates: Path, secret: Path) -> list[str]:
    """Return how the SuperLink is started: on loopback only, with keys, and without installers."""
    return [
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--ssl-ca-certfile", str(certificates / "ca.crt")),
        *("--ssl-certfile", str(certificates / "server.crt")),
        *("--ssl-keyfile", str(certificates / "server.key")),
        *("--database", str(folder / "superlink.db")),
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
        *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
    ]


@dataclass(frozen=True)
class SuperLink:
    """How the SuperLink of a federation is reached: on loopback, at a port."""

    port: int
    authority: Path
    secret: Path

    def nodes_of(self, sites: Mapping[str, str]) -> dict[str, int]:
        """Return the number of each site's node; register the keys that Flower does not know."""
        control = Control(self.port, self.authority)
        try:
            known = control.nodes()
            return {
                name: int(known[key].node_id) if key in known else control.register(name, key)
                for name, key in sites.items()
            }
        finally:
            control.close()

    @contextmanager
    def fleet(self, sites: Mapping[str, str], last: Path) -> Iterator[Fleet]:
        """Open a run of Flower; close the one of `last` that a killed process may have left."""
        control = Control(self.port, self.authority)
        if last.exists():
            with suppress(httpx.HTTPError, ValueError):
                control.stop_run(int(last.read_text()))
        last.write_text(str(control.start_run()))
        tasks = api.Tasks(TaskType.SERVER_APP, self.port, self.secret, authority=self.authority)
        token = tasks.wait(60)
        with tasks.work(token) as client:
            task = client.PullTaskInput(PullTaskInputRequest())
            api.identify(task)
            certificates = self.authority.read_bytes()
            grid = _Grid(f"127.0.0.1:{self.port}", root_certificates=certificates, token=token)
            grid.set_run(run_from_proto(task.run))
            try:
                fleet = Fleet(grid, self.nodes_of)
                fleet.admit(sites)
                yield fleet
            finally:
                grid.close()
                last.unlink(missing_ok=True)
                tasks.close()
                control.close()


class _Grid(HttpGrid):
    """Flower's grid, whose client goes straight to the SuperLink, and bears with a busy one."""

    def _connect(self) -> None:
        self._client = StraightRuntime.from_server_address(
            self._addr,
            insecure=False,
            root_certificates=self._cert,
            interceptors=[
                self._tracing,
                RuntimeVersionHttpInterceptor(component_name="flwr-serverapp"),
                RuntimeTokenHttpInterceptor(token=self._token),
            ],
            retry_invoker=patient(),
        )


class Control:
    """What the operator asks of the SuperLink."""

    def __init__(self, port: int, authority: Path) -> None:
        self.client = StraightControl.from_server_address(
            f"127.0.0.1:{port}",
            insecure=False,
            root_certificates=authority.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )

    def nodes(self) -> dict[str, Any]:
        """Return the registered nodes by their public keys."""
        listed = self.client.ListNodes(ListNodesRequest()).nodes_info
        known = [node for node in listed if node.status != "unregistered"]
        return {node.public_key.decode("ascii"): node for node in known}

    def register(self, name: str, public_key: str) -> int:
        """Let a key in; return the number of its node."""
        request = RegisterNodeRequest(public_key=public_key.encode("ascii"), name=name)
        return int(self.client.RegisterNode(request).node_id)

    def start_run(self) -> int:
        """Open a run, the frame in which Flower carries messages."""
        content, _ = build_fab_from_files(
            {"pyproject.toml": _APP, "trimtab_app.py": b"app = None\n", "README.md": b"trimtab\n"}
        )
        fab = Fab(hash_str=sha256(content).hexdigest(), content=content)
        response = self.client.StartRun(StartRunRequest(fab=fab))
        if not response.HasField("run_id"):
            raise RuntimeError("Flower did not start a run")
        return int(response.run_id)

    def stop_run(self, run: int) -> None:
        """Close a run."""
        self.client.StopRun(StopRunRequest(run_id=run))

    def close(self) -> None:
        """Close the connection."""
        self.client.close()
