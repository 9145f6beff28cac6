"""Seeded generators: every random number is a function of a seed and of its purpose."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Python's integers do not overflow; the mask keeps the lowest 64 bits, as unsigned integers of C.
_MASK = (1 << 64) - 1

# Purposes of streams: no two uses share numbers. New ones go at the end, since the results of a
# seed depend on these numbers.
COHORT, LOST, BATCH, FORWARD, NOISE, PARTITION, PROBLEM, MOVED, PROGRAM, SERVER, SLOW = range(11)
SPLIT, ERROR = 11, 12


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


@contextmanager
def seeded(number: int, device: torch.device) -> Iterator[None]:
    """Seed the global generators, from which modules draw, and restore them on exit.

    number: the seed, 64 bits.
    device: the device whose generator is seeded in addition to the CPU's.
    """
    there = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(there, device_type=device.type if there else "cuda"):
        torch.default_generator.manual_seed(number >> 1)
        if there:
            torch.get_device_module(device).manual_seed(number >> 1)
        yield


def global_state(device: torch.device) -> list[torch.Tensor]:
    """Return the state of the global generators that a module on this device may draw from."""
    there = [] if device.type == "cpu" else [torch.get_device_module(device).get_rng_state(device)]
    return [torch.get_rng_state(), *there]
