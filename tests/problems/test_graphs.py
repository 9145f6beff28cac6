"""Gradients of several clients as one captured graph: autograd's, or none at all."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trimtab import FedAvg, Mime, Momentum, Scaffold, Supervised, simulate
from trimtab.compute import kernel
from trimtab.compute.captured import NotCapturedError, capture
from trimtab.problems.paths import path_of
from trimtab.simulation.executors import choose

ROOT = Path(__file__).parents[2]
SIZES = (7, 12, 5, 9, 20, 6, 12, 12, 14, 12, 13, 12)  # The last mini-batch is often a short one.


def draw(seed=1):
    return torch.Generator().manual_seed(seed)


def vectors(n, g):
    return torch.randn(n, 6, generator=g, dtype=torch.float64), torch.randint(5, (n,), generator=g)


def images(n, g):
    X = torch.randn(n, 1, 8, 8, generator=g, dtype=torch.float64)
    return X, torch.randint(5, (n,), generator=g)


def words(n, g):
    return torch.randint(11, (n, 4), generator=g), torch.randint(5, (n,), generator=g)


class Bag(nn.Module):
    """An embedding whose vectors are averaged, and a part that is tied to another."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 3, padding_idx=0)
        self.inner, self.outer = nn.Linear(3, 3), nn.Linear(3, 5)
        self.again = self.inner

    def forward(self, X):
        return self.outer(torch.tanh(self.again(torch.tanh(self.inner(self.embedding(X).mean(1))))))


class Scaled(nn.Module):
    """A buffer that stays, a layer that is frozen, and what is written in place on the way."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 4), nn.Linear(4, 5)
        self.inner.bias.requires_grad_(False)
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 0.5, 3.0]))

    def forward(self, X):
        h = F.elu(self.inner(X) * self.scale, inplace=True)
        table = torch.zeros_like(h)
        table[:, 1:] += h[:, 1:]
        return self.outer(table + h)


def frozen_statistics():
    norm = nn.BatchNorm1d(8)
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    return nn.Sequential(nn.Linear(6, 8), norm.eval(), nn.LeakyReLU(), nn.Linear(8, 5))


MODULES = {
    "tanh": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.Softsign()),
        vectors,
    ),
    "group norm": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.GroupNorm(1, 8), nn.SiLU(), nn.Linear(8, 5)),
        vectors,
    ),
    "convolution": (
        lambda: nn.Sequential(
            *(nn.Conv2d(1, 3, 3, padding=1), nn.GroupNorm(1, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(48, 5)),
        ),
        images,
    ),
    "embedding": (Bag, words),
    "frozen and buffers": (Scaled, vectors),
    "statistics": (frozen_statistics, vectors),
}
LOSSES = {
    "plain": nn.CrossEntropyLoss(),
    "weights": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0, 0.5, 2.0, 1.0]).double()),
    "ignored": nn.CrossEntropyLoss(
        weight=torch.tensor([1.0, 3.0, 0.5, 2.0, 1.0]).double(), ignore_index=2
    ),
    "smooth": nn.CrossEntropyLoss(label_smoothing=0.1),
    "own": lambda output, y: output.logsumexp(1).mean() - output.gather(1, y[:, None]).mean(),
}


def built(build, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().double()


def problem(module="group norm", loss="plain", **settings):
    build, data = MODULES[module]
    g = draw()
    given = {"batch": 4} | settings
    return Supervised(built(build), LOSSES[loss], [data(n, g) for n in SIZES], **given)


def plain(problem, i, x, k, seed=3, r=2):
    """Return the gradient of one client as the reference computes it."""
    return problem.oracle(i, seed, r)(x, k)


def gradients(problem, k, seed=3, r=2):
    """Return gradients of all clients at points of their own: at once, and by autograd."""
    x = problem.x0() + 0.1 * torch.randn(problem.N, problem.d, generator=draw(5)).double()
    found = problem.chunk_oracle(range(problem.N), seed, r)(x, k)
    return found, torch.stack([plain(problem, i, x[i], k) for i in range(problem.N)])


def count_graphs(problem):
    return len(problem._vectorised._graphs)


@pytest.mark.parametrize("k", [0, 2, None])
@pytest.mark.parametrize("module", MODULES)
def test_it_is_the_gradient_of_autograd(module, k):
    made = problem(module)
    assert made.why_not_vectorised() == ""
    before = count_graphs(made)
    found, expected = gradients(made, k)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert count_graphs(made) > before or k == 0


@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("loss", LOSSES)
def test_it_is_that_of_the_loss_with_its_weights_and_what_it_ignores(loss, l2):
    made = problem("group norm", loss, l2=l2)
    assert made.why_not_vectorised() == ""
    for k in (0, 1, 3):
        found, expected = gradients(made, k)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("sampling", ["iid", "reshuffle"])
@pytest.mark.parametrize("batch", [3, 0.3])
def test_mini_batches_are_those_of_one_client(batch, sampling):
    made = problem("tanh", batch=batch, sampling=sampling)
    found, expected = gradients(made, 1)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


ALGORITHMS = [
    FedAvg(eta_l=0.1, K=5),
    Scaffold(eta_l=0.1, K=5),
    Mime(eta=0.1, K=5, base=Momentum()),
]


@pytest.mark.parametrize("slow", [0.0, 0.5])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
def test_rounds_are_those_of_the_loop(algorithm, slow):
    made = problem("group norm", weights="samples")
    settings = {"S": 10, "lost": 0.1, "slow": slow, "seed": 3}
    sims = [simulate(algorithm, made, executor=name, **settings) for name in ("loop", "auto")]
    assert sims[1].executor == "batched"
    for _ in range(6):
        expected, found = map(next, sims)
    assert (found.x - expected.x).norm() <= 1e-10 * expected.x.norm()
    assert found.work == expected.work
    for i in sims[0].states:
        torch.testing.assert_close(sims[1].states[i], sims[0].states[i], rtol=1e-9, atol=1e-11)


# -- what is left to autograd


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 5)

    def forward(self, X):
        output = self.inner(X)
        return output if output.sum() > 0 else 2 * output


class Rounded(nn.Module):
    """A number is taken out of its parameters, as a constant that it is not."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 5)

    def forward(self, X):
        return self.inner(X) * self.inner.weight.detach().norm().item()


class Hidden(nn.Module):
    """Its parameters are read behind the back of whoever passes others."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 5)
        self.held = [self.inner.weight]

    def forward(self, X):
        return self.inner(X) + X @ self.held[0].T

    def __deepcopy__(self, memo):
        copy = Hidden().to(self.inner.weight.dtype)
        copy.load_state_dict(self.state_dict())
        return copy


class Bags(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags, self.outer = nn.EmbeddingBag(11, 3), nn.Linear(3, 5)

    def forward(self, X):
        return self.outer(self.bags(X))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.LSTM(6, 4, batch_first=True), nn.Linear(4, 5)

    def forward(self, X):
        return self.outer(self.inner(X[:, None])[0][:, -1])


def hooked():
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
    net[0].register_forward_hook(lambda layer, given, output: 2 * output)
    return net


def dropping():
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 5))


LEFT = {
    "a branch": (Branching, vectors, "cannot be captured"),
    "a number taken out": (Rounded, vectors, "cannot be captured"),
    "parameters behind its back": (Hidden, vectors, "differ from autograd's by"),
    "bags": (Bags, words, "cannot be captured"),
    "a hook": (hooked, vectors, "a hook is set on layer '0'"),
    "dropout": (dropping, vectors, "draws random numbers"),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_a_graph_would_get_wrong_is_left_to_autograd(case):
    build, data, reason = LEFT[case]
    g = draw()
    made = Supervised(built(build), nn.CrossEntropyLoss(), [data(n, g) for n in SIZES], batch=4)
    assert reason in made.why_not_vectorised()
    assert reason in made.explain()
    assert choose(made, made.N).name == "loop"
    found, expected = gradients(made, 1)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_a_recurrent_layer_is_right_either_way():
    g = draw()
    data = [vectors(n, g) for n in SIZES]
    made = Supervised(built(Recurrent), nn.CrossEntropyLoss(), data, batch=4)
    found, expected = gradients(made, 1)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_a_layer_that_is_hooked_later_is_left_to_autograd():
    made = problem("tanh")
    assert made.why_not_vectorised() == ""
    made.model.module[0].register_forward_hook(lambda layer, given, output: 2 * output)
    assert "layer '0'" in made.why_not_vectorised()
    found, expected = gradients(made, 1)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_autocast_is_left_to_autograd():
    assert "autocast" in problem("group norm", autocast=torch.bfloat16).why_not_vectorised()


def test_a_large_module_is_left_to_its_products():
    g = draw()
    data = [vectors(n, g) for n in SIZES]
    net = nn.Sequential(nn.Linear(6, 6000), nn.GroupNorm(1, 6000), nn.Linear(6000, 5))
    made = Supervised(net, F.cross_entropy, data, batch=4)
    assert "d = 84,005 is more than 50,000" in made.why_not_vectorised()
    assert choose(made, made.N).name == "threads"


def test_large_batches_are_left_to_their_products():
    g = draw()
    net = nn.Sequential(nn.Linear(6, 50), nn.GroupNorm(1, 50), nn.Linear(50, 5))
    many = [vectors(5000, g) for _ in range(8)]
    made = Supervised(net, F.cross_entropy, many)
    assert "operations in products" in made.why_not_vectorised()
    assert made.replace(batch=20).why_not_vectorised() == ""


def test_clients_of_all_sizes_are_taken_one_by_one():
    g = draw()
    uneven = [vectors(n, g) for n in range(3, 15)]
    made = Supervised(built(MODULES["tanh"][0]), F.cross_entropy, uneven)
    assert "mini-batches of one size" in made.why_not_vectorised()
    assert made.replace(batch=3).why_not_vectorised() == ""


def test_a_small_cohort_is_taken_one_by_one():
    made = problem("group norm")
    assert path_of(made, 8).name == "captured vmap"
    assert path_of(made, 7).name == "loop"


def test_a_client_that_cannot_be_read_is_refused_when_it_is_sampled():
    g = draw()
    data = [vectors(n, g) for n in SIZES]
    data[0] = (data[0][0], data[0][1][:-1])
    made = Supervised(built(MODULES["group norm"][0]), F.cross_entropy, data, batch=4)
    sim = simulate(FedAvg(eta_l=0.1, K=1), made, cohorts=[range(1, 12), range(12)])
    next(sim)
    with pytest.raises(ValueError, match="client 0 has 7 inputs but 6 targets"):
        next(sim)


def test_data_that_change_under_way_are_refused_by_the_number_of_their_client():
    made = problem("group norm", batch=None)
    made.clients[6].y.fill_(77)
    assert made.why_not_vectorised() == ""
    with pytest.raises(ValueError, match="client 6"):
        made.chunk_oracle([1, 6, 7, 9], 0, 1)(made.x0())


# -- what it says


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 5)

    def forward(self, X):
        return self.inner(X)


def leaky(X=6):
    return nn.Sequential(nn.Linear(X, 8), nn.LeakyReLU(), nn.Linear(8, 5))


def explained(module, loss=F.cross_entropy, n=12, S=None, **settings):
    g = draw()
    made = Supervised(module.double(), loss, [vectors(n, g) for _ in range(12)], **settings)
    return made.explain(S)


def lines(text):
    return text.splitlines()


def test_it_says_which_way_a_module_takes_and_why():
    first, kernel_line = lines(explained(leaky(), batch=4))
    assert first.startswith("captured vmap (executor batched): the gradients of a chunk")
    if kernel.works(torch.float64):
        assert kernel_line == ("not the kernel: layer '1', nn.LeakyReLU, is not among its layers.")
        assert "Own is not an nn.Sequential of layers that it knows" in explained(Own(), batch=4)
        weighted = nn.CrossEntropyLoss(weight=torch.ones(5).double())
        assert "nn.CrossEntropyLoss, as it is passed, is not among" in explained(leaky(), weighted)
        known = explained(nn.Linear(6, 5))
        assert known == (
            "kernel (executor batched): a compiled kernel runs the local steps on all cores."
        )
    else:
        assert "it does not run float64 on cpu here" in kernel_line
    loop = lines(explained(leaky(), batch=4, S=3))
    assert loop[0].startswith("loop (executor loop): with d = 101 the time goes into Python")
    assert loop[2] == (
        "not the captured vmap: S = 3 clients per round are fewer than 8; sample more."
    )


def test_large_modules_keep_cores_or_threads_busy():
    threads = nn.Sequential(nn.Linear(6, 8000), nn.LeakyReLU(), nn.Linear(8000, 5))
    assert explained(threads, n=2).startswith("threads (executor threads): a client with d = 96,0")
    assert explained(threads, n=2, S=1).startswith("loop (executor loop): there is one client")
    wide = nn.Sequential(nn.Linear(6, 2), nn.LeakyReLU(), nn.Linear(2, 5), Wide())
    assert explained(wide, n=2).startswith("fused (executor fused): d = 2,000,029 keeps all cores")


class Wide(nn.Module):
    """Two million parameters that take no time."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(2_000_000))

    def forward(self, X):
        return X + self.shift[:5]


def test_what_auto_chooses_is_what_it_says(caplog):
    made = problem("group norm")
    with caplog.at_level("DEBUG", logger="trimtab"):
        assert choose(made, 12).name == path_of(made, 12).executor == "batched"
    assert made.explain() in caplog.text


# -- compiled


@pytest.mark.filterwarnings("ignore")  # what torch.compile imports warns about itself
def test_a_module_that_torch_compiled_gives_the_same_rounds():
    made = problem("group norm", batch=4)
    module = torch.compile(made.model.module, backend="eager")
    compiled = made.replace(module=module)
    for executor in ("loop", "batched"):
        runs = [simulate(Scaffold(eta_l=0.1, K=2), p, executor=executor) for p in (made, compiled)]
        expected, found = (next(run).x for run in runs)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


# -- bits


def bits(code, **environment):
    words = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True, "check": True}
    return subprocess.run([sys.executable, "-c", code], **words).stdout


THREADS = """
import torch
from torch import nn
from trimtab import Scaffold, Supervised, simulate
g = torch.Generator().manual_seed(1)
clients = [(torch.randn(50, 96, generator=g), torch.randint(9, (50,), generator=g))] * 20
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(96, 128), nn.GroupNorm(1, 128), nn.SiLU(), nn.Linear(128, 9))
for count in (1, 2):
    torch.set_num_threads(count)
    made = Supervised(net, nn.CrossEntropyLoss(), clients, batch=40)
    sim = simulate(Scaffold(eta_l=0.1, K=3), made)
    assert sim.executor == "batched" and sim.problem.why_not_vectorised() == ""
    for _ in range(3):
        x = next(sim).x
    print(x.double().numpy().tobytes().hex())
"""


def test_the_number_of_threads_changes_no_bit():
    one, two = bits(THREADS, **{**os.environ, "OMP_NUM_THREADS": "2"}).splitlines()
    assert one == two


def test_a_run_goes_on_bit_for_bit_in_another_process(tmp_path):
    """Graphs that were captured at another x, in another order, compute the same."""
    algorithm, settings = Scaffold(eta_l=0.1, K=4), {"S": 9, "lost": 0.2, "slow": 0.3, "seed": 3}
    whole = simulate(algorithm, problem("group norm"), **settings)
    for r in range(8):
        if r == 3:
            whole.save(tmp_path / "sim")
        expected = next(whole)
    again = type(whole).load(tmp_path / "sim", algorithm, problem("group norm"))
    assert again.executor == "batched"
    for _ in range(5):
        found = next(again)
    assert torch.equal(found.x, expected.x)
    assert all(torch.equal(whole.states[i], again.states[i]) for i in whole.states)


# -- graphs


def test_a_graph_computes_on_what_it_is_given():
    graph = capture(lambda a, b: (torch.relu(a) @ b).sum(0), (torch.randn(3, 4), torch.randn(4, 2)))
    a, b = torch.randn(3, 4), torch.randn(4, 2)
    torch.testing.assert_close(graph.replay(a, b), (torch.relu(a) @ b).sum(0))


def test_a_graph_writes_into_its_own_memory_only():
    def own(a):
        table = torch.zeros(4)
        table[1:].add_(a)
        return table.mul_(2)

    graph = capture(own, (torch.ones(3),))
    for _ in range(2):
        assert graph.replay(torch.tensor([1.0, 2.0, 3.0])).tolist() == [0, 2, 4, 6]
    kept = torch.zeros(3)
    for writes in (lambda a: a.mul_(2), lambda a: kept.add_(a), lambda a: a[1:].zero_()):
        with pytest.raises(NotCapturedError, match="writes into an input or a constant"):
            capture(writes, (torch.ones(3),))


def test_a_graph_draws_nothing_and_looks_at_nothing():
    with pytest.raises(NotCapturedError, match="draws random numbers"):
        capture(lambda a: a * torch.rand(3), (torch.ones(3),))
    with pytest.raises(NotCapturedError, match="on which code may branch"):
        capture(lambda a: a if a.sum() > 0 else -a, (torch.ones(3),))


def test_attention_is_captured_unless_it_drops_out():
    q = torch.randn(2, 1, 5, 4)
    graph = capture(lambda a: F.scaled_dot_product_attention(a, a, a), (q,))
    torch.testing.assert_close(graph.replay(q), F.scaled_dot_product_attention(q, q, q))
    with pytest.raises(NotCapturedError, match="draws random numbers"):
        capture(lambda a: F.scaled_dot_product_attention(a, a, a, dropout_p=0.5), (q,))


def test_nothing_is_said_where_autograd_is_as_good():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        problem("tanh", batch=None).why_not_vectorised()
