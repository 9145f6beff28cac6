"""A loop of one's own that is killed at any point continues from its files, to the same bits."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from tests.torch.test_controls import counted, difference, far, normal, sgd
from trimtab.torch import Controls, ServerControls

ROOT = Path(__file__).parents[2]
ROUNDS, COHORTS = 8, ((0, 1), (2, 0), (1, 2))
POINTS = ("client saved", "reply received", "round over", "server saved")


def save(state, path):
    torch.save(state, f"{path}.new")
    os.replace(f"{path}.new", path)


def train(folder, point=lambda name: None):
    """Train from what the folder has to the end; return the server and the clients' controls."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    server, controls, done = ServerControls(model, N=3), [Controls(model) for _ in range(3)], 0
    for i in range(3):
        if (folder / f"{i}.pt").exists():
            controls[i].load_state_dict(torch.load(folder / f"{i}.pt"))
    if (folder / "server.pt").exists():
        done, state = torch.load(folder / "server.pt")
        server.load_state_dict(state)
    for r in range(done, ROUNDS):
        for i in COHORTS[r % 3]:
            x, c, accepted = server.send(i)
            model.load_state_dict(x)
            optimizer = sgd(model.parameters())
            controls[i].begin(c, optimizer, accepted=accepted)
            for k in range(3):
                optimizer.zero_grad()
                model(normal(4, 3, seed=100 * r + 10 * i + k)).sub(i).square().mean().backward()
                controls[i].correct()
                optimizer.step()
            dc, _ = controls[i].end()
            save(controls[i].state_dict(), folder / f"{i}.pt")
            point("client saved")
            server.receive(i, difference(model, x), dc, controls[i].tag)
            point("reply received")
        server.step()
        point("round over")
        save((r + 1, server.state_dict()), folder / "server.pt")
        point("server saved")
    return server, controls


def live(folder):
    """Live until the training is over: each life is killed at a point that is drawn."""
    draw = random.Random(0)
    while True:
        left = draw.randint(1, 12)
        child = os.fork()
        if child == 0:

            def point(name):
                nonlocal left
                left -= 1
                if not left:
                    with (folder / "killed").open("a") as log:
                        log.write(f"{name}\n")
                    os.kill(os.getpid(), signal.SIGKILL)

            train(folder, point)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if not os.WIFSIGNALED(status):
            raise SystemExit(os.waitstatus_to_exitcode(status))


def test_a_loop_that_is_killed_ends_as_one_that_is_not(tmp_path):
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    alone.mkdir()
    killed.mkdir()
    code = "import sys; from pathlib import Path; from tests.torch.test_restart import live\n"
    subprocess.run(
        [sys.executable, "-c", f"{code}live(Path(sys.argv[1]))", str(killed)],
        **{"cwd": ROOT, "check": True, "timeout": 300},
    )
    assert {*(killed / "killed").read_text().splitlines()} == {*POINTS}
    (server, controls), (expected, _) = train(killed), train(alone)
    assert far(server.x, expected.x) == far(server.c, expected.c) == 0
    assert far(server.c, counted(server, controls)) < 1e-13
    assert far(server.c, ServerControls(nn.Linear(3, 2).double(), N=1).c) > 0.01
