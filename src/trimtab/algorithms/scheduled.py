"""Hyper-parameters that change from round to round, by wrapping an algorithm.

`core.hyper.at(algorithm, r)` returns the algorithm of round r. A schedule is a factor on the field,
so tuning the field tunes the schedule.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import cos, pi
from typing import Any, Protocol

from trimtab.core import Algorithm, Clients, Count, Epochs, Share, State, Vector, validate
from trimtab.core.hyper import own_parameters
from trimtab.errors import BadArgument


class Schedule(Protocol):
    """A factor for each round."""

    def __call__(self, r: int) -> float:
        """Return the factor of round r; rounds count from 1."""
        ...


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from 1 in round 1 to `least` in round R + 1 and later.

    R: the number of rounds over which the factor falls.
    least: the last factor, 0 < least <= 1; default 0.01.
    """

    R: Count
    least: Share = 0.01

    def __post_init__(self) -> None:
        validate(self)

    def __call__(self, r: int) -> float:
        fall = (1 + cos(pi * min(r - 1, self.R) / self.R)) / 2
        return self.least + (1 - self.least) * fall


@dataclass(frozen=True)
class Decay:
    """1, rate, rate^2, …: the field shrinks by the same factor every round.

    rate: the factor from one round to the next, 0 < rate <= 1.
    """

    rate: Share

    def __post_init__(self) -> None:
        validate(self)

    def __call__(self, r: int) -> float:
        return float(self.rate ** (r - 1))


@dataclass(frozen=True)
class Piecewise:
    """A factor that changes at given rounds; it is 1 before the first of them.

    steps: pairs (round, factor), by increasing round; each factor counts from its round on, as in
        ((100, 0.1), (150, 0.01)).
    """

    steps: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        pairs = isinstance(self.steps, Sequence) and all(
            isinstance(step, Sequence) and len(step) == 2 for step in self.steps
        )
        rounds = [r for r, _ in self.steps] if pairs else []
        if not rounds or rounds != sorted(set(rounds)) or not all(f > 0 for _, f in self.steps):
            raise ValueError(
                f"Piecewise: steps={self.steps!r}; pass rounds that grow, each with a positive "
                "factor, as ((100, 0.1), (150, 0.01))."
            )

    def __call__(self, r: int) -> float:
        return next((factor for start, factor in reversed(self.steps) if r >= start), 1.0)


@dataclass(frozen=True)
class Warmup:
    """1/R, 2/R, … 1 in the first R rounds, then another schedule, which counts from there.

    R: the number of rounds over which the factor rises.
    then: the schedule of the rounds after them; by default the factor stays 1.
    """

    R: Count
    then: Schedule | None = None

    def __post_init__(self) -> None:
        validate(self)
        if self.then is not None and not callable(self.then):
            raise ValueError(
                f"Warmup: then={self.then!r} is not a schedule; pass one, as Cosine(R=200)."
            )

    def __call__(self, r: int) -> float:
        if r <= self.R:
            return r / self.R
        return 1.0 if self.then is None else self.then(r - self.R)


@dataclass(frozen=True, init=False, repr=False)
class Scheduled:
    """An algorithm with schedules: Scheduled(Scaffold(eta_l=0.1, K=20), eta_l=Cosine(R=200)).

    algorithm: the algorithm whose fields are the values of round 1, if its factor is 1.
    schedules: pairs (field, schedule), as the registry stores them; default ().
    named: schedules by field, the usual form; a field must hold a number.
    """

    algorithm: Any
    schedules: tuple[tuple[str, Schedule], ...]

    def __init__(self, algorithm: Any, schedules: Any = (), **named: Schedule) -> None:
        object.__setattr__(self, "algorithm", algorithm)
        object.__setattr__(self, "schedules", (*schedules, *named.items()))
        # Epochs cannot be multiplied by a factor.
        numbered = (p for p in own_parameters(type(algorithm)) if p.type in (int, float))
        known = {p.name for p in numbered if not isinstance(getattr(algorithm, p.name), Epochs)}
        for name, schedule in self.schedules:
            if name not in known or not callable(schedule):
                numbers = ", ".join(sorted(known)) or "no numbers"
                raise BadArgument(
                    name,
                    "Scheduled: {_name}={_schedule}; schedule one of {_numbers}, as "
                    "eta_l=Cosine(R=200).",
                    _name=name,
                    _schedule=repr(schedule),
                    _numbers=numbers,
                )
        if not self.schedules:
            raise ValueError("Scheduled: there is no schedule; pass one, as eta_l=Cosine(R=200).")

    def __repr__(self) -> str:
        named = ", ".join(f"{name}={schedule!r}" for name, schedule in self.schedules)
        return f"Scheduled({self.algorithm!r}, {named})"

    def at(self, r: int) -> Algorithm:
        """Return the algorithm of round r."""
        now: dict[str, Any] = {}
        for name, schedule in self.schedules:
            value = getattr(self.algorithm, name)
            scaled = value * schedule(r)
            # A whole number, such as K, stays one, and at least 1.
            now[name] = max(1, round(scaled)) if isinstance(value, int) else scaled
        return replace(self.algorithm, **now)  # type: ignore[no-any-return]

    def init_server(self, x: Vector) -> State:
        return self.algorithm.init_server(x)

    def init_client(self, x: Vector) -> State:
        return self.algorithm.init_client(x)

    def round(self, server: State, clients: Clients) -> State:
        return self.at(1).round(server, clients)  # Executors call `at` with their round first.
