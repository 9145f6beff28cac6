"""CIFAR-100: photographs of a hundred kinds, 32 x 32 in colour (Krizhevsky, 2009)."""

from typing import Literal

from trimtab.problems.data.cifar10 import read_records
from trimtab.problems.data.files import Folder, Source, fetch
from trimtab.problems.data.split import Scale, Split, named, scaled

_TRAIN, _TEST = "cifar-100-binary/train.bin", "cifar-100-binary/test.bin"
_PLACES = {"coarse": (0, 20), "fine": (1, 100)}  # A record begins with both labels.

CIFAR100 = Source(
    "cifar100",
    "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    (_TRAIN, _TEST),
    most=168_513_733,
    # https://www.cs.toronto.edu/~kriz/cifar.html
    digest="md5:03b5dce01913d631647c71ecec9e9cb8",
)


def cifar100(
    data: Folder = None, pixels: Scale = "unit", labels: Literal["fine", "coarse"] = "fine"
) -> Split:
    """Return images of shape (3, 32, 32) in 0..1, and their classes: 50,000 / 10,000.

    labels: "fine", a hundred classes, or "coarse", their twenty groups. pixels="standardised": each
    colour with mean 0 and deviation 1.
    """
    if labels not in _PLACES:
        raise ValueError(f"labels={labels!r}; pass 'fine' or 'coarse'.")
    place, classes = _PLACES[labels]
    train, test = (
        read_records(CIFAR100, [fetch(CIFAR100, file, data)], len(_PLACES), place, classes)
        for file in (_TRAIN, _TEST)
    )
    return scaled(named("CIFAR-100", train, test), pixels, (0, 2, 3))
