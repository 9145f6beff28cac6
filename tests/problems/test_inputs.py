"""What people pass as clients, data and modules: accepted where it is clear, else one sentence."""

from functools import partial

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from tests.helpers.learning import CLASSES, FEATURES, data, net, randn
from trimtab import FedAvg, Supervised, simulate
from trimtab.problems.supervised.reading import as_tensor

X, Y = data(8)
PAIR = (X, Y)


def problem_of(client, **settings):
    return Supervised(net(), F.cross_entropy, [client], **settings)


# -- accepted: the same gradient as with tensors


class Samples(Dataset):
    """A map-style Dataset of samples in some form."""

    def __init__(self, form):
        self.form = form

    def __len__(self):
        return len(Y)

    def __getitem__(self, j):
        return self.form(X[j], Y[j])


def backwards(t):
    """Return an array of the same numbers with negative strides."""
    return t.flip(0).numpy()[::-1]


def read_only(t):
    array = t.numpy().copy()
    array.flags.writeable = False
    return array


ACCEPTED = {
    "lists": (X.tolist(), Y.tolist()),
    "a list of two lists": [X.tolist(), Y.tolist()],
    "lists of tensors": (list(X), list(Y)),
    "lists of arrays": (list(X.numpy()), list(Y.numpy())),
    "tuples of numbers": (tuple(map(tuple, X.tolist())), Y.tolist()),
    "two tuples": (tuple(X), tuple(Y)),
    "negative strides": (backwards(X), backwards(Y)),
    "Fortran order": (numpy.asfortranarray(X.numpy()), Y.numpy()),
    "read-only": (read_only(X), read_only(Y)),
    "another byte order": (X.numpy().astype(">f8"), Y.numpy().astype(">i4")),
    "unsigned labels": (X, Y.to(torch.uint8)),
    "transposed": (X.T.contiguous().T, Y),
    "a tensor with a gradient": (X.clone().requires_grad_(), Y),
    "subset": Subset(TensorDataset(X, Y), range(8)),
    "samples as lists": Samples(lambda x, y: [x.tolist(), int(y)]),
    "samples as arrays": Samples(lambda x, y: (x.numpy(), y.numpy())),
    "a list of samples": list(TensorDataset(X, Y)),
}


@pytest.mark.parametrize("client", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_what_clearly_is_data_is_taken_as_such(client):
    module = net().double()
    expected = Supervised(module, F.cross_entropy, [PAIR])
    found = Supervised(module, F.cross_entropy, [client], client, weights="samples")
    x = expected.x0()
    torch.testing.assert_close(found.gradient(x), expected.gradient(x), rtol=1e-6, atol=1e-6)
    assert found.evaluate(x)["accuracy"] == expected.evaluate(x)["accuracy"]
    assert found.fingerprint


def test_two_samples_are_two_samples_and_not_inputs_and_targets():
    two = problem_of(list(TensorDataset(X[:2], Y[:2])))
    assert torch.equal(two.clients[0].X, X[:2].float())
    assert torch.equal(two.clients[0].y, Y[:2])


def test_tensors_made_in_inference_mode_can_be_used():
    with torch.inference_mode():
        pair = X + 0, Y + 0
    problem = problem_of(pair, batch=2)
    next(simulate(FedAvg(eta_l=0.1, K=2), problem))


class Tagged(torch.Tensor):
    """A subclass of Tensor, such as those of torchvision."""


def test_subclasses_of_tensors_become_plain():
    assert type(as_tensor("these", X.as_subclass(Tagged))) is torch.Tensor


def test_a_table_of_pandas_is_data():
    pandas = pytest.importorskip("pandas")
    problem = problem_of((pandas.DataFrame(X.numpy()), pandas.Series(Y.numpy())))
    assert torch.equal(problem.clients[0].y, Y)


# -- clients


class Stream(IterableDataset):
    def __iter__(self):
        yield X[0], Y[0]

    def __len__(self):
        return 1


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        (PAIR, ["client 0 is a Tensor", "[(X, y)]"]),
        ([X.numpy(), Y.numpy()], ["client 0 is a ndarray", "[(X, y)]"]),
        ({"a": PAIR}, ["clients is a dict", "list(clients.values())"]),
        (DataLoader(TensorDataset(X, Y)), ["clients is a DataLoader", "pair (X, y)"]),
        (TensorDataset(X, Y), ["clients is a TensorDataset", "pair (X, y)"]),
        ((pair for pair in [PAIR]), ["clients is a generator", "list(clients)"]),
        (iter([PAIR]), ["clients is a list_iterator", "list(clients)"]),
        (X, ["clients is a Tensor"]),
        ("clients", ["clients is a str"]),
        (None, ["clients is a NoneType"]),
        ([], ["no clients"]),
    ],
    ids=[
        *("pair", "arrays", "dict", "DataLoader", "TensorDataset", "generator", "iterator"),
        *("tensor", "text", "nothing", "empty"),
    ],
)
def test_what_is_no_list_of_clients_is_refused_at_once(refused, clients, words):
    with refused(*words):
        Supervised(net(), F.cross_entropy, clients)


REFUSED = {
    "DataLoader": (DataLoader(TensorDataset(X, Y)), ["is a DataLoader", "its dataset", "batch="]),
    "stream": (Stream(), ["is a Stream", "pair (X, y)"]),
    "generator": ((x for x in X), ["is a generator", "pair (X, y)"]),
    "nothing": (None, ["is a NoneType", "pair (X, y)"]),
    "number": (3, ["is a int", "pair (X, y)"]),
    "text": ("data", ["is a str", "pair (X, y)"]),
    "dict": ({"X": X, "y": Y}, ["is a dict", "pair (X, y)"]),
    "dicts": (Samples(lambda x, y: {"x": x, "y": y}), ["sample 0", "is a dict", "pair (x, y)"]),
    "three parts": (Samples(lambda x, y: (x, y, 1.0)), ["sample 0", "3 parts", "pair (x, y)"]),
    "inputs alone": (TensorDataset(X), ["sample 0", "1 parts", "pair (x, y)"]),
    "unequal": (Samples(lambda x, y: (x[: 1 + y], y)), ["do not fit together", "one shape"]),
    "no targets": ((X, None), ["the targets of client 0", "NoneType", "not numbers"]),
    "strings": ((X, ["a"] * 8), ["the targets of client 0", "not numbers"]),
    "objects": (
        (numpy.array([{}] * 8, dtype=object), Y),
        ["the inputs of client 0", "object", "not numbers"],
    ),
    "dates": ((X, numpy.zeros(8, dtype="datetime64[s]")), ["the targets of client 0", "datetime"]),
    "ragged": (([[1.0], [2.0, 3.0]], [0, 1]), ["the inputs of client 0", "not numbers"]),
    "complex": ((X.to(torch.complex64), Y), ["the inputs of client 0", "complex"]),
    "complex array": ((X.numpy() + 1j, Y), ["the inputs of client 0", "complex"]),
    "sparse": ((X.to_sparse(), Y), ["the inputs of client 0", "sparse", "dense"]),
    "booleans": ((X > 0, Y), ["the inputs of client 0", "torch.bool"]),
    "swapped": ((Y, X), ["the inputs of client 0"]),
    "one number": ((torch.tensor(1.0), Y), ["client 0", "one number"]),
}


@pytest.mark.parametrize(("client", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_data_is_refused_when_the_client_is_read(refused, client, words):
    with refused("client 0", *words):
        problem_of(client).oracle(0, 0, 1)


@pytest.mark.parametrize("name", ["stream", "nothing", "number", "generator"])
def test_what_is_no_data_is_refused_also_where_only_its_size_is_asked_for(refused, name):
    client, words = REFUSED[name]
    with refused("client 0", *words):
        problem_of(client, weights="samples").oracle(0, 0, 1)


def test_what_is_no_test_set_is_refused(refused):
    loader = DataLoader(TensorDataset(X, Y))
    with refused("the test set is a DataLoader", "its dataset"):
        Supervised(net(), F.cross_entropy, [PAIR], loader).evaluate(net_start())


def net_start():
    return nn.utils.parameters_to_vector(net().double().parameters()).detach()


# -- modules


class Returns(nn.Module):
    """A module that returns something else than a tensor."""

    def __init__(self, what):
        super().__init__()
        self.layer, self.what = nn.Linear(FEATURES, CLASSES), what

    def forward(self, X):
        return self.what(self.layer(X))


def not_finite():
    module = net()
    module[2].weight.data[1, 1] = torch.nan
    return module


def pruned():
    module = net()
    prune.random_unstructured(module[0], "weight", 0.5)
    return module


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: net().half(), ["'0.weight'", "float16", "module.float()", "autocast"]),
        (lambda: net().bfloat16(), ["'0.weight'", "bfloat16", "module.float()"]),
        (lambda: net().to(torch.complex64), ["'0.weight'", "complex64"]),
        (lambda: nn.Sequential(nn.LazyLinear(3)), ["'0.weight'", "no shape yet", "call"]),
        (not_finite, ["'2.weight'", "NaN", "finite"]),
        (lambda: net().to("meta"), ["'0.weight'", "meta"]),
        (pruned, ["cannot be copied", "prune.remove"]),
    ],
    ids=["half", "bfloat16", "complex", "lazy", "NaN", "meta", "pruned"],
)
@pytest.mark.filterwarnings("ignore:Complex modules", "ignore:Lazy modules")
def test_a_module_that_cannot_be_one_vector_is_refused(refused, build, words):
    module = build()
    with refused(*words):
        Supervised(module, F.cross_entropy, [PAIR])


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (nn.Linear, ["cannot be built", "without arguments"]),
        (lambda: None, ["returned a NoneType", "nn.Module"]),
        (partial(net, "x"), ["cannot be built"]),
    ],
    ids=["class", "nothing", "arguments"],
)
def test_what_builds_no_module_is_refused(refused, build, words):
    with refused(*words):
        Supervised(build, F.cross_entropy, [PAIR])


@pytest.mark.parametrize("what", [tuple, lambda o: (o, o), lambda o: {"logits": o}, lambda o: [o]])
def test_a_module_that_returns_no_single_tensor_is_refused(refused, what):
    problem = Supervised(Returns(what), F.cross_entropy, [PAIR])
    with refused("the module returns a", "single tensor"):
        problem.oracle(0, 0, 1)


def test_a_module_whose_outputs_do_not_depend_on_it_is_refused(refused):
    problem = Supervised(Returns(lambda o: o.detach()), F.cross_entropy, [PAIR])
    with refused("do not depend", "detach()"):
        problem.oracle(0, 0, 1)


# -- indices


def reader(*more):
    return nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(6, CLASSES), *more)


@pytest.mark.parametrize("index", [5, 100, -1])
def test_an_index_out_of_range_is_refused_wherever_it_stands(refused, index):
    tokens = torch.zeros(8, 3, dtype=torch.long)
    tokens[6, 2] = index
    problem = Supervised(reader(), F.cross_entropy, [(tokens * 0, Y), (tokens, Y)], batch=2)
    problem.oracle(0, 0, 1)
    with refused("client 1", "index out of range", f"{index}"):
        problem.oracle(1, 0, 1)


class Shifted(nn.Module):
    """A module that fails on some real inputs."""

    def __init__(self):
        super().__init__()
        self.inner = reader()

    def forward(self, X):
        return self.inner((4 * X).long())


def test_a_sample_that_only_the_module_can_judge_is_refused_by_the_name_of_its_client(refused):
    inputs = torch.zeros(8, 3)
    inputs[7] = 2.0
    problem = Supervised(Shifted(), F.cross_entropy, [(inputs, Y)])
    for use in (problem.oracle(0, 0, 1), problem.gradient, problem.loss, problem.evaluate):
        with refused("client 0", "index out of range"):
            use(problem.x0())
    batches = problem.replace(batch=2).oracle(0, 0, 1)
    with refused("client 0", "index out of range"):
        for k in range(4):
            batches(problem.x0(), k)


def test_a_label_that_only_the_loss_can_judge_is_refused_by_the_name_of_its_client(refused):
    y = torch.where(torch.arange(8) == 7, CLASSES, Y)
    problem = Supervised(net(), lambda output, y: F.cross_entropy(output, y), [(X, y)])
    with refused("client 0", "out of bounds"):
        problem.gradient(problem.x0())


def test_memory_that_runs_out_is_no_fault_of_a_client(monkeypatch):
    problem = problem_of(PAIR)
    x = problem.x0()
    problem.evaluate(x)

    def full(*_):
        raise torch.OutOfMemoryError("full")

    problem._mean_loss.loss = full
    with pytest.raises(torch.OutOfMemoryError):
        problem.gradient(x)


@pytest.mark.parametrize(
    "tensor",
    [
        *(randn(0, 3), randn(3, 0), torch.zeros(2, dtype=torch.bool), torch.zeros(2).bfloat16()),
        *(randn(1, 5).T, randn(5, 1), randn(4, 6)[::2, ::3], randn(1).expand(7), torch.tensor(1)),
    ],
    ids=lambda t: f"{t.dtype}{tuple(t.shape)}{t.stride()}",
)
def test_any_tensor_is_read(tensor):
    assert torch.equal(as_tensor("these", tensor), tensor)
