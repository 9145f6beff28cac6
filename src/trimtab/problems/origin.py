"""Record how a problem was loaded, so that another process or machine can load it too."""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

_NAME = "_trimtab_origin"  # the attribute of a problem that was loaded by its name


@dataclass(frozen=True)
class Origin:
    """How a problem was made.

    spec: a built-in name or `file.py:function`.
    options: the arguments of that function.
    steps: calls that derived one problem from another: split, replace, ….
    """

    spec: str
    options: dict[str, Any]
    steps: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...] = ()


def origin_of(problem: Any) -> Origin | None:
    """Return the origin of a problem; None if it was made in this process."""
    origin: Origin | None = getattr(problem, "__dict__", {}).get(_NAME)
    return origin


def set_origin(problem: Any, origin: Origin | None) -> None:
    """Record the origin of a problem, unless its class has no `__dict__`."""
    with suppress(AttributeError, TypeError):
        vars(problem)[_NAME] = origin


def record_step(problem: Any, made: Any, step: str, *arguments: Any, **words: Any) -> Any:
    """Return `made`, with the step that derived it from `problem` if that can be repeated."""
    if made is not problem:
        origin = origin_of(problem)
        if origin is not None and _plain((*arguments, *words.values())):
            set_origin(made, replace(origin, steps=(*origin.steps, (step, arguments, words))))
        else:
            set_origin(made, None)
    return made


def _plain(value: Any) -> bool:
    # Other values, such as tensors, do not travel with the origin.
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    if isinstance(value, dict):
        return all(map(_plain, (*value, *value.values())))
    return value is None or isinstance(value, bool | int | float | str)
