"""Runs as MLflow keeps them: an experiment for each folder, a run for each seed of an algorithm."""

import logging
import warnings
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from time import time
from typing import Any

from trimtab.report.sources import Source
from trimtab.report.tools.runs import ExportedRun, runs_of, scalars

BATCH = 1000  # MLflow takes <= 1000 numbers at a time


def write_mlflow(sources: Sequence[Source], folder: Path) -> list[Path]:
    """Write the runs of some results into a store; return its folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # What its own packages deprecate is no news here.
        return _written(sources, folder)


def _written(sources: Sequence[Source], folder: Path) -> list[Path]:
    mlflow, entities = _packages()
    store = folder / "mlflow.db"
    folder.mkdir(parents=True, exist_ok=True)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{store.resolve()}")
    for source in sources:
        known = client.get_experiment_by_name(source.name)
        where = (folder / "artifacts").resolve().as_uri()
        experiment = (
            client.create_experiment(source.name, artifact_location=where)
            if known is None
            else known.experiment_id
        )
        for run in runs_of(source):
            _write(client, entities, experiment, source, run)
    return [store]


def _write(client: Any, entities: Any, experiment: str, source: Source, run: ExportedRun) -> None:
    now = int(1000 * time())
    tags = {"mlflow.runName": run.name, "problem": source.result.problem}
    made = client.create_run(experiment, start_time=now, tags=tags, run_name=run.name)
    facts = {"algorithm": run.algorithm, "seed": run.seed, **run.settings}
    parameters = [entities.Param(name, str(value)) for name, value in facts.items()]
    client.log_batch(made.info.run_id, params=parameters)
    numbers = (
        entities.Metric(_spelled(name), value, now, line.r)
        for line in run.rounds
        for name, value in scalars(line).items()
    )
    while batch := list(islice(numbers, BATCH)):
        client.log_batch(made.info.run_id, metrics=batch)
    client.set_terminated(made.info.run_id, "FINISHED", now)


def _spelled(name: str) -> str:
    """Return a name with the letters that MLflow allows in one."""
    return "".join(c if c.isalnum() or c in "_-. /" else "_" for c in name)


def _packages() -> tuple[Any, Any]:
    """Return MLflow, or say how to get it."""
    try:
        import mlflow
        from mlflow import entities
    except ImportError:
        raise ValueError("MLflow is not installed; run `pip install 'trimtab[mlflow]'`.") from None
    logging.getLogger("mlflow").setLevel(logging.WARNING)  # how it makes its tables is no news
    return mlflow, entities
