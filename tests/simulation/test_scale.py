"""Memory grows with what is kept: not with N, nor with the uploads or new states of a cohort."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="peak memory is read from /proc"
)

CHILD = """
import json, sys
from pathlib import Path
import torch
from torch import nn
from torch.nn import functional as F
from trimtab import FedAvg, Mime, MimeLite, Momentum, Scaffold, Simulation, Supervised, simulate

class Lazy:
    def __init__(self, N):
        self.N, self.read = N, 0

    def __len__(self):
        return self.N

    def __getitem__(self, i):
        self.read += 1
        draw = torch.Generator().manual_seed(i)
        return torch.randn(2, width, generator=draw), torch.tensor([i % 2, 1])

class Far:
    # N clients whose gradient costs nothing
    def __init__(self, N, d):
        self.N, self.d = N, d
        self.weights = torch.full((1,), 1 / N, dtype=torch.float64).expand(N)

    def x0(self, seed=0):
        return torch.zeros(self.d)

    def oracle(self, i, seed, r):
        return lambda y, k=None: torch.full_like(y, i / self.N)

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM"))

def growth(few, many):
    # what `many` takes at its peak beyond the peak of `few`
    few()
    before = peak()
    many()
    return peak() - before

width = 20
torch.set_num_threads(1)
"""


def child(code, *arguments):
    """Run code in a process of its own; return what it puts into `found`."""
    text = CHILD + code + "\nprint(json.dumps(found))"
    command = [sys.executable, "-c", text, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return json.loads(done.stdout)


LAZY = """
read = []

def some_rounds(algorithm, N, path):
    clients = Lazy(N)
    problem = Supervised(lambda: nn.Linear(width, 2), F.cross_entropy, clients, batch=1)
    sim = simulate(algorithm, problem, S=20, lost=0.1)
    for _ in range(3):
        next(sim)
    sim.save(path)
    next(Simulation.load(path, algorithm, problem))
    read.append(clients.read)

found = {}
for kind in (MimeLite, Mime, Scaffold):
    algorithm = (
        Scaffold(eta_l=0.1, K=2) if kind is Scaffold else kind(eta=0.1, K=2, base=Momentum())
    )
    few, many = (lambda N=N: some_rounds(algorithm, N, sys.argv[1]) for N in (10**3, 10**6))
    found[kind.__name__] = growth(few, many)
found["most read"] = max(read)
"""


def test_a_million_lazy_clients_take_no_more_memory_than_a_thousand(tmp_path):
    found = child(LAZY, tmp_path / "sim")
    assert found.pop("most read") <= 4 * 20
    assert max(found.values()) < 5, found  # MB; a million numbers are 8


COHORT = """
memory = json.loads(sys.argv[1])
kind = FedAvg if memory is None else Scaffold
d = 100_000  # a thousand uploads are 400 MB

def a_round(S, executor):
    sim = simulate(kind(eta_l=0.1, K=1), Far(2000, d), S=S, executor=executor, memory=memory)
    next(sim)
    states = sim.states
    assert memory is None or states.in_memory <= memory
    assert memory is None or states.in_memory + states.on_disk >= S * 4 * d

found = {
    name: growth(lambda: a_round(100, name), lambda: a_round(1000, name))
    for name in ("loop", "threads", "batched")
}
"""


@pytest.mark.parametrize("memory", [None, 20_000_000], ids=["stateless", "stateful"])
def test_a_thousand_uploads_or_new_states_never_exist_at_once(memory):
    found = child(COHORT, json.dumps(memory))
    assert max(found.values()) < 100, found  # MB; 900 more of them would be 360


SAVED = """
algorithm, problem = Scaffold(eta_l=0.1, K=1), Far(2000, 100_000)

def saved(R):
    cohorts = [range(100 * r, 100 * r + 100) for r in range(R)]
    sim = simulate(algorithm, problem, cohorts=cohorts, memory=20_000_000)
    for _ in sim:
        pass
    sim.save(sys.argv[1])
    again = Simulation.load(sys.argv[1], algorithm, problem, memory=20_000_000)
    assert list(again.states) == list(sim.states)
    assert all(torch.equal(again.states[i], sim.states[i]) for i in (0, 100 * R - 1))

found = growth(lambda: saved(1), lambda: saved(6))
"""


def test_saving_and_loading_do_not_bring_the_states_into_memory(tmp_path):
    assert child(SAVED, tmp_path / "sim") < 100  # MB; the states of 500 clients more are 200 MB
