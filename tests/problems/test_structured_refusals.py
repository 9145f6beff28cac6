"""What cannot be learnt from is refused when it is first read, in one sentence that says why."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from tests.helpers.learning import randn
from tests.problems.test_structured import (
    BATCH,
    LABELS,
    LEFT,
    NAMED,
    RIGHT,
    WORDS,
    N,
    Reader,
    Towers,
    on_batch,
    padded,
)
from trimtab import OnBatch, Supervised


def read(module, loss, *clients, **settings):
    """Read every client, as the first rounds would."""
    problem = Supervised(module, loss, list(clients), **settings)
    for i in range(problem.N):
        problem.oracle(i, 0, 1)


class Counting(Towers):
    """Counts its calls in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, left, right):
        self.calls += 1
        return super().forward(left, right)


class InPlace(Towers):
    def forward(self, left, right):
        right /= 2
        return super().forward(left, right)


class Fixed(Dataset):
    """Samples given one by one."""

    def __init__(self, *samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, j):
        return self.samples[j]


def column(a, b):
    return {"number": (a + b)[:, :1]}


def squares(output, y):
    return (output["number"] - y).square().mean()


A_SAMPLE = ({"left": LEFT[0], "right": RIGHT[0]}, 0)
REFUSED = {
    "a buffer that changes": (Counting, F.cross_entropy, [(NAMED, LABELS)], ["'calls'"]),
    "a buffer that changes in a batch": (
        Counting,
        OnBatch(on_batch),
        [BATCH],
        ["'calls'", "running statistics"],
    ),
    "inputs changed in place": (
        InPlace,
        F.cross_entropy,
        [((LEFT, RIGHT), LABELS)],
        ["changes its inputs in place", "x = x / 255"],
    ),
    "a batch changed in place": (
        Towers,
        OnBatch(lambda module, b: on_batch(module, {**b, "left": b["left"].mul_(2)})),
        [BATCH],
        ["the loss changes its batch in place", "instead of"],
    ),
    "targets changed in place": (
        Towers,
        lambda output, y: F.cross_entropy(output, y["a"].zero_()),
        [(NAMED, {"a": LABELS})],
        ["changes the targets in place"],
    ),
    "a target that is broadcast": (
        lambda: Towers(column),
        squares,
        [(NAMED, randn(N, seed=5))],
        ["broadcasts", "'number': (1,)", "the same shape"],
    ),
    "a target by name that is broadcast": (
        lambda: Towers(column),
        lambda output, y: squares(output, y["a"]),
        [(NAMED, {"a": randn(N, seed=5)})],
        ["broadcasts", "the same shape"],
    ),
    "a target that is broadcast with a warning": (
        Towers,
        OnBatch(lambda module, b: F.mse_loss(module(b[0], b[1])[:, :1], b[2])),
        [(LEFT, RIGHT, randn(N, seed=5))],
        ["broadcasts", "y.view_as(output)"],
    ),
    "samples of different parts": (
        Towers,
        F.cross_entropy,
        [Fixed(A_SAMPLE, ({"left": LEFT[0]}, 0))],
        ["sample 1 of client 0", "{'left': (3,)}", "the same parts"],
    ),
    "samples of different shapes": (
        Towers,
        F.cross_entropy,
        [Fixed(A_SAMPLE, ({"left": LEFT[0, :2], "right": RIGHT[0]}, 0))],
        ["do not fit together", "one shape", "collate="],
    ),
    "clients of different parts": (
        Towers,
        F.cross_entropy,
        [(NAMED, LABELS), ((LEFT, RIGHT), LABELS)],
        ["client 1 has inputs of shape ((3,), (4,))", "{'left': (3,), 'right': (4,)}"],
    ),
    "clients of different targets": (
        Towers,
        lambda output, y: F.cross_entropy(output, y["a"] if isinstance(y, dict) else y),
        [(NAMED, LABELS), (NAMED, {"a": LABELS})],
        ["client 1 has samples", "{'a': ()}", "the same parts"],
    ),
    "parts of different lengths": (
        Towers,
        F.cross_entropy,
        [({"left": LEFT, "right": RIGHT[:5]}, LABELS)],
        ["client 0 has 12 rows in one part of its inputs but 5", "a row for each sample"],
    ),
    "fewer targets": (
        Towers,
        F.cross_entropy,
        [(NAMED, LABELS[:5])],
        ["client 0 has 12 inputs but 5 targets"],
    ),
    "NaN in a part": (
        Towers,
        F.cross_entropy,
        [
            (
                {**NAMED, "right": torch.where(torch.arange(N)[:, None] == 7, torch.nan, RIGHT)},
                LABELS,
            )
        ],
        ["client 0 has NaN", "sample 7"],
    ),
    "text in a part": (
        Towers,
        F.cross_entropy,
        [({**NAMED, "mask": ["a"] * N}, LABELS)],
        ["the inputs of client 0, 'mask', are not numbers"],
    ),
    "no parts": (Towers, F.cross_entropy, [({}, LABELS)], ["empty dict"]),
    "a part that the module has not": (
        Towers,
        F.cross_entropy,
        [({**NAMED, "up": LEFT}, LABELS)],
        ["the module cannot take the inputs of client 0", "'up': (3,)"],
    ),
    "a dict for a loss of one tensor": (
        lambda: Towers(column),
        F.cross_entropy,
        [(NAMED, LABELS)],
        ["the module returns a dict", "lambda output, y: cross_entropy(output['number'], y)"],
    ),
    "named targets for a loss of one tensor": (
        Towers,
        F.cross_entropy,
        [(NAMED, {"a": LABELS})],
        ["client 0 has targets {'a': ()}", "your own loss"],
    ),
    "an output that is not there": (
        lambda: Towers(column),
        lambda output, y: F.cross_entropy(output["logits"], y),
        [(NAMED, LABELS)],
        ["the loss cannot take", "'logits'", "{'number': (1,)}"],
    ),
    "a batch that the function cannot take": (
        Towers,
        OnBatch(lambda module, batch: batch["target"].mean()),
        [BATCH],
        ["the loss fails on a batch of client 0", "KeyError", "'left': (3,)"],
    ),
    "a loss of module and batch that is a sum": (
        Towers,
        OnBatch(lambda module, batch: N * on_batch(module, batch) * len(batch["y"])),
        [BATCH],
        ["it is a sum", "the mean"],
    ),
    "a loss of module and batch that is no tensor": (
        Towers,
        OnBatch(lambda module, batch: 1.0),
        [BATCH],
        ["the loss returns a float", "return a tensor"],
    ),
    "a loss of module and batch without a gradient": (
        Towers,
        OnBatch(lambda module, batch: on_batch(module, batch).detach()),
        [BATCH],
        ["no gradient", "detach()"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_at_the_trial(refused, name):
    build, loss, clients, words = REFUSED[name]
    before = LEFT.clone(), RIGHT.clone(), LABELS.clone()
    with refused(*words):
        read(build().double(), loss, *clients)
    assert all(map(torch.equal, before, (LEFT, RIGHT, LABELS)))


def test_running_statistics_other_than_batch_norms_are_refused_at_once(refused):
    with refused("keeps running statistics", "GroupNorm", ".eval()"):
        Supervised(
            nn.Sequential(nn.Linear(3, 2), nn.InstanceNorm1d(2, track_running_stats=True)),
            F.cross_entropy,
            [(LEFT, LABELS)],
        )


def squeezed(output, y):
    return (output["number"][:, 0] - y).square().mean()


@pytest.mark.parametrize(
    "loss",
    [
        squeezed,
        lambda output, y: (output["number"] - y[:, None]).square().mean(),
        lambda output, y: (output["number"].flatten() - y).square().mean(),
        lambda output, y: (
            (output["number"] - output["number"].T).square().mean() + squeezed(output, y)
        ),
    ],
    ids=["indexed", "a new axis", "flattened", "of pairs"],
)
def test_a_loss_that_makes_shapes_fit_by_itself_is_taken(loss):
    read(Towers(column).double(), loss, (NAMED, randn(N, seed=5)))


COLLATES = {
    "drops": (
        lambda samples: padded(samples[1:]),
        ["made 1 rows of 2 samples", "leave samples out"],
    ),
    "drops a target": (
        lambda samples: (padded(samples)[0], padded(samples)[1][1:]),
        ["made 1 rows of 2 samples of client 0"],
    ),
    "no pair": (lambda samples: padded(samples)[0], ["collate returns a Tensor", "OnBatch"]),
    "fails": (lambda samples: samples.nothing, ["collate fails on samples of client 0", "nothing"]),
    "draws": (
        lambda samples: (padded(samples)[0].bernoulli(0.5), padded(samples)[1]),
        ["collate draws random numbers", "OnBatch"],
    ),
    "text": (lambda samples: (["a"] * len(samples), padded(samples)[1]), ["not numbers"]),
}


@pytest.mark.parametrize("name", COLLATES)
def test_a_collate_that_makes_no_batch_of_all_samples_is_refused(refused, name):
    collate, words = COLLATES[name]
    with refused(*words):
        read(Reader(), F.cross_entropy, WORDS[:2], collate=collate)


def test_a_collate_that_drops_samples_is_refused_for_a_loss_of_module_and_batch_too(refused):
    def collate(samples):
        tokens, labels = padded([each for each in samples if each[1]])
        return {"tokens": tokens, "y": labels}

    loss = OnBatch(lambda module, batch: F.cross_entropy(module(batch["tokens"]), batch["y"]))
    with refused("collate made 6 rows of 12 samples of client 0"):
        read(Reader(), loss, WORDS, collate=collate)


def test_a_collate_that_is_no_function_is_refused(refused):
    with refused("collate=3", "a list of samples"):
        Supervised(Reader(), F.cross_entropy, [WORDS], collate=3)


def test_no_samples_are_refused_with_a_collate_too(refused):
    with refused("client 1 has no samples"):
        read(Reader(), F.cross_entropy, WORDS, [], collate=padded)


@pytest.mark.parametrize("what", [3, nn.Linear])
def test_what_is_no_function_of_module_and_batch_is_refused(refused, what):
    with refused("OnBatch(", "(module, batch)"):
        OnBatch(what)


def test_a_metric_of_outputs_is_refused_where_there_are_none(refused):
    for given in (["auc"], {"mine": lambda output, y: 0.0}):
        with refused("function of outputs and targets", "OnBatch(f)"):
            Supervised(Towers(), OnBatch(on_batch), [BATCH], metrics=given)


def test_a_metric_of_module_and_batch_that_changes_the_batch_is_refused(refused):
    measure = OnBatch(lambda module, batch: batch["left"].zero_().sum())
    copies = {key: value.clone() for key, value in BATCH.items()}
    problem = Supervised(Towers(), OnBatch(on_batch), [copies], metrics={"bad": measure})
    with refused("metric 'bad' changes its batch in place"):
        problem.evaluate(problem.x0())
