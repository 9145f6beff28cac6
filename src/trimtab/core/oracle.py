"""What a program sees of its client: gradients, how many steps to make, random numbers, the wire.

A problem's `oracle` may be a plain function of (y, k); whoever runs a program wraps it in this.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from trimtab.core.protocols import Gradient, Vector
from trimtab.core.streams import PROGRAM, SERVER, stream

Draw = Callable[[Literal["normal", "uniform"], Vector], Vector]
"""Draws numbers in the shape of a vector."""


def _same(value: Any) -> Any:
    return value


class Draws:
    """Random numbers that depend on these numbers, and on how many were drawn before."""

    def __init__(self, *numbers: int) -> None:
        self.numbers, self.calls = numbers, 0

    def __call__(self, kind: Literal["normal", "uniform"], like: Vector) -> Vector:
        """Return numbers of one kind in the shape of `like`."""
        self.calls += 1
        make = torch.randn if kind == "normal" else torch.rand
        drawn = make(like.shape, generator=stream(*self.numbers, self.calls), dtype=like.dtype)
        return drawn.to(like.device)


def draws_of_client(seed: int, client: int, r: int, exchange: int) -> Draws:
    """Return the random numbers of a client's program in one exchange of a round."""
    return Draws(seed, PROGRAM, client, r, exchange)


def draws_of_server(seed: int, r: int) -> Draws:
    """Return the random numbers of the server in a round."""
    return Draws(seed, SERVER, r)


def _nothing_drawn(kind: str, like: Vector) -> Vector:
    raise ValueError("this oracle draws no random numbers; run the program in a simulation.")


@dataclass(frozen=True, slots=True)
class ClientOracle:
    """The oracle of one client in one exchange of a round; `core.Oracle` says what it offers.

    >>> g = ClientOracle(lambda y, k=None: 2 * y)
    >>> g(torch.ones(1)), g.steps(5), g.sent((torch.ones(1),))
    (tensor([2.]), 5, (tensor([1.]),))
    """

    gradient: Gradient
    draw: Draw = _nothing_drawn
    send: Callable[[Any], Any] = _same
    count: Callable[[int], int] = _same

    def __call__(self, y: Vector, k: int | None = None) -> Vector:
        """Return the gradient."""
        return self.gradient(y, k)

    def steps(self, K: int) -> int:
        """Return how many local steps this client makes in this round."""
        return self.count(K)

    def sent(self, upload: Any) -> Any:
        """Return the upload as it will arrive."""
        return self.send(upload)

    def normal(self, like: Vector) -> Vector:
        """Return standard normal numbers."""
        return self.draw("normal", like)

    def uniform(self, like: Vector) -> Vector:
        """Return numbers that are uniform in [0, 1)."""
        return self.draw("uniform", like)


class ServerDraws:
    """What the clients of a round give the server besides replies: random numbers of its own."""

    draws: Draws

    def normal(self, like: Vector) -> Vector:
        """Return standard normal numbers."""
        return self.draws("normal", like)

    def uniform(self, like: Vector) -> Vector:
        """Return numbers that are uniform in [0, 1)."""
        return self.draws("uniform", like)
