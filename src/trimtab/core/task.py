"""Long work as a `Task`: iterate it for events, then it has a result."""

import inspect
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar, cast, get_args

from trimtab.core.display import StatusLine, status_line

P = ParamSpec("P")
E = TypeVar("E")
R = TypeVar("R")


@dataclass(frozen=True)
class Progress:
    """The current step of the work, and the share that is done; None if it is unknown."""

    what: str
    share: float | None = None

    def __str__(self) -> str:
        return self.what if self.share is None else f"{self.what}, about {self.share:.0%} done"


@dataclass(frozen=True)
class Note:
    """A sentence for the user."""

    sentence: str

    def __str__(self) -> str:
        return self.sentence


class Task(Generator[E, None, R]):
    """Work that was started: iterate it for its events, or call `result` at once.

    `close` between two events stops the work; finished parts are saved if it has a folder.
    `result = yield from task`, in another task, passes its events on.

    steps: a generator that yields events and returns the result.
    """

    def __init__(self, steps: Generator[E, None, R]) -> None:
        self._steps = steps
        self._results: list[R] = []
        self._stopped: BaseException | None = None

    def send(self, value: None) -> E:
        """Continue to the next event."""
        return self._advance(lambda: next(self._steps))

    def throw(self, *error: Any) -> E:
        """Raise an error at the point that the work has reached."""
        return self._advance(lambda: self._steps.throw(*error))

    def _advance(self, step: Callable[[], E]) -> E:
        # An ended generator raises a bare StopIteration; a task repeats its result or error.
        if self._stopped is not None:
            raise self._stopped
        if self._results:
            raise StopIteration(self._results[0])
        try:
            return step()
        except StopIteration as done:
            self._results.append(done.value)
            raise
        except BaseException as error:
            self._stopped = error
            raise

    def close(self) -> None:
        """Stop the work between two events."""
        self._steps.close()
        if not self._results and self._stopped is None:
            self._stopped = ValueError("this task was closed before it ended; start it again.")

    def result(self) -> R:
        """Do the remaining work and return its result."""
        for _ in self:  # Events that the caller has not read are dropped.
            pass
        return self._results[0]


class TaskFunction(Protocol[P, E, R]):
    """A function that does long work; its attribute `start` returns the work as a task."""

    __name__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do all of the work and return its result."""
        ...

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Task[E, R]:
        """Return the work as a task."""
        ...


def task(steps: Callable[P, Generator[E, None, R]]) -> TaskFunction[P, E, R]:
    """Turn a generator function that yields events and returns a result into a `TaskFunction`.

    >>> @task
    ... def count(to: int) -> Generator[Progress, None, str]:
    ...     for i in range(to):
    ...         yield Progress(f"at {i}", i / to)
    ...     return "done"
    >>> count(2)
    'done'
    >>> for event in (work := count.start(2)):
    ...     print(event)
    at 0, about 0% done
    at 1, about 50% done
    >>> work.result()
    'done'
    """

    def start(*args: P.args, **kwargs: P.kwargs) -> Task[E, R]:
        return Task(steps(*args, **kwargs))

    # wraps copies the signature of a generator; `made.__signature__` below has the true result.
    @wraps(steps)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        work = start(*args, **kwargs)
        show = status_line()
        if show is not None:
            line = StatusLine(steps.__name__, show)
            for event in work:
                line.show_event(event)
            line.end()
        return work.result()

    returns = steps.__annotations__.get("return")
    result = get_args(returns)[2] if get_args(returns) else Any
    made = cast(Any, run)
    made.__signature__ = inspect.signature(steps).replace(return_annotation=result)
    made.start = start
    return cast("TaskFunction[P, E, R]", run)
