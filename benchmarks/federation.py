"""What the federation costs: bytes at the wire, memory, and time beside bare Flower.

Bare Flower is Flower as its documentation runs it, with TLS and keys: an app whose clients send
back an array as large as they got, with no work and no torch. Both have the same sites and the same
array, one after the other in one run. Loopback only. Rows that are in the record are not measured
again, so a run that was stopped goes on; `--table` prints the table of
docs/federation-operations.md.

    python benchmarks/federation.py [--d 7850,50890] [--sites 2,4] [--table]
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trimtab import FedAvg, Scaffold
from trimtab._files import write_json
from trimtab._processes import Child
from trimtab._version import environment
from trimtab.core import Algorithm
from trimtab.federation.events import RoundCommitted
from trimtab.federation.log import attached
from trimtab.federation.processes.operator import OperatorProcess
from trimtab.federation.processes.ports import free_port
from trimtab.federation.setup.job import start_job
from trimtab.federation.setup.operator import Federation, create
from trimtab.federation.setup.site import secret, unpack
from trimtab.federation.transport.flower.server import (
    Control,
    SuperLink,
    superlink_arguments,
    wait_until,
)
from trimtab.federation.transport.flower.server import (
    environment as flower_environment,
)

SIZES, SITES = (7_850, 50_890, 11_000_010, 50_000_010), (2, 4)
ROLES = {
    "site": "processes.site:main",
    "worker": "processes.worker:main",
    "superlink": "flower.superlink:main",
    "rounds": "processes.rounds:main",
}
CARRY = ("site", "superlink")  # the roles that only carry messages
OUT = Path(__file__).parents[1] / "results" / "federation" / "rounds.json"

PROBLEM = """\
import torch
from torch import nn
from torch.nn import functional as F


def model():
    return nn.Linear({features}, 10), F.cross_entropy


def silo(data):
    draw = torch.Generator().manual_seed(int(data.name))
    n = 40 if {features} <= 100_000 else 10
    X, y = torch.randn(n, {features}, generator=draw), torch.arange(n) % 10
    return (X, y), (X, y)
"""

APP = """\
[project]
name = "bare"
version = "1.0.0"
description = "Arrays there and back"
license = "Apache-2.0"
dependencies = ["flwr>=1.41.0"]

[tool.flwr.app]
publisher = "bench"

[tool.flwr.app.components]
serverapp = "bare.server:app"
clientapp = "bare.client:app"
"""
SERVER = """\
import json, time
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MessageType, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    while len(list(grid.get_node_ids())) < {sites}:
        time.sleep(0.2)
    x, seconds = np.ones({d}, dtype=np.float32), []
    for r in range({R}):
        started = time.perf_counter()
        content = RecordDict({{"arrays": ArrayRecord({{"x": Array(x)}})}})
        messages = [
            Message(content, dst_node_id=node, message_type=MessageType.TRAIN)
            for node in grid.get_node_ids()
        ]
        replies = list(grid.send_and_receive(messages, timeout=300))
        assert len(replies) == {sites} and not any(reply.has_error() for reply in replies)
        x = sum(reply.content["arrays"]["x"].numpy() for reply in replies) / {sites}
        seconds.append(time.perf_counter() - started)
    open("{out}.part", "w").write(json.dumps(seconds))
    import os
    os.replace("{out}.part", "{out}")
"""
CLIENT = """\
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    x = message.content["arrays"]["x"].numpy() + 1
    return Message(RecordDict({"arrays": ArrayRecord({"x": Array(x)})}), reply_to=message)
"""


def federation_of(folder: Path, sites: int, features: int) -> Federation:
    """Make the keys and folders of a federation."""
    folder.mkdir(parents=True)
    (folder / "problem.py").write_text(PROBLEM.format(features=features))
    return create(
        folder / "operator",
        [f"site{i}" for i in range(sites)],
        folder / "problem.py",
        weights="uniform",
        batch=None,
        hosts=["127.0.0.1"],
        port=free_port(),
    )


@contextmanager
def serving(folder: Path, sites: int, features: int) -> Iterator[OperatorProcess]:
    """Run a server and its sites."""
    federation = federation_of(folder, sites, features)
    with attached(folder / "log"), ExitStack() as stack:
        for i, name in enumerate(federation.sites):
            silo = unpack(federation.archive(name), folder / "sites")
            data = folder / "data" / str(i)
            data.mkdir(parents=True)
            site = Child(
                name,
                "trimtab.federation.processes.site:main",
                [str(silo), str(data)],
                environment={"OMP_NUM_THREADS": "1"},
                output=silo / "logs" / "output.log",
            )
            stack.callback(site.stop)
            site.start()
        server = OperatorProcess(federation.folder)
        stack.callback(server.close)
        server.start()
        yield server


def rounds(
    server: OperatorProcess, algorithm: Algorithm, R: int, state: str
) -> list[RoundCommitted]:
    """Run R rounds; return the event of each."""
    job = start_job(server.federation, algorithm, R=R, round_timeout=300, state=state)
    return [event for event in server.events(job) if isinstance(event, RoundCommitted)]


def wire(told: list[RoundCommitted]) -> float:
    """Return the bytes that all sites sent in one round, headers and polling included."""
    up = [sum(event.wire.up.values()) for event in told]
    return (up[-1] - up[0]) / (len(up) - 1)


def beyond(event: RoundCommitted) -> float:
    """Return the seconds of a round beyond the slowest site's own work."""
    return event.seconds - max(site.seconds for site in event.sites.values())


def peaks() -> dict[str, float]:
    """Return the most memory, in MB, that a process of each role below this one has had."""
    parents: dict[int, tuple[int, str]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError, ValueError):
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                parents[int(path.name)] = parent, (path / "cmdline").read_text()
    found, new = dict[str, float](), {os.getpid()}
    while new:
        new = {pid for pid, (parent, _) in parents.items() if parent in new}
        for pid in new:
            for role, target in ROLES.items():
                if target in parents[pid][1]:
                    with suppress(OSError):
                        found[role] = max(found.get(role, 0.0), peak(pid))
    return found


def peak(pid: int) -> float:
    """Return the most memory, in MB, that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1000


def ours(folder: Path, sites: int, features: int, R: int) -> dict[str, Any]:
    """Measure lean SCAFFOLD and FedAvg over the same sites."""
    eta = {"eta_l": 0.01, "K": 1}
    with serving(folder, sites, features) as server:
        idle = peaks()
        lean = rounds(server, Scaffold(**eta, lean=True), R, "state")
        most = peaks()
        fedavg = rounds(server, FedAvg(**eta), R, "state-fedavg")
    seconds = [beyond(event) for event in (*lean[1:], *fedavg[1:])]
    return {
        "up_lean_scaffold": wire(lean),
        "up_fedavg": wire(fedavg),
        "seconds": statistics.median(seconds),
        "all_seconds": seconds,
        "peak_MB": most,
        "idle_MB": idle,
    }


def bare(folder: Path, sites: int, features: int, R: int) -> list[float]:
    """Return the seconds of R rounds of bare Flower."""
    federation = federation_of(folder, sites, features)
    d, port, out = 10 * features + 10, free_port(), folder / "seconds.json"
    keys, shared = federation.keys, secret(federation.folder)
    superlink = superlink_arguments(federation.folder, port, keys, shared)
    link = SuperLink(port, keys / "ca.crt", shared)
    superlink[superlink.index("process")] = "subprocess"
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    quiet = flower_environment(folder / "flower") | {"PATH": path}
    with ExitStack() as stack:
        children = [
            Child(
                "superlink",
                "flwr.superlink.cli:flower_superlink",
                superlink,
                environment=quiet,
                output=folder / "superlink.log",
            )
        ]
        for name in federation.sites:
            silo = unpack(federation.archive(name), folder / "sites")
            arguments = [
                *("--superlink", f"127.0.0.1:{port}", "--root-certificates", str(silo / "ca.crt")),
                *("--auth-supernode-private-key", str(silo / "site.key")),
                *("--host", "127.0.0.1", "--port", str(free_port())),
                *("--isolation", "subprocess"),
            ]
            children.append(
                Child(
                    name,
                    "flwr.supernode.cli:flower_supernode",
                    arguments,
                    environment=quiet,
                    output=silo / "supernode.log",
                )
            )
        for child in children[:1]:
            stack.callback(child.stop)
            child.start()
        wait_until(lambda: link.nodes_of(federation.sites), 120, "the SuperLink did not answer")
        for child in children[1:]:
            stack.callback(child.stop)
            child.start()
        _start_bare(port, keys / "ca.crt", sites=sites, d=d, R=R, out=out)
        wait_until(out.exists, 120 + 60 * R, "bare Flower did not finish")
    return list(json.loads(out.read_text()))


def _start_bare(port: int, authority: Path, **settings: Any) -> None:
    from flwr.cli.build import build_fab_from_files
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.proto.fab_pb2 import Fab

    files = {
        "pyproject.toml": APP.encode(),
        "README.md": b"bare\n",
        "bare/__init__.py": b"",
        "bare/server.py": SERVER.format(**settings).encode(),
        "bare/client.py": CLIENT.encode(),
    }
    content, _ = build_fab_from_files(files)
    control = Control(port, authority)
    fab = Fab(hash_str=sha256(content).hexdigest(), content=content)
    control.client.StartRun(StartRunRequest(fab=fab))
    control.close()


def measure(folder: Path, sites: int, features: int, R: int) -> dict[str, Any]:
    """Measure both, one after the other."""
    plain = bare(folder / "bare", sites, features, R)
    found = ours(folder / "ours", sites, features, R)
    flowers = statistics.median(plain[1:])
    return {
        "sites": sites,
        "d": 10 * features + 10,
        "rounds": R,
        **found,
        "bare_seconds": flowers,
        "all_bare_seconds": plain,
        "ratio": found["seconds"] / flowers,
        "up_ratio": found["up_lean_scaffold"] / found["up_fedavg"],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return what was measured as Markdown; what was not says so."""
    found = {(row["d"], row["sites"]): row for row in rows}
    lines = [
        "| parameters | sites | seconds a round beyond the work | bare Flower "
        "| times bare Flower | site's supervisor, MB | SuperLink, MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for d in SIZES:
        for sites in SITES:
            row = found.get((d, sites))
            if row is None:
                lines.append(f"| {d:,} | {sites} | not measured | | | | |")
                continue
            memory = [f"{row['peak_MB'][role]:.0f}" for role in CARRY]
            seconds, bare = row["seconds"], row["bare_seconds"]
            cells = [f"{seconds:.2f}", f"{bare:.2f}", f"{seconds / bare:.2f}", *memory]
            lines.append(f"| {d:,} | {sites} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is asked for and not in the record yet."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--d", default=",".join(map(str, SIZES)), help="parameters, with commas")
    parser.add_argument("--sites", default=",".join(map(str, SITES)), help="with commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--table", action="store_true", help="print the table, measure nothing")
    asked = parser.parse_args()
    rows = list(json.loads(OUT.read_text())["rows"]) if OUT.exists() else []
    if asked.table:
        print(table(rows))
        return
    for d in map(int, asked.d.split(",")):
        for sites in map(int, asked.sites.split(",")):
            if any((row["d"], row["sites"]) == (d, sites) for row in rows):
                continue
            with TemporaryDirectory() as folder:
                row = measure(Path(folder), sites, (d - 10) // 10, asked.rounds)
            about = {"load": os.getloadavg(), "made": time.strftime("%Y-%m-%d")}
            rows.append(row | about | {"versions": environment()})
            print(json.dumps(rows[-1]), file=sys.stderr)
            write_json(OUT, {"rows": rows})


if __name__ == "__main__":
    main()
