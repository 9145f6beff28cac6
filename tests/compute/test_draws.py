"""Mini-batches drawn by the kernel are PyTorch's, bit for bit."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trimtab.compute import kernel
from trimtab.compute.kernel import draws
from trimtab.core.streams import BATCH, stream
from trimtab.problems.supervised import batches as supervised_batches
from trimtab.problems.supervised.batches import Batches, drawn
from trimtab.problems.supervised.data import Data

pytestmark = pytest.mark.skipif(
    kernel.simd_level() is None, reason="no compiler was there at the installation"
)


def samples(n):
    return Data(torch.zeros(n, 1), torch.zeros(n))


def same(found, expected):
    if expected is None:
        return found is None
    return found is not None and torch.equal(found, expected)


def test_the_kernel_draws_here():
    assert draws.draws_work()


@given(
    st.lists(st.integers(1, 1500), min_size=1, max_size=12),
    st.one_of(st.none(), st.integers(1, 200), st.floats(0.01, 1.0)),
    st.sampled_from(["reshuffle", "iid"]),
    st.integers(-(2**70), 2**70),
    st.integers(0, 2**40),
    st.integers(0, 2**40),
    st.lists(st.one_of(st.none(), st.integers(0, 60)), min_size=1, max_size=12),
)
def test_mini_batches_are_those_drawn_one_by_one(sizes, batch, sampling, seed, first, r, numbers):
    clients, data = [first + i for i in range(len(sizes))], [samples(n) for n in sizes]
    cohort = SimpleNamespace(lengths=sizes, plans={})
    found = drawn(clients, cohort, batch, sampling, seed, r, numbers)
    assert isinstance(found, kernel.DrawnBatches)
    for place, (i, each) in enumerate(zip(clients, data, strict=True)):
        cut = Batches(each, batch, sampling, (seed, i, r))
        for j, k in enumerate(numbers):
            expected = None if k is None else cut.rows(k)
            rows = found.of(place, j)
            assert same(rows, expected), (i, k)
            assert found.sizes[place, j] == (len(each) if rows is None else len(rows))


@pytest.mark.parametrize("n", [622, 623, 624, 625, 1247, 1248, 1249, 5000, 65_535, 65_537, 300_000])
def test_long_orders_are_torchs(n):
    found = kernel.BatchPlan([2], [n], [n - 1], [0, 1, 2], independent=False).drawn((7, BATCH, 3))
    first, second = (torch.randperm(n, generator=stream(7, BATCH, 2, 3, k)) for k in (0, 1))
    assert torch.equal(found.of(0, 0), first[: n - 1])
    assert torch.equal(found.of(0, 1), first[n - 1 :])
    assert torch.equal(found.of(0, 2), second[: n - 1])


@pytest.mark.parametrize("n", [1, 2, (1 << 20) + 3, 1 << 27])
def test_independent_draws_of_many_are_torchs(n):
    found = kernel.BatchPlan([2], [n], [900], [4], independent=True).drawn((7, BATCH, 3))
    assert torch.equal(
        found.of(0, 0), torch.randint(n, (900,), generator=stream(7, BATCH, 2, 3, 4))
    )


def test_no_numbers_are_written_beyond_what_is_needed_for_them():
    """Each pass is drawn once, in whatever order its mini-batches are asked for."""
    for numbers in ([0, 1, 2, 3], [3, 2, 1, 0], [0, 7, 0, 7], [9], [1, 1, 1]):
        cut = kernel.BatchPlan([0, 1], [10, 7], [5, 2], numbers, independent=False)
        found = cut.drawn((0, BATCH, 1))
        passes = [{k // steps for k in numbers} for steps in (2, 4)]
        needed = 10 * len(passes[0]) + 7 * len(passes[1])
        starts = {int(address) for address in found.rows.flatten()}
        end = found.memory.data_ptr() + 8 * len(found.memory)
        assert max(starts) < end
        assert needed <= len(found.memory)


def test_beyond_what_was_compared_torch_draws():
    assert not kernel.BatchPlan([0], [(1 << 27) + 1], [5], [0], independent=True).works


def test_numbers_that_are_not_torchs_are_not_used(monkeypatch):
    monkeypatch.setattr(draws, "mix", lambda *numbers: 1 + stream(*numbers).initial_seed() % 1000)
    draws.draws_work.cache_clear()
    try:
        assert not draws.draws_work()
        one = SimpleNamespace(lengths=[9], plans={})
        assert drawn([0], one, 4, "reshuffle", 0, 1, [0, 1]) is None
    finally:
        draws.draws_work.cache_clear()


def test_the_reference_is_torchs_own_generator():
    """Batches, which the others are compared with, do not use the kernel."""
    assert "kernel" not in supervised_batches.Batches.rows.__code__.co_names


def test_only_what_is_drawn_differs_from_round_to_round():
    whole = draws.BatchPlan([0, 1], [9, 7], [9, 7], [0, None, 1], independent=False)
    assert whole.drawn((0, BATCH, 1)) is whole.drawn((0, BATCH, 2))
    for independent, sizes in ((False, [9, 6]), (True, [9, 7])):
        cut = draws.BatchPlan([0, 1], [9, 7], sizes, [0], independent)
        first, second = (cut.drawn((0, BATCH, r)) for r in (1, 2))
        assert not torch.equal(first.of(1, 0), second.of(1, 0))
        assert cut.drawn((0, BATCH, 1)) is first


def test_the_last_mini_batches_are_kept_and_the_oldest_dropped():
    def some(r):
        return draws.BatchPlan([0, 1], [9, 9], [3, 3], [0, 1, 2], independent=False).draw((0, 1, r))

    first = some(1)
    kept = draws._BatchCache(max_bytes=2 * first.nbytes)
    for r in (1, 2):
        kept.keep(r, some(r))
    assert kept.get(1) is not None  # it is the younger one from now on
    kept.keep(3, some(3))
    assert [r for r in (1, 2, 3) if kept.get(r) is not None] == [1, 3]
    assert kept.nbytes <= kept.max_bytes
    kept.keep(3, some(3))
    assert kept.nbytes == 2 * first.nbytes
