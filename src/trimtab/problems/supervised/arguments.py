"""The arguments of Supervised, checked and converted: module, dtype, weights, groups, device."""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from types import FunctionType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from trimtab.core.streams import FORWARD, mix, seeded
from trimtab.problems.supervised.batches import check_batch
from trimtab.problems.supervised.clients import ClientData, whole
from trimtab.problems.supervised.data import Data
from trimtab.problems.supervised.flat import check_module, first_line
from trimtab.problems.supervised.losses import Loss, loss_kind
from trimtab.problems.supervised.reading import Collate, is_pair, no_samples

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


def check_settings(batch: int | float | None, sampling: str, l2: float) -> None:
    """Raise ValueError for an unknown sampling, or a batch or l2 out of range."""
    check_batch(batch)
    if sampling not in ("reshuffle", "iid"):
        raise ValueError(f"sampling={sampling!r}; pass 'reshuffle' or 'iid'.")
    if isinstance(l2, bool) or not isinstance(l2, int | float) or not 0 <= l2 < inf:
        raise ValueError(f"l2={l2!r}; pass a number that is zero or positive.")


def check_groups(groups: Sequence[Any] | None, N: int) -> None:
    """Raise ValueError unless there is one group for each client."""
    if groups is None:
        return
    if isinstance(groups, str) or not hasattr(groups, "__len__"):
        raise ValueError(f"groups={groups!r}; pass a list with one label for each client.")
    if len(groups) != N:
        raise ValueError(
            f"groups has {len(groups)} labels for {N} clients; pass one label for each client."
        )


def module_of(module: nn.Module | Callable[[], nn.Module]) -> nn.Module:
    """Return a module; a function is called under seed 0 to build one."""
    if not callable(module):
        raise ValueError(
            f"Supervised: {module!r} is not a module; pass one, or a function that builds one."
        )
    first = module if isinstance(module, nn.Module) else built(module, seed=0)
    check_module(first)
    return first


def built(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Call a function that builds a module, and restore the global generators afterwards."""
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
    """Return float64 if the inputs of client 0 are float64; None for the dtype of the module."""
    # A lazy sequence is not read here: the first client may be large.
    given = whole(clients)
    first: Any = given[0] if isinstance(given, list | tuple) else None
    first = first.tensors if isinstance(first, TensorDataset) else first
    first = (first.X, first.y) if isinstance(first, Data) else first
    X = first[0] if is_pair(first) else first if isinstance(first, Mapping) else None
    inside = list(X.values()) if isinstance(X, Mapping) else X if isinstance(X, tuple) else [X]
    dtypes = [str(getattr(part, "dtype", "")).removeprefix("torch.") for part in inside]
    floats = [dtype for dtype in dtypes if dtype.startswith(("float", "bfloat"))]
    return torch.float64 if floats and set(floats) == {"float64"} else None


def described(name: str, module: nn.Module, loss: Loss, clients: ClientData) -> str:
    """Return what a problem is, for its repr; the sizes of lazy clients are not read."""
    known = loss_kind(loss)
    given = loss.__name__ if isinstance(loss, FunctionType) else type(loss).__name__
    facts = [type(module).__name__, given.strip("<>") if known is None else known.name]
    facts.append(f"{len(clients):,} client{'s'[: len(clients) > 1]}")
    if clients.in_memory:
        facts.append(f"{sum(map(clients.size, range(len(clients)))):,} samples")
    d = sum(p.numel() for p in module.parameters() if p.requires_grad)
    return f"{name}({', '.join(facts)}, d = {d:,})"


def device_of(device: str | torch.device | None) -> torch.device | None:
    """Return the device of a name; None if the module stays on its device."""
    if device is None:
        return None
    try:
        found = torch.device(device)
        torch.empty(0, device=found)  # torch.device accepts names of devices that are missing here.
    except (RuntimeError, AssertionError, TypeError, ValueError, NotImplementedError) as error:
        raise ValueError(
            f"device={device!r} cannot be used ({first_line(error)}); pass one that PyTorch has "
            "here, such as 'cpu'."
        ) from error
    if found.type == "meta":
        raise ValueError("device='meta' has no numbers; pass one that computes, such as 'cpu'.")
    # The device of a tensor is cuda:0 where it was given as cuda.
    return torch.empty(0, device=found).device


def check_collate(collate: Collate | None) -> None:
    """Raise ValueError unless a collate can be called."""
    if collate is not None and not callable(collate):
        raise ValueError(
            f"collate={collate!r} cannot be called; pass a function that makes a batch of a list "
            "of samples."
        )
