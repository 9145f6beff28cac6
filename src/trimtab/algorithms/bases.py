"""Base optimisers B = (U, V): x <- x - eta U(g, s, x), s <- V(g, s).

U is the direction the optimiser would take on gradient g from state s at the point x, without
storing it; V is the state it would store.  Momentum as in the slides of Karimireddy et al. on Mime
(2020); Adam, Yogi and Adagrad as in Reddi et al., "Adaptive Federated Optimization", 2021: no bias
correction.  AdamW as `torch.optim.AdamW`, after Loshchilov and Hutter, "Decoupled Weight Decay
Regularization", 2019: with bias correction.
"""

from dataclasses import dataclass
from inspect import signature
from math import inf, log
from typing import Annotated, Any, NamedTuple, Protocol

import torch

from trimtab.core import Fraction, NonNegative, Positive, Rule, State, Vector, validate


class Base(Protocol):
    """An optimiser split into direction U and state V, both pure.

    Mime applies U at the clients with the server's state, and V at the server only, so that one
    method for both would not do.
    """

    def init(self, x: Vector) -> State:
        """Return the first state."""
        ...

    def U(self, g: Vector, s: State, y: Vector) -> Vector:
        """Return the direction to step along from y, where decoupled weight decay needs y."""
        ...

    def V(self, g: Vector, s: State) -> State:
        """Return the next state."""
        ...


# A class has these methods as well, but Momentum instead of Momentum() is a common mistake.
def _is_base(value: Any) -> bool:
    if isinstance(value, type) or not all(hasattr(value, name) for name in ("init", "U", "V")):
        return False
    return len(signature(value.U).parameters) == 3


AnyBase = Annotated[
    Base,
    Rule(
        _is_base, "; pass an optimiser such as Momentum() or Adam(), with U(g, s, y) and V(g, s)."
    ),
]
"""The type of a field that takes any base optimiser."""


class Moments(NamedTuple):
    """First and second moment of the gradient."""

    m: Vector
    v: Vector


@dataclass(frozen=True)
class Momentum:
    """Heavy ball: m' = g + beta m, U = m'.

    beta: the factor of the old momentum, 0 <= beta < 1; default 0.9.
    """

    beta: Fraction = 0.9

    def __post_init__(self) -> None:
        validate(self)

    def init(self, x: Vector) -> Vector:
        return torch.zeros_like(x)

    def U(self, g: Vector, m: Vector, y: Vector) -> Vector:
        return g + self.beta * m

    def V(self, g: Vector, m: Vector) -> Vector:
        return g + self.beta * m


@dataclass(frozen=True)
class Adam:
    """Exponential means of g and g^2: U = m'/(sqrt v' + eps).

    beta1: the factor of the old mean of g, 0 <= beta1 < 1; default 0.9.
    beta2: the factor of the old mean of g^2, 0 <= beta2 < 1; default 0.99.
    eps: added to the root, positive; default 1e-3.
    """

    beta1: Fraction = 0.9
    beta2: Fraction = 0.99
    eps: Positive = 1e-3

    def __post_init__(self) -> None:
        validate(self)

    def init(self, x: Vector) -> Moments:
        return Moments(torch.zeros_like(x), torch.zeros_like(x))

    def U(self, g: Vector, s: Moments, y: Vector) -> Vector:
        m, v = self.V(g, s)  # The direction uses the new moments, not those of s.
        return m / (torch.sqrt(v) + self.eps)

    def V(self, g: Vector, s: Moments) -> Moments:
        return Moments(
            m=self.beta1 * s.m + (1 - self.beta1) * g,
            v=self.beta2 * s.v + (1 - self.beta2) * g**2,
        )


@dataclass(frozen=True)
class Yogi(Adam):
    """Adam whose second moment changes by at most (1 - beta2) g^2 per round.

    v' = v - (1 - beta2) g^2 sign(v - g^2)

    beta1, beta2, eps: as for Adam, with the same defaults.
    """

    def V(self, g: Vector, s: Moments) -> Moments:
        return Moments(
            m=self.beta1 * s.m + (1 - self.beta1) * g,
            v=s.v - (1 - self.beta2) * g**2 * torch.sign(s.v - g**2),
        )


@dataclass(frozen=True)
class Adagrad:
    """Sum of squares: v' = v + g^2, U = g/(sqrt v' + eps).

    eps: added to the root, positive; default 1e-3.
    """

    eps: Positive = 1e-3

    def __post_init__(self) -> None:
        validate(self)

    def init(self, x: Vector) -> Vector:
        return torch.zeros_like(x)

    def U(self, g: Vector, v: Vector, y: Vector) -> Vector:
        return g / (torch.sqrt(self.V(g, v)) + self.eps)

    def V(self, g: Vector, v: Vector) -> Vector:
        return v + g**2


class CountedMoments(NamedTuple):
    """First and second moment of the gradient, and the number of steps so far."""

    m: Vector
    v: Vector
    t: Vector  # one number


def _one_minus_power(beta: float, t: Vector) -> Vector:
    # 1 - 0.999 in float32 has an error of 6e-5, which expm1 avoids.
    return -torch.expm1(t * (log(beta) if beta else -inf))


@dataclass(frozen=True)
class AdamW:
    """Adam with bias correction and decoupled weight decay, as `torch.optim.AdamW`.

    U = (m' / (1 - beta1^t)) / (sqrt(v' / (1 - beta2^t)) + eps) + weight_decay y

    beta1: the factor of the old mean of g, 0 <= beta1 < 1; default 0.9.
    beta2: the factor of the old mean of g^2, 0 <= beta2 < 1; default 0.999.
    eps: added to the root, positive; default 1e-8.
    weight_decay: the factor of y in the direction, not negative; default 0.01.
    """

    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    eps: Positive = 1e-8
    weight_decay: NonNegative = 0.01

    def __post_init__(self) -> None:
        validate(self)

    def init(self, x: Vector) -> CountedMoments:
        t = torch.zeros((), dtype=x.dtype, device=x.device)
        return CountedMoments(torch.zeros_like(x), torch.zeros_like(x), t)

    def U(self, g: Vector, s: CountedMoments, y: Vector) -> Vector:
        m, v, t = self.V(g, s)
        m, v = m / _one_minus_power(self.beta1, t), v / _one_minus_power(self.beta2, t)
        return m / (torch.sqrt(v) + self.eps) + self.weight_decay * y

    def V(self, g: Vector, s: CountedMoments) -> CountedMoments:
        return CountedMoments(
            m=self.beta1 * s.m + (1 - self.beta1) * g,
            v=self.beta2 * s.v + (1 - self.beta2) * g**2,
            t=s.t + 1,
        )


@dataclass(frozen=True)
class Clipped:
    """Another base optimiser on gradients whose norm is at most `norm`.

    The gradient is clipped after it was corrected by c - c_i: clipping first changes the optimum.
    In FedOpt it clips the mean update.

    base: the optimiser of the clipped gradients.
    norm: the largest Euclidean norm, positive.
    """

    base: AnyBase
    norm: Positive

    def __post_init__(self) -> None:
        validate(self)

    def _clip(self, g: Vector) -> Vector:
        return g * torch.clamp_max(
            self.norm / torch.linalg.vector_norm(g, dim=-1, keepdim=True), 1.0
        )

    def init(self, x: Vector) -> State:
        return self.base.init(x)

    def U(self, g: Vector, s: State, y: Vector) -> Vector:
        return self.base.U(self._clip(g), s, y)

    def V(self, g: Vector, s: State) -> State:
        return self.base.V(self._clip(g), s)
