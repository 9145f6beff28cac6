"""What Supervised makes of its arguments: the module, its dtype, weights and groups."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from trimtab.core.streams import FORWARD, mix, seeded
from trimtab.problems.supervised.client_data import ClientData, no_samples, whole
from trimtab.problems.supervised.flat import first_line

Weights = Sequence[float] | Tensor | Literal["samples"] | None


def numbers_of(weights: Weights, clients: ClientData) -> Sequence[float] | Tensor | None:
    """Return the weights as numbers; "samples" counts those held out for validation too."""
    if not isinstance(weights, str):
        return weights
    if weights != "samples":
        raise ValueError(f"weights={weights!r}; pass N numbers, 'samples' or None.")
    sizes = [float(clients.whole_size(i)) for i in range(len(clients))]
    if 0 in sizes:
        raise no_samples(f"client {sizes.index(0)}")
    return sizes


def check_groups(groups: Sequence[Any] | None, N: int) -> None:
    """Refuse groups that do not name one for each client."""
    if groups is not None and (isinstance(groups, str) or len(groups) != N):
        raise ValueError(
            f"groups has {len(groups)} labels for {N} clients; pass one label for each client."
        )


def built(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return the module that a function builds under a seed."""
    with seeded(mix(seed, FORWARD), torch.device("cpu")):
        try:
            module = build()
        except TypeError as error:
            raise ValueError(
                f"the module cannot be built ({first_line(error)}); pass a module, or a function "
                "without arguments that returns one."
            ) from error
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"the function that builds the module returned a {type(module).__name__}; return an "
            "nn.Module."
        )
    return module


def dtype_of(clients: Sequence[Any]) -> torch.dtype | None:
    """Return float64 if that is what the clients' tensors are; else leave it to the module."""
    given = whole(clients)
    first = given[0] if isinstance(given, list | tuple) else None
    first = first.tensors if isinstance(first, TensorDataset) else first
    X = first[0] if isinstance(first, tuple | list) and len(first) == 2 else None
    return torch.float64 if str(getattr(X, "dtype", "")).endswith("float64") else None
