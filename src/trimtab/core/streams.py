"""Seeded generators: every random number is a function of a seed and of its purpose."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

# Python's integers do not overflow; the mask keeps the lowest 64 bits, as unsigned integers of C.
_MASK = (1 << 64) - 1

# Purposes of streams: no two uses share numbers. New ones go at the end, since the results of a
# seed depend on these numbers.
COHORT, LOST, BATCH, FORWARD, NOISE, PARTITION, PROBLEM, MOVED, PROGRAM, SERVER, SLOW = range(11)
SPLIT, ERROR, SPEED = 11, 12, 13


def mix(*numbers: int) -> int:
    """Hash whole numbers to 64 bits (the finaliser of splitmix64, absorbed number by number).

    >>> mix(1, 2) != mix(2, 1)
    True
    """
    h = 0
    for number in numbers:
        h = (h + (number & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & _MASK
        h ^= h >> 31
    return h


def stream(*numbers: int) -> torch.Generator:
    """Return a fresh generator that depends on these numbers alone.

    >>> a, b = stream(0, COHORT, 7), stream(0, COHORT, 7)
    >>> torch.equal(torch.randperm(5, generator=a), torch.randperm(5, generator=b))
    True
    """
    return torch.Generator().manual_seed(mix(*numbers))


_seeded = [0]  # how often `seeded` was entered or left, so that it is even outside


@contextmanager
def seeded(number: int, device: torch.device) -> Iterator[None]:
    """Seed the global generators, from which modules draw, and restore them on exit.

    number: the seed, 64 bits.
    device: the device whose generator is seeded in addition to the CPU's.
    """
    there = [] if device.type == "cpu" else [device]
    _seeded[0] += 1
    try:
        with torch.random.fork_rng(there, device_type=device.type if there else "cuda"):
            torch.default_generator.manual_seed(number >> 1)
            if there:
                torch.get_device_module(device).manual_seed(number >> 1)
            yield
    finally:
        _seeded[0] += 1


# Functions that take a generator, and each dropout with the dimension of its batches; 0 for any.
_OF_TORCH = "bernoulli multinomial normal poisson rand rand_like randint randn randn_like randperm"
_OF_TENSORS = "bernoulli bernoulli_ exponential_ multinomial normal_ random_ uniform_"
_TAKE_GENERATOR = {getattr(torch, name) for name in _OF_TORCH.split()}
_TAKE_GENERATOR |= {getattr(Tensor, name) for name in _OF_TENSORS.split()}
_DROPOUTS = {F.dropout: 0, F.dropout1d: 3, F.dropout2d: 4, F.dropout3d: 5}


class OwnGenerator(TorchFunctionMode):
    """A context in which dropout, and what takes a generator, leaves the global one alone.

    On the CPU the numbers are those that `seeded` gives, but threads need not wait for each other.
    Functions that draw inside of PyTorch, such as attention with dropout, still draw globally.

    number: the seed, 64 bits.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(number >> 1)
        self.before, self._times = torch.get_rng_state(), _seeded[0]

    def drew_globally(self) -> bool:
        """Return whether the global generator of the CPU has drawn since this was made."""
        # `seeded`, in another thread, changes the state for a while.
        seeding = self._times % 2 or _seeded[0] != self._times
        return not seeding and not torch.equal(self.before, torch.get_rng_state())

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of PyTorch, with the generator where it draws."""
        kwargs = kwargs or {}
        if function in _TAKE_GENERATOR and kwargs.get("generator") is None:
            return function(*args, **kwargs | {"generator": self.generator})
        if function in _DROPOUTS:
            return self._dropped(function, *args, **kwargs)
        return function(*args, **kwargs)

    def _dropped(
        self,
        function: Callable[..., Tensor],
        x: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Tensor:
        dim = _DROPOUTS[function]
        if not training or not 0 < p < 1 or dim not in (0, x.dim()):
            return function(x, p, training, inplace)
        # As aten/src/ATen/native/Dropout.cpp; whole channels have one number each.
        noise = x.new_empty(*x.shape[:2], *[1] * (dim - 2)) if dim else torch.empty_like(x)
        noise.bernoulli_(1 - p, generator=self.generator).div_(1 - p)
        return x.mul_(noise) if inplace else x * noise


def global_state(device: torch.device) -> list[torch.Tensor]:
    """Return the state of the global generators that a module on this device may draw from."""
    there = [] if device.type == "cpu" else [torch.get_device_module(device).get_rng_state(device)]
    return [torch.get_rng_state(), *there]
