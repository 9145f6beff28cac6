"""A whole federation on one machine: four hospitals, a server, TLS and keys, in one command."""

import threading
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from trimtab._processes import Child
from trimtab.algorithms import FedAvg, Scaffold
from trimtab.algorithms.registry import encode
from trimtab.core import Algorithm
from trimtab.core.task import Note, task
from trimtab.errors import BadArgument, DataError
from trimtab.federation.events import AuditDone, RoundCommitted
from trimtab.federation.log import attached
from trimtab.federation.processes.operator import OperatorProcess
from trimtab.federation.processes.ports import free_port
from trimtab.federation.setup.job import read_job, resume_job, start_job
from trimtab.federation.setup.operator import Federation, create
from trimtab.federation.setup.site import DRAWS, SERVERS_SEED, unpack
from trimtab.federation.setup.status import RunSummary, summary_of
from trimtab.federation.storage.journal import read_summary
from trimtab.federation.storage.keys import write_secret
from trimtab.problems.data.images import digits
from trimtab.problems.data.tables import heart_disease
from trimtab.problems.partition import by_label

OPERATOR = "operator"  # the operator's folder inside that of the demonstration
ETA_L, K, R = 0.1, 10, 5
Parts = dict[str, dict[str, Tensor]]

_PROBLEM = '''\
"""Logistic regression on one hospital's patients."""

from safetensors.torch import load_file
from torch.nn import functional as F

from trimtab.problems.catalogue import logistic


def model():
    return logistic({features}, {classes}).double(), F.cross_entropy


def silo(data):
    part = load_file(data)
    return (part["X"], part["y"]), (part["X_test"], part["y_test"])
'''


@dataclass(frozen=True)
class Demonstration:
    """What came of both runs."""

    scaffold: RunSummary
    fedavg: RunSummary

    def to_json(self) -> dict[str, Any]:
        """Return what `federate demo --json` prints."""
        audit = self.scaffold.audit
        return {
            "sites": self.scaffold.sites,
            **_numbers(self.scaffold),
            "audit": {"deviation": audit.deviation if audit else None},
            "fedavg": _numbers(self.fedavg),
        }


@task
def demonstrate(
    data: Path | None = None,
    out: Path | None = None,
    stop: threading.Event | None = None,
    seed: int = 0,
) -> Generator[Note, None, Demonstration]:
    """Run SCAFFOLD, then FedAvg, over four sites of this machine; `stop` ends it early.

    A demonstration that was stopped goes on from its last committed round, if it has a folder.
    """
    with ExitStack() as stack:
        folder = out or Path(stack.enter_context(TemporaryDirectory(prefix="trimtab-")))
        if (folder / OPERATOR / "federation.json").exists():
            federation = Federation.read(folder / OPERATOR)
            _check_seed(federation, seed)
        else:
            parts, classes = yield from _parts(data)
            federation = _prepare(folder, parts, classes)
        stack.enter_context(attached(federation.folder / "logs" / "server.log"))
        operator = OperatorProcess(federation.folder, stop=stop)
        stack.callback(operator.close)
        sites = [_site(federation, name, folder) for name in federation.sites]
        for site in sites:
            stack.callback(site.stop)
            site.start()
        yield Note(f"four sites and a server are starting in {folder}")
        operator.start()
        scaffold, fedavg = Scaffold(eta_l=ETA_L, K=K, lean=True), FedAvg(eta_l=ETA_L, K=K)
        return Demonstration(
            scaffold=(yield from _run(operator, sites, scaffold, "state", seed)),
            fedavg=(yield from _run(operator, sites, fedavg, "state-fedavg", seed)),
        )


def _check_seed(federation: Federation, seed: int) -> None:
    """Refuse to go on with another seed than the one that was begun with."""
    job = read_job(federation)
    if job is not None and job.seed != seed:
        raise BadArgument(
            "seed",
            "{folder} has a demonstration of seed {begun}; pass {seed:{begun}}, or another {out}.",
            folder=federation.folder.parent,
            begun=job.seed,
        )


def _prepare(folder: Path, parts: Parts, classes: int) -> Federation:
    """Write the problem file, each hospital's data, and the operator's folder at last."""
    features = next(iter(parts.values()))["X"].shape[1]
    folder.mkdir(parents=True, exist_ok=True)
    problem = folder / "problem.py"
    problem.write_text(_PROBLEM.format(features=features, classes=classes))
    for name, part in parts.items():
        save_file(part, folder / f"{name}.safetensors")
    return create(
        folder / OPERATOR,
        list(parts),
        problem,
        weights="uniform",
        batch=None,
        hosts=["127.0.0.1"],
        port=free_port(),
    )


def _run(
    operator: OperatorProcess, sites: list[Child], algorithm: Algorithm, state: str, seed: int
) -> Generator[Note, None, RunSummary]:
    federation = operator.federation
    if read_summary(federation.folder / state) is None:
        job = start_job(
            federation,
            algorithm,
            R=R,
            min_sites=len(sites),
            round_timeout=120,
            seed=seed,
            state=state,
        )
    else:
        job = resume_job(federation, algorithm=encode(algorithm), state=state)
    ended, audit = None, None
    for event in operator.events(job):
        if isinstance(event, RoundCommitted):
            yield Note(_round_sentence(type(algorithm).__name__, event))
        elif isinstance(event, AuditDone):
            audit = event
        else:
            ended = event
        for site in sites:
            if site.process is not None and (code := site.process.poll()) is not None:
                raise RuntimeError(f"{site.name} ended ({site.last_words(code)}).")
    if operator.interrupted:
        raise KeyboardInterrupt
    return summary_of(federation.folder / state, ended, audit)


def _round_sentence(name: str, event: RoundCommitted) -> str:
    return (
        f"{name} round {event.r} of {R}: {len(event.cohort)} sites, "
        f"loss {event.metrics['loss']:.4f}, accuracy {event.metrics['accuracy']:.4f}, "
        f"{event.seconds:.1f} s"
    )


def _numbers(summary: RunSummary) -> dict[str, Any]:
    return {name: getattr(summary, name) for name in ("rounds", "metric", "bytes_up")}


def _site(federation: Federation, name: str, folder: Path) -> Child:
    """Return a site as a process of its own, as it would be on its own machine."""
    site_folder = folder / "sites" / name
    if not (site_folder / "site.json").exists():
        unpack(federation.archive(name), folder / "sites")
        write_secret(site_folder / DRAWS, SERVERS_SEED)  # so that each run gives the same numbers
    return Child(
        f"site {name}",
        "trimtab.federation.processes.site:main",
        [str(site_folder), str(folder / f"{name}.safetensors")],
        environment={},
        output=site_folder / "logs" / "output.log",
    )


def _parts(data: Path | None) -> Generator[Note, None, tuple[Parts, int]]:
    """Return each hospital's patients; where they cannot be had, digits sorted by label."""
    try:
        hospitals = heart_disease(data)
    except DataError as error:
        yield Note(f"{error} Until then: scikit-learn's digits, sorted by label over four sites.")
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
