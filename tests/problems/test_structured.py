"""Modules, inputs and targets of any structure: the gradient is that of plain PyTorch."""

from collections import OrderedDict
from dataclasses import dataclass

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from tests.helpers.learning import randn
from trimtab import FedAvg, OnBatch, Scaffold, Supervised, simulate

N = 12


@dataclass
class ModelOutput(OrderedDict):
    """As Hugging Face's: a dict with attributes, which leaves out what is None."""

    logits: torch.Tensor | None = None
    extra: torch.Tensor | None = None

    def __post_init__(self):
        for name in ("logits", "extra"):
            if getattr(self, name) is not None:
                self[name] = getattr(self, name)


class Towers(nn.Module):
    """Two inputs and a mask; what it returns is a function of its two outputs."""

    def __init__(self, form=lambda a, b: a + b):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.left, self.right = nn.Linear(3, 2), nn.Linear(4, 2)
        self.form = form

    def forward(self, left, right, mask=None):
        a, b = self.left(left).tanh(), self.right(right)
        return self.form(a, b if mask is None else b * mask[:, None])


class OneArgument(Towers):
    """The same, with all inputs in one argument."""

    def forward(self, parts):
        left, right = parts.values() if isinstance(parts, dict) else parts
        return super().forward(left, right)


LEFT, RIGHT = randn(N, 3), randn(N, 4, seed=1)
MASK = torch.arange(N) % 3 > 0
LABELS = torch.arange(N) % 2
NUMBERS = randn(N, 2, seed=2)


def as_dict(a, b):
    return {"logits": a + b, "extra": b}


def as_output(a, b):
    return ModelOutput(logits=a + b, extra=b)


def of_dict(output, y):
    return F.cross_entropy(output["logits"], y) + output["extra"].square().mean()


def of_tuple(output, y):
    return F.cross_entropy(output[0], y) + output[1].square().mean()


def of_two_targets(output, y):
    return F.cross_entropy(output, y["label"]) + (output - y["number"]).square().mean()


NAMED = {"left": LEFT, "right": RIGHT}
CASES = {
    "inputs in a tuple": (Towers(), F.cross_entropy, ((LEFT, RIGHT), LABELS)),
    "with a mask": (Towers(), F.cross_entropy, ((LEFT, RIGHT, MASK), LABELS)),
    "inputs by name": (Towers(), F.cross_entropy, (NAMED, LABELS)),
    "a mask by name": (Towers(), F.cross_entropy, ({**NAMED, "mask": MASK}, LABELS)),
    "one argument": (OneArgument(), F.cross_entropy, ((LEFT, RIGHT), LABELS)),
    "one argument by name": (OneArgument(), F.cross_entropy, ({"a": LEFT, "b": RIGHT}, LABELS)),
    "outputs in a dict": (Towers(as_dict), of_dict, (NAMED, LABELS)),
    "outputs of Hugging Face": (Towers(as_output), of_dict, (NAMED, LABELS)),
    "outputs in a tuple": (Towers(lambda a, b: (a + b, b)), of_tuple, (NAMED, LABELS)),
    "targets by name": (Towers(), of_two_targets, (NAMED, {"label": LABELS, "number": NUMBERS})),
    "targets in a tuple": (
        Towers(),
        lambda output, y: F.cross_entropy(output, y[0]) + (output - y[1]).square().mean(),
        ((LEFT, RIGHT), (LABELS, NUMBERS)),
    ),
    "targets of three dimensions": (
        Towers(lambda a, b: torch.einsum("ni,nj,nk->nijk", a, b, a)),
        F.mse_loss,
        (NAMED, randn(N, 2, 2, 2, seed=3)),
    ),
}


def plain(module, loss, client):
    """Return the gradient by plain PyTorch."""
    X, y = client
    if isinstance(module, OneArgument):
        output = module(X)
    else:
        output = module(**X) if isinstance(X, dict) else module(*X)
    parts = torch.autograd.grad(loss(output, y), list(module.parameters()))
    return torch.cat([part.reshape(-1) for part in parts])


def rows(client, which):
    take = lambda part: (  # noqa: E731
        {k: take(v) for k, v in part.items()}
        if isinstance(part, dict)
        else tuple(take(v) for v in part)
        if isinstance(part, tuple)
        else part[which]
    )
    return take(client)


def as_arrays(part):
    if isinstance(part, dict):
        return {key: as_arrays(each) for key, each in part.items()}
    return tuple(map(as_arrays, part)) if isinstance(part, tuple) else part.numpy()


class Samples(Dataset):
    def __init__(self, client):
        self.client = client

    def __len__(self):
        return N

    def __getitem__(self, j):
        return rows(self.client, j)


@pytest.mark.parametrize("form", [lambda c: c, as_arrays, Samples], ids=["tensors", "numpy", "set"])
@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_that_of_plain_pytorch(name, form):
    module, loss, client = CASES[name]
    module.double()
    problem = Supervised(module, loss, [form(client)] * 2, weights="samples", batch=5)
    x = problem.x0()
    expected = plain(module, loss, client)
    for found in (problem.oracle(0, 0, 1)(x), problem.client_gradient(1, x), problem.gradient(x)):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    step = 1e-6 * expected / expected.norm()
    slope = (problem.loss(x + step) - problem.loss(x - step)) / 2e-6
    assert slope == pytest.approx(float(expected.norm()), rel=1e-5)
    product = problem.client_hvp(0, x, expected)
    difference = problem.client_gradient(0, x + 1e-5 * expected) - expected
    torch.testing.assert_close(product, difference / 1e-5, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_it_is_split_measured_hashed_and_simulated(name):
    module, loss, client = CASES[name]
    given = [client, rows(client, torch.arange(N - 1, -1, -1)), (*client, client)]
    problem = Supervised(module.double(), loss, given, batch=5).split(0.3)
    assert problem.has_validation
    assert problem.has_own_test(2)
    round = next(simulate(Scaffold(eta_l=0.05, K=3), problem))
    assert problem.validate(round.x)["loss"] > 0
    assert problem.evaluate(round.x, client=2)["loss"] > 0
    assert problem.evaluate(round.x)["loss"] > 0
    again = Supervised(module, loss, given, batch=5).split(0.3)
    assert again.fingerprint == problem.fingerprint
    assert "?" not in problem.fingerprint
    other = Supervised(module, loss, [given[1], given[0], given[2]], batch=5).split(0.3)
    assert other.fingerprint != problem.fingerprint


@pytest.mark.parametrize("known", [True, False])
def test_large_inputs_in_parts_are_cut_and_give_the_same(monkeypatch, known):
    monkeypatch.setattr("trimtab.problems.supervised.mean_loss._CHUNK", 1)
    big = {key: value.repeat(20, *[1] * (value.dim() - 1)) for key, value in NAMED.items()}
    loss = F.cross_entropy if known else of_dict
    module = Towers(*(() if known else (as_dict,))).double()
    client = big, LABELS.repeat(20)
    problem = Supervised(module, loss, [client])
    x, data = problem.x0(), problem.clients[0]
    assert len(problem._mean_loss.pieces(data)) == 4
    torch.testing.assert_close(problem.gradient(x), plain(module, loss, client))
    assert problem.evaluate(x)["loss"] == pytest.approx(float(problem.loss(x)), rel=1e-12)
    torch.testing.assert_close(problem.client_hvp(0, x, x), hessian(module, loss, client, x))


def hessian(module, loss, client, v):
    X, y = client
    first = torch.autograd.grad(loss(module(**X), y), list(module.parameters()), create_graph=True)
    gradient = torch.cat([part.reshape(-1) for part in first])
    second = torch.autograd.grad(gradient @ v, list(module.parameters()))
    return torch.cat([part.reshape(-1) for part in second])


# -- metrics


def test_logits_of_an_output_are_what_metrics_by_name_are_of():
    plain_one = Supervised(Towers().double(), F.cross_entropy, [(NAMED, LABELS)], metrics=["auc"])
    for form in (as_dict, as_output):
        problem = Supervised(Towers(form).double(), of_dict, [(NAMED, LABELS)], metrics=["auc"])
        x = problem.x0()
        found, expected = problem.evaluate(x), plain_one.evaluate(x)
        assert found["auc"] == expected["auc"]
        assert found["accuracy"] == expected["accuracy"]


@pytest.mark.parametrize(
    ("form", "loss", "words"),
    [
        (lambda a, b: (a + b, b), of_tuple, ["returns a tuple"]),
        (
            lambda a, b: {"scores": a + b},
            lambda o, y: F.cross_entropy(o["scores"], y),
            ["returns a dict with scores"],
        ),
        (
            lambda a, b: {"logits": (a + b)[:, None]},
            lambda o, y: F.cross_entropy(o["logits"][:, 0], y),
            ["returns a dict with logits"],
        ),
    ],
    ids=["tuple", "other name", "tokens"],
)
def test_a_metric_by_name_that_cannot_tell_says_which_function_to_pass(refused, form, loss, words):
    problem = Supervised(Towers(form), loss, [(NAMED, LABELS)], metrics=["auc"])
    assert "accuracy" not in problem.replace(metrics=None).evaluate(problem.x0())
    with refused("metric 'auc'", *words, "lambda output, y: metrics.auc("):
        problem.evaluate(problem.x0())
    assert problem.class_shares()[1].tolist() == [0.5, 0.5]


def test_a_metric_of_ones_own_gets_outputs_and_targets_as_they_are():
    def spread(output, y):
        assert set(output) == {"logits", "extra"}
        return output["extra"].std() + len(y)

    problem = Supervised(Towers(as_output), of_dict, [(NAMED, LABELS)], metrics={"spread": spread})
    assert problem.evaluate(problem.x0())["spread"] > N


def test_targets_in_parts_have_no_class_shares():
    problem = Supervised(
        Towers(), of_two_targets, [(NAMED, {"label": LABELS, "number": NUMBERS})], metrics=["auc"]
    )
    assert problem.class_shares() is None


# -- a loss of module and batch


def on_batch(module, batch):
    return F.cross_entropy(module(batch["left"], batch["right"]), batch["y"])


BATCH = {**NAMED, "y": LABELS}


class Dicts(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, j):
        return {key: value[j] for key, value in BATCH.items()}


FORMS = {
    "dict": (BATCH, on_batch),
    "arrays": ({key: value.numpy() for key, value in BATCH.items()}, on_batch),
    "set of dicts": (Dicts(), on_batch),
    "list of dicts": (list(map(Dicts().__getitem__, range(N))), on_batch),
    "tuple": (
        (LEFT, RIGHT, LABELS),
        lambda module, batch: F.cross_entropy(module(*batch[:2]), batch[2]),
    ),
    "pair": (
        (NAMED, LABELS),
        lambda module, batch: F.cross_entropy(module(**batch[0]), batch[1]),
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_loss_of_module_and_batch_has_the_gradient_of_plain_pytorch(name):
    client, f = FORMS[name]
    module = Towers().double()
    measure = OnBatch(lambda module, batch: float(module(LEFT, RIGHT).mean()))
    problem = Supervised(module, OnBatch(f), [client] * 2, batch=5, metrics={"mean": measure})
    x = problem.x0()
    expected = plain(module, F.cross_entropy, (NAMED, LABELS))
    torch.testing.assert_close(problem.gradient(x), expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(
        problem.client_hvp(0, x, x), hessian(module, F.cross_entropy, (NAMED, LABELS), x)
    )
    found = problem.evaluate(x)
    assert found["loss"] == pytest.approx(problem.loss(x), rel=1e-12)
    assert found["mean"] == float(module(LEFT, RIGHT).detach().mean())
    next(simulate(FedAvg(eta_l=0.1, K=3), problem.split(0.3)))
    assert ("?" in problem.fingerprint) is (name == "set of dicts")


def test_a_large_batch_is_cut_where_the_loss_is_a_mean_and_else_not(monkeypatch):
    monkeypatch.setattr("trimtab.problems.supervised.mean_loss._CHUNK", 1)
    big = {key: value.repeat(20, *[1] * (value.dim() - 1)) for key, value in BATCH.items()}
    root = OnBatch(lambda module, batch: on_batch(module, batch).sqrt())
    for loss, count in ((OnBatch(on_batch), 4), (root, 1)):
        problem = Supervised(Towers().double(), loss, [big])
        x = problem.x0()
        assert len(problem._mean_loss.pieces(problem.clients[0])) == count
        small = Supervised(Towers().double(), loss, [BATCH])
        torch.testing.assert_close(problem.gradient(x), small.gradient(x))
        assert problem.loss(x) == pytest.approx(small.loss(x), rel=1e-12)


class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.drop = nn.Linear(3, 2), nn.Dropout(0.5)

    def forward(self, X):
        return self.layer(self.drop(X))


def test_a_loss_that_draws_draws_by_seed_client_round_and_step():
    def noisy(module, batch):
        X, y = batch
        return F.cross_entropy(module(X + torch.randn_like(X)), y)

    problem = Supervised(Dropped().double(), OnBatch(noisy), [(LEFT, LABELS)] * 2, batch=4)
    x = problem.x0()
    g = problem.oracle(0, 0, 1)
    assert problem.model.draws
    assert torch.equal(g(x, 0), problem.oracle(0, 0, 1)(x, 0))
    assert not torch.equal(g(x, 0), problem.oracle(1, 0, 1)(x, 0))


# -- samples that a collate puts together

TEXTS = [list(range(1, 2 + j % 5)) for j in range(N)]
WORDS = [(text, j % 2) for j, text in enumerate(TEXTS)]


class Reader(nn.Module):
    """The mean of the embeddings of words; 0 stands where there is none."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.words, self.out = nn.Embedding(7, 3), nn.Linear(3, 2)

    def forward(self, tokens):
        there = (tokens > 0)[..., None]
        return self.out((self.words(tokens) * there).sum(1) / there.sum(1))


def padded(samples):
    longest = max(len(text) for text, _ in samples)
    tokens = torch.tensor([text + [0] * (longest - len(text)) for text, _ in samples])
    return tokens, torch.tensor([label for _, label in samples])


def test_ragged_text_has_the_gradient_of_plain_pytorch_in_every_mini_batch():
    module = Reader().double()
    problem = Supervised(module, F.cross_entropy, [WORDS, WORDS[:7]], batch=4, collate=padded)
    x = problem.x0()
    tokens, labels = padded(WORDS)

    def gradient(rows):
        loss = F.cross_entropy(module(tokens[rows]), labels[rows])
        parts = torch.autograd.grad(loss, list(module.parameters()))
        return torch.cat([part.reshape(-1) for part in parts])

    torch.testing.assert_close(problem.client_gradient(0, x), gradient(torch.arange(N)))
    g = problem.oracle(0, 0, 1)
    mean = sum(g(x, k) for k in range(3)) / 3
    torch.testing.assert_close(mean, gradient(torch.arange(N)))
    assert problem.samples(1) == (7, 4)
    assert problem.evaluate(x)["accuracy"] >= 0


def test_ragged_text_is_split_weighed_tested_and_hashed():
    given = [WORDS, WORDS[:7]]
    settings = {"collate": padded, "weights": "samples", "tests": [WORDS[:3], WORDS[3:5]]}
    problem = Supervised(Reader(), F.cross_entropy, given, batch=4, **settings).split(0.3)
    assert problem.weights.tolist() == [N / 19, 7 / 19]
    assert problem.has_validation
    round = next(simulate(Scaffold(eta_l=0.1, K=3), problem))
    assert problem.validate(round.x)["loss"] > 0
    assert len(problem.test) == 5
    assert "collate=" in problem.fingerprint
    other = Supervised(Reader(), F.cross_entropy, [WORDS[1:], WORDS[:7]], batch=4, **settings)
    assert other.fingerprint != problem.replace().fingerprint


def test_tokens_padded_with_an_ignored_label_are_counted_as_tokens(monkeypatch):
    monkeypatch.setattr("trimtab.problems.supervised.mean_loss._CHUNK", 1)

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.out = nn.Embedding(7, 3), nn.Linear(3, 4)

        def forward(self, tokens):
            return self.out(self.words(tokens)).movedim(-1, 1)

    def tags(samples):
        longest = max(map(len, samples))
        tokens = torch.tensor([text + [0] * (longest - len(text)) for text in samples])
        return tokens, torch.where(tokens > 0, tokens % 4, -100)

    module = Tagger().double()
    many = TEXTS * 20
    problem = Supervised(module, F.cross_entropy, [many], collate=tags)
    x = problem.x0()
    assert len(problem._mean_loss.pieces(problem.clients[0])) == 4
    tokens, labels = tags(many)
    parts = torch.autograd.grad(F.cross_entropy(module(tokens), labels), list(module.parameters()))
    expected = torch.cat([part.reshape(-1) for part in parts])
    torch.testing.assert_close(problem.gradient(x), expected)
    assert problem.evaluate(x)["loss"] == pytest.approx(problem.loss(x))


def test_numpy_is_taken_from_a_collate_too():
    def arrays(samples):
        tokens, labels = padded(samples)
        return {"tokens": tokens.numpy()}, labels.numpy().astype(numpy.int32)

    found = Supervised(Reader(), F.cross_entropy, [WORDS], collate=arrays)
    expected = Supervised(Reader(), F.cross_entropy, [WORDS], collate=padded)
    x = found.x0()
    assert torch.equal(found.gradient(x), expected.gradient(x))
