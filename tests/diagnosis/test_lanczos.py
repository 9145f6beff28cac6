"""Lanczos and conjugate gradients against dense linear algebra."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.losses import random
from trimtab.diagnosis.lanczos import conjugate_gradients, dense, lanczos


def symmetric(values, seed=0):
    Q = torch.linalg.qr(random(len(values), len(values), seed=seed)).Q
    return Q @ torch.diag(values) @ Q.T


@given(seed=st.integers(0, 10**6), d=st.integers(1, 60), sign=st.sampled_from([-1.0, 1.0]))
def test_the_largest_size_is_found_whatever_its_sign(seed, d, sign):
    M = symmetric(sign * random(d, seed=seed), seed)
    found = lanczos(lambda v: M @ v, random(d, seed=seed + 1))
    true = dense(M)
    assert found.norm == pytest.approx(true.norm, rel=0.05)
    assert true.least - 1e-9 <= found.least <= found.greatest <= true.greatest + 1e-9
    assert sum(found.weights) == pytest.approx(1)


def test_both_ends_of_a_spectrum_with_a_small_gap():
    values = torch.cat([torch.linspace(0.01, 1, 200), torch.tensor([1.02])]).double()
    M = symmetric(values)
    found = lanczos(lambda v: M @ v, random(201, seed=1), ends=True, tolerance=1e-3, most=100)
    assert found.greatest == pytest.approx(1.02, rel=0.01)
    assert found.least == pytest.approx(0.01, abs=0.005)


def test_low_rank_takes_few_products():
    u = random(500)
    found = lanczos(lambda v: u * (u @ v), random(500, seed=1))
    assert found.norm == pytest.approx(float(u @ u), rel=1e-9)
    assert found.products <= 5


def test_it_stops_when_there_is_enough():
    M = symmetric(random(100))
    assert lanczos(lambda v: M @ v, random(100, seed=1), out_of_time=lambda: True).products == 1


def test_no_matrix_at_all_is_zero():
    assert lanczos(torch.zeros_like, random(10)).norm == 0


def test_single_precision_is_enough():
    M = symmetric(torch.logspace(-3, 1, 300).double()).float()
    found = lanczos(lambda v: M @ v, random(300).float())
    assert found.norm == pytest.approx(10, rel=0.01)


def test_conjugate_gradients_solve():
    M, b = symmetric(torch.logspace(-2, 0, 50).double()), random(50, seed=3)
    x, left = conjugate_gradients(lambda v: M @ v, b, tolerance=1e-8)
    torch.testing.assert_close(x, torch.linalg.solve(M, b), rtol=1e-5, atol=1e-5)
    assert left < 1e-8


def test_conjugate_gradients_say_what_is_left_when_cut_short_or_not_definite():
    M, b = symmetric(torch.logspace(-4, 0, 50).double()), random(50, seed=3)
    assert conjugate_gradients(lambda v: M @ v, b, most=3)[1] > 0.01
    assert conjugate_gradients(lambda v: -v, b)[1] == 1
