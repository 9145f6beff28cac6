"""A diagnosis of linear systems that are no gradients: what it measures, and what it leaves out."""

import numpy as np
import pytest
import torch

from tests.helpers.losses import everybody
from trimtab import LinearSystem, Quadratic, diagnose
from trimtab.diagnosis import optimum, stages
from trimtab.diagnosis.case import NO_GRADIENTS
from trimtab.diagnosis.panel import client_products
from trimtab.diagnosis.rules import FEDAVG, SCAFFOLD
from trimtab.problems.adapter import as_problem


def systems(noise=0.01):
    """Return three rotations with different centres; their symmetric parts tell another story."""
    turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]]).double()
    A = torch.stack([torch.eye(2).double() * a + t * turn for a, t in ((1, 2), (0.5, 0.3), (2, 1))])
    return LinearSystem(A, [[1.0, 0.0], [0.0, -1.0], [2.0, 1.0]], noise)


@pytest.fixture(scope="module")
def diagnosis():
    return diagnose(systems(), minutes=1)


def test_constants_are_spectral_norms_and_those_of_the_symmetric_part(diagnosis):
    A = systems().A.numpy()
    assert pytest.approx(max(np.linalg.norm(a, 2) for a in A)) == diagnosis.L
    assert diagnosis.delta == pytest.approx(max(np.linalg.norm(a - A.mean(0), 2) for a in A))
    mean = A.mean(0)
    assert diagnosis.mu == pytest.approx(np.linalg.eigvalsh((mean + mean.T) / 2)[0])
    assert max(np.linalg.eigvalsh((a + a.T) / 2)[-1] for a in A) < 0.95 * diagnosis.L


def test_it_says_in_one_sentence_what_needs_symmetry_and_does_the_rest(diagnosis):
    assert NO_GRADIENTS in diagnosis.doubts
    assert diagnosis.convexity == "no gradients"
    assert (diagnosis.rates, diagnosis.predicted, diagnosis.knee) == ({}, (), None)
    assert diagnosis.algorithm is not None
    assert diagnosis.where == "optimum"
    text = str(diagnosis)
    assert "least eigenvalue of the symmetric part" in text
    assert "strong convexity" not in text
    assert "no time for the model" not in text


def test_bias_and_variance_are_those_of_the_closed_forms(diagnosis):
    """To first order in the step, so the closed forms are asked with a small one."""
    problem, eta, K = systems(), diagnosis.eta_l, diagnosis.K
    small = 1e-4
    exact = float((problem.fedavg_limit(small, 5) - problem.x_star).norm()) / (small * 4)
    assert K > 1
    assert diagnosis.bias.heterogeneity == pytest.approx(exact * eta * (K - 1), rel=1e-2)
    for name, closed in ((FEDAVG, "fedavg"), (SCAFFOLD, "scaffold")):
        covariance = getattr(problem, f"{closed}_covariance")(small, 2)
        expected = float(covariance.trace()) * eta / small
        assert getattr(diagnosis.variance, name) == pytest.approx(expected, rel=0.1)


def test_lanczos_is_never_asked(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("Lanczos on a matrix that is not symmetric")

    monkeypatch.setattr(optimum, "lanczos", refuse)
    monkeypatch.setattr(stages, "by_products", refuse)
    diagnose(systems(), minutes=1)
    with pytest.raises(AssertionError, match="Lanczos"):
        diagnose(Quadratic([[1.0, 2.0], [2.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]), minutes=1)


class Plain:
    """A system with no more than a problem must have, and the word that it is no gradient."""

    symmetric = False

    def __init__(self):
        self.system = systems()
        self.N, self.d, self.weights = self.system.N, self.system.d, self.system.weights
        self.x0, self.oracle = self.system.x0, self.system.oracle

    def evaluate(self, x, client=None):
        return {"loss": self.system.loss(x)}


def test_products_are_with_the_matrix_and_not_with_its_transpose():
    problem, v = Plain(), torch.tensor([1.0, -2.0]).double()
    found = client_products(as_problem(problem), 0, problem.x0(0), v)
    torch.testing.assert_close(found, problem.system.A[0] @ v, atol=1e-6, rtol=1e-6)


def test_no_optimum_is_searched_along_what_is_no_gradient(monkeypatch):
    monkeypatch.delattr(optimum, "_Search")
    assert list(optimum.descend(everybody(Plain()), Plain().x0(0))) == []


def test_no_time_is_blamed_where_there_is_no_point_to_model():
    found = diagnose(Plain(), minutes=1)
    assert found.where == "start"
    assert "There was no time for the quadratic model." not in found.cut
    assert any("no quadratic model" in sentence for sentence in found.cut)
