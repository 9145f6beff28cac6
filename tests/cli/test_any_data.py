"""A dict-returning module, a loss of module and batch, ragged text, a table and a data set.

Each of them in compare, run and diagnose, from a script without a line of glue; in a federation
see tests/federation/test_any_data_at_sites.py.
"""

import json
from importlib.util import find_spec

import pytest
from click.testing import CliRunner

from trimtab.cli import cli

SCRIPT = """
import torch
from torch import nn
from torch.nn import functional as F
from trimtab import OnBatch, Supervised

class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, left, right):
        return {"logits": self.layer(torch.cat([left, right], 1))}

def of_logits(output, y):
    return F.cross_entropy(output["logits"], y)

X = [torch.randn(20, 3, generator=torch.Generator().manual_seed(i)) for i in range(3)]
Y = [(x.sum(1) > 0.2 * i).long() for i, x in enumerate(X)]

def named():
    clients = [({"left": x[:, :2], "right": x[:, 2:]}, y) for x, y in zip(X, Y)]
    return Supervised(Named(), of_logits, clients, clients[0], batch=5)

def batches():
    loss = OnBatch(lambda module, b: of_logits(module(b["x"][:, :2], b["x"][:, 2:]), b["y"]))
    clients = [{"x": x, "y": y} for x, y in zip(X, Y)]
    return Supervised(Named(), loss, clients, clients[0], batch=5)

class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(6, 2, padding_idx=0), nn.Linear(2, 2)

    def forward(self, words):
        return self.out(self.words(words).sum(1))

def together(samples):
    longest = max(len(words) for words, _ in samples)
    words = [words + [0] * (longest - len(words)) for words, _ in samples]
    return torch.tensor(words), torch.tensor([label for _, label in samples])

def ragged():
    texts = [list(range(1, 2 + j % 4)) for j in range(20)]
    clients = [list(zip(texts, y.tolist())) for y in Y]
    return Supervised(Reader, F.cross_entropy, clients, clients[0], batch=5, collate=together)

def frame():
    import pandas
    table = pandas.concat([
        pandas.DataFrame(x.numpy(), columns=list("abc")).assign(y=y.numpy(), place=f"site {i}")
        for i, (x, y) in enumerate(zip(X, Y))
    ])
    build = lambda inputs: nn.Linear(inputs, 2)
    return Supervised.from_frame(
        table, client="place", target="y", module=build, loss=F.cross_entropy, test=table, batch=5
    )

def dataset():
    import datasets
    rows = datasets.Dataset.from_dict({
        "speaker": [i for i, x in enumerate(X) for _ in x],
        "left": [row for x in X for row in x[:, :2].tolist()],
        "right": [row for x in X for row in x[:, 2:].tolist()],
        "y": [label for y in Y for label in y.tolist()],
    })
    return Supervised.from_datasets(
        rows, client="speaker", target="y", module=Named(), loss=of_logits, test=rows, batch=5
    )
"""
NEEDS = {"named": None, "batches": None, "ragged": None, "frame": "pandas", "dataset": "datasets"}


@pytest.mark.parametrize("name", NEEDS)
def test_each_works_in_compare_run_and_diagnose(tmp_path, name):
    package = NEEDS[name]
    if package is not None and find_spec(package) is None:
        pytest.skip(f"pip install 'trimtab[{package}]'")
    (tmp_path / "script.py").write_text(SCRIPT)
    problem = f"{tmp_path / 'script.py'}:{name}"

    def told(command):
        done = CliRunner().invoke(cli, [*command.split(), "--json"])
        assert done.exit_code == 0, f"{done.output} {done.exception}"
        return json.loads(done.stdout)

    out = tmp_path / "out"
    found = told(
        f"compare {problem} --algorithms fedavg,scaffold --K 2 --eta-g 1 -R 3 --budget 300 "
        f"--seeds 1 --baselines --out {out}-compare"
    )
    assert found["metric"] == ("loss" if name == "batches" else "accuracy")
    told(f"run scaffold {problem} --eta-l 0.1 --K 2 -R 3 --out {out}-run")
    assert (tmp_path / "out-run" / "model.safetensors").exists()
    assert str(told(f"diagnose {problem} --minutes 0.03 --out {out}-diagnose")["N"]) == "3"
