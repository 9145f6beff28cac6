"""Kill a federation by SIGKILL at every durable write, go on in another process, and compare.

    python -m tests.helpers.killed_at FOLDER

The processes are forks of this one; a fork that is killed leaves its folders as a crash would.
"""

import logging
import os
import signal
import sys
from pathlib import Path

import torch

from tests.helpers.federation_in_process import Federation, quadratic
from trimtab import Scaffold, simulate
from trimtab.commit import States

POINTS = [
    f"{what}:{when}-{name}"
    for what, name in (
        *(("site", "pending"), ("site", "restored"), ("site", "reply"), ("site", "sent")),
        *(("server", "journal"), ("server", "checkpoint"), ("server", "asked")),
    )
    for when in ("before", "within", "after")
    if (when, name) not in (("within", "journal"), ("within", "sent"))  # lines that are appended
]

SCAFFOLD = Scaffold(eta_l=0.1, K=3)
PROBLEM = quadratic()


def killed(folder, point):
    """Run in a fork until it dies at the second time it gets to this point."""
    child = os.fork()
    if child:
        return os.WTERMSIG(os.waitpid(child, 0)[1])
    os.environ["TRIMTAB_FAULT"] = f"{point}@1" if "restored" in point else f"{point}@2"
    federation = Federation(folder, SCAFFOLD, PROBLEM, R=5)
    for done in federation.server.run(federation.ask):
        if "restored" in point and done.r == 2:
            experiment = federation.server.standing.experiment
            for state in States(folder / "site1" / experiment).files().values():
                (folder / "site1" / experiment / str(state)).unlink()
    os._exit(0)


def check(folder, point):
    assert killed(folder, point) == signal.SIGKILL, f"{point} is never reached"
    federation = Federation(folder, SCAFFOLD, PROBLEM, R=5)
    federation.run()
    audit = federation.server.audit(federation.ask)
    assert not audit.missing, point
    assert audit.deviation <= 1e-13 * audit.largest, point
    cohorts = federation.cohorts()
    assert len(cohorts) == 5, point
    *_, last = simulate(SCAFFOLD, PROBLEM, seed=3, cohorts=cohorts, executor="loop")
    x, tolerance = federation.server.standing.server.x, 1e-14 if "restored" in point else 0
    assert torch.dist(x, last.x) <= tolerance, point  # a restored c_i is right up to rounding
    federation.close()


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    for point in POINTS:
        check(Path(sys.argv[1]) / point, point)
    print(len(POINTS))
