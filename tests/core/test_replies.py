"""The tally against its definitions, in NumPy."""

from math import isnan

import numpy as np
import pytest
import torch

from trimtab.algorithms.scaffold import Upload
from trimtab.core.replies import Tally
from trimtab.core.tree import map_leaves, nbytes

W = [0.1, 0.25, 0.3, 0.05]


def rows(seed, n=4, d=3):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=draw, dtype=torch.float64)


DX, DC, STATE = rows(1), rows(2), rows(3)


def one_by_one(places=range(4)):
    tally = Tally()
    for i in places:
        tally.add(W[i], Upload(DX[i].clone(), DC[i].clone()), STATE[i].clone())
    return tally


def as_chunk(places=range(4)):
    tally, at = Tally(), list(places)
    tally.add_rows([W[i] for i in at], Upload(DX[at], DC[at]), STATE[at])
    return tally


def as_sums(places=range(4)):
    tally, at = Tally(), list(places)
    w = torch.tensor([W[i] for i in at], dtype=torch.float64)
    moves, controls = ((v[at] ** 2).sum(1).tolist() for v in (DX, STATE))
    sums = Upload(w @ DX[at], w @ DC[at])
    tally.add_sums([W[i] for i in at], sums, w @ STATE[at], moves, controls)
    return tally


def merged():
    tally = as_chunk((0, 1))
    tally.merge(as_sums((2, 3)))
    return tally


def one_and_chunk():
    tally = one_by_one((0,))
    tally.add_rows(W[1:], Upload(DX[1:], DC[1:]), STATE[1:])
    return tally


WAYS = pytest.mark.parametrize("way", [one_by_one, as_chunk, as_sums, merged, one_and_chunk])


@WAYS
def test_everything_is_its_definition(way):
    tally = way()
    w, dx, dc, state = np.array(W), DX.numpy(), DC.numpy(), STATE.numpy()
    p = w / w.sum()
    length = np.sqrt((dx**2).sum(1))
    assert len(tally) == 4
    assert tally.share == pytest.approx(0.7)
    np.testing.assert_allclose(tally.mean().dx, p @ dx, atol=1e-15)
    np.testing.assert_allclose(tally.mean().dc, p @ dc, atol=1e-15)
    assert tally.drift == pytest.approx(p @ length)
    assert tally.effective_clients == pytest.approx((w @ length) ** 2 / ((w * length) ** 2).sum())
    pairs = np.outer(w, w)
    np.fill_diagonal(pairs, 0)
    agreement = (pairs * (dx @ dx.T)).sum() / pairs.sum() / (p @ length**2)
    assert tally.cosine == pytest.approx(agreement)
    variance = p @ ((state - p @ state) ** 2).sum(1)
    assert tally.spread == pytest.approx(np.sqrt(variance))
    assert tally.bytes_up == 4 * 2 * 3 * 8


@WAYS
def test_the_mean_goes_through_the_vector_that_is_asked_for(way):
    tally = way()
    tally.vector = lambda tensor: 10 * tensor
    np.testing.assert_allclose(tally.mean().dx, 10 * way().mean().dx)


def test_what_is_added_is_left_as_it_was():
    upload, state = Upload(DX[0].clone(), DC[0].clone()), STATE[0].clone()
    tally = Tally()
    for _ in range(2):
        tally.add(0.5, upload, state)
    assert torch.equal(upload.dx, DX[0])
    assert torch.equal(state, STATE[0])


def test_nothing_is_told_of_what_nobody_sent():
    tally = Tally()
    tally.add(0.5, (DX[0],))
    assert isnan(tally.drift)
    assert isnan(tally.effective_clients)
    assert isnan(tally.cosine)
    assert isnan(tally.spread)
    tally.add_rows([0.5, 0.5], (DX[:2],))
    assert isnan(tally.drift)
    assert isnan(tally.spread)
    assert len(tally) == 3


def test_one_client_agrees_with_nobody_and_clients_at_rest_have_no_cosine():
    tally = Tally()
    tally.add(0.3, Upload(DX[0], ()))
    assert isnan(tally.cosine)
    still = Tally()
    for weight in (0.3, 0.7):
        still.add(weight, Upload(0 * DX[0], ()))
    assert isnan(still.cosine)
    assert isnan(still.effective_clients)
    assert still.drift == 0


def test_a_client_of_hardly_any_weight_still_agrees():
    """Two clients, one of them of a millionth: the pair is small, and there."""
    tally = Tally()
    tally.add(1.0, Upload(DX[0], ()))
    tally.add(1e-6, Upload(DX[0], ()))
    assert tally.cosine == pytest.approx(1)
    alone = Tally()
    alone.add(1.0, Upload(DX[0], ()))
    alone.add(1e-13, Upload(DX[0], ()))  # beyond what the difference of two sums can tell
    assert isnan(alone.cosine)


def test_equal_states_have_no_spread_whatever_rounding_says():
    tally = Tally()
    for weight in (0.1, 0.2, 0.7):
        tally.add(weight, Upload(DX[0], ()), 1e8 * STATE[0])
    assert tally.spread <= 1e2  # of 1e8: a root of rounding
    broken = Tally()
    broken.add(1.0, Upload(DX[0], ()), float("nan") * STATE[0])
    assert isnan(broken.spread)


def test_states_of_several_parts_count_together():
    tally = Tally()
    for i in range(2):
        tally.add(0.5, Upload(DX[i], ()), (STATE[i], DC[i]))
    flat = np.concatenate([STATE[:2].numpy(), DC[:2].numpy()], axis=1)
    assert tally.spread == pytest.approx(np.sqrt(((flat - flat.mean(0)) ** 2).sum(1).mean()))
    chunk = Tally()
    chunk.add_rows([0.5, 0.5], Upload(DX[:2], ()), (STATE[:2], DC[:2]))
    assert chunk.spread == pytest.approx(tally.spread)


def test_rows_of_matrices_are_summed_and_measured_whole():
    x = rows(5, n=4, d=6).view(4, 2, 3)
    tally = Tally()
    tally.add_rows(W, Upload(x, ()))
    np.testing.assert_allclose(tally.mean().dx, np.tensordot(W, x.numpy(), 1) / 0.7, atol=1e-15)
    length = np.sqrt((x.numpy() ** 2).sum((1, 2)))
    assert tally.drift == pytest.approx(np.dot(W, length) / 0.7)


class Sparse:
    """A relay that sends three bytes for an upload."""

    def local(self, g, state, x):
        raise AssertionError

    def upload_bytes(self, upload):
        assert nbytes(upload) == 48
        return 3


def test_bytes_are_those_of_the_relay_where_there_is_one():
    assert as_chunk().bytes_sent(Sparse().local) == 12
    assert as_chunk().bytes_sent(test_states_of_several_parts_count_together) == 4 * 48
    assert merged().bytes_sent(None) == 4 * 48


@pytest.mark.parametrize("bad", [torch.tensor(3), torch.tensor([1, 2]), torch.tensor([True])])
def test_what_has_no_mean_is_refused(refused, bad):
    for add in (
        lambda: Tally().add(1.0, Upload(DX[0], bad)),
        lambda: Tally().add_rows([1.0], Upload(DX[:1], bad[None])),
    ):
        with refused("an upload holds", "floating-point"):
            add()


def test_as_many_lengths_as_weights_are_wanted():
    sums = Upload(DX[0], DC[0])
    with pytest.raises(ValueError, match="zip"):
        Tally().add_sums([0.1, 0.2], sums, STATE[0], moves=[1.0], controls=[1.0, 1.0])


@pytest.mark.parametrize("weight", [1e-7, 1.0, 1e7])
@pytest.mark.parametrize("length", [1e-3, 1.0])
def test_neither_the_size_of_weights_nor_of_vectors_matters(weight, length):
    tally = Tally()
    for i in range(4):
        tally.add(weight * W[i], Upload(length * DX[i], ()), length * STATE[i])
    usual = one_by_one()
    assert tally.cosine == pytest.approx(usual.cosine)
    assert tally.spread == pytest.approx(length * usual.spread)
    assert tally.drift == pytest.approx(length * usual.drift)


def test_a_copy_that_travels_has_its_sums_elsewhere_and_all_else_as_it_is():
    tally = one_by_one()
    other = tally.map_sums(lambda tree: map_leaves(lambda leaf: 3 * leaf, tree))
    assert other.mean().dx.tolist() == pytest.approx((3 * tally.mean().dx).tolist())
    assert other.spread != pytest.approx(tally.spread)  # the sum of the states is three times it
    assert (len(other), other.share, other.drift) == (4, tally.share, tally.drift)
    assert tally.mean().dx.tolist() == one_by_one().mean().dx.tolist()
