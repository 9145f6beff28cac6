"""Two processes with DistributedDataParallel are one client."""

import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from tests.torch.test_controls import normal, sgd
from trimtab.torch import Controls

RANK = """
import os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from tests.torch.test_ddp import ROWS, start, trained

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
model = start()
shared = DistributedDataParallel(model)
try:
    trained(shared, model, ROWS[rank::2], check=True)
except ValueError as error:
    assert "check=False" in str(error), error
else:
    raise AssertionError("DistributedDataParallel does not change gradients any more")
model.load_state_dict(start().state_dict())
torch.save(trained(shared, model, ROWS[rank::2], check=False), f"{folder}/{rank}.pt")
dist.barrier()
os._exit(0)  # Gloo's threads may abort the process while Python ends.
"""
ROOT = Path(__file__).parents[2]
ROWS = normal(8, 3, seed=1)


def start():
    torch.manual_seed(0)
    return nn.Linear(3, 2).double()


def trained(called, model, rows, check):
    """Train in a client's second round; return its parameters, dc and K."""
    controls, optimizer = Controls(model, check=check), sgd(model.parameters())
    controls.c_i = {name: normal(*v.shape, seed=2) for name, v in controls.c_i.items()}
    c = {name: normal(*v.shape, seed=3) for name, v in controls.c_i.items()}
    controls.begin(c, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        called(rows).square().mean().backward()
        controls.correct()
        optimizer.step()
    return model.state_dict(), *controls.end()


def test_two_processes_take_the_steps_of_one(tmp_path):
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path)], cwd=ROOT, env=environment
        )
        for rank in range(2)
    ]
    try:
        assert [rank.wait(120) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    expected = trained(model := start(), model, ROWS, check=True)
    for rank in range(2):
        torch.testing.assert_close(
            torch.load(tmp_path / f"{rank}.pt"), expected, rtol=0, atol=1e-12
        )
