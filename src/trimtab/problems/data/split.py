"""Data in two parts: to learn from, and to test on."""

from typing import Literal, NamedTuple

from torch import Tensor

Pair = tuple[Tensor, Tensor]
Scale = Literal["unit", "standardised"]


class Split(NamedTuple):
    """Inputs and targets of both parts, and what to call the data in a table."""

    train: Pair
    test: Pair
    name: str


def named(what: str, train: Pair, test: Pair) -> Split:
    """Return the parts under a name that says how large they are."""
    return Split(train, test, f"{what}, {len(train[1]):,} / {len(test[1]):,}")


def scaled(split: Split, pixels: Scale, dims: tuple[int, ...]) -> Split:
    """Return pixels in 0..1 as they are, or with mean 0 and deviation 1 over these dimensions.

    Mean and deviation are those of the training part. Works in place.
    """
    if pixels == "standardised":
        X = split.train[0]
        mean, deviation = X.mean(dims, keepdim=True), X.std(dims, keepdim=True)
        for part in (split.train, split.test):
            part[0].sub_(mean).div_(deviation)
    elif pixels != "unit":
        raise ValueError(f"pixels={pixels!r}; pass 'unit' (0..1) or 'standardised'.")
    return split
