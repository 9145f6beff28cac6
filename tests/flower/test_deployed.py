"""`flwr run`: in the simulation, and on a SuperLink with SuperNodes of which one is killed."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from tests.flower.quickstarts import pytorch
from tests.flower.test_quickstarts import check, check_parity
from tests.helpers.flower_app import changed, environment, write_app

pytestmark = pytest.mark.federation
BIN = Path(sys.executable).parent
# Outside of trimtab's mod: when it has the reply, the new c_i is stored and nothing has left.
KILL = """
import os, signal
from pathlib import Path

def kill(msg, context, call_next):
    reply = call_next(msg, context)
    if msg.content["config"]["server-round"] == 2 and context.node_config["partition-id"] == 1:
        os.kill(int(Path("supernode.pid").read_text()), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    return reply

app = ClientApp(mods=[kill, """


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Processes:
    """A SuperLink and what else is started, all of which is killed by its id at the end."""

    def __init__(self, folder, **options):
        self.folder, self.logs, self.started = folder, [], []
        self.app = write_app(folder / "app", options.pop("source"))
        self.environment = environment(self.app, folder / "out", **options)
        self.port = free_port()
        home = Path(self.environment["FLWR_HOME"])
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\n'
            f'address = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # Some start children in sessions of their own; all have the environment of this test.
        for _ in range(3):
            for pid in self.alive():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        for process in self.started:
            process.wait()

    def alive(self):
        mark = f"FLWR_HOME={self.environment['FLWR_HOME']}".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in path.read_bytes().split(b"\0"):
                    yield int(path.parent.name)

    def start(self, where, *command):
        cwd = self.folder / where
        cwd.mkdir(exist_ok=True)
        self.logs.append(cwd / "log.txt")
        with open(self.logs[-1], "ab") as log:
            process = subprocess.Popen(
                [BIN / command[0], *command[1:]],
                cwd=cwd,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.started.append(process)
        (cwd / "supernode.pid").write_text(str(process.pid))
        return process

    def superlink(self, *options):
        where = ("--insecure", "--host", "127.0.0.1", "--port", str(self.port))
        process = self.start("link", "flower-superlink", *where, *options)
        self.until(self.serves, process)

    def serves(self):
        where = f"http://127.0.0.1:{self.port}/health"
        with suppress(OSError), urllib.request.urlopen(where, timeout=5):
            return True

    def supernode(self, i):
        return self.start(
            f"node{i}",
            *("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self.port}"),
            *("--port", str(free_port()), "--node-config", f"partition-id={i} num-partitions=2"),
        )

    def until(self, condition, *needed, seconds=600):
        """Wait for a condition; fail, with all logs, if a process ends or the time is over."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end or any(p.poll() is not None for p in needed):
                pytest.fail("\n\n".join(f"{log}:\n{log.read_text()[-3000:]}" for log in self.logs))
            time.sleep(0.2)

    def run(self, *options):
        return self.start("run", "flwr", "run", str(self.app), "here", "--stream", *options)

    def finished(self):
        return re.search("^finished", (self.folder / "run" / "log.txt").read_text(), re.M)


def test_the_app_runs_in_the_simulation(tmp_path):
    pytest.importorskip("ray", reason="pip install 'trimtab[cluster]'")
    with Processes(tmp_path, source=changed("pytorch")[0], N=3, R=3) as processes:
        processes.superlink("--simulation")
        size = "num-supernodes=3 client-resources-num-cpus=1 init-args-num-cpus=2"
        processes.run("--federation-config", size)
        processes.until(processes.finished)
    folders = {str(i): tmp_path / "link" / "state" for i in range(3)}
    check(tmp_path / "out", folders, [[0, 1, 2]] * 3)
    check_parity(tmp_path / "out", pytorch, N=3)


def test_a_supernode_killed_between_store_and_reply_costs_one_reply(tmp_path):
    source = changed("pytorch")[0].replace("app = ClientApp(mods=[", KILL)
    # The server waits after round 2 until it has seen a third node, the second one's successor.
    options = {"N": 2, "R": 3, "wait": 2, "nodes": 3}
    with Processes(tmp_path, source=source, **options) as processes:
        processes.superlink()
        first, second = processes.supernode(0), processes.supernode(1)
        processes.run()
        processes.until(lambda: second.poll() is not None, first)
        assert second.returncode == -signal.SIGKILL
        (folder,) = (tmp_path / "node1" / "state").glob("*/1")
        stored = sorted(path.stem.split("-")[1:] for path in folder.iterdir())
        processes.supernode(1)
        processes.until(processes.finished, first)
    rounds, cohorts = check(
        tmp_path / "out", {str(i): tmp_path / f"node{i}" / "state" for i in range(2)}
    )
    assert cohorts == [[0, 1], [0], [0, 1]]
    check_parity(tmp_path / "out", pytorch, N=2)
    # It had stored a c_i that the server has not counted, and went on from the one before.
    tags = [one["tags"]["1"] for one in rounds[1:]]
    assert tags[0] == tags[1] != tags[2]
    assert {base for _, base in stored} == {"start", tags[0]}
    after = {path.stem.split("-")[1]: path.stem.split("-")[2] for path in folder.iterdir()}
    assert after[tags[2]] == tags[0]
