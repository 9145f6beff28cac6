"""Load problems by a built-in name, or from a function in a user's file.

A loaded problem has an origin (origin.py), so that other machines can load it too.
"""

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trimtab._importing import describe_error, load, sibling_imports, source_location
from trimtab.core.streams import PROBLEM, mix, seeded
from trimtab.errors import BadArgument, did_you_mean
from trimtab.problems import catalogue
from trimtab.problems.adapter import as_problem
from trimtab.problems.names import PROBLEMS
from trimtab.problems.origin import Origin, set_origin
from trimtab.problems.origin import origin_of as origin_of
from trimtab.problems.problem import Problem, with_target_metric
from trimtab.problems.supervised.problem import Supervised

TABLES = (".csv", ".tsv", ".parquet", ".xlsx")


def load_problem(spec: str, *, partition: str | None = None, **options: Any) -> Problem:
    """Return the problem of a name or of `file.py:function`.

    Global random numbers are seeded by the option `seed` while the function runs, so that a module
    built there is the same each time. A mistake in the name, the file or the function is a
    ValueError of one sentence.

    spec: a name of `trimtab.problems.names.PROBLEMS`, or `file.py:function`.
    partition: how the data are divided among clients: `dirichlet:0.1`, `similarity:10` or `label`;
        an error if the function has no such parameter.
    options: N, batch, similarity, data, seed, …; the function gets those it has parameters for, and
        its own default for None. A `batch` without a parameter is given to the Supervised returned.

    >>> load_problem("digits", N=5, batch=None).N
    5
    >>> load_problem("digit")
    Traceback (most recent call last):
    ValueError: 'digit' is not a problem (did you mean digits?); pass one of digits, quadratic,\
 emnist, cifar10, a9a, heart, concrete, shakespeare, garnet, or file.py:function.
    """
    options = {**options, "partition": partition}
    options = {name: value for name, value in options.items() if value is not None}
    problem = _made(spec, _function(spec), options)
    lasting = {n: v.resolve() if isinstance(v, Path) else v for n, v in options.items()}
    set_origin(problem, Origin(absolute_spec(spec), lasting))
    return problem


def load_problem_and_target(spec: str, **options: Any) -> tuple[Problem, float | None]:
    """Return the problem, and the target that a name of the catalogue suggests, if it does.

    >>> load_problem_and_target("digits", N=5)[1]
    0.95
    """
    problem = load_problem(spec, **options)
    return problem, PROBLEMS[spec].target if spec in PROBLEMS else None


def reload_problem(origin: Origin) -> Problem:
    """Return the problem of an origin, after the same steps.

    >>> small = load_problem("digits", N=5).replace(batch=16)
    >>> reload_problem(origin_of(small)).batch
    16
    """
    problem: Any = as_problem(load_problem(origin.spec, **origin.options))
    for step, arguments, words in origin.steps:
        if step == "with_target_metric":
            problem = with_target_metric(problem, *arguments)
        else:
            problem = getattr(problem, step)(*arguments, **words)
    return problem  # type: ignore[no-any-return]


def load_module(spec: str, options: Mapping[str, Any]) -> nn.Module:
    """Return the module of a problem, or of a federation's problem file.

    spec: as for `load_problem`, or `file.py:model` with a function that returns (module, loss).
    options: those of the problem's origin.
    """
    make = _function(spec)
    made = _called(spec, make, _taken(make, options), options.get("seed", 0))
    if isinstance(made, Supervised):
        return made.model.released()
    module = made[0] if isinstance(made, tuple | list) and made else made
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"{spec} returned a {type(made).__name__}; return what it returned before."
        )
    return module


def absolute_spec(spec: str) -> str:
    """Return a name unchanged, and `file.py:function` with its absolute path."""
    file, found, function = spec.partition(".py:")
    return f"{Path(file).resolve()}.py:{function}" if found else spec


def _function(spec: str) -> Callable[..., Any]:
    if not isinstance(spec, str):
        raise ValueError(f"{spec!r} names no problem; pass a name, or 'file.py:function'.")
    if spec in PROBLEMS:
        return getattr(catalogue, PROBLEMS[spec].make)  # type: ignore[no-any-return]
    if spec.endswith(TABLES):
        raise ValueError(
            f"{spec!r} is a table; pass file.py:function, whose function returns "
            "trimtab.Supervised.from_frame(…) of it."
        )
    if ".py:" not in spec and not spec.endswith(".py"):
        raise ValueError(
            f"{spec!r} is not a problem{did_you_mean(spec, PROBLEMS)}; pass one of "
            f"{', '.join(PROBLEMS)}, or file.py:function."
        )
    return _users_function(spec)


def _users_function(spec: str) -> Callable[..., Any]:
    """Import the file of `file.py:function` and return the function."""
    stem, _, name = spec.partition(".py:")
    path = Path(spec if spec.endswith(".py") else f"{stem}.py")
    if not name:
        raise ValueError(f"{spec!r} names no function; pass {path}:function.")
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file; pass file.py:function.")
    module = load(path)
    function = getattr(module, name, None)
    if not callable(function):
        functions = {n: f for n, f in vars(module).items() if inspect.isfunction(f) and n[0] != "_"}
        defined = [n for n, f in functions.items() if f.__module__ == module.__name__]
        has = f"it has {', '.join(defined)}" if defined else "it has no functions"
        raise ValueError(f"{path} has no function {name!r}; {has}.")
    return function  # type: ignore[no-any-return]


def _beside(spec: str) -> AbstractContextManager[None]:
    """Allow a function of a user's file to import modules from the folder of that file."""
    file, found, _ = spec.partition(".py:")
    return sibling_imports(Path(f"{file}.py")) if found else nullcontext()


def _taken(make: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a function has parameters for."""
    parameters = inspect.signature(make).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return {name: value for name, value in options.items() if takes_all or name in parameters}


def _called(spec: str, make: Callable[..., Any], taken: dict[str, Any], seed: int) -> Any:
    """Call a user's function; raise ValueError with the place of an error in it."""
    try:
        # A module that the function builds must be the same when a run is resumed.
        with seeded(mix(seed, PROBLEM), torch.device("cpu")), _beside(spec):
            return make(**taken)
    except (Exception, SystemExit) as error:
        if isinstance(error, ValueError) and source_location(error) is None:
            raise
        raise ValueError(f"{spec} failed ({describe_error(error)}); fix it.") from error


def _made(spec: str, make: Callable[..., Any], options: dict[str, Any]) -> Problem:
    """Call a function with the options it takes, and return the problem that it makes."""
    taken = _taken(make, options)
    if "partition" in options and "partition" not in taken:
        raise BadArgument(
            "partition", "{spec} is already divided into clients; drop {partition}.", spec=spec
        )
    if "data" in options and "data" not in taken:
        raise BadArgument("data", "{spec} reads no folder of data; drop {data}.", spec=spec)
    problem = _called(spec, make, taken, options.get("seed", 0))
    if not all(
        hasattr(problem, name) for name in ("N", "d", "weights", "x0", "oracle", "evaluate")
    ):
        raise ValueError(
            f"{spec} returned a {type(problem).__name__}; return a Problem, such as "
            "trimtab.Supervised(…)."
        )
    if "batch" in options and "batch" not in taken:
        if not isinstance(problem, Supervised):
            raise BadArgument("batch", "{spec} has no mini-batches; drop {batch}.", spec=spec)
        problem = problem.replace(batch=options["batch"])
    return problem  # type: ignore[no-any-return]
