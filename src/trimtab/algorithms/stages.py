"""Stages for `Through`; STAGES, at the end, has one of each, and the tests try them all."""

from dataclasses import dataclass
from typing import Any

from trimtab.core import Clients, Positive, Vector, leaves, map_leaves, validate
from trimtab.core.oracle import ClientOracle


@dataclass(frozen=True)
class Rounding:
    """Numbers are rounded to multiples of `step`, which travel as 16-bit integers."""

    step: Positive

    def __post_init__(self) -> None:
        validate(self)

    def init(self, x: Vector) -> tuple[()]:
        return ()

    def send(self, upload: Any, state: tuple[()], g: ClientOracle) -> tuple[Any, tuple[()]]:
        return map_leaves(lambda leaf: (leaf / self.step).round() * self.step, upload), ()

    def receive(self, mean: Any, count: int, clients: Clients) -> Any:
        return mean

    def size(self, upload: Any) -> int:
        return sum(2 * leaf.numel() for leaf in leaves(upload))


STAGES = (Rounding(0.01),)
