"""The client as its program sees it: gradients, the number of local steps, random numbers.

A problem's `oracle` may be a plain function of (y, k); executors and sites wrap it in a
`ClientOracle`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from trimtab.core.hyper import Epochs
from trimtab.core.protocols import Gradient, Vector
from trimtab.core.streams import PROGRAM, SERVER, SLOW, stream
from trimtab.errors import BadArgument

Draw = Callable[[Literal["normal", "uniform"], Vector], Vector]
"""Draws numbers in the shape of a vector."""


def _same(value: Any) -> Any:
    return value


class RandomDraws:
    """Random numbers: a function of the given numbers and of the count of calls."""

    def __init__(self, *numbers: int) -> None:
        self.numbers, self.calls = numbers, 0

    def __call__(self, kind: Literal["normal", "uniform"], like: Vector) -> Vector:
        """Return numbers of one kind in the shape of `like`."""
        self.calls += 1
        make = torch.randn if kind == "normal" else torch.rand
        # Drawn on the CPU: generators of other devices give other numbers for the same seed.
        drawn = make(like.shape, generator=stream(*self.numbers, self.calls), dtype=like.dtype)
        return drawn.to(like.device)


def client_random(seed: int, client: int, r: int, exchange: int) -> RandomDraws:
    """Return the random numbers of a client's program in one exchange of a round."""
    return RandomDraws(seed, PROGRAM, client, r, exchange)


def server_random(seed: int, r: int) -> RandomDraws:
    """Return the random numbers of the server in a round."""
    return RandomDraws(seed, SERVER, r)


# The default of an oracle outside a simulation: without a seed, draws could not be repeated.
def _nothing_drawn(kind: str, like: Vector) -> Vector:
    raise ValueError("this oracle draws no random numbers; run the program in a simulation.")


@dataclass(frozen=True, slots=True)
class LocalSteps:
    """The number K_i of local steps that a client makes in a round, at most K.

    in_a_pass: returns the steps of one pass over the client's data; None without samples.
    slow: the probability that K_i is uniform in 1 … K, a function of (seed, client, round).
    key: (seed, client, round).
    """

    in_a_pass: Callable[[], int] | None = None
    slow: float = 0.0
    key: tuple[int, int, int] = (0, 0, 0)

    def __call__(self, K: int | Epochs) -> int:
        """Return K_i."""
        if isinstance(K, Epochs):
            if self.in_a_pass is None:
                raise BadArgument(
                    "K",
                    "{K:{_K}}, but this problem has no samples to pass over; pass a whole number "
                    "{K} of local steps.",
                    _K=repr(K),
                )
            K = K.steps(self.in_a_pass())
        if not self.slow:
            return K
        seed, client, r = self.key
        draw = stream(seed, SLOW, client, r)
        chance, part = torch.rand(2, generator=draw, dtype=torch.float64).tolist()
        # part < 1, so this is uniform in 1 … K; max(1, int(part * K)) would never be K.
        return 1 + int(part * K) if chance < self.slow else K


@dataclass(frozen=True, slots=True)
class ClientOracle:
    """The oracle of one client in one exchange of a round; `core.Oracle` documents its methods.

    >>> g = ClientOracle(lambda y, k=None: 2 * y)
    >>> g(torch.ones(1)), g.steps(5), g.sent((torch.ones(1),))
    (tensor([2.]), 5, (tensor([1.]),))
    """

    gradient: Gradient
    draw: Draw = _nothing_drawn
    send: Callable[[Any], Any] = _same
    count: Callable[[int | Epochs], int] = LocalSteps()
    unequal: bool = False  # whether clients may make different numbers of steps

    def __call__(self, y: Vector, k: int | None = None) -> Vector:
        """Return the gradient."""
        return self.gradient(y, k)

    def steps(self, K: int | Epochs, *, equal: bool = False) -> int:
        """Return K_i, the number of local steps of this client in this round."""
        if equal and self.unequal:
            raise BadArgument(
                "slow",
                "this algorithm needs the same number of local steps from every client, because "
                "its server computes with K; pass {slow:0}.",
            )
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
    """The server's random numbers, which an algorithm draws from the clients of its round."""

    draws: RandomDraws

    def normal(self, like: Vector) -> Vector:
        """Return standard normal numbers."""
        return self.draws("normal", like)

    def uniform(self, like: Vector) -> Vector:
        """Return numbers that are uniform in [0, 1)."""
        return self.draws("uniform", like)
