"""Replies as a running sum: uploads are added one at a time and never stored."""

from collections.abc import Callable, Sequence
from copy import copy
from functools import cache
from math import fsum, nan, sqrt
from typing import Any, Protocol, runtime_checkable

import torch

from trimtab.core import State, leaves, map_leaves, nbytes


@runtime_checkable
class HasUploadSize(Protocol):
    """A wrapper of a program that knows how many bytes an upload takes in transit."""

    def upload_bytes(self, upload: Any) -> int:
        """Return the number of bytes of one upload."""
        ...


@cache
def _has_upload_size(kind: Any) -> bool:
    # Cached, because a check of a protocol takes 10 us.
    return issubclass(kind, HasUploadSize)


class Tally:
    """The weighted sum of uploads, and statistics of the clients that follow from sums.

    Adding the same replies in the same order gives the same bits; the simulator and a federation
    both add in the order of the clients' numbers. `vector` converts each tensor of the mean.
    """

    def __init__(self) -> None:
        self.vector: Callable[[torch.Tensor], Any] = _as_it_is
        self._weights: list[float] = []
        self._uploads: Any = None  # the sum of p_i times the upload
        self._states: Any = None  # the sum of p_i times the numbers of the client's new state
        self._moves = _Norms()  # of dx
        self._controls = _Norms()  # of the new states
        self.bytes_up = 0

    def add(self, weight: float, upload: Any, state: State = ()) -> None:
        """Add one client's upload and its new state."""
        _check(upload)
        self._weights.append(weight)
        self._uploads = _accumulate(self._uploads, weight, upload)
        self._states = _accumulate(self._states, weight, _numbers(state))
        self.bytes_up += nbytes(upload)
        self._moves.add(weight, getattr(upload, "dx", ()))
        self._controls.add(weight, state)

    def add_rows(self, weights: list[float], uploads: Any, states: State = ()) -> None:
        """Add a chunk: the uploads and new states of several clients, one per row."""
        _check(uploads)
        self.add_sums(
            weights,
            _weighted(weights, uploads),
            _weighted(weights, _numbers(states)),
            _squares(getattr(uploads, "dx", ())),
            _squares(states),
        )

    def add_sums(
        self,
        weights: list[float],
        uploads: Any,
        states: State,
        moves: Sequence[float],
        controls: Sequence[float],
    ) -> None:
        """Add the weighted sums of several clients, with |dx|^2 and |state|^2 of each.

        The bits are those of a separate tally of these clients, merged. The tally takes over the
        tensors of the sums and changes them in place.
        """
        self._weights += weights
        own = _numbers(states)
        first = self._uploads is None
        self._uploads = uploads if first else _accumulate(self._uploads, 1.0, uploads)
        self._states = own if self._states is None else _accumulate(self._states, 1.0, own)
        self.bytes_up += len(weights) * nbytes(uploads)
        self._moves.add_squares(weights, moves)
        self._controls.add_squares(weights, controls)

    def merge(self, other: "Tally") -> None:
        """Add all replies of another tally."""
        self._weights += other._weights
        self._uploads = _accumulate(self._uploads, 1.0, other._uploads)
        self._states = _accumulate(self._states, 1.0, other._states)
        self._moves.merge(other._moves)
        self._controls.merge(other._controls)
        self.bytes_up += other.bytes_up

    def map_sums(self, f: Callable[[Any], Any]) -> "Tally":
        """Return a copy with f applied to its sums, such as packing for another process."""
        other = copy(self)
        other._uploads, other._states = f(self._uploads), f(self._states)
        return other

    def bytes_sent(self, program: Any) -> int:
        """Return the bytes of all uploads in transit, which the stages of a program may change."""
        relay: Any = getattr(program, "__self__", None)
        kind: Any = type(relay)
        if not _has_upload_size(kind):
            return self.bytes_up
        return len(self) * int(relay.upload_bytes(self._uploads))

    @property
    def share(self) -> float:
        """The sum of p_i over the clients that answered."""
        return fsum(self._weights)

    def mean(self) -> Any:
        """Return the mean upload, weighted by p_i."""
        share = self.share
        return map_leaves(lambda total: self.vector(total) / share, self._uploads)

    def __len__(self) -> int:
        return len(self._weights)

    @property
    def drift(self) -> float:
        """The mean of |dx_i|; NaN where uploads have no dx."""
        return self._moves.norm / fsum(self._weights) if self._moves.seen else nan

    @property
    def effective_clients(self) -> float:
        """The effective number of moving clients: all if they move equally far, 1 if only one does.

        (sum w_i |dx_i|)^2 / sum (w_i |dx_i|)^2; NaN where uploads have no dx.
        """
        return self._moves.norm**2 / self._moves.own if self._moves.own else nan

    @property
    def cosine(self) -> float:
        """The agreement of updates: mean <dx_i, dx_j> over pairs i != j / mean |dx_i|^2.

        1 if all updates are equal, about 0 if they are random; NaN for a single client.
        """
        return self._moves.mean_cosine(self._uploads.dx) if self._moves.seen else nan

    @property
    def spread(self) -> float:
        """The root of the mean of |c_i - mean c_i|^2 over the new client states; NaN for none."""
        return self._controls.spread(self._states) if self._controls.seen else nan


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _check(upload: Any) -> None:
    # An integer has no mean; a plain number would silently be the first client's.
    for leaf in leaves(upload, "an upload"):
        if not leaf.is_floating_point():
            raise ValueError(
                f"an upload holds {leaf!r}; use floating-point tensors, or tuples of them."
            )


def _numbers(state: State) -> tuple[torch.Tensor, ...]:
    """Return the floating-point tensors of a state; a counter has no spread."""
    return tuple(leaf for leaf in leaves(state) if leaf.is_floating_point())


def _accumulate(total: Any, weight: float, tree: Any) -> Any:
    if total is None:
        return map_leaves(lambda t: t * weight, tree)
    return map_leaves(lambda s, t: s.add_(t, alpha=weight), total, tree)


def _weighted(weights: list[float], tree: Any) -> Any:
    def total(leaf: torch.Tensor) -> torch.Tensor:
        return torch.tensor(weights, dtype=leaf.dtype, device=leaf.device) @ leaf.flatten(1)

    return map_leaves(lambda leaf: total(leaf).view(leaf.shape[1:]), tree)


def _squares(tree: Any) -> list[float]:
    """Return the squared norms of the rows."""
    numbers = [leaf.flatten(1) for leaf in leaves(tree) if leaf.is_floating_point()]
    norms = [torch.linalg.vector_norm(leaf, dim=1).cpu().double().square() for leaf in numbers]
    return torch.stack(norms).sum(0).tolist() if norms else []


def _square(tree: Any) -> float:
    numbers = [leaf for leaf in leaves(tree) if leaf.is_floating_point()]
    norms = [float(torch.linalg.vector_norm(leaf)) for leaf in numbers]
    return fsum(norm * norm for norm in norms)


class _Norms:
    """Sums over clients of w, w^2, w |v|, w |v|^2 and w^2 |v|^2."""

    weight = weight2 = norm = square = own = 0.0
    seen = False

    def add(self, weight: float, v: Any) -> None:
        if not leaves(v):
            return
        self.add_squares([weight], [_square(v)])

    def add_squares(self, weights: Sequence[float], squares: Sequence[float]) -> None:
        """Add the |v|^2 of several clients, or none: their own sums first, in their order."""
        if not squares:
            return
        self.seen = True
        total = total2 = norm = square = own = 0.0
        for w, v2 in zip(weights, squares, strict=True):
            total += w
            total2 += w * w
            norm += w * sqrt(v2)
            square += w * v2
            own += w * w * v2
        self.weight += total
        self.weight2 += total2
        self.norm += norm
        self.square += square
        self.own += own

    def merge(self, other: "_Norms") -> None:
        self.seen = self.seen or other.seen
        for name in ("weight", "weight2", "norm", "square", "own"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def spread(self, total: Any) -> float:
        w = self.weight
        variance = self.square / w - _square(total) / (w * w)
        return 0.0 if variance < 0 else sqrt(variance)  # below 0 by rounding; NaN stays NaN

    def mean_cosine(self, total: Any) -> float:
        pairs = self.weight * self.weight - self.weight2  # the sum of w_i w_j over i != j
        if pairs <= 1e-12 * self.weight2 or not self.square:
            return nan
        return (_square(total) - self.own) / pairs / (self.square / self.weight)
