"""The nouns: a model is one vector x in R^d, a round is written from the server's seat.

Notation follows Karimireddy et al. (2020), Table 1; `docs/notation.md` is the dictionary.
States, uploads and broadcasts are tensors or (named) tuples of them; `()` is nothing.
"""

from collections.abc import Callable
from dataclasses import fields
from math import isfinite
from typing import Any, Protocol

from torch import Tensor

Vector = Tensor  # shape (d,); for a chunk of s clients (s, d)
State = Any  # a tensor, or a (named) tuple of states; () when there is nothing to remember


class Oracle(Protocol):
    """The stochastic gradient g_i of one client's loss f_i."""

    def __call__(self, y: Vector, k: int | None = None) -> Vector:
        """Return g_i(y) on the k-th mini-batch of this round, or on all local data if k is None.

        Equal k means equal mini-batch: g(y, k) - g(x, k) is a difference on the same samples.
        """
        ...


class Replies(Protocol):
    """What the clients that answered have sent back; only means ever reach an algorithm."""

    @property
    def share(self) -> float:
        """The sum of p_i over those that answered: |S|/N when all clients weigh the same."""
        ...

    def mean(self) -> Any:
        """Return the mean upload, client i weighted by p_i."""
        ...

    def __len__(self) -> int: ...


Program = Callable[..., tuple[Any, State]]
"""What a client runs: `program(g, state, *broadcast) -> (upload, new state)`."""


class Clients(Protocol):
    """The clients of one round: simulated ones, or machines. Nothing else reaches them."""

    def run(self, program: Program, *broadcast: Any) -> Replies:
        """Send `broadcast` to the clients, run `program` on each, and collect the replies."""
        ...


class Algorithm(Protocol):
    """A frozen dataclass of hyper-parameters with three pure methods.

    `trimtab.testing.check_algorithm` is this contract, executable.
    """

    def init_server(self, x: Vector) -> State:
        """Return the server's state, a NamedTuple whose attribute `x` is the model."""
        ...

    def init_client(self, x: Vector) -> State:
        """Return the state of a client that is sampled for the first time; `()` for none."""
        ...

    def round(self, server: State, clients: Clients) -> State:
        """Return the server's state after one round."""
        ...


class Leaf:
    """What a tree may hold besides tensors; lazy vectors are such leaves."""

    __slots__ = ()


class NoLeafError(TypeError, ValueError):
    """A state or message holds what is no leaf."""


def leaves(tree: State, what: str = "a state or message") -> list[Any]:
    """Return the tensors of a state, upload or broadcast, in order.

    >>> import torch
    >>> [t.item() for t in leaves((torch.tensor(1), ((), torch.tensor(2))))]
    [1, 2]
    >>> leaves((torch.tensor(1), None), "a state")
    Traceback (most recent call last):
    trimtab.core.NoLeafError: a state holds None; use tensors, tuples of them, or () for nothing.
    """
    if isinstance(tree, tuple):
        return [leaf for part in tree for leaf in leaves(part, what)]
    return [_leaf(tree, what)]


def map_leaves(f: Callable[..., Any], tree: State, *others: State) -> State:
    """Apply f to the leaves of trees of one structure, and keep that structure."""
    if isinstance(tree, tuple):
        parts = [map_leaves(f, *parts) for parts in zip(tree, *others, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return f(_leaf(tree), *others)


def _leaf(tree: Any, what: str = "a state or message") -> Any:
    """Return a leaf; refuse what is none, for skipping it would silently leave it as it is."""
    if isinstance(tree, Tensor | Leaf):
        return tree
    raise NoLeafError(f"{what} holds {tree!r}; use tensors, tuples of them, or () for nothing.")


def nbytes(tree: State) -> int:
    """Return how many bytes the tensors of a message take."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree))


_POSITIVE = ("positive", lambda v: v > 0)
_NON_NEGATIVE = ("zero or positive", lambda v: v >= 0)
_FRACTION = ("at least 0 and below 1", lambda v: 0 <= v < 1)
_RULES: dict[str, tuple[str, Callable[[float], bool]]] = {
    "eta": _POSITIVE,
    "eta_l": _POSITIVE,
    "eta_g": _NON_NEGATIVE,
    "mu": _NON_NEGATIVE,
    "eps": _POSITIVE,
    "beta": _FRACTION,
    "beta1": _FRACTION,
    "beta2": _FRACTION,
}


def validate(hyper: Any) -> None:
    """Check a dataclass of hyper-parameters by the names of its fields; call it in `__post_init__`.

    Numbers of NumPy or PyTorch become Python's own, so that `repr` can be read back.

    >>> from trimtab import FedAvg
    >>> FedAvg(eta_l=0.1, K=0)
    Traceback (most recent call last):
    ValueError: FedAvg: K=0, but it counts local steps; pass a whole number K >= 1.
    """
    who = type(hyper).__name__
    for name in (field.name for field in fields(hyper)):
        value = plain_number(getattr(hyper, name))
        if value is not getattr(hyper, name):
            object.__setattr__(hyper, name, value)
        if name == "K" and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ValueError(
                f"{who}: K={value!r}, but it counts local steps; pass a whole number K >= 1."
            )
        if name == "base" and (isinstance(value, type) or not hasattr(value, "U")):
            raise ValueError(
                f"{who}: base={value!r}; pass an optimiser such as Momentum(), Adam() or Yogi()."
            )
        if name in _RULES:
            what, holds = _RULES[name]
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not isfinite(value) or not holds(value):
                raise ValueError(f"{who}: {name}={value!r}; pass a number that is {what}.")


def plain_number(value: Any) -> Any:
    """Return a number of NumPy or PyTorch as Python's own, and all else as it is."""
    return value.item() if getattr(value, "shape", None) == () else value
