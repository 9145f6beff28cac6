"""A comparison does not look at the test data before the end, and says when it does."""

import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trimtab import Supervised, compare
from trimtab.cli import cli
from trimtab.studies.comparison import Comparison
from trimtab.studies.holdout import held_out
from trimtab.studies.sections import columns


def clients(n=30, N=3, dtype=torch.float32):
    draw = torch.Generator().manual_seed(0)
    w = torch.randn(4, generator=draw)
    made = []
    for i in range(N + 1):
        X = torch.randn(n, 4, generator=draw) + i / 3
        made.append((X.to(dtype), ((X @ w) > 0.5).long()))
    return made[:N], made[N]


def problem(kind=Supervised, **settings):
    train, test = clients()
    return kind(lambda: nn.Linear(4, 2), F.cross_entropy, train, test, batch=5, **settings)


HOW = {"R": 12, "budget": 20_000, "target": 0.7}


def test_the_test_data_are_looked_at_once_for_each_run_that_is_reported(monkeypatch):
    looked, evaluate = [], Supervised.evaluate

    def noted(self, x, client=None):
        looked.extend([] if client is not None else [x])
        return evaluate(self, x, client)

    monkeypatch.setattr(Supervised, "evaluate", noted)
    found = compare(problem(), ["fedavg"], seeds=3, **HOW)
    assert found.about.split == 0.1
    assert len(looked) == 1 + 3  # once at the start, to see what is measured
    assert all("accuracy" in run.test for run in found.entries[0].runs)


def test_the_best_of_the_validation_is_what_is_tested():
    found = compare(problem(), ["fedavg"], seeds=2, **HOW)
    entry = found.entries[0]
    assert entry.test is not None
    assert entry.best >= 0.7
    assert all(run.chosen is not None for run in entry.runs)


def test_without_a_split_the_note_says_so():
    found = compare(problem(), ["sgd"], split=None, seeds=1, **HOW)
    assert found.about.split == "none"
    assert any("test data" in note for note in found.about.notes)
    assert found.entries[0].best == pytest.approx(found.entries[0].test)


def test_validation_data_of_the_user_are_taken():
    _, given = clients(n=17)
    made = held_out(problem(validation=given), 0.1, 0, None)
    assert made.split == "given"
    assert made.problem.clients.size(0) == 30


def test_one_split_for_all_seeds():
    a, b = (held_out(problem(), 0.2, 5, None) for _ in range(2))
    x = a.problem.x0()
    assert a.validate(x) == b.validate(x)
    assert a.validate(x) != held_out(problem(), 0.2, 6, None).validate(x)


MINE = """
import torch
from torch import nn
from torch.nn import functional as F
from trimtab import Supervised

def problem():
    draw = torch.Generator().manual_seed(0)
    clients = []
    for i in range(4):
        X = torch.randn(40, 3, generator=draw) + i / 4
        clients.append((X, (X.sum(1) > 2.5).long()))
    return Supervised(lambda: nn.Linear(3, 2), F.cross_entropy, clients, clients[0], batch=8)
"""


def test_the_command_has_every_choice(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(MINE)
    words = f"compare {tmp_path}/mine.py:problem --algorithms fedavg,scaffold --metric auc -R 12"
    words += " --seeds 2 --budget 20000 --prefer bytes --baselines --epochs 1 --eta-g 1 --json"
    words += f" --out {tmp_path}/out --slow 0.3 --weights samples --split 0.2"
    cli.main(words.split(), standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert found["metric"] == "auc"
    assert found["prefer"] == "bytes"
    assert found["split"] == 0.2
    assert found["seeds"] == [19, 20]
    assert found["budget"] == 20000
    assert [row["name"] for row in found["algorithms"]] == ["fedavg", "scaffold", "local", "pooled"]
    first = found["algorithms"][0]
    assert first["settings"]["K"] == "Epochs(1)"
    assert first["per_client"]["clients"] == 4
    assert any("weigh by their number of samples" in note for note in found["notes"])
    assert {"exchanges", "work", "interval", "reached", "test", "runs"} <= set(first)


def test_unbalanced_labels_are_noted(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(MINE)
    words = f"compare {tmp_path}/mine.py:problem --algorithms sgd -R 3 --seeds 1 --budget 5000"
    cli.main([*words.split(), "--out", f"{tmp_path}/out"], standalone_mode=False)
    assert "is what always saying that scores" in " ".join(capsys.readouterr().out.split())


def test_without_test_data_the_last_column_is_of_training_and_says_so(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(MINE.replace("clients, clients[0],", "clients,"))
    words = f"compare {tmp_path}/mine.py:problem --algorithms sgd -R 3 --seeds 1 --budget 5000"
    cli.main([*words.split(), "--json", "--out", f"{tmp_path}/out"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert found["tested_on"] == "training"
    assert any("there are no test data" in note for note in found["notes"])
    titles = [column.title for column in columns(Comparison.load(tmp_path / "out"))]
    assert "training" in titles
    assert "test" not in titles
    again = ["--json", "--split", "none", "--out", f"{tmp_path}/again"]
    cli.main([*words.split(), *again], standalone_mode=False)
    notes = " ".join(json.loads(capsys.readouterr().out)["notes"])
    assert "tuned, stopped and compared on the training data" in notes
    assert "no test data" not in notes


def test_a_comparison_by_another_metric_is_another_one(tmp_path, refused):
    how = {"R": 3, "budget": 5000, "seeds": 1, "out": tmp_path / "c"}
    compare(problem(metrics=["auc", "f1"]), ["sgd"], metric="auc", **how)
    with refused("metric", "auc", "f1"):
        compare(problem(metrics=["auc", "f1"]), ["sgd"], metric="f1", resume=True, **how)
