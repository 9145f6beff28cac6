"""docs/from-flower.md: both sides of its diffs, its blocks in order, and examples/flower."""

import difflib
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.linear_model import LogisticRegression

from tests.helpers.flower_grid import Nodes
from trimtab.flower import Control, Scaffold

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "from-flower.md").read_text()
EXAMPLE = ROOT / "examples" / "flower"
FILES = ("task.py", "client_app.py", "server_app.py")
CONFIG = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
# An app of Flower on nodes in one process; it prints what its ServerApp prints.
RUN = f"""
import random, torch
from flwr.app import Context, RecordDict
from digits import client_app, server_app
from tests.helpers.flower_grid import Nodes
random.seed(0); torch.manual_seed(0)
nodes = Nodes(client_app.app, 10, run_config={CONFIG})
context = Context(run_id=1, node_id=1, node_config={{}}, state=RecordDict(), run_config={CONFIG})
server_app.app(grid=nodes, context=context)
assert nodes.errors == [], nodes.errors
"""


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)


def side(sign):
    """Return the three files of one side of the diffs."""
    return [
        "".join(line[1:] for line in block.splitlines(keepends=True) if line[0] in (" ", sign))
        for block in blocks("diff")
    ]


def accuracy(files, folder, monkeypatch):
    (folder / "digits").mkdir(parents=True)
    for name, text in zip(("__init__.py", *FILES), ("", *files), strict=True):
        (folder / "digits" / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{ROOT}:{ROOT / 'src'}")
    command = [sys.executable, "-c", RUN]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return float(re.findall(r"^accuracy (.*)$", done.stdout, re.M)[0])


def test_the_diffs_lead_to_the_example_which_is_more_accurate(tmp_path, monkeypatch):
    for name, text in zip(FILES, side("+"), strict=True):
        assert (EXAMPLE / "digits" / name).read_text() == text, name
    before = accuracy(side("-"), tmp_path / "before", monkeypatch)
    after = accuracy(side("+"), tmp_path / "after", monkeypatch)
    assert "the accuracy is 0.96; without the change it was 0.79 to 0.90" in PAGE
    assert after == pytest.approx(0.96, abs=0.02)
    assert 0.7 < before < 0.93
    assert (tmp_path / "after" / "state").is_dir()


def test_three_lines_and_the_imports_change_at_the_client():
    new = 0
    for before, after in zip(side("-")[:2], side("+")[:2], strict=True):
        lines = difflib.ndiff(before.splitlines(), after.splitlines())
        new += sum(line[0] == "+" and "import " not in line and line[2:] != "" for line in lines)
    assert new == 3


def trained(train, clients, make, R, tmp_path):
    """Return the model after R rounds in which client i calls `train(model, *clients[i])`."""
    app = ClientApp(mods=[Control(tmp_path)])

    @app.train()
    def train_model(msg, context):
        model = make()
        model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        X, y = clients[context.node_config["partition-id"]]
        train(model, X, y)
        metrics = MetricRecord({"num-examples": len(y)})
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
        return Message(RecordDict(content), reply_to=msg)

    model = make()
    nodes = Nodes(app, len(clients))
    scaffold = Scaffold(clients=len(clients), fraction_evaluate=0.0)
    result = scaffold.start(nodes, ArrayRecord(model.state_dict()), R)
    assert nodes.errors == []
    model.load_state_dict(result.arrays.to_torch_state_dict())
    return model


@pytest.fixture
def page():
    """Run all blocks of the page; return what they define."""
    if find_spec("lightning") is None:
        pytest.skip("pip install 'trimtab[lightning]' for this page")
    names = {}
    for source in blocks("python"):
        exec(compile(source, "docs/from-flower.md", "exec"), names)
    return names


def test_the_layer_of_torch_ends_where_scikit_learn_ends(page, tmp_path):
    assert page["strategy"].weights == {"0": 120.0, "1": 300.0, "2": 80.0}
    draw = torch.Generator().manual_seed(0)
    clients = []
    for i in range(3):
        X = torch.randn(30, 4, generator=draw) + i / 2
        scores = X @ torch.randn(4, 3, generator=draw)
        clients.append((X, scores.argmax(1)))
    make = lambda: torch.nn.Linear(4, 3)  # noqa: E731
    train = lambda model, X, y: page["fit_logistic"](model, X, y, rows=90)  # noqa: E731
    model = trained(train, clients, make, 100, tmp_path)
    X, y = (torch.cat(parts) for parts in zip(*clients, strict=True))
    other = LogisticRegression(C=1.0, tol=1e-8, max_iter=1000).fit(X, y)
    assert model.weight.detach().numpy() == pytest.approx(other.coef_, abs=2e-3)
    scores = torch.as_tensor(other.decision_function(X))
    assert model(X).softmax(1).detach().numpy() == pytest.approx(
        scores.softmax(1).numpy(), abs=2e-3
    )


@pytest.mark.filterwarnings(
    "ignore:.*does not have many workers",
    "ignore:The number of training batches",
    "ignore:`isinstance.treespec, LeafSpec.`:FutureWarning",
)
def test_lightning_trains_by_the_callback_of_the_page(page, tmp_path, monkeypatch):
    import lightning

    monkeypatch.chdir(tmp_path)

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.out = torch.nn.Linear(4, 1)

        def training_step(self, batch, _):
            X, y = batch
            return (self.out(X).squeeze(1) - y).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def train(model, X, y):
        page["fit"](model, torch.utils.data.DataLoader(list(zip(X, y, strict=True)), 8))

    X = torch.randn(32, 4)
    clients = [(X, X[:, 0] + i) for i in range(3)]
    model = trained(train, clients, Net, 30, tmp_path / "state")
    assert model.out.weight[0].tolist() == pytest.approx([1, 0, 0, 0], abs=1e-3)
    assert model.out.bias.tolist() == pytest.approx([1.0], abs=1e-3)


def test_the_page_is_short_and_names_the_example():
    assert len(PAGE.split()) <= 1400
    assert re.findall(r"^flwr run (\S+)", PAGE, re.M) == [str(EXAMPLE.relative_to(ROOT))]
