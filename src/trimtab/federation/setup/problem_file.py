"""The user's file: `model() -> (module, loss)` and `silo(data: Path) -> (train, test)`.

It may also have `metrics`, functions of (outputs, targets) by name, and `metric`, the Metric that a
target is of; and it may `register` algorithms, which its own site then admits.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from trimtab._importing import load, place_of, told
from trimtab.core.streams import PROBLEM, mix, seeded
from trimtab.errors import BadArgument
from trimtab.problems.metric import Metric
from trimtab.problems.supervised.problem import Supervised

MOST = 1024  # a federation has ever had <= this many sites
_FUNCTIONS = {"model": "model() -> (module, loss)", "silo": "silo(data) -> (train, test)"}


class ProblemFile:
    """A file with both functions; the server calls the first, a site both."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise BadArgument(
                "problem", "{path}: there is no such file; pass {problem:file.py}.", path=path
            )
        with seeded(mix(0, PROBLEM), torch.device("cpu")):
            module = load(path)
        for name, form in _FUNCTIONS.items():
            if not callable(getattr(module, name, None)):
                raise ValueError(f"{path} has no function {name}; write {form}.")
        self._model: Callable[[], Any] = module.model
        self._silo: Callable[[Path], Any] = module.silo
        self.metrics: dict[str, Any] = getattr(module, "metrics", {})
        self.metric: Metric | None = getattr(module, "metric", None)

    def server_problem(self) -> Supervised:
        """Return the problem without data: what x starts from, and how it is unflattened."""
        return self._problem(_Nowhere(), None, None)

    def site_problem(self, data: Path, batch: int | float | None) -> Supervised:
        """Return the problem with this site's data in every client's place."""
        if not data.exists():
            raise BadArgument(
                "data", "{path}: there is no such file or folder; pass {data:PATH}.", path=data
            )
        try:
            parts = self._silo(data)
        except (Exception, SystemExit) as error:
            raise self._failed("silo", error) from error
        if not isinstance(parts, tuple | list) or len(parts) != 2:
            raise ValueError(
                f"silo in {self.path} returned a {type(parts).__name__}; return (train, test), "
                "each (X, y) or a Dataset."
            )
        dtype = self.server_problem().model.dtype
        train, test = (_as(dtype, part) for part in parts)
        problem = self._problem([train] * MOST, test, batch)
        _ = problem.clients[0], problem.test  # read and checked now, not in the first round
        return problem

    def _failed(self, function: str, error: BaseException) -> ValueError:
        """Return an error of trimtab's own as it is, and another one with its place."""
        if isinstance(error, ValueError) and place_of(error) is None:
            return error
        return ValueError(f"{function} in {self.path} failed ({told(error)}); mend it.")

    def _problem(self, clients: Sequence[Any], test: Any, batch: int | float | None) -> Supervised:
        _, loss = self._built()
        metrics = self.metrics
        problem = Supervised(lambda: self._built()[0], loss, clients, test, batch, metrics=metrics)
        problem.metric = self.metric
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


class _Nowhere(Sequence[Any]):
    """The data of all sites, as the server sees them."""

    def __len__(self) -> int:
        return MOST

    def __getitem__(self, i: Any) -> Any:
        raise ValueError("the server has no data; a site has.")


def _as(dtype: torch.dtype, part: Any) -> Any:
    """Return (X, y) in the module's precision, as x comes from the server."""
    if isinstance(part, TensorDataset) and len(part.tensors) == 2:
        part = part.tensors
    if isinstance(part, tuple | list) and len(part) == 2 and hasattr(part[0], "shape"):
        X, y = (torch.as_tensor(array) for array in part)
        return tuple(t.to(dtype) if t.is_floating_point() else t for t in (X, y))
    return part
