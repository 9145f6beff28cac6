"""Folders with apps of Flower: a plain app of `tests/flower/quickstarts` and what changes in it."""

import json
import os
import re
import sys
from itertools import pairwise
from pathlib import Path

import torch

from trimtab.commit import States

ROOT = Path(__file__).parents[2]
PLAIN = ROOT / "tests" / "flower" / "quickstarts"
# At most three lines, besides imports.
_MOD = {"app = ClientApp()": 'app = ClientApp(mods=[trimtab.flower.Control("state/")])'}
_LOOP = {
    **_MOD,
    "    net.train()\n": """\
    net.train()
    controls = trimtab.flower.controls(net, optimizer)
""",
    "            optimizer.step()\n": """\
            controls.correct()
            optimizer.step()
""",
}
_TRAINER = {
    **_MOD,
    "    trainer = pl.Trainer(": """\
    control = trimtab.torch.LightningControls(**trimtab.flower.arguments(model))
    trainer = pl.Trainer(callbacks=[control], """,
}
CHANGES = {"pytorch": _LOOP, "hugging_face": _LOOP, "lightning_trainer": _TRAINER}
SERVER = """
import json, os, time, torch
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
import trimtab.flower
from quick.client_app import make_model

app = ServerApp()

@app.main()
def main(grid, context):
    how = json.loads(os.environ["QUICK"])
    strategy = trimtab.flower.Scaffold(
        clients=how["N"],
        fraction_train=how["fraction"],
        fraction_evaluate=0.0,
        min_available_nodes=how["N"],
        checkpoint=how["out"] + ".safetensors",
    )
    rounds, nodes = [], set()

    def evaluate(r, arrays):
        nodes.update(grid.get_node_ids())
        while r == how["wait"] and len(nodes) < how["nodes"]:
            time.sleep(0.2)
            nodes.update(grid.get_node_ids())
        tags = {name: accepted.tag for name, accepted in strategy.accepted.items()}
        x = arrays.to_torch_state_dict()
        rounds.append({"x": x, "c": strategy.c, "tags": tags, "experiment": strategy.experiment})
        torch.save(rounds, how["out"] + ".new")
        os.replace(how["out"] + ".new", how["out"])

    arrays = ArrayRecord(make_model().state_dict())
    strategy.start(grid, arrays, num_rounds=how["R"], evaluate_fn=evaluate)
    print("finished", flush=True)
"""
PROJECT = """
[project]
name = "quick"
version = "1.0.0"
description = "a test"
license = "Apache-2.0"
dependencies = []
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[tool.flwr.app]
publisher = "trimtab"
[tool.flwr.app.components]
serverapp = "quick.server_app:app"
clientapp = "quick.client_app:app"
[tool.flwr.app.config]
"""


def changed(name, **more):
    """Return the source of a plain app with its changed lines, and the number of them."""
    text = (PLAIN / f"{name}.py").read_text()
    before = text.splitlines()
    for old, new in {**CHANGES[name], **more}.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    new = [line for line in text.splitlines() if line not in before]
    return re.sub(
        r"^(app = )", r"import trimtab.flower, trimtab.torch\n\n\1", text, flags=re.M
    ), new


def write_app(folder, source):
    """Write an app, as `flwr run` takes it, with this source of its ClientApp."""
    (folder / "quick").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    for file, text in (("__init__", ""), ("client_app", source), ("server_app", SERVER)):
        (folder / "quick" / f"{file}.py").write_text(text)
    return folder


def environment(folder, out, N, R, fraction=1.0, wait=None, nodes=0):
    """Return the environment of an app's processes.

    wait: the round after which the server waits until it has seen so many nodes.
    """
    how = {"N": N, "R": R, "fraction": fraction, "out": str(out), "wait": wait, "nodes": nodes}
    return {
        **os.environ,
        # Flower starts its own programs by name, also where the virtual environment is not active.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "QUICK": json.dumps(how),
        "PYTHONPATH": f"{folder}:{ROOT / 'src'}:{ROOT}",
        "FLWR_HOME": str(folder / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def rounds_of(out):
    """Return what the server saved after each round, and the cohorts of those with a reply."""
    rounds = torch.load(out)
    cohorts, kept = [], [rounds[0]]
    for before, after in pairwise(rounds):
        tags = before["tags"]
        cohort = [int(name) for name, tag in after["tags"].items() if tags.get(name) != tag]
        if cohort:
            cohorts.append(sorted(cohort))
            kept.append(after)
    return kept, cohorts


def counted(last, folders):
    """Return sum c_i / N of the accepted states, of all clients by their folders `state/`."""
    total = dict.fromkeys(last["c"], 0.0)
    for name, tag in last["tags"].items():
        c_i, _ = States(folders[name] / last["experiment"] / name).load(tag)
        total = {n: value + c_i[n] / len(folders) for n, value in total.items()}
    return total


def far(a, b):
    return max(float((a[name] - b[name]).abs().max()) for name in a | b)
