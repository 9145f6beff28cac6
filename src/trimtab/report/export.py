"""Results as CSV and for TensorBoard and MLflow, whose packages are extras."""

import csv
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import islice
from math import isfinite
from pathlib import Path
from time import time
from typing import Any

from trimtab._files import write_file
from trimtab.report.sources import Source
from trimtab.studies.record import RoundDone, RoundLine

BATCH = 1000  # numbers in one request; MLflow takes no more
FLUSH = 5  # seconds until TensorBoard sees a round, at most


@dataclass(frozen=True)
class ExportedRun:
    """One run with one seed: its name among the others, its settings, and its rounds."""

    name: str  # such as scaffold/seed=1
    algorithm: str
    seed: int | None
    settings: dict[str, Any]
    rounds: list[RoundLine]


def runs_of(source: Source) -> Iterator[ExportedRun]:
    """Return the runs of a result: those of its seeds, or its curves if it has no seeds."""
    only = source.record.get("settings", {}).get("seed")
    for entry in source.result.entries:
        seeds = source.seeds(entry)
        for seed, rounds in (seeds or {only: entry.curve}).items():
            name = f"{entry.label}/seed={seed}" if seeds else entry.label
            yield ExportedRun(name, entry.name, seed, entry.settings, rounds)


def scalars(line: RoundLine) -> dict[str, float]:
    """Return the finite numbers of a round by name."""
    names = ("drift", "spread", "cosine", "bytes_down", "bytes_up", "seconds")
    own = {name: getattr(line, name) for name in (*names, "clients", "exchanges", "work")}
    known = {name: value for name, value in (line.metrics | own).items() if value is not None}
    return {name: value for name, value in known.items() if isfinite(value)}


def _file_name(source: Source) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in source.name).strip("-")


# -- CSV


def write_csv(sources: Sequence[Source], folder: Path) -> list[Path]:
    """Write rounds.csv, and table.csv for each result; return their paths."""
    rows = [
        {"folder": source.name, "run": run.name, "seed": run.seed, "round": line.r} | scalars(line)
        for source in sources
        for run in runs_of(source)
        for line in run.rounds
    ]
    heads = list(dict.fromkeys(name for row in rows for name in row))
    text = StringIO()
    writer = csv.DictWriter(text, heads, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    paths = [folder / "rounds.csv"]
    write_file(paths[0], text.getvalue())
    for source in sources:
        alone = len(sources) == 1
        paths.append(folder / ("table.csv" if alone else f"table-{_file_name(source)}.csv"))
        write_file(paths[-1], source.result.to_csv())
    return paths


# -- TensorBoard


def write_tensorboard(sources: Sequence[Source], folder: Path) -> list[Path]:
    """Write a folder for each run, and return the folder for `tensorboard --logdir`."""
    writer = _tensorboard()
    for source in sources:
        home = folder / _file_name(source) if len(sources) > 1 else folder
        for run in runs_of(source):
            with writer(str(home / run.name), flush_secs=FLUSH) as out:
                for line in run.rounds:
                    _add(out, line)
    return [folder]


class RoundLog:
    """Writes rounds for TensorBoard as they come; before the first, it writes nothing.

    An algorithm has one open file at a time: its runs take turns, and each has its own folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._writer = folder, _tensorboard()
        self._open: dict[str, tuple[str, Any]] = {}  # by algorithm: its run, and the file of it

    def __enter__(self) -> "RoundLog":
        return self

    def __exit__(self, *error: object) -> None:
        for _, out in self._open.values():
            out.close()

    def add(self, event: RoundDone) -> None:
        """Write a round, unless it has no label: such rounds only measure the speed."""
        if not event.label:
            return
        known = self._open.get(event.label)
        if known is None or known[0] != event.run:
            if known is not None:
                known[1].close()
            home = self._folder / event.label / event.run
            known = event.run, self._writer(str(home), flush_secs=FLUSH)
            self._open[event.label] = known
        _add(known[1], event.line)


def _add(out: Any, line: RoundLine) -> None:
    for name, value in scalars(line).items():
        out.add_scalar(name, value, line.r)


def _tensorboard() -> Any:
    """Return TensorBoard's writer; raise ValueError with the way to install it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError(
            "TensorBoard is not installed; run `pip install 'trimtab[tensorboard]'`."
        ) from None
    return SummaryWriter


# -- MLflow


def write_mlflow(sources: Sequence[Source], folder: Path) -> list[Path]:
    """Write an experiment for each result and a run for each seed; return the store's file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow's packages warn about one another.
        return _write_experiments(sources, folder)


def _write_experiments(sources: Sequence[Source], folder: Path) -> list[Path]:
    mlflow, entities = _mlflow()
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
            _write_run(client, entities, experiment, source, run)
    return [store]


def _write_run(
    client: Any, entities: Any, experiment: str, source: Source, run: ExportedRun
) -> None:
    now = int(1000 * time())
    tags = {"mlflow.runName": run.name, "problem": source.result.problem}
    made = client.create_run(experiment, start_time=now, tags=tags, run_name=run.name)
    facts = {"algorithm": run.algorithm, "seed": run.seed, **run.settings}
    parameters = [entities.Param(name, str(value)) for name, value in facts.items()]
    client.log_batch(made.info.run_id, params=parameters)
    numbers = (
        entities.Metric(_mlflow_name(name), value, now, line.r)
        for line in run.rounds
        for name, value in scalars(line).items()
    )
    while batch := list(islice(numbers, BATCH)):
        client.log_batch(made.info.run_id, metrics=batch)
    client.set_terminated(made.info.run_id, "FINISHED", now)


def _mlflow_name(name: str) -> str:
    """Return a name with the letters that MLflow allows."""
    return "".join(c if c.isalnum() or c in "-_. /" else "_" for c in name)


def _mlflow() -> tuple[Any, Any]:
    """Return MLflow; raise ValueError with the way to install it."""
    try:
        import mlflow
        from mlflow import entities
    except ImportError:
        raise ValueError("MLflow is not installed; run `pip install 'trimtab[mlflow]'`.") from None
    logging.getLogger("mlflow").setLevel(logging.WARNING)  # It logs how it creates its tables.
    return mlflow, entities
