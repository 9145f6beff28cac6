"""CIFAR-10: photographs of ten kinds, 32 x 32 in colour (Krizhevsky, 2009)."""

from pathlib import Path

import numpy as np
import torch

from trimtab.problems.data.files import Folder, Source, damaged, fetch, look
from trimtab.problems.data.split import Pair, Scale, Split, named, scaled

_TRAIN = tuple(f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6))
_TEST = "cifar-10-batches-bin/test_batch.bin"
_PIXELS = 3 * 32 * 32

CIFAR10 = Source(
    "cifar10",
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    (*_TRAIN, _TEST),
    most=170_052_171,
    # tensorflow/datasets, tensorflow_datasets/url_checksums/cifar10.txt; the page
    # https://www.cs.toronto.edu/~kriz/cifar.html has the MD5, c32a1d4ab5d03f1284b67883e8d87530
    digest="sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)


def cifar10(data: Folder = None, pixels: Scale = "unit") -> Split:
    """Return images of shape (3, 32, 32) in 0..1, and their classes: 50,000 / 10,000.

    Where only some of the five training batches are at hand, those; `name` says how many images.
    pixels="standardised": each colour with mean 0 and deviation 1.
    """
    at_hand = [file for file in _TRAIN if look(CIFAR10, file, data)]
    train, test = (
        read_records(CIFAR10, [fetch(CIFAR10, file, data) for file in files], 1, 0, 10)
        for files in (at_hand or _TRAIN, [_TEST])
    )
    return scaled(named("CIFAR-10", train, test), pixels, (0, 2, 3))


def read_records(source: Source, paths: list[Path], labels: int, place: int, classes: int) -> Pair:
    """Read records: so many labels, of which one is taken, then red, green and blue by rows."""
    size = labels + _PIXELS
    batches = []
    for path in paths:
        raw = np.fromfile(path, np.uint8)
        if not len(raw) or len(raw) % size:
            raise damaged(path, source, f"{len(raw)} bytes are no records of {size}")
        batch = raw.reshape(-1, size)
        if batch[:, place].max() >= classes:
            raise damaged(path, source, f"label {batch[:, place].max()} of {classes} classes")
        batches.append(torch.from_numpy(batch))
    records = torch.cat(batches)
    X = records[:, labels:].float().div_(255).reshape(-1, 3, 32, 32)
    return X, records[:, place].long()
