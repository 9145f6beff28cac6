"""Kinds of modules and data that cannot be used, or only after a change, are told why."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from tests.helpers.learning import randn
from trimtab import Supervised

X, Y = randn(8, 3), torch.arange(8) % 2
WORDS = torch.arange(8) % 5


def read(module, client=(X, Y), **settings):
    problem = Supervised(module, nn.CrossEntropyLoss(), [client], **settings)
    problem.oracle(0, 0, 1)
    return problem


# -- sparse inputs


def as_samples(matrix):
    return [(matrix[[j]], int(Y[j])) for j in range(8)]


SPARSE = {
    "a matrix": lambda matrix: (matrix, Y),
    "by name": lambda matrix: ({"input": matrix}, Y),
    "in a tuple": lambda matrix: ((matrix, X), Y),
    "samples": as_samples,
}


@pytest.mark.parametrize("kind", ["csr_matrix", "csr_array", "csc_array"])
@pytest.mark.parametrize("name", SPARSE)
def test_a_sparse_matrix_of_scipy_is_refused(refused, kind, name):
    scipy = pytest.importorskip("scipy.sparse")
    matrix = getattr(scipy, kind)(X.numpy())
    with refused("client 0", "sparse", kind, ".toarray()"):
        read(nn.Linear(3, 2), SPARSE[name](matrix))


@pytest.mark.parametrize("weights", [None, "samples"])
def test_a_client_that_is_a_sparse_matrix_is_refused(refused, weights):
    scipy = pytest.importorskip("scipy.sparse")
    with refused("client 0 is a csr_matrix", "pair (X, y)"):
        read(nn.Linear(3, 2), scipy.csr_matrix(X.numpy()), weights=weights)


def test_the_sizes_of_sparse_inputs_are_not_asked_for_in_vain(refused):
    scipy = pytest.importorskip("scipy.sparse")
    with refused("client 0", "sparse", ".toarray()"):
        read(nn.Linear(3, 2), (scipy.csr_matrix(X.numpy()), Y), weights="samples")
    with refused("client 0", "sparse", ".toarray()"):
        read(nn.Linear(3, 2), (scipy.csr_matrix(X.numpy()), Y)).split(0.2).oracle(0, 0, 1)


def test_a_sparse_tensor_is_refused(refused):
    with refused("the inputs of client 0 are sparse", ".to_dense()"):
        read(nn.Linear(3, 2), (X.to_sparse(), Y))


# -- sparse gradients


class Looked(nn.Module):
    """Looks words up by the function of PyTorch, not by its layer."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(randn(5, 2))

    def forward(self, words):
        return F.embedding(words, self.table, sparse=True)


@pytest.mark.parametrize(
    ("module", "words", "name"),
    [
        (nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2)), WORDS, "0.weight"),
        (nn.Sequential(nn.EmbeddingBag(5, 2, sparse=True)), WORDS[:, None], "0.weight"),
        (Looked(), WORDS, "table"),
    ],
    ids=["embedding", "bag", "function"],
)
def test_a_sparse_gradient_is_refused_by_the_name_of_its_parameter(refused, module, words, name):
    with refused(f"parameter '{name}'", "sparse gradient", "sparse=False"):
        read(module, (words, Y))


def test_a_frozen_sparse_embedding_is_taken():
    module = nn.Sequential(nn.Embedding(5, 3, sparse=True).requires_grad_(False), nn.Linear(3, 2))
    assert read(module, (WORDS, Y)).d == 8


# -- spectral norms


@pytest.mark.parametrize("normed", [nn.utils.spectral_norm, parametrizations.spectral_norm])
@pytest.mark.parametrize("where", ["alone", "inside"])
def test_a_spectral_norm_in_training_is_refused(refused, normed, where):
    layer = normed(nn.Linear(3, 2))
    module = layer if where == "alone" else nn.Sequential(nn.ReLU(), layer)
    name = type(layer).__name__ if where == "alone" else "layer '1'"
    with refused(name, "spectral_norm", "power iteration", ".eval()"):
        Supervised(module, nn.CrossEntropyLoss(), [(X, Y)])


@pytest.mark.parametrize("normed", [nn.utils.spectral_norm, parametrizations.spectral_norm])
def test_a_spectral_norm_in_evaluation_mode_is_taken_and_stays(normed):
    problem = read(normed(nn.Linear(3, 2)).eval())
    x = problem.x0()
    assert torch.equal(problem.oracle(0, 0, 1)(x), problem.oracle(0, 0, 1)(x))


def test_the_older_weight_norm_says_which_one_to_use(refused):
    with pytest.warns(FutureWarning, match="weight_norm"):
        layer = nn.utils.weight_norm(nn.Linear(3, 2))
    with refused("cannot be copied", "parametrizations.weight_norm"):
        read(layer)


# -- complex numbers


class Complex(nn.Module):
    def __init__(self, trainable):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        turn = torch.full((2,), 0.6 + 0.8j)
        self.turn = nn.Parameter(turn, requires_grad=trainable)
        self.register_buffer("back", turn.conj())

    def forward(self, X):
        return (self.linear(X) * self.turn * self.back).real


def test_trainable_complex_numbers_are_refused(refused):
    with refused(
        "parameter 'turn' of Complex is complex (torch.complex64)", "torch.view_as_complex"
    ):
        read(Complex(trainable=True))


def test_frozen_complex_numbers_are_taken_and_stay_complex_in_float64():
    problem = read(Complex(trainable=False), (X.double(), Y))
    plain = Supervised(nn.Linear(3, 2), nn.CrossEntropyLoss(), [(X.double(), Y)])
    x = problem.x0()
    torch.testing.assert_close(problem.gradient(x), plain.gradient(x), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", [torch.as_tensor, torch.Tensor.numpy], ids=["tensor", "array"])
def test_complex_inputs_are_refused(refused, kind):
    with refused("the inputs of client 0 are complex", "real and imaginary parts"):
        read(nn.Linear(3, 2), (kind(X + 0j), Y))


# -- TorchScript


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    ("made", "where"),
    [
        (torch.jit.script, "RecursiveScriptModule"),
        (lambda module: torch.jit.trace(module, X), "TopLevelTracedModule"),
        (lambda module: nn.Sequential(torch.jit.script(module)), "layer '0'"),
    ],
    ids=["script", "trace", "inside"],
)
def test_torchscript_is_refused(refused, made, where):
    module = made(nn.Linear(3, 2).to(X.dtype))
    with refused(where, "TorchScript", "nn.Module", "torch.jit"):
        Supervised(module, nn.CrossEntropyLoss(), [(X, Y)])
