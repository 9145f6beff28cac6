"""Lanczos and conjugate gradients against dense linear algebra."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.losses import random
from trimtab.diagnosis.optimum import conjugate_gradients, lanczos


def symmetric(values, seed=0):
    Q = torch.linalg.qr(random(len(values), len(values), seed=seed)).Q
    return Q @ torch.diag(values) @ Q.T


@given(seed=st.integers(0, 10**6), d=st.integers(1, 60), sign=st.sampled_from([-1.0, 1.0]))
def test_the_largest_size_is_found_whatever_its_sign(seed, d, sign):
    M = symmetric(sign * random(d, seed=seed), seed)
    found = lanczos(lambda v: M @ v, random(d, seed=seed + 1))
    true = float(torch.linalg.eigvalsh(M).abs().max())
    assert found == pytest.approx(true, rel=0.05)
    assert found <= true + 1e-9


def test_the_largest_is_found_where_the_next_one_is_near():
    M = symmetric(torch.cat([torch.linspace(0.01, 1, 200), torch.tensor([1.02])]).double())
    found = lanczos(lambda v: M @ v, random(201, seed=1), tolerance=1e-3, most=100)
    assert found == pytest.approx(1.02, rel=0.01)


def test_low_rank_takes_few_products_and_no_time_takes_one():
    u, products = random(500), []

    def product(v):
        products.append(v)
        return u * (u @ v)

    assert lanczos(product, random(500, seed=1)) == pytest.approx(float(u @ u), rel=1e-9)
    assert len(products) <= 5
    lanczos(product, random(500, seed=2), out_of_time=lambda: True)
    assert len(products) <= 6


def test_no_matrix_at_all_is_zero():
    assert lanczos(torch.zeros_like, random(10)) == 0


def test_single_precision_is_enough():
    M = symmetric(torch.logspace(-3, 1, 300).double()).float()
    found = lanczos(lambda v: M @ v, random(300).float())
    assert found == pytest.approx(10, rel=0.01)


def test_conjugate_gradients_solve():
    M, b = symmetric(torch.logspace(-2, 0, 50).double()), random(50, seed=3)
    x, left = conjugate_gradients(lambda v: M @ v, b, tolerance=1e-8)
    torch.testing.assert_close(x, torch.linalg.solve(M, b), rtol=1e-5, atol=1e-5)
    assert left < 1e-8


def test_conjugate_gradients_say_what_is_left_when_cut_short_or_not_definite():
    M, b = symmetric(torch.logspace(-4, 0, 50).double()), random(50, seed=3)
    assert conjugate_gradients(lambda v: M @ v, b, most=3)[1] > 0.01
    assert conjugate_gradients(lambda v: -v, b)[1] == 1
