"""Where a problem comes from, so that another process, or another machine, can make it too."""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

_NAME = "_trimtab_origin"  # the attribute of a problem that was loaded by its name


@dataclass(frozen=True)
class Origin:
    """A name or `file.py:function`, the options it was called with, and what was done to it then.

    steps: calls that make one problem of another, as (name, arguments): split, replace, ….
    """

    spec: str
    options: dict[str, Any]
    steps: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...] = ()


def origin_of(problem: Any) -> Origin | None:
    """Return where a problem comes from; None if it was made in this process."""
    origin: Origin | None = getattr(problem, "__dict__", {}).get(_NAME)
    return origin


def set_origin(problem: Any, origin: Origin | None) -> None:
    """Note where a problem comes from; one whose class has no room for that stays without."""
    with suppress(AttributeError, TypeError):
        vars(problem)[_NAME] = origin


def record_step(problem: Any, made: Any, step: str, *arguments: Any, **words: Any) -> Any:
    """Return a problem that a step made of another, and note the step, if it can be repeated."""
    if made is not problem:
        origin = origin_of(problem)
        if origin is not None and _plain((*arguments, *words.values())):
            set_origin(made, replace(origin, steps=(*origin.steps, (step, arguments, words))))
        else:
            set_origin(made, None)
    return made


def _plain(value: Any) -> bool:
    """Tell whether a value is made of numbers and words alone."""
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    if isinstance(value, dict):
        return all(map(_plain, (*value, *value.values())))
    return value is None or isinstance(value, bool | int | float | str)
