"""The kernels: gradients are autograd's, programs do what they say, threads change no bit."""

import os
import subprocess
import sys
from contextlib import contextmanager
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trimtab import Adam, FedAvg, Mime, Scaffold, Supervised, simulate
from trimtab.compute import kernel
from trimtab.compute.kernel import EncodedProgram, Layers, library
from trimtab.problems.supervised.closed_form import closed_form

pytestmark = pytest.mark.skipif(
    kernel.simd_level() is None, reason="no compiler was there at the installation"
)
DTYPES = [torch.float32, torch.float64]
MODULES = {
    "linear": lambda d, C: nn.Linear(d, C),
    "no bias": lambda d, C: nn.Linear(d, C, bias=False),
    "mlp": lambda d, C: nn.Sequential(nn.Linear(d, 30), nn.ReLU(), nn.Linear(30, C)),
    "deep": lambda d, C: nn.Sequential(
        nn.Linear(d, 25), nn.ReLU(), nn.Linear(25, 9, bias=False), nn.Linear(9, 50), nn.ReLU(),
        nn.ReLU(), nn.Linear(50, C),
    ),
}  # fmt: skip


@pytest.fixture(params=range(kernel.simd_level() or 0, -1, -1), ids=lambda level: f"level {level}")
def level(request, monkeypatch):
    """Every variant that this machine can run."""
    monkeypatch.setattr(library, "simd_level", lambda: request.param)
    return request.param


def flat(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def autograd(module, X, y):
    parts = torch.autograd.grad(F.cross_entropy(module(X), y), list(module.parameters()))
    return torch.cat([part.flatten() for part in parts])


def close(found, expected):
    exact = expected.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=1e-10 if exact else 5e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("build", MODULES.values(), ids=MODULES.keys())
@pytest.mark.parametrize(
    ("n", "d", "C"), [(1, 1, 2), (5, 7, 3), (8, 24, 4), (9, 784, 47), (33, 50, 62), (700, 5, 3)]
)
def test_gradients_are_autograds(level, dtype, build, n, d, C):
    torch.manual_seed(n)
    X, y = torch.randn(800, d, dtype=dtype), torch.randint(C, (800,))
    rows = torch.randperm(800)[:n]
    modules = [build(d, C).to(dtype) for _ in range(3)]
    layers = closed_form(modules[0], F.cross_entropy).layers
    batches = [(X, y, rows), (X, y, None), (X[:1], y[:1], None)]
    found = kernel.gradients(layers, torch.stack([flat(m) for m in modules]), batches)
    for row, module, (A, b, some) in zip(found, modules, batches, strict=True):
        close(row, autograd(module, *((A, b) if some is None else (A[some], b[some]))))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("build", MODULES.values(), ids=MODULES.keys())
@pytest.mark.parametrize("n", [1, 127, 129, 1500])
def test_outputs_are_the_modules(level, dtype, build, n):
    torch.manual_seed(n)
    module, X = build(20, 7).to(dtype), torch.randn(n, 20, dtype=dtype)
    layers = closed_form(module, F.cross_entropy).layers
    close(kernel.outputs(layers, flat(module), X), module(X).detach())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("sizes", [(3, 2), (3, 4, 2)])
def test_what_is_not_finite_stays_so(level, bad, sizes):
    """A step from such a point is not finite either, although a ReLU may hide it."""
    X, y = torch.ones(4, 3), torch.zeros(4, dtype=torch.long)
    hidden = len(sizes) > 2
    x = torch.zeros(sum((a + 1) * b for a, b in pairwise(sizes)))
    x[0] = bad
    layers = Layers(sizes, (True,) * (1 + hidden), ("relu", "none")[1 - hidden :])
    code = EncodedProgram(1, 1, [(1, 0, 0)], [[(1.0, 0), (-0.1, 1)]])
    sums, *_ = kernel.run(layers, 0.0, code, [(X, y)], [[None]], [[x]], [[None]], [1.0])
    assert not torch.isfinite(sums).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_program_does_what_it_says(level, dtype):
    """Two steps of y - 0.5 g(y) + 2 c from x, and g at x on all samples."""
    torch.manual_seed(0)
    module, l2 = nn.Linear(6, 3).to(dtype), 0.3
    layers = closed_form(module, F.cross_entropy).layers
    data = [(torch.randn(n, 6, dtype=dtype), torch.randint(3, (n,))) for n in (5, 9, 7, 6, 8)]
    rows = [[torch.randperm(len(y))[:4], torch.randperm(len(y))[:3], None] for _, y in data]
    x = flat(module)
    c = [torch.randn_like(x) for _ in data]
    step = [(3, 2, 0), (2, [(1.0, 2), (-0.5, 3), (2.0, 0)]), (3, 2, 1), (4, 1, 2)]
    outputs = [[(1.0, 2), (-0.5, 3)], [(1.0, 4)]]
    code = EncodedProgram(2, 3, [(2, [(1.0, 1)]), *step], outputs)
    outputs = [[None, torch.empty_like(x)] for _ in data]
    weights = [0.1, 0.2, 0.3, 0.15, 0.25]

    def g(y, samples, some):
        A, b = samples if some is None else (samples[0][some], samples[1][some])
        expected = kernel.gradients(layers, y, [(A, b, None)])[0]
        return expected + l2 * y

    found = {}
    for block in (1, 2, 5):
        for threads in (1, 2, 3):
            found[block, threads] = kernel.run(
                layers, l2, code, data, rows, [[c_i, x] for c_i in c], outputs, weights,
                block=block, threads=threads,
            )  # fmt: skip
        for threads in (2, 3):
            assert torch.equal(found[block, threads][0], found[block, 1][0])
        for slots in (2, 3, 4) if block < 5 else (1,):
            sums, *_ = kernel.run(
                layers, l2, code, data, rows, [[c_i, x] for c_i in c], outputs, weights,
                block=block, threads=2, slots=slots,
            )  # fmt: skip
            assert torch.equal(sums, found[block, 1][0])
        sums, squares, _ = found[block, 1]
        total = torch.zeros_like(sums)
        for i, samples in enumerate(data):
            y = x - 0.5 * g(x, samples, rows[i][0]) + 2 * c[i]
            y = y - 0.5 * g(y, samples, rows[i][1])
            full = g(x, samples, None)
            close(outputs[i][1], full)
            total += weights[i] * torch.stack([y, full])
            torch.testing.assert_close(
                torch.tensor([each[i] for each in squares]),
                torch.stack([y, full]).square().sum(1).float(),
            )
        close(sums, total)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
def test_combine_adds_up(level, dtype):
    vectors = [torch.randn(5000).to(dtype) for _ in range(4)]
    numbers = [0.5, -1.0, 2.0, 0.25]
    expected = sum(a * v for a, v in zip(numbers, vectors, strict=True))
    found = kernel.combine(list(zip(numbers, vectors, strict=True)))
    torch.testing.assert_close(found, expected, rtol=1e-2 if dtype == torch.float16 else 1e-5,
                               atol=1e-2 if dtype == torch.float16 else 1e-6)  # fmt: skip
    strided = [torch.randn(3, 4).T, torch.randn(4, 3)]
    torch.testing.assert_close(
        kernel.combine([(1.0, strided[0]), (2.0, strided[1])]), strided[0] + 2 * strided[1]
    )


@pytest.mark.parametrize("d", [(1 << 20) - 1, 1 << 20, (1 << 20) + 2049, 3_000_001])
def test_the_bits_of_a_long_combination_do_not_depend_on_threads(d):
    draw = torch.Generator().manual_seed(0)
    terms = [(a, torch.randn(d, generator=draw)) for a in (1.0, -0.1, 0.3, 2.0)]
    expected = sum(a * v for a, v in terms)
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(kernel.combine(terms))
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(found[0], expected)
    assert all(torch.equal(found[0], other) for other in found)


def test_a_point_of_another_length_is_refused():
    """A kernel would read beyond it."""
    layers = Layers((3, 4, 2), (True, False), ("relu", "none"))
    assert layers.d == 24
    X, y = torch.ones(5, 3), torch.zeros(5, dtype=torch.long)
    for wrong in (torch.zeros(23), torch.zeros(25)):
        with pytest.raises(ValueError, match="length d=24"):
            kernel.outputs(layers, wrong, X)
        with pytest.raises(ValueError, match="length d=24"):
            kernel.gradients(layers, wrong, [(X, y, None)])


# -- what a kernel is given may have changed since it was checked


def samples():
    draw = torch.Generator().manual_seed(0)
    return [
        (torch.randn(12, 6, generator=draw), torch.randint(5, (12,), generator=draw))
        for _ in range(6)
    ]


@pytest.mark.parametrize("executor", ["batched", "loop", "threads", "fused"])
@pytest.mark.parametrize("build", [MODULES["linear"], MODULES["mlp"]])
@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("label", [5, -1, 100_000_000, 2**62, -(2**63)])
def test_a_label_that_was_changed_is_refused(refused, executor, build, batch, label):
    data = samples()
    problem = Supervised(lambda: build(6, 5), F.cross_entropy, data, batch=batch)
    sim = simulate(Scaffold(eta_l=0.1, K=3), problem, executor=executor)
    next(sim)
    data[4][1][7] = label
    before = sim.server
    with refused("client 4", f"label {label} in sample 7", "5 classes", "new problem"):
        next(sim)
    assert sim.server is before


def test_a_label_that_was_changed_is_refused_in_chunks(refused):
    """A program that is not linear has no tape; its gradients come from the kernel all the same."""
    data = samples()
    problem = Supervised(lambda: nn.Linear(6, 5), F.cross_entropy, data)
    sim = simulate(Mime(eta=0.1, K=3, base=Adam()), problem, executor="batched")
    next(sim)
    data[3][1][0] = 9
    with refused("client 3", "label 9 in sample 0"):
        next(sim)


@pytest.mark.parametrize("executor", ["batched", "loop"])
@pytest.mark.parametrize(
    "change",
    [
        lambda X, y: y.resize_(3),
        lambda X, y: y.resize_(40),
        lambda X, y: X.resize_(3, 6),
        lambda X, y: X.resize_(12, 3),
        lambda X, y: X.set_(torch.zeros(6, 12).T),
    ],
)
def test_data_that_changed_their_shape_are_refused(refused, executor, change):
    data = samples()
    problem = Supervised(lambda: nn.Linear(6, 5), F.cross_entropy, data, batch=4)
    sim = simulate(FedAvg(eta_l=0.1, K=3), problem, executor=executor)
    next(sim)
    change(*data[2])
    with refused("client 2"):
        next(sim)


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("way", ["data", "set_", "resize_", "in place"])
def test_data_that_moved_are_read_where_they_are_now(way, batch):
    """No address outlives a round: what lay at the old one may be gone."""

    def rounds(first, then):
        data = [first, *samples()[1:]]
        problem = Supervised(lambda: nn.Linear(6, 5), F.cross_entropy, data, batch=batch)
        sim = simulate(Scaffold(eta_l=0.1, K=3), problem)
        assert sim.executor == "batched"
        return [next(sim), then(*first), next(sim)]

    (X, y), (other, labels) = samples()[0], samples()[1]

    def moved(X, y):
        if way == "data":
            X.data, y.data = other.clone(), labels.clone()
        elif way == "set_":
            X.set_(other.clone()), y.set_(labels.clone())
        elif way == "resize_":  # its memory is given back and taken anew
            for part, new in ((X, other), (y, labels)):
                part.resize_(0).untyped_storage().resize_(0)
                part.resize_(new.shape).copy_(new)
        else:
            X.copy_(other), y.copy_(labels)

    def copied(X, y):
        X.copy_(other), y.copy_(labels)

    _, _, found = rounds((X, y), moved)
    _, _, expected = rounds(samples()[0], copied)
    assert torch.equal(found.x, expected.x)


def test_clients_that_are_read_anew_leave_no_address_behind(monkeypatch):
    monkeypatch.setattr("trimtab.problems.supervised.clients._KEPT", 1)

    class Lazy:
        def __len__(self):
            return 6

        def __getitem__(self, i):
            return tuple(part.clone() for part in samples()[i])

    def last(clients):
        problem = Supervised(lambda: nn.Linear(6, 5), F.cross_entropy, clients, batch=4)
        sim = simulate(Scaffold(eta_l=0.1, K=3), problem)
        return [next(sim) for _ in range(3)][-1].x

    torch.manual_seed(0)
    assert torch.equal(last(Lazy()), last(samples()))


@pytest.mark.parametrize(("n", "most"), [(2, 1), (2000, 2)])
def test_only_work_that_pays_is_shared_out(monkeypatch, n, most):
    used = []

    def watched(name, *which):
        run = library_function(name, *which)
        return lambda *given: (used.append(given[6]), run(*given))[-1]

    library_function = library.function
    monkeypatch.setattr(library, "function", watched)
    monkeypatch.setattr(library, "cores", lambda: 2)
    layers, clients = Layers((30, 3), (True,), ("none",)), range(4)
    data = [(torch.ones(n, 30), torch.zeros(n, dtype=torch.long)) for _ in clients]
    points = [[torch.zeros(93)] for _ in clients]
    kernel.run(layers, 0.0, STEP, data, [[None]] * 4, points, [[None]] * 4, [0.25] * 4)
    assert used == [most]


LAYERS = Layers((3, 4, 2), (True, False), ("relu", "none"))
X, Y = torch.ones(5, 3), torch.zeros(5, dtype=torch.long)
POINT = torch.zeros(24)
STEP = EncodedProgram(1, 1, [(1, 0, 0)], [[(1.0, 0), (-0.1, 1)]])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [[0, 5], [-1], [2**40], [4, 3, -(2**63)]])
def test_a_row_that_is_not_there_is_refused(level, refused, rows, threads):
    some = torch.tensor(rows)
    with refused("a client", f"no sample {rows[-1]} ", "but 5"):
        kernel.run(LAYERS, 0.0, STEP, [(X, Y)] * 3, [[None], [some], [None]], [[POINT]] * 3,
                   [[None]] * 3, [1.0] * 3, threads=threads)  # fmt: skip


def test_an_empty_mini_batch_is_refused(refused):
    """Its mean is that of nothing, and a register would keep what was in memory."""
    none = torch.tensor([], dtype=torch.long)
    for data, rows in (((X, Y), none), ((X[:0], Y[:0]), None)):
        with refused("a client", "no samples"):
            kernel.gradients(LAYERS, POINT, [(*data, rows)])


@pytest.mark.parametrize(
    "code",
    [
        EncodedProgram(1, 1, [(1, 0, 1)], [[(1.0, 1)]]),  # a batch,
        EncodedProgram(1, 1, [(1, 0, -1)], [[(1.0, 1)]]),
        EncodedProgram(1, 1, [(1, 2, 0)], [[(1.0, 1)]]),  # a point,
        EncodedProgram(1, 1, [(1, -1, 0)], [[(1.0, 1)]]),
        EncodedProgram(1, 1, [(1, 1, 0)], [[(1.0, 1)]]),
        EncodedProgram(1, 1, [(2, 0, 0)], [[(1.0, 1)]]),  # a register,
        EncodedProgram(1, 1, [(0, 1, 0)], [[(1.0, 1)]]),
        EncodedProgram(1, 1, [(0, [(1.0, 1)])], [[(1.0, 1)]]),
        EncodedProgram(1, 1, [(1, [(1.0, 2)])], [[(1.0, 1)]]),  # a value,
        EncodedProgram(1, 1, [(1, [(1.0, 0), (1.0, 1)])], [[(1.0, 1)]]),
        EncodedProgram(1, 1, [(1, [])], [[(1.0, 1)]]),
        EncodedProgram(1, 1, [(1, 0, 0)], [[(1.0, 2)]]),  # a value of an output,
        EncodedProgram(1, 1, [(1, 0, 0)], [[(1.0, -1)]]),
        EncodedProgram(1, 1, [(1, 0, 0)], [[]]),
        EncodedProgram(1, 1 << 40, [(1, 0, 0)], [[(1.0, 1)]]),  # registers: too many
    ],
)
def test_a_program_that_reads_or_writes_what_is_not_there_is_refused(level, refused, code):
    with refused("program", "not there"):
        kernel.run(LAYERS, 0.0, code, [(X, Y)], [[None]], [[POINT]], [[None]], [1.0])


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        ([[torch.zeros(23)]], [[None]], "length d=24"),
        ([[torch.zeros(2, 24)]], [[None]], "length d=24"),
        ([[POINT, POINT]], [[None]], "1 vectors for each of 1 clients"),
        ([[POINT]], [[None, None]], "1 vectors for each of 1 clients"),
        ([[POINT]] * 2, [[None]], "1 vectors for each of 1 clients"),
        ([[POINT]], [[torch.zeros(23)]], "length d=24"),
        ([[POINT]], [[torch.zeros(24).double()]], "contiguous ones of torch.float32"),
        ([[POINT]], [[torch.zeros(24, 2)[:, 0]]], "contiguous ones of torch.float32"),
        ([[torch.zeros(24, 2)[:, 0]]], [[None]], "contiguous ones of torch.float32"),
    ],
)
def test_vectors_of_another_kind_are_refused(refused, inputs, outputs, words):
    with refused(words):
        kernel.run(LAYERS, 0.0, STEP, [(X, Y)], [[None]], inputs, outputs, [1.0])


def test_other_inputs_of_an_evaluation_are_refused(refused):
    for wrong in (torch.ones(5, 2), torch.ones(5, 4), torch.ones(5, 3).double(), torch.ones(3)):
        with refused("X has shape", "rows of 3 numbers"):
            kernel.outputs(LAYERS, POINT, wrong)


@pytest.mark.parametrize(
    ("wanted", "widest", "found"),
    [("", 2, 2), ("", None, None), ("0", 2, None), ("any", 2, 0), ("avx2", 2, 1), ("avx512", 2, 2)],
)
def test_the_instruction_set_can_be_chosen(wanted, widest, found):
    assert library._chosen(wanted, widest) == found


@pytest.mark.parametrize(
    ("wanted", "widest", "others"),
    [
        ("avx512", 1, "pass 0, any or avx2."),
        ("avx2", 0, "pass 0 or any."),
        ("any", None, "pass 0."),
        ("1", 2, "pass 0, any, avx2 or avx512."),
    ],
)
def test_an_instruction_set_that_is_not_there_is_refused(refused, wanted, widest, others):
    with refused(f"TRIMTAB_NATIVE={wanted}", others):
        library._chosen(wanted, widest)


@pytest.mark.parametrize("wanted", ["0", *kernel.SIMD_LEVELS[: (kernel.simd_level() or 0) + 1]])
def test_the_environment_variable_chooses(wanted):
    code = (
        "import torch; from trimtab.compute import kernel;"
        "print(kernel.simd_level(), kernel.works(torch.float32))"
    )
    environment = {**os.environ, "TRIMTAB_NATIVE": wanted}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    level = None if wanted == "0" else kernel.SIMD_LEVELS.index(wanted)
    assert done.stdout.split() == [str(level), str(level is not None)]


@contextmanager
def replaced():
    with pytest.MonkeyPatch.context() as patch:
        for name in ("linear", "cross_entropy", "relu"):
            patch.setattr(F, name, lambda *a, **k: torch.zeros(()))
        yield


def autocast():
    return torch.autocast("cpu", torch.bfloat16)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, autocast, replaced])
def test_the_self_check_looks_through_modes_and_replacements(mode):
    kernel.works.cache_clear()
    with mode():
        found = [kernel.works(dtype) for dtype in (torch.float32, torch.float64)]
    kernel.works.cache_clear()
    assert found == [kernel.works(dtype) for dtype in (torch.float32, torch.float64)]
