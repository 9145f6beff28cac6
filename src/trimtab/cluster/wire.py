"""Tensors as NumPy arrays for the way between driver and shards.

Ray reads arrays from shared memory without a copy; it would pickle tensors.
"""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.core import Leaf, State, map_leaves


@dataclass(frozen=True)
class PackedTensor(Leaf):
    """The bytes of a tensor; those of one element if all elements are equal."""

    data: Any  # a NumPy array of uint8
    dtype: torch.dtype
    shape: tuple[int, ...]

    def tensor(self, device: torch.device) -> Tensor:
        """Return a writable tensor: arrays from Ray's shared memory are read-only."""
        flat = torch.from_numpy(self.data.copy()).view(self.dtype)
        whole = len(flat) == prod(self.shape)
        made = flat.view(self.shape) if whole else flat.expand(self.shape).contiguous()
        return made.to(device)


def pack(tree: State) -> State:
    """Return a tree with its tensors as PackedTensors."""
    return map_leaves(_pack_tensor, tree)


def pack_compact(tree: State) -> State:
    """Like `pack`, with one element for a tensor of equal elements: new states are zeros."""

    def packed(leaf: Tensor) -> PackedTensor:
        flat = leaf.detach().flatten()
        alike = flat.numel() > 1 and bool((flat == flat[0]).all())
        return _pack_tensor(flat[:1], tuple(leaf.shape)) if alike else _pack_tensor(leaf)

    return map_leaves(packed, tree)


def unpack(tree: State, device: torch.device = torch.device("cpu")) -> State:  # noqa: B008
    """Return a packed tree with its tensors, on a device."""
    return map_leaves(lambda leaf: leaf.tensor(device), tree)


def _pack_tensor(leaf: Tensor, shape: tuple[int, ...] | None = None) -> PackedTensor:
    flat = leaf.detach().cpu().contiguous().view(-1)
    data = np.asarray(flat.view(torch.uint8).numpy())
    return PackedTensor(data, leaf.dtype, tuple(leaf.shape) if shape is None else shape)
