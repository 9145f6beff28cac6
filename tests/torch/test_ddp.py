"""Two processes with DistributedDataParallel are one client: by hand, Lightning, Hugging Face."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.torch import test_trainers
from tests.torch.test_controls import normal, sgd
from trimtab.torch import Controls

RANK = """
import os, sys, warnings
warnings.simplefilter("ignore")  # of Lightning on few workers, and of what it imports
import torch.distributed as dist
from tests.torch import test_ddp

rank, folder, kind = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
getattr(test_ddp, kind)(rank, folder)
dist.barrier()
os._exit(0)  # Gloo's threads may abort the process while Python ends.
"""
ROOT = Path(__file__).parents[2]
ROWS = normal(8, 3, seed=1)


def start():
    torch.manual_seed(0)
    return nn.Linear(3, 2).double()


def train(called, model, rows, check):
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


def loop(rank, folder):
    model = start()
    shared = nn.parallel.DistributedDataParallel(model)
    with pytest.raises(ValueError, match="check=False"):
        train(shared, model, ROWS[rank::2], check=True)
    model.load_state_dict(start().state_dict())
    torch.save(train(shared, model, ROWS[rank::2], check=False), f"{folder}/{rank}.pt")


def second_round():
    torch.manual_seed(0)
    net = test_trainers.Net()
    return net, *test_trainers.begun(net)


def lightning(rank, folder):
    net, controls, c = second_round()
    # Lightning's own sampler would shuffle.
    steps = {"rows": slice(rank, None, 2), "use_distributed_sampler": False}
    steps |= {"gradient_clip_val": 0.5, "accumulate_grad_batches": 2}
    test_trainers.fit(net, controls, c, strategy="ddp", devices=2, **steps)
    torch.save((net.state_dict(), *controls.end()), f"{folder}/{rank}.pt")


def hugging_face(rank, folder):
    net, controls, c = second_round()
    test_trainers.trained(net, controls, c, 0.5, Path(folder))
    torch.save((net.state_dict(), *controls.end()), f"{folder}/{rank}.pt")


def of_one_process(kind):
    if kind is loop:
        return train(model := start(), model, ROWS, check=True)
    net, *_ = second_round()
    return net.state_dict(), *test_trainers.by_hand(net, 0.5, rows=4)


@pytest.mark.parametrize(
    ("kind", "needs"), [(loop, "torch"), (lightning, "lightning"), (hugging_face, "transformers")]
)
def test_two_processes_take_the_steps_of_one(kind, needs, tmp_path):
    if not find_spec(needs):
        pytest.skip(f"needs {needs}")
    gloo = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    ranks = []
    try:
        for rank in map(str, range(2)):
            # As torchrun sets them; nothing listens on the port, since a file is where they meet.
            place = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": "0", "MASTER_PORT": "1"}
            size = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
            command = [sys.executable, "-c", RANK, rank, str(tmp_path), kind.__name__]
            ranks.append(
                subprocess.Popen(command, cwd=ROOT, env={**os.environ, **gloo, **place, **size})
            )
        assert [rank.wait(240) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for rank in range(2):
        torch.testing.assert_close(
            torch.load(tmp_path / f"{rank}.pt"), of_one_process(kind), rtol=0, atol=1e-12
        )
