"""Base optimisers B = (U, V): x <- x - eta U(g, s), s <- V(g, s).

U is the direction the optimiser would take on gradient g from state s, without storing it; V is
the state it would store.  Momentum as in the slides of Karimireddy et al. on Mime (2020); Adam,
Yogi and Adagrad as in Reddi et al., "Adaptive Federated Optimization", 2021: no bias correction.
"""

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Protocol

import torch

from trimtab.core import Fraction, Positive, Rule, State, Vector, validate


class Base(Protocol):
    """An optimiser split into direction U and state V, both pure."""

    def init(self, x: Vector) -> State:
        """Return the first state."""
        ...

    def U(self, g: Vector, s: State) -> Vector:
        """Return the direction to step along."""
        ...

    def V(self, g: Vector, s: State) -> State:
        """Return the next state."""
        ...


def _is_base(value: Any) -> bool:
    return not isinstance(value, type) and all(hasattr(value, name) for name in ("init", "U", "V"))


AnyBase = Annotated[
    Base, Rule(_is_base, "; pass an optimiser such as Momentum(), Adam() or Yogi().")
]
"""The type of a field that takes any base optimiser."""


class Moments(NamedTuple):
    """First and second moment."""

    m: Vector
    v: Vector


@dataclass(frozen=True)
class Momentum:
    """Heavy ball: m' = g + beta m, U = m'."""

    beta: Fraction = 0.9

    def __post_init__(self) -> None:
        validate(self)

    def init(self, x: Vector) -> Vector:
        return torch.zeros_like(x)

    def U(self, g: Vector, m: Vector) -> Vector:
        return g + self.beta * m

    def V(self, g: Vector, m: Vector) -> Vector:
        return g + self.beta * m


@dataclass(frozen=True)
class Adam:
    """Exponential means of g and g^2: U = m'/(sqrt v' + eps)."""

    beta1: Fraction = 0.9
    beta2: Fraction = 0.99
    eps: Positive = 1e-3

    def __post_init__(self) -> None:
        validate(self)

    def init(self, x: Vector) -> Moments:
        return Moments(torch.zeros_like(x), torch.zeros_like(x))

    def U(self, g: Vector, s: Moments) -> Vector:
        m, v = self.V(g, s)
        return m / (torch.sqrt(v) + self.eps)

    def V(self, g: Vector, s: Moments) -> Moments:
        return Moments(
            m=self.beta1 * s.m + (1 - self.beta1) * g,
            v=self.beta2 * s.v + (1 - self.beta2) * g**2,
        )


@dataclass(frozen=True)
class Yogi:
    """Adam whose second moment moves by a bounded amount: v' = v - (1-b2) g^2 sign(v - g^2)."""

    beta1: Fraction = 0.9
    beta2: Fraction = 0.99
    eps: Positive = 1e-3

    def __post_init__(self) -> None:
        validate(self)

    def init(self, x: Vector) -> Moments:
        return Moments(torch.zeros_like(x), torch.zeros_like(x))

    def U(self, g: Vector, s: Moments) -> Vector:
        m, v = self.V(g, s)
        return m / (torch.sqrt(v) + self.eps)

    def V(self, g: Vector, s: Moments) -> Moments:
        return Moments(
            m=self.beta1 * s.m + (1 - self.beta1) * g,
            v=s.v - (1 - self.beta2) * g**2 * torch.sign(s.v - g**2),
        )


@dataclass(frozen=True)
class Adagrad:
    """Sum of squares: v' = v + g^2, U = g/(sqrt v' + eps)."""

    eps: Positive = 1e-3

    def __post_init__(self) -> None:
        validate(self)

    def init(self, x: Vector) -> Vector:
        return torch.zeros_like(x)

    def U(self, g: Vector, v: Vector) -> Vector:
        return g / (torch.sqrt(self.V(g, v)) + self.eps)

    def V(self, g: Vector, v: Vector) -> Vector:
        return v + g**2
