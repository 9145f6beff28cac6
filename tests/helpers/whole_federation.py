"""A whole federation of real processes on loopback, for tests: started, watched, killed, ended."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from trimtab import Supervised, simulate
from trimtab.commit import START, States
from trimtab.federation.events import AuditDone, Ended, RoundCommitted
from trimtab.federation.log import attached
from trimtab.federation.processes.operator import OperatorProcess
from trimtab.federation.processes.ports import free_port
from trimtab.federation.setup.job import resume_job, start_job
from trimtab.federation.setup.operator import Federation, create
from trimtab.federation.setup.site import DRAWS, SERVERS_SEED, unpack
from trimtab.federation.storage.files import read_sealed, write_sealed
from trimtab.federation.storage.journal import rounds_of
from trimtab.federation.storage.keys import write_secret
from trimtab.federation.storage.ledger import read_journal, read_standing

PROBLEM = '''\
"""Two classes in three dimensions; each site has its own slant."""

import torch
from torch import nn
from torch.nn import functional as F


def model():
    return nn.Linear(3, 2).double(), F.cross_entropy


def silo(data):
    slant = int(data.name)
    draw = torch.Generator().manual_seed(slant)
    X = torch.randn(50, 3, generator=draw, dtype=torch.float64)
    y = (X[:, 0] + slant * X[:, 1] > 0).long()
    return (X[:30], y[:30]), (X[30:], y[30:])
'''
BATCH = 8
QUIET = {"OMP_NUM_THREADS": "1", "TRIMTAB_OFFLINE": "1"}


def silo(slant):
    """Return the parts of a site's data, as the file above does."""
    space = {}
    exec(PROBLEM, space)
    return space["silo"](Path(str(slant)))


def simulator_problem(N):
    """Return the problem as one process sees it."""
    clients, tests = zip(*(silo(i) for i in range(N)), strict=True)
    X, y = zip(*tests, strict=True)
    test = torch.cat(X), torch.cat(y)
    return Supervised(lambda: nn.Linear(3, 2).double(), F.cross_entropy, clients, test, BATCH)


@dataclass
class Told:
    """What the operator's process told of a job."""

    rounds: list[RoundCommitted] = field(default_factory=list)
    audit: AuditDone | None = None
    end: Ended | None = None


class Serving(OperatorProcess):
    """A server within the test's own process; SuperLink and rounds are processes of their own."""

    def __init__(self, whole):
        self.whole = whole
        self._kept = attached(whole.operator / "logs" / "server.log")
        super().__init__(whole.operator)
        self._kept.__enter__()

    def job(self, seconds=240, on_round=None, state="state", algorithm=None, **options):
        """Do a job to its end; return what came of it."""
        begun = read_standing(self.federation.folder / state) is not None
        federation = Federation.read(self.federation.folder)
        if begun:
            job = resume_job(federation, **options)
        else:
            job = start_job(federation, algorithm, state=state, **options)
        alarm = threading.Timer(seconds, self.stop.set)
        alarm.start()
        told = Told()
        try:
            for event in self.events(job):
                if isinstance(event, RoundCommitted):
                    told.rounds.append(event)
                    if on_round is not None:
                        on_round(event)
                elif isinstance(event, AuditDone):
                    told.audit = event
                else:
                    told.end = event
        finally:
            alarm.cancel()
        assert not self.interrupted, f"not done in {seconds} seconds:\n{self.whole.logs()}"
        return told

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.close()
        self._kept.__exit__(None, None, None)
        self.whole.close()


class Whole:
    """An operator's folder, and sites 'a', 'b', … whose data are slanted by 0, 1, …."""

    def __init__(self, folder, names, problem=PROBLEM, batch=BATCH, **more):
        self.folder, self.names = folder, list(names)
        (folder / "problem.py").write_text(problem)
        self.operator = folder / "operator"
        self.federation = create(
            self.operator,
            self.names,
            folder / "problem.py",
            **{"weights": "uniform", "batch": batch, "hosts": ["127.0.0.1"]} | more,
            port=free_port(),
        )
        self.server = None
        self.sites = {}
        self.everybody = set()
        for number, name in enumerate(self.names):
            self.unpack(name, number)

    def unpack(self, name, number):
        folder = unpack(self.federation.archive(name), self.folder / "sites")
        write_secret(folder / DRAWS, SERVERS_SEED)  # for the replay in the simulator
        (self.folder / "data" / name).mkdir(parents=True)
        (self.folder / "data" / name / str(number)).mkdir()

    def data(self, name):
        (path,) = (self.folder / "data" / name).iterdir()
        return path

    # -- processes

    def lead(self, name, port):
        """Let a site reach the server by another port."""
        path = self.folder / "sites" / name / "site.json"
        facts = read_sealed(path)
        host, _, _ = facts["server"].rpartition(":")
        write_sealed(path, facts | {"server": f"{host}:{port}"})

    def start_site(self, name, folder=None, **environment):
        where = folder or self.folder / "sites" / name
        command = ("site", str(where), "--data", str(self.data(name)))
        process = self._start(command, where / "logs" / "output.log", environment)
        self.sites[where.name] = process
        return process

    def start_server(self, *command, **environment):
        self.server = self._start(command, self.operator / "logs" / "output.log", environment)
        return self.server

    def _start(self, command, output, environment):
        output.parent.mkdir(parents=True, exist_ok=True)
        with open(output, "ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "trimtab", "federate", *command],
                stdout=subprocess.PIPE,
                stderr=file,
                env={**os.environ, **QUIET, **environment},
                start_new_session=True,
            )
        return process

    def run(self, *command, timeout=240, **environment):
        """Run a server command to its end; return what it printed as JSON."""
        process = self.start_server(*command, "--json", **environment)
        return self.finish(process, timeout)

    def finish(self, process, timeout=240):
        try:
            out, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the server did not end:\n{self.logs()}") from None
        assert process.returncode == 0, self.logs()
        return json.loads(out)

    def descendants(self, process):
        """Return the process ids below a process, by what they run."""
        below = {}
        for path in Path("/proc").iterdir():
            if path.name.isdigit():
                try:
                    parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                    command = (path / "cmdline").read_text().replace("\0", " ")
                except (OSError, ValueError):
                    continue
                below[int(path.name)] = parent, command
        found, new = {}, {process.pid}
        while new:
            new = {pid for pid, (parent, _) in below.items() if parent in new}
            found |= {pid: below[pid][1] for pid in new}
        self.everybody |= set(found)
        return found

    def pid_of(self, process, what, seconds=60):
        """Return the id of the descendant whose command has `what` in it."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for pid, command in self.descendants(process).items():
                if what in command:
                    return pid
            time.sleep(0.05)
        raise AssertionError(f"no process runs {what}:\n{self.logs()}")

    def kill(self, process, what):
        """Kill -9 one of the processes below a process."""
        os.kill(self.pid_of(process, what), signal.SIGKILL)

    def kill_site(self, name):
        """Kill -9 all processes of a site at once, as a power failure would."""
        process = self.sites.pop(name)
        for pid in [process.pid, *self.descendants(process)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.communicate()

    def stop(self, process, number=signal.SIGTERM, timeout=40):
        """Ask a process to end, and see that nothing below it is left."""
        below = self.descendants(process)
        if process.poll() is None:
            process.send_signal(number)
        process.communicate(timeout=timeout)
        left = [pid for pid in below if Path(f"/proc/{pid}").exists() and not _zombie(pid)]
        assert not left, f"{[below[pid] for pid in left]} outlived their parent"
        return process.returncode

    def close(self):
        processes = [*self.sites.values(), *([self.server] if self.server else [])]
        for process in processes:
            self.descendants(process)
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in processes:
            try:
                process.communicate(timeout=40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
        for pid in self.everybody:
            if Path(f"/proc/{pid}/cmdline").exists():
                command = Path(f"/proc/{pid}/cmdline").read_text()
                if str(self.folder) in command:
                    os.kill(pid, signal.SIGKILL)

    # -- what they leave

    def log(self, site=None):
        folder = self.operator if site is None else self.folder / "sites" / site
        path = folder / "logs" / ("server.log" if site is None else "site.log")
        return path.read_text() if path.exists() else ""

    def wait_for(self, text, site=None, seconds=120, times=1):
        """Wait until a log says something."""
        until = time.monotonic() + seconds
        while self.log(site).count(text) < times:
            assert time.monotonic() < until, f"{text!r} was not said:\n{self.logs()}"
            time.sleep(0.1)

    def wait_for_rounds(self, r, seconds=120):
        """Wait until round r is committed."""
        until = time.monotonic() + seconds
        while True:
            standing = self.standing()
            if standing is not None and standing.r >= r:
                return
            assert time.monotonic() < until, f"no round {r}:\n{self.logs()}"
            time.sleep(0.1)

    def standing(self, state="state"):
        return read_standing(self.operator / state)

    def journal(self, state="state"):
        return read_journal(self.operator / state, self.standing(state))

    def logs(self):
        found = []
        for path in sorted(self.folder.rglob("*.log")):
            lines = path.read_text(errors="replace").splitlines()
            found += [f"== {path.relative_to(self.folder)}", *lines[-12:]]
        return "\n".join(found)

    def control(self, name, state="state"):
        """Return the c_i that the server counts on, from the site's own disk."""
        standing = self.standing(state)
        accepted = standing.member(name).accepted.tag
        if accepted == START:
            return torch.zeros_like(standing.server.x)
        folder = self.folder / "sites" / name / "state" / standing.experiment
        return States(folder).load(accepted)[0]["0"]

    def replay(self, state="state"):
        """Run the recorded cohorts through the simulator; return the simulation at its end."""
        standing = self.standing(state)
        cohorts = [line["clients"] for line in rounds_of(self.journal(state))]
        problem = simulator_problem(len(self.names))
        sim = simulate(
            standing.algorithm, problem, seed=standing.seed, cohorts=cohorts, executor="loop"
        )
        for _ in sim:
            pass
        return sim

    def check_replay(self, state="state"):
        """Compare x, c and every c_i with the replay, bit for bit."""
        sim, standing = self.replay(state), self.standing(state)
        assert sim.r == standing.r
        assert torch.equal(sim.server.x, standing.server.x)
        if hasattr(standing.server, "c"):
            assert torch.equal(sim.server.c, standing.server.c)
            for number, name in enumerate(self.names):
                if number in sim.states:
                    assert torch.equal(sim.states[number], self.control(name, state)), name


def _zombie(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
