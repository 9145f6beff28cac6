"""Data sets of Hugging Face by column, made on the spot: gradients are those of plain PyTorch."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.problems.test_structured import Reader
from trimtab import Fields, OnBatch, Scaffold, Supervised, compare, diagnose, simulate
from trimtab.federation.setup.problem_file import ProblemFile

datasets = pytest.importorskip("datasets", reason="pip install 'trimtab[datasets]'")
ROWS = 30


def plays(rows=ROWS):
    """Return rows of speakers, with features of one shape and words of many."""
    return datasets.Dataset.from_dict(
        {
            "speaker": [["hamlet", "ophelia"][j % 3 % 2] for j in range(rows)],
            "pixels": [[0.1 * j, (j % 7) / 7, float(j % 2)] for j in range(rows)],
            "height": [float(j % 4) for j in range(rows)],
            "words": [list(range(1, 2 + j % 5)) for j in range(rows)],
            "text": ["to be or not" * (1 + j % 2) for j in range(rows)],
            "label": [j % 2 for j in range(rows)],
        }
    )


def of_plays(data=None, **changes):
    given = {
        **{"client": "speaker", "target": "label", "inputs": "pixels"},
        **{"module": nn.Linear(3, 2), "loss": F.cross_entropy},
    }
    return Supervised.from_datasets(plays() if data is None else data, **(given | changes))


def gradient(module, loss):
    parts = torch.autograd.grad(loss, [p for p in module.parameters() if p.requires_grad])
    return torch.cat([part.reshape(-1) for part in parts])


def padded(rows):
    longest = max(len(row["words"]) for row in rows)
    tokens = [row["words"] + [0] * (longest - len(row["words"])) for row in rows]
    return {"tokens": torch.tensor(tokens), "label": torch.tensor([row["label"] for row in rows])}


def test_one_column_is_a_tensor():
    module = nn.Linear(3, 2).double()
    problem = of_plays(module=module, weights="samples")
    assert problem.names == ["hamlet", "ophelia"]
    assert str(problem.columns) == "the input is pixels; the target is label"
    X = torch.tensor(plays()["pixels"][:], dtype=torch.float32).double()
    y = torch.tensor(plays()["label"][:])
    expected = gradient(module, F.cross_entropy(module(X), y))
    torch.testing.assert_close(problem.gradient(problem.x0()), expected)
    assert "?" not in problem.fingerprint
    assert problem.fingerprint == of_plays(module=module, weights="samples").fingerprint
    assert "accuracy" in problem.evaluate(problem.x0())
    assert problem.class_shares() is not None


def test_a_list_has_one_data_set_for_each_client():
    whole, module = plays(), nn.Linear(3, 2).double()
    each = [
        whole.filter(lambda row, name=name: row["speaker"] == name)
        for name in ("hamlet", "ophelia")
    ]
    one = of_plays(module=module)
    some = of_plays([part.remove_columns("speaker") for part in each], client=None, module=module)
    assert (some.N, some.names) == (2, None)
    assert torch.equal(some.gradient(some.x0()), one.gradient(one.x0()))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"client": None}, "one data set and no client; pass client='…'"),
        ({"data": [plays()]}, "a list of data sets and client='speaker'; drop client"),
        ({"data": [], "client": None}, "an empty list; pass a data set for each client"),
        (
            {"data": [plays(), plays().remove_columns(["pixels"])], "client": None},
            "data set 1 of the list has no column 'pixels', which data set 0 has; give all of them",
        ),
        ({"data": [plays(), 3], "client": None}, "from_datasets got a int; pass a Dataset"),
    ],
)
def test_a_list_that_is_not_one_for_each_client_is_refused(given, sentence, refused):
    with refused(sentence):
        of_plays(**given)


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, height, pixels):
        return {"logits": self.layer(torch.cat([pixels, height[:, None]], 1))}


def of_logits(output, y):
    return F.cross_entropy(output["logits"], y)


def test_several_columns_are_arguments_by_name():
    module = Named().double()
    problem = of_plays(inputs=["pixels", "height"], module=module, loss=of_logits)
    X = torch.tensor(plays()["pixels"][:], dtype=torch.float32).double()
    height, y = torch.tensor(plays()["height"][:]).double(), torch.tensor(plays()["label"][:])
    rows = torch.tensor([name == "ophelia" for name in plays()["speaker"]])
    expected = gradient(module, of_logits(module(height[rows], X[rows]), y[rows]))
    torch.testing.assert_close(problem.client_gradient(1, problem.x0()), expected)
    every = plays().remove_columns(["words", "text"])
    assert of_plays(every, inputs=None, module=module, loss=of_logits).columns == Fields(
        inputs=("pixels", "height"), target="label"
    )


def test_words_of_any_length_go_through_a_collate():
    module = Reader().double()
    problem = of_plays(inputs=["tokens"], module=module, collate=padded, batch=4, test=plays(9))
    batch = padded(list(plays()))
    rows = torch.tensor([name == "hamlet" for name in plays()["speaker"]])
    loss = F.cross_entropy(module(batch["tokens"][rows]), batch["label"][rows])
    torch.testing.assert_close(problem.client_gradient(0, problem.x0()), gradient(module, loss))
    assert len(problem.test) == 9
    next(simulate(Scaffold(eta_l=0.1, K=2), problem.split(0.2)))


def test_a_loss_of_module_and_batch_gets_a_dict_of_columns():
    loss = OnBatch(lambda m, batch: F.cross_entropy(m(batch["pixels"]), batch["label"]))
    data = plays().remove_columns(["words", "text"])
    module = nn.Linear(3, 2)
    found = of_plays(data, target=None, inputs=None, loss=loss, module=module)
    x = found.x0()
    torch.testing.assert_close(found.gradient(x), of_plays(module=module).gradient(x))
    loss = OnBatch(lambda m, batch: F.cross_entropy(m(batch["tokens"]), batch["label"]))
    reader = Reader()
    found = of_plays(target=None, inputs=None, loss=loss, module=reader, collate=padded)
    expected = of_plays(inputs="tokens", module=reader, collate=padded)
    x = found.x0()
    torch.testing.assert_close(found.gradient(x), expected.gradient(x))


def test_a_large_data_set_is_read_client_by_client(monkeypatch):
    monkeypatch.setattr("trimtab.problems.supervised.hugging_face._EAGER_BYTES", 0)
    problem = of_plays(weights="samples", batch=5)
    assert not problem.clients.in_memory
    assert not problem.clients._read
    problem.oracle(1, 0, 1)
    assert list(problem.clients._read) == [1]


REFUSED = {
    "a dict": ({"train": 1, "test": 2}, {}, ["a dict of train, test", "test="]),
    "no data set": ([1, 2], {}, ["got a int", "Dataset"]),
    "no client": (None, {"client": "who"}, ["no column 'who'", "speaker, pixels"]),
    "no target": (None, {"target": "y"}, ["no column 'y'"]),
    "no inputs": (None, {"inputs": "x"}, ["no column 'x'"]),
    "no target at all": (None, {"target": None}, ["no target", "OnBatch(f)"]),
    "text": (None, {"inputs": "text"}, ["column 'text' holds text", "collate="]),
    "ragged": (None, {"inputs": "words"}, ["'words'", "different lengths", "collate="]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_clear_is_refused(refused, name):
    data, changes, words = REFUSED[name]
    with refused(*words):
        of_plays(data, **changes)


def test_a_collate_that_names_other_columns_is_refused(refused):
    problem = of_plays(inputs="words", module=Reader(), collate=padded)
    with refused("no column 'words'", "tokens, label"):
        problem.oracle(0, 0, 1)


def test_missing_values_are_refused(refused):
    data = plays().remove_columns("height").add_column("height", [None] + [1.0] * (ROWS - 1))
    with refused("client 0 has NaN", "fill in"):
        of_plays(data, inputs=["pixels", "height"], module=Named(), loss=of_logits).oracle(0, 0, 1)


def test_a_data_set_is_compared_and_diagnosed():
    problem = of_plays(batch=5)
    compare(problem, ["fedavg", "scaffold"], R=3, K=2, budget=200, seeds=1)
    assert diagnose(problem, minutes=0.02).setting.N == 2
    ragged = of_plays(inputs="tokens", module=Reader(), collate=padded, batch=4)
    assert diagnose(ragged, minutes=0.02).setting.N == 2


FILE = """
from pathlib import Path
import datasets
import torch
from torch import nn
from torch.nn import functional as F
from trimtab import Fields

columns = Fields(inputs=["pixels"], target="label")

def model():
    return nn.Linear(3, 2), F.cross_entropy

def silo(data: Path):
    rows = datasets.load_from_disk(data)
    return rows.select(range(20)), rows.select(range(20, 30))
"""


def test_a_site_of_a_federation_returns_a_data_set(tmp_path):
    plays().save_to_disk(tmp_path / "rows")
    (tmp_path / "mine.py").write_text(FILE)
    problem = ProblemFile(tmp_path / "mine.py").site_problem(tmp_path / "rows", batch=5)
    assert (problem.clients.size(0), len(problem.test)) == (20, 10)
    assert problem.clients[0].X.shape == (20, 3)
