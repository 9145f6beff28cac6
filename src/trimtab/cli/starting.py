"""Imports that take seconds: done when a command is used, and not cut off by Ctrl-C."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from types import FrameType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def needs(*modules: str, package: str = "trimtab") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Import modules of a package before a command runs: help and completion do without them."""

    def decorate(command: Callable[P, R]) -> Callable[P, R]:
        @wraps(command)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with uninterrupted():
                for module in modules:
                    import_module(f"{package}.{module}")
            return command(*args, **kwargs)

        return run

    return decorate


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put off the first Ctrl-C to the end: an import that is cut off raises what it likes."""
    asked: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if usual:
        signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if asked:
        raise KeyboardInterrupt
