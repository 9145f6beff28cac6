"""Random kills, stops, faults of the network and full disks, seeded; then the replay must agree.

`make soak` runs it for hours, with SOAK="--minutes 240 [--seed 1] [--out DIR]".
"""

import argparse
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.helpers.connect_proxy import Relay
from tests.helpers.whole_federation import Serving, Whole
from trimtab import Scaffold
from trimtab.federation.setup.job import resume_job, start_job
from trimtab.federation.setup.operator import Federation

SITES = "abc"
FATES = {
    **{"kill worker": 3, "kill site": 2},
    **{"kill superlink": 3, "kill rounds": 2},
    **{"stop worker": 2, "stop site": 2},
    **{"stop superlink": 3, "stop rounds": 2},
    **{"hole": 2, "slow": 2, "reset": 2, "full disk of worker": 2, "full disk of rounds": 2},
}
OF_SITES = {"worker": "processes.worker"}


class Chaos(threading.Thread):
    """Does something bad every few seconds, until the time is over; then all is well again."""

    def __init__(self, whole, server, relay, seed, seconds):
        super().__init__(daemon=True)
        self.whole, self.server, self.relay = whole, server, relay
        self.draw, self.until = random.Random(seed), time.monotonic() + seconds
        self.done, self.error = [], None

    def run(self):
        try:
            while time.monotonic() < self.until:
                time.sleep(self.draw.uniform(1, 4))
                fate = self.draw.choices(list(FATES), FATES.values())[0]
                name, seconds = self.draw.choice(SITES), self.draw.uniform(1, 8)
                self.done.append((fate, name, round(seconds, 1)))
                try:
                    self.act(fate, name, seconds)
                except (ProcessLookupError, StopIteration):
                    continue  # it is not there just now
        except BaseException as error:
            self.error = error
        finally:
            self.server.stop.set()

    def act(self, fate, name, seconds):
        how, _, what = fate.partition(" ")
        if fate in ("hole", "slow", "reset"):
            self.relay.fault = fate
            if fate != "slow":
                self.relay.drop()
            time.sleep(seconds)
            self.relay.fault = ""
        elif fate == "kill site":
            self.whole.kill_site(name)
            self.whole.start_site(name)
        elif how == "kill":
            os.kill(self.pid(what, name), signal.SIGKILL)
        elif how == "stop":
            self.stop(what, name, seconds)
        else:
            self.fill(self.pid(what.rpartition(" ")[2], name), seconds)

    def stop(self, what, name, seconds):
        site = self.whole.sites[name]
        whole = [site.pid, *self.whole.descendants(site)]
        pids = whole if what == "site" else [self.pid(what, name)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        for pid in pids:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue

    def fill(self, pid, seconds):
        """Let a process write no file any longer than it is for a while, as on a full disk."""
        _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, most))
        time.sleep(seconds)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))

    def pid(self, what, name):
        if what in OF_SITES:
            below = self.whole.descendants(self.whole.sites[name])
            return next(pid for pid, command in below.items() if OF_SITES[what] in command)
        children = {"superlink": self.server.superlink, "rounds": self.server.rounds}
        return next(pid for pid in [children[what].pid] if pid)


def survive(folder, seed, seconds, say=lambda line: None):
    """Run a federation through all this; check its end, and return what was done and the rounds."""
    whole = Whole(folder, SITES)
    relay = Relay(whole.federation.port)
    whole.lead("b", relay.port)
    try:
        for name in SITES:
            whole.start_site(name)
        with Serving(whole) as server:
            federation = Federation.read(whole.operator)
            options = {"R": 10**6, "min_sites": 2, "round_timeout": 20.0}
            job = start_job(federation, Scaffold(eta_l=0.3, K=4, lean=True), **options)
            chaos = Chaos(whole, server, relay, seed, seconds)
            for event in server.events(job):
                if event.r == 1:
                    chaos.start()
                say(f"round {event.r}: {', '.join(event.cohort)}; {len(chaos.done)} faults")
            chaos.join()
            sites, whole.sites = whole.sites, {}  # they outlive this server
        whole.sites = sites
        if chaos.error is not None:
            raise chaos.error
        done = whole.standing().r
        with Serving(whole) as server:
            resume_job(Federation.read(whole.operator), R=done + 2, min_sites=len(SITES))
            told = server.job(400, R=done + 2, min_sites=len(SITES))
            assert told.rounds[-1].cohort == list(SITES)
            assert told.audit.missing == {}
            assert told.audit.deviation <= 1e-13 * told.audit.largest
            kinds = [line["kind"] for line in whole.journal()]
            assert kinds.count("restore") == 0, "a state was lost"
            whole.check_replay()
    except BaseException:
        print(f"seed {seed}: {chaos.done if 'chaos' in locals() else []}", file=sys.stderr)
        raise
    finally:
        relay.close()
        whole.close()
    return chaos.done, done


def main():
    """Go on with one seed after the other until the time is over."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--minutes", type=float, default=240)
    parser.add_argument("--each", type=float, default=20, help="minutes of one federation")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument(
        "--out", type=Path, help="folder to keep; else it is removed if all is well"
    )
    asked = parser.parse_args()
    until, seed = time.monotonic() + 60 * asked.minutes, asked.seed
    out = asked.out or Path(tempfile.mkdtemp(prefix="trimtab-soak-"))
    print(f"logs: {out}", flush=True)
    while time.monotonic() < until:
        folder = out / str(seed)
        folder.mkdir(parents=True)
        seconds = min(60 * asked.each, until - time.monotonic())
        faults, rounds = survive(folder, seed, seconds, lambda line: print(line, flush=True))
        print(
            f"seed {seed}: {len(faults)} faults, {rounds} rounds, x and every c_i are the replay's"
        )
        seed += 1


if __name__ == "__main__":
    main()
