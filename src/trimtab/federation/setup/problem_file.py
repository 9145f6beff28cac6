"""The user's file: `model() -> (module, loss)` and `silo(data: Path) -> (train, test)`.

Or, for a problem that is no module, `problem(data: Path | None) -> Problem`: data is a site's, and
None at the server, which asks x0, d and metric of what it returns. A site's problem has one client,
the site, or those of all sites in the order in which the server numbers them.

It may also have `metrics`, functions of (outputs, targets) by name, and `metric`, the Metric that a
target is of; `collate`, which makes a batch of a list of samples; `columns`, a Columns or Fields,
which say what becomes of tables that silo returns; and it may `register` algorithms, which its own
site then admits. What is compiled is the text that was checked and shown: neither cached bytecode
nor a file beside it is read.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from trimtab._importing import describe_error, load, source_location
from trimtab.algorithms.registry import kind
from trimtab.core import Gradient, Vector
from trimtab.core.hyper import settings_of
from trimtab.core.streams import PROBLEM, mix, seeded
from trimtab.errors import BadArgument
from trimtab.federation.protocol import statistics
from trimtab.federation.setup.approval import problem_text
from trimtab.federation.setup.job import state_of
from trimtab.federation.setup.operator import Federation
from trimtab.federation.storage.ledger import read_journal, read_standing
from trimtab.federation.storage.policy import digest_of
from trimtab.problems import saved
from trimtab.problems.adapter import as_problem
from trimtab.problems.metrics import Metric
from trimtab.problems.problem import Problem, normalised, own_metric
from trimtab.problems.saved import MODEL, Card
from trimtab.problems.supervised.flat import map_tree
from trimtab.problems.supervised.hugging_face import Fields
from trimtab.problems.supervised.losses import Loss
from trimtab.problems.supervised.problem import Supervised
from trimtab.problems.supervised.reading import Collate, as_tensor, is_pair
from trimtab.problems.supervised.tables import Columns

MOST = 1024  # a federation has ever had <= this many sites
_FUNCTIONS = {"model": "model() -> (module, loss)", "silo": "silo(data) -> (train, test)"}
_NEEDED = ("N", "d", "weights", "x0", "oracle", "evaluate")


class ProblemFile:
    """A file with model and silo, of which the server calls the first; or with problem.

    path: the file.
    approved: its digest as a site approved it; default any file.
    """

    def __init__(self, path: Path, approved: str | None = None) -> None:
        self.path = path
        if not path.is_file():
            raise BadArgument(
                "problem", "{path}: there is no such file; pass {problem:file.py}.", path=path
            )
        content = path.read_bytes()
        if approved is not None and digest_of(content) != approved:
            raise ValueError(f"{path} is not the file that was approved; approve it.")
        with seeded(mix(0, PROBLEM), torch.device("cpu")):
            module = load(path, problem_text(path, content))
        other = None if hasattr(module, "model") else getattr(module, "problem", None)
        self._problem_of: Callable[[Path | None], Any] | None = other if callable(other) else None
        for name, form in _FUNCTIONS.items() if self._problem_of is None else ():
            if not callable(getattr(module, name, None)):
                raise ValueError(f"{path} has no function {name}; write {form}.")
        self._model: Callable[[], Any] = getattr(module, "model", None)  # type: ignore[assignment]
        self._silo: Callable[[Path], Any] = getattr(module, "silo", None)  # type: ignore[assignment]
        self.metrics: dict[str, Any] = getattr(module, "metrics", {})
        self.metric: Metric | None = getattr(module, "metric", None)
        self.collate: Collate | None = getattr(module, "collate", None)
        self.columns: Columns | Fields | None = getattr(module, "columns", None)

    @property
    def model_spec(self) -> str | None:
        """The function `model` as `file.py:model`; None if the file has a problem instead."""
        return None if self._problem_of else f"{self.path.resolve()}:model"

    def server_problem(self) -> Problem:
        """Return the problem without data: what x starts from, and how it is unflattened."""
        if self._problem_of is not None:
            return self._made(None)
        return self._problem(_NoData(), None, None)

    def site_problem(self, data: Path, batch: int | float | None) -> Problem:
        """Return the problem with this site's data in every client's place."""
        if not data.exists():
            raise BadArgument(
                "data", "{path}: there is no such file or folder; pass {data:PATH}.", path=data
            )
        if self._problem_of is not None:
            if batch is not None:
                raise BadArgument(
                    "batch", "{path} has no mini-batches; drop {batch}.", path=self.path
                )
            made = self._made(data)
            return _SameAtEverySite(made) if made.N == 1 else made
        try:
            parts = self._silo(data)
        except (Exception, SystemExit) as error:
            raise self._failed("silo", error) from error
        if not isinstance(parts, tuple | list) or len(parts) != 2:
            raise ValueError(
                f"silo in {self.path} returned a {type(parts).__name__}; return (train, test), "
                "each (X, y) or a Dataset."
            )
        server = self._problem(_NoData(), None, None)
        tables = [self._of_table(part, server.loss_function) for part in parts]
        train, test = (_as(server.model.dtype, part) for part in tables)
        problem = self._problem([train] * MOST, test, batch)
        _ = problem.clients[0], problem.test  # read and checked now, not in the first round
        problem.check_start()
        return problem

    def _of_table(self, part: Any, loss: Loss) -> Any:
        """Return the samples of a table, as `columns` says; what is no table as it is."""
        frame, dataset = hasattr(part, "iloc"), hasattr(part, "column_names")
        if isinstance(self.columns, Columns) and frame:
            return self.columns.read(part, loss)
        if isinstance(self.columns, Fields) and dataset:
            return self.columns.read(part.with_format(None), as_samples=self.collate is not None)
        if frame:
            raise ValueError(
                f"silo in {self.path} returned a table; say what its columns become, columns = "
                "Columns(…), alike at all sites."
            )
        return part

    def _made(self, data: Path | None) -> Problem:
        """Call the file's problem, and refuse what is none."""
        assert self._problem_of is not None
        try:
            with seeded(mix(0, PROBLEM), torch.device("cpu")):
                made = self._problem_of(data)
        except (Exception, SystemExit) as error:
            raise self._failed("problem", error) from error
        if not all(hasattr(made, name) for name in _NEEDED):
            raise ValueError(
                f"problem in {self.path} returned a {type(made).__name__}; return a Problem, such "
                "as trimtab.LinearSystem(…)."
            )
        return as_problem(made)

    def _failed(self, function: str, error: BaseException) -> ValueError:
        """Return an error of trimtab's own as it is, and another one with its place."""
        if isinstance(error, ValueError) and source_location(error) is None:
            return error
        return ValueError(f"{function} in {self.path} failed ({describe_error(error)}); fix it.")

    def _problem(self, clients: Sequence[Any], test: Any, batch: int | float | None) -> Supervised:
        _, loss = self._built()
        collate = self.collate
        if collate is not None and isinstance(self.columns, Fields):
            collate = self.columns.after(collate)
        problem = Supervised(
            lambda: self._built()[0],
            loss,
            clients,
            test,
            batch,
            metrics=self.metrics,
            collate=collate,
        )
        problem.metric, problem.columns = self.metric, self.columns
        return problem

    def _built(self) -> tuple[nn.Module, Any]:
        try:
            built = self._model()
        except (Exception, SystemExit) as error:
            raise self._failed("model", error) from error
        pair = built if isinstance(built, tuple | list) and len(built) == 2 else (None, None)
        if not isinstance(pair[0], nn.Module) or not callable(pair[1]):
            raise ValueError(
                f"model in {self.path} returned a {type(built).__name__}; return (module, loss)."
            )
        return pair[0], pair[1]


class _SameAtEverySite(Problem):
    """A problem of one client in every client's place; each place has random numbers of its own."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.N, self.d = problem, MOST, problem.d
        self.weights, self.metric = normalised(None, MOST), own_metric(problem)

    def x0(self, seed: int = 0) -> Vector:
        """Return the start of the one client's problem."""
        return self.problem.x0(seed)

    def oracle(self, i: int, seed: int, r: int) -> Gradient:
        """Return the one client's oracle, seeded for place i."""
        return self.problem.oracle(0, mix(seed, i), r)

    def evaluate(self, x: Vector, client: int | None = None) -> dict[str, float]:
        """Return what the one client measures, whatever its number."""
        return self.problem.evaluate(x, client=0)


class _NoData(Sequence[Any]):
    """The data of all sites, as the server sees them."""

    def __len__(self) -> int:
        return MOST

    def __getitem__(self, i: Any) -> Any:
        raise ValueError("the server has no data; a site has.")


def _as(dtype: torch.dtype, part: Any) -> Any:
    """Return tensors and arrays in the module's precision, as x comes from the server."""
    if isinstance(part, TensorDataset) and len(part.tensors) == 2:
        part = part.tensors
    pair = is_pair(part) and (hasattr(part[0], "shape") or isinstance(part[0], Mapping | tuple))
    if not pair and not isinstance(part, Mapping):
        return part

    def cast(array: Any) -> Any:
        tensor = as_tensor("the data", array) if hasattr(array, "shape") else array
        real = isinstance(tensor, Tensor) and tensor.is_floating_point()
        return tensor.to(dtype) if real else tensor

    return map_tree(cast, tuple(part) if pair else part)


# -- the model


def save_model(
    federation: Federation, out: Path, experiment: str | None = None
) -> tuple[Path, int]:
    """Write the model of the last committed round; return its file and that round's number.

    federation: the operator's folder.
    out: a new folder for model.safetensors and model.json, or a file NAME.safetensors, which gets
        NAME.json beside it.
    experiment: the experiment's name; default the last one that was started.
    """
    file = federation.problem  # It may register the algorithm.
    problem = file.server_problem()
    state = federation.folder / state_of(federation.folder, experiment)
    standing = read_standing(state)
    if standing is None:
        raise ValueError(f"{federation.folder} has no model yet; no round was committed.")
    alone = out.suffix == ".safetensors"
    weights = out if alone else out / "model.safetensors"
    about = out.with_suffix(".json") if alone else out / MODEL
    for path in (weights, about):
        if path.exists():
            raise ValueError(f"{path} exists; pass another name.")
    lines = read_journal(state, standing)
    measured = [line for line in lines if line.get("metrics") and line["r"] <= standing.r]
    card = Card(
        data=federation.folder.name,
        algorithm=kind(standing.algorithm).name,
        settings=settings_of(standing.algorithm),
        seed=standing.seed,
        round=standing.r,
        metrics=measured[-1]["metrics"] if measured else {},
        measured_on="the data of the sites",
        clients=len(standing.members),
        d=problem.d,
    )
    names = {"weights": weights.name, "about": about.name}
    with statistics.saved(state, problem, standing.r):
        saved.save_model(
            weights.parent, problem, standing.server.x, card, **names, spec=file.model_spec
        )
    return weights, standing.r
