"""Every executor gives the loop's result, for every algorithm; none of them knows one."""

import copy
import os
import pickle
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from shutil import which

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers.small_runs import ALGORITHMS
from trimtab import FedAvg, Scaffold, Supervised, simulate
from trimtab.algorithms import fedopt
from trimtab.compute import kernel as native
from trimtab.compute.lazy import LazyVector, NotLazyError, eager
from trimtab.core import leaves, map_leaves
from trimtab.core.replies import Tally
from trimtab.problems.catalogue import quadratic_problem
from trimtab.simulation import executors
from trimtab.simulation.executors import batched
from trimtab.simulation.executors.threads import Threads

OTHERS = [name for name in executors.EXECUTORS if name != "loop"]
SIZES = (7, 12, 5, 9, 20, 6, 11, 8, 14, 10, 13, 6)


def clients(dtype=torch.float64, features=6, classes=5):
    draw = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(n, features, generator=draw, dtype=dtype),
            torch.randint(classes, (n,), generator=draw),
        )
        for n in SIZES
    ]


def linear(**options):
    return Supervised(lambda: nn.Linear(6, 5), F.cross_entropy, clients(**options), batch=4, l2=0.1)


def unweighted(**options):
    return Supervised(lambda: nn.Linear(6, 5), F.cross_entropy, clients(**options), batch=0.3)


def mlp(**options):
    def build():
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))

    return Supervised(build, F.cross_entropy, clients(**options), batch=4, weights="samples")


def autograd(**options):
    def build():
        return nn.Sequential(nn.Linear(6, 8), nn.Softplus(), nn.Linear(8, 5))

    return Supervised(build, F.cross_entropy, clients(**options), weights=range(1, 13), batch=4)


def dropout(**options):
    def build():
        return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 5))

    return Supervised(build, F.cross_entropy, clients(**options), batch=4)


PROBLEMS = {f.__name__: f for f in (linear, unweighted, mlp, autograd, dropout)}
PROBLEMS["quadratic"] = partial(quadratic_problem, d=6, sigma=0.1)


def after(algorithm, problem, executor, rounds=8, **options):
    sim = simulate(algorithm, problem, S=7, lost=0.1, seed=3, executor=executor, **options)
    for _ in range(rounds):
        done = next(sim)
    return sim, done


def test_in_eight_rounds_every_client_comes_back():
    """A state that is kept wrongly is seen when its client comes again."""
    sim = simulate(FedAvg(eta_l=0.1, K=1), linear(), S=7, lost=0.1, seed=3)
    came = Counter(i for done in islice(sim, 8) for i in done.cohort)
    assert min(came[i] for i in range(len(SIZES))) >= 2


@lru_cache(maxsize=1)
def by_the_loop(algorithm, problem):
    made = PROBLEMS[problem]()
    return made, *after(algorithm, made, "loop")


@pytest.mark.parametrize("executor", OTHERS)  # the first to change: they share the loop's run
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_it_gives_the_loops_result(algorithm, problem, executor):
    made, reference, expected = by_the_loop(algorithm, problem)
    sim, found = after(algorithm, made, executor)
    assert (found.x - expected.x).norm() <= 1e-10 * (1 + expected.x.norm())
    assert list(sim.states) == list(reference.states)
    for i in sim.states:
        torch.testing.assert_close(sim.states[i], reference.states[i], rtol=1e-9, atol=1e-9)
    for fact in ("cohort", "bytes_down", "bytes_up"):
        assert getattr(found, fact) == getattr(expected, fact)
    for fact in ("drift", "cosine", "spread"):
        a, b = getattr(found, fact), getattr(expected, fact)
        assert a == pytest.approx(b, rel=1e-6, abs=1e-7, nan_ok=True)


@pytest.mark.parametrize("executor", OTHERS)
@pytest.mark.parametrize("problem", ["linear", "mlp", "autograd"])
def test_float32_stays_near_for_small_steps(problem, executor):
    made = PROBLEMS[problem](dtype=torch.float32)
    algorithm = Scaffold(eta_l=0.05, K=5)  # a stable run: L is about 1
    expected, found = (after(algorithm, made, name)[1].x for name in ("loop", executor))
    assert found.dtype == torch.float32
    assert (found - expected).norm() <= 1e-4 * expected.norm()


@pytest.mark.parametrize("problem", ["linear", "mlp", "dropout"])
def test_the_bits_do_not_depend_on_the_number_of_workers(monkeypatch, problem):
    found = []
    for count in (1, 2, 3):
        monkeypatch.setitem(executors.EXECUTORS, "threads", Threads(count))
        sim, done = after(Scaffold(eta_l=0.1, K=3), PROBLEMS[problem](), "threads", rounds=6)
        found.append((done.x, *(sim.states[i] for i in sim.states)))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("executor", executors.EXECUTORS)
def test_a_run_resumes_bit_for_bit(tmp_path, executor):
    algorithm, problem = Scaffold(eta_l=0.1, K=3), linear()
    sim, _ = after(algorithm, problem, executor, rounds=4)
    sim.save(tmp_path / "sim")
    again = type(sim).load(tmp_path / "sim", algorithm, problem)
    assert again.executor == executor
    for _ in range(4):
        assert torch.equal(next(again).x, next(sim).x)


@pytest.mark.parametrize("executor", executors.EXECUTORS)
def test_a_client_state_holds_no_more_memory_than_its_own(executor):
    sim, _ = after(Scaffold(eta_l=0.1, K=3), linear(), executor, rounds=2)
    for i in sim.states:
        state = sim.states[i]
        assert state.untyped_storage().nbytes() == state.numel() * state.element_size()


def test_auto_says_what_it_chose():
    assert simulate(FedAvg(eta_l=0.1, K=1), quadratic_problem()).executor == "loop"
    assert simulate(FedAvg(eta_l=0.1, K=1), linear()).executor == "batched"
    assert simulate(FedAvg(eta_l=0.1, K=1), dropout()).executor == "loop"


def test_auto_does_not_ask_for_the_number_of_cores(monkeypatch):
    def build():
        return nn.Sequential(nn.Linear(100, 100), nn.Softplus(), nn.Linear(100, 5))

    problem = Supervised(build, F.cross_entropy, clients(features=100))
    for count in (1, 2, 64):
        monkeypatch.setattr(native.library, "cores", lambda count=count: count)
        monkeypatch.setattr("trimtab.simulation.executors.threads.cores", lambda count=count: count)
        assert executors.choose(problem, S=2).name == "threads"
        assert executors.choose(problem, S=1).name == "loop"


@pytest.mark.parametrize("executor", executors.EXECUTORS)
@pytest.mark.parametrize("problem", ["linear", "mlp", "dropout"])
def test_only_fused_may_give_other_bits_on_other_cores(monkeypatch, problem, executor):
    assert (executors.EXECUTORS[executor].threads == "all") == (executor == "fused")
    found = []
    for count in (1, 2, 3):
        monkeypatch.setattr(native.library, "cores", lambda count=count: count)
        monkeypatch.setattr("trimtab.simulation.executors.threads.cores", lambda count=count: count)
        made = PROBLEMS[problem]()
        sim, done = after(Scaffold(eta_l=0.1, K=3), made, executor, rounds=6)
        states = tuple(sim.states[i] for i in sim.states)
        found.append((done.x, *states, torch.tensor(list(made.evaluate(done.x).values()))))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("executor", ["batched", "threads"])
def test_the_uploads_of_a_cohort_never_exist_all_at_once(monkeypatch, executor):
    """A thousand clients: no more than a chunk, or a block for each worker, is alive."""
    few = clients(features=2, classes=2)[:1]
    problem = Supervised(
        lambda: nn.Sequential(nn.Linear(2, 2), nn.Softplus()), F.cross_entropy, few * 1000
    )
    seen = []
    merge = Tally.merge

    def counting(self, other):
        seen.append(len(other))
        merge(self, other)

    monkeypatch.setattr(Tally, "merge", counting)
    next(simulate(FedAvg(eta_l=0.1, K=1), problem, executor=executor))
    assert sum(seen) == 1000
    assert max(seen) <= batched.WAVE


def test_without_the_kernel_everything_is_the_same(monkeypatch):
    expected = after(Scaffold(eta_l=0.1, K=3), linear(), "batched")[1].x
    monkeypatch.setattr(native, "works", lambda dtype: False)
    monkeypatch.setattr(native.library, "function", lambda *arguments: None)
    found = after(Scaffold(eta_l=0.1, K=3), linear(), "batched")[1].x
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.skipif(os.environ.get("TRIMTAB_NATIVE") == "0", reason="told to do without")
@pytest.mark.skipif(not (sys.platform == "linux" and which("gcc")), reason="no compiler here")
def test_the_kernel_is_built_and_right_where_there_is_a_compiler():
    """The build is optional, so a broken kernel would otherwise go unnoticed."""
    assert native.simd_level() is not None
    assert native.works(torch.float32)
    assert native.works(torch.float64)


def test_combinations_are_vectors():
    a, b = torch.randn(4), torch.randn(4)
    A, B = LazyVector.of(a), LazyVector.of(b)
    torch.testing.assert_close((A - 0.5 * (B - A + B) / 2).tensor(), a - 0.5 * (b - a + b) / 2)
    torch.testing.assert_close((-A + b).tensor(), -a + b)
    torch.testing.assert_close(b - A, b - a)
    torch.testing.assert_close(torch.sqrt(A**2) * B, torch.sqrt(a**2) * b)
    torch.testing.assert_close(B / (torch.sqrt(A**2) + 1), b / (torch.sqrt(a**2) + 1))
    assert (A - A).tensor().abs().max() == 0
    assert torch.zeros_like(A).shape == a.shape


@pytest.mark.parametrize(
    "f",
    [
        lambda v: abs(v) + 1,
        lambda v: 1 - v,
        lambda v: 1 / (2 + v * v),
        lambda v: 2**v - +v,
        lambda v: sum([v, v]) // 1 + v % 1,
        lambda v: torch.where(v > 0, v, -0.1 * v),
        lambda v: v * ((v <= 0.5) & (v != 0)),
        lambda v: v == v,
        lambda v: torch.stack(list(v)) + v[0] + len(v) + float(v[1]),
        lambda v: (v @ v) * v,
        lambda v: torch.stack([v, 2 * v]).sum(0) + torch.cat((v, v))[:4],
        lambda v: v.clamp(-0.5, 0.5),
        lambda v: np.float32(0.5) * v + v * np.float64(2) - np.int64(3) * v,
        lambda v: torch.tensor(0.5) * v + v * torch.tensor(2.0) - v / torch.tensor(3),
        lambda v: v + torch.arange(4) - torch.arange(4) / 3,
        lambda v: v / 0.0,
        lambda v: True * v,
        lambda v: ~(v > 0) | (v < 0.5) ^ (v == 0),
        lambda v: copy.deepcopy(v) + 0,
        lambda v: divmod(7, 2)[0] % v,
        lambda v: torch.as_tensor(v) + 0,
        lambda v: torch.tensor(float(f"{v[0]:.3f}")),
        lambda v: v.double() + v,
        lambda v: map_leaves(torch.sign, (v, (v,)))[1][0],
        lambda v: sum(leaves((v, 2 * v)), start=torch.zeros(4)),
    ],
)
def test_whatever_is_not_linear_is_computed_on_the_tensor(f):
    a = torch.randn(4)
    found, expected = eager(f(0.5 * LazyVector.of(a) - a)), f(0.5 * a - a)
    torch.testing.assert_close(found, expected)


def test_a_change_in_place_reaches_those_that_a_tensors_would():
    a = torch.ones(4)
    x = LazyVector.of(a)
    y = 1.0 * x
    same, first = y, y[:1]
    assert y.add_(1) is y
    y[0] = 7
    y += x
    assert a.tolist() == x.tolist() == [1, 1, 1, 1]
    assert y.tolist() == same.tolist() == [8, 3, 3, 3]
    assert first.tolist() == [8]


def test_a_sum_of_what_was_changed_meanwhile_is_not_computed():
    x, t = LazyVector.of(torch.ones(4)), torch.ones(4)
    y = 1.0 * x
    y.tensor()
    z, w = y + x, x - t
    y.add_(1)
    t.add_(1)
    for stale in (z, w):
        with pytest.raises(NotLazyError):
            stale.tensor()
    assert (y + x).tolist() == [3, 3, 3, 3]
    assert (x - t).tolist() == [-1, -1, -1, -1]


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v.add_(1),
        lambda v: v.__setitem__(0, 1),
        lambda v: v.__iadd__(1),
        lambda v: torch.relu_(v),
        lambda v: torch.neg(v, out=v),
        lambda v: F.relu(v, inplace=True),
        lambda v: v.data,
        lambda v: v.numpy(),
        lambda v: np.asarray(v),
        copy.copy,
        pickle.dumps,
    ],
)
def test_what_only_a_tensor_can_do_is_left_to_tensors(change):
    a = -torch.ones(4)
    with pytest.raises(NotLazyError):
        change(LazyVector.of(a))
    assert a.tolist() == [-1, -1, -1, -1]


def test_every_operator_of_a_tensor_is_there():
    """Python looks operators up in the class, where no __getattr__ helps."""
    special = {name for name in dir(torch.Tensor) if name.startswith("__")}
    outdated = {"__div__", "__idiv__", "__rdiv__", "__long__", "__nonzero__"}
    of_memory = {name for name in special if "dlpack" in name or "array" in name}
    not_operators = {"__annotations__", "__dict__", "__weakref__", "__setstate__", "__module__",
                     "__slotnames__", "__torch_dispatch__", "__delitem__"}  # fmt: skip
    missing = {
        name
        for name in special - outdated - of_memory - not_operators
        if not any(name in vars(c) for c in LazyVector.__mro__ if c is not object)
        and name not in dir(object)
    }
    assert missing == set()


@dataclass(frozen=True)
class Signs:
    """Somebody's own algorithm, with nothing linear in it, on either side."""

    K: int = 3

    def init_server(self, x):
        return fedopt.Server(x, torch.zeros_like(x))

    def init_client(self, x):
        return torch.zeros_like(x)

    def local(self, g, m, x):
        y = x.clone()
        for k in range(self.K):
            v = g(y, k)
            m = torch.where(abs(v) > 0.1, 1 - m, 0.5 * m + v)
            y.sub_(0.05 * torch.sign(m) / (1 + v * v))
        return fedopt.Upload(y - x), m

    def round(self, server, clients):
        x, s = server
        (dx,) = clients.run(self.local, x).mean()
        s = s + dx
        s[dx > 0] = 1 / 8
        return fedopt.Server(x + dx * (abs(dx) < 1) - 0.01 * s, s)


class Clipped(Signs):
    """One that looks at its vectors as a whole, and counts its steps in the client's state."""

    def init_client(self, x):
        return torch.zeros(())

    def local(self, g, t, x):
        y = x
        for k in range(self.K):
            v = g(y, k)
            scale = 1.0 if v.norm() < 0.3 else 0.3 / v.norm()
            y = y - scale * v / (1 + t) ** 0.5
            t = t + 1
        return fedopt.Upload(y - x), t


class Sorted(Signs):
    """One whose functions keep the shape, but mix the numbers."""

    def local(self, g, m, x):
        v = g(x, 0)
        step = v * (abs(v) >= abs(v).sort(descending=True).values[3]) + torch.cumsum(m, 0)
        return fedopt.Upload(-0.1 * step), 0.1 * torch.softmax(v, 0)


class Constant(Signs):
    """One that says something that does not depend on the client."""

    def local(self, g, m, x):
        return fedopt.Upload(-0.1 * torch.ones(x.shape, dtype=x.dtype)), m + 1


@pytest.mark.parametrize("executor", OTHERS)
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("algorithm", [Signs, Clipped, Sorted, Constant])
def test_an_algorithm_may_do_what_it_likes_with_its_vectors(algorithm, problem, executor):
    made, _, expected = by_the_loop(algorithm(), problem)
    found = after(algorithm(), made, executor)[1]
    torch.testing.assert_close(found.server, expected.server, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, Signs()], ids=repr)
def test_what_treats_each_number_alike_runs_in_chunks(monkeypatch, algorithm):
    monkeypatch.setattr(batched, "run_block", None)
    monkeypatch.setattr(native, "works", lambda dtype: False)
    after(algorithm, linear(), "batched", rounds=2)


SCRIPT = """
import os, torch
from torch import nn
from torch.nn import functional as F
from trimtab import Scaffold, Supervised, simulate
X, y = torch.randn(40, 300), torch.randint(40, (40,))
for last in (nn.Identity(), nn.Dropout(0.1)):
    build = lambda: nn.Sequential(nn.Linear(300, 40), last)
    problem = Supervised(build, F.cross_entropy, [(X, y)] * 20, batch=10)
    sim = simulate(Scaffold(eta_l=0.1, K=3), problem)
    next(sim)
    print(sim.executor)
children = f"/proc/{os.getpid()}/task/{os.getpid()}/children"
print("children:", open(children).read() if os.path.exists(children) else "")
"""


@pytest.mark.parametrize("how", ["a script", "standard input, as in a notebook"])
def test_auto_needs_no_guard_and_leaves_no_process_behind(tmp_path, how):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    command = [sys.executable, str(path)] if how == "a script" else [sys.executable, "-"]
    given = None if how == "a script" else SCRIPT
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    *chosen, children = done.stdout.splitlines()
    assert chosen == ["batched", "threads"]
    assert children.strip() == "children:"
