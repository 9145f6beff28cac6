"""Plain apps in the form of Flower's quickstarts run SCAFFOLD after three changed lines."""

import importlib
import logging
import subprocess
import sys

import pytest
import torch
from flwr.app import Context, RecordDict
from torch.nn import functional as F

from tests.flower.quickstarts import pytorch
from tests.helpers.flower_app import (
    CHANGES,
    changed,
    counted,
    environment,
    far,
    rounds_of,
    write_app,
)
from tests.helpers.flower_grid import Nodes
from trimtab import Momentum, ScaffoldOpt, Supervised, simulate

N = 3
NEEDS = {"hugging_face": "transformers", "lightning_trainer": "lightning"}
EVERY = pytest.mark.parametrize("name", CHANGES)
as_the_packages_are = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers",
    "ignore:The number of training batches",
    "ignore:`isinstance.treespec, LeafSpec.`:FutureWarning",
    "ignore:.*loss_type:UserWarning",
)


def needs(name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason="pip install 'trimtab[lora,lightning]'")


@EVERY
def test_three_lines_change_besides_imports(name):
    _, new = changed(name)
    assert 2 <= len(new) <= 3


def check(out, folders, cohorts=None):
    """The server's c is the mean of the accepted c_i, and x has moved."""
    rounds, found = rounds_of(out)
    assert cohorts is None or found == cohorts
    assert far(rounds[-1]["c"], counted(rounds[-1], folders)) < 1e-6
    assert far(rounds[-1]["c"], {n: 0 * v for n, v in rounds[-1]["c"].items()}) > 1e-4
    for name, value in rounds[-1]["x"].items():
        assert torch.isfinite(value).all(), name
    return rounds, found


def check_parity(out, app, N):
    """x and c of the PyTorch app are those of `simulate` with the same cohorts."""
    rounds, cohorts = rounds_of(out)
    clients = [app.tensors(i) for i in range(N)]
    algorithm = ScaffoldOpt(eta_l=0.05, K=3, base=Momentum(0.9))
    problem = Supervised(app.make_model(), F.cross_entropy, clients)
    names = [name for name, _ in app.make_model().named_parameters()]
    flat = lambda named: torch.cat([named[name].reshape(-1) for name in names])  # noqa: E731
    for after, expected in zip(
        rounds[1:], simulate(algorithm, problem, cohorts=cohorts), strict=False
    ):
        assert (flat(after["x"]) - expected.x).abs().max() < 1e-9
        assert (flat(after["c"]) - expected.server.c).abs().max() < 1e-9


@EVERY
@as_the_packages_are
def test_a_quickstart_runs_in_one_process(name, tmp_path, monkeypatch):
    needs(name)
    monkeypatch.chdir(tmp_path)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    write_app(tmp_path / "app", changed(name)[0])
    monkeypatch.syspath_prepend(str(tmp_path / "app"))
    given = environment(tmp_path / "app", tmp_path / "out", N, R=4, fraction=0.67)
    monkeypatch.setenv("QUICK", given["QUICK"])
    for module in [m for m in sys.modules if m.partition(".")[0] == "quick"]:
        monkeypatch.delitem(sys.modules, module)
    client, server = (importlib.import_module(f"quick.{part}_app") for part in ("client", "server"))
    nodes = Nodes(client.app, N)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    server.app(grid=nodes, context=context)
    assert nodes.errors == []
    folders = {str(i): tmp_path / "state" for i in range(N)}
    check(tmp_path / "out", folders, nodes.cohorts)
    if name == "pytorch":
        check_parity(tmp_path / "out", client, N)


SIMULATION = """
from flwr.simulation import run_simulation
from quick import client_app, server_app
ray = {"_node_ip_address": "127.0.0.1", "include_dashboard": False, "num_cpus": 2}
config = {"client_resources": {"num_cpus": 1}, "init_args": ray}
run_simulation(server_app.app, client_app.app, 3, backend_config=config)
"""


@pytest.mark.weekly
@EVERY
def test_a_quickstart_runs_in_a_simulation(name, tmp_path):
    needs(name)
    pytest.importorskip("ray", reason="pip install 'trimtab[cluster]'")
    app = write_app(tmp_path / "app", changed(name)[0])
    command = [sys.executable, "-c", SIMULATION]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment(app, tmp_path / "out", N, R=3),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert "finished" in done.stdout, done.stderr
    check(tmp_path / "out", {str(i): tmp_path / "state" for i in range(N)}, [[0, 1, 2]] * 3)
    if name == "pytorch":
        check_parity(tmp_path / "out", pytorch, N)
