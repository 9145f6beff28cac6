"""A whole federation on one machine: four hospitals, a server, TLS and keys, in one command."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from trimtab.algorithms import FedAvg, Scaffold
from trimtab.core import Algorithm
from trimtab.errors import DataError
from trimtab.federation.log import attached
from trimtab.federation.processes.child import Child, tail
from trimtab.federation.processes.operator import OperatorProcess
from trimtab.federation.processes.site import free_port
from trimtab.federation.setup import operator_folder
from trimtab.federation.setup.job import start_job
from trimtab.federation.setup.status import summary_of
from trimtab.problems.data.digits import digits
from trimtab.problems.data.heart_disease import heart_disease
from trimtab.problems.partition import by_label

ETA_L, K, R = 0.1, 10, 5
Parts = dict[str, dict[str, Tensor]]

_PROBLEM = '''\
"""Logistic regression on one hospital's patients."""

from safetensors.torch import load_file
from torch.nn import functional as F

from trimtab.problems.models import logistic


def model():
    return logistic({features}, {classes}).double(), F.cross_entropy


def silo(data):
    part = load_file(data)
    return (part["X"], part["y"]), (part["X_test"], part["y_test"])
'''


def demonstrate(
    data: Path | None,
    out: Path | None,
    say: Callable[[str], None],
    stop: threading.Event | None = None,
) -> dict[str, Any]:
    """Run SCAFFOLD, then FedAvg, over four sites; return rounds, metric, bytes and the audit."""
    with ExitStack() as stack:
        folder = out or Path(stack.enter_context(TemporaryDirectory(prefix="trimtab-")))
        parts, classes = _parts(data, say)
        features = next(iter(parts.values()))["X"].shape[1]
        folder.mkdir(parents=True, exist_ok=True)
        problem = folder / "problem.py"
        problem.write_text(_PROBLEM.format(features=features, classes=classes))
        operator = folder / "operator"
        federation = operator_folder.create(
            operator,
            list(parts),
            problem,
            weights="uniform",
            batch=None,
            hosts=["127.0.0.1"],
            port=free_port(),
        )
        for name, part in parts.items():
            save_file(part, folder / f"{name}.safetensors")
        stack.enter_context(attached(operator / "logs" / "server.log", say))
        server = OperatorProcess(operator, stop=stop)
        stack.callback(server.close)
        sites = [_site(federation, name, folder) for name in parts]
        for site in sites:
            stack.callback(site.stop)
            site.start()
        say(f"four sites and a server are starting in {folder}")
        server.start()
        scaffold = _run(server, sites, Scaffold(eta_l=ETA_L, K=K, lean=True), "state", say)
        fedavg = _run(server, sites, FedAvg(eta_l=ETA_L, K=K), "state-fedavg", say)
        shown = ("rounds", "metric", "bytes_up")
        return {
            "sites": list(parts),
            **{name: scaffold[name] for name in shown},
            "audit": {"deviation": scaffold["audit"]["deviation"]},
            "fedavg": {name: fedavg[name] for name in shown},
        }


def _run(
    server: OperatorProcess,
    sites: list[Child],
    algorithm: Algorithm,
    state: str,
    say: Callable[[str], None],
) -> dict[str, Any]:
    federation, found = server.federation, dict[str, Any]()
    job = start_job(federation, algorithm, R=R, round_timeout=120, state=state)
    for event in server.events(job):
        if event["event"] == "round":
            metrics = event["metrics"]
            say(
                f"{type(algorithm).__name__} round {event['r']} of {R}: {len(event['cohort'])} "
                f"sites, loss {metrics['loss']:.4f}, accuracy {metrics['accuracy']:.4f}, "
                f"{event['seconds']:.1f} s"
            )
        else:
            found[event["event"]] = event
        for site in sites:
            if not site.alive:
                raise RuntimeError(f"{site.name} ended ({tail(site.output)}).")
    if server.interrupted:
        raise KeyboardInterrupt
    return summary_of(federation.folder, found, state)


def _site(federation: operator_folder.Federation, name: str, folder: Path) -> Child:
    """Return a site as a process of its own, as it would be on its own machine."""
    site_folder = operator_folder.unpack(federation.archive(name), folder / "sites")
    return Child(
        f"site {name}",
        "trimtab.federation.processes.site:main",
        [str(site_folder), str(folder / f"{name}.safetensors")],
        environment={},
        output=site_folder / "logs" / "output.log",
    )


def _parts(data: Path | None, say: Callable[[str], None]) -> tuple[Parts, int]:
    """Return each hospital's patients; where they cannot be had, digits sorted by label."""
    try:
        hospitals = heart_disease(data)
    except DataError as error:
        say(f"{error} Until then: scikit-learn's digits, sorted by label over four sites.")
        (X, y), test = digits()
        tests = zip(test[0].chunk(4), test[1].chunk(4), strict=True)
        cut = zip(((X[rows], y[rows]) for rows in by_label(y, 4)), tests, strict=True)
        return {f"site{i}": _part(*pair) for i, pair in enumerate(cut, 1)}, 10
    return {name: _part(split.train, split.test) for name, split in hospitals.items()}, 2


def _part(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    return {
        "X": train[0].double(),
        "y": train[1].clone(),
        "X_test": test[0].double(),
        "y_test": test[1].clone(),
    }
