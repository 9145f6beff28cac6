"""Images of 8 x 8 and 32 x 32 pixels: scikit-learn's digits, CIFAR-10 and CIFAR-100.

The digits (UCI, Alpaydin and Kaynak, 1998) come with scikit-learn and need no download. CIFAR-10
and CIFAR-100 (Krizhevsky, 2009) are photographs of 10 and 100 classes in colour.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from trimtab.problems.data.files import Folder, Source, damaged, fetch, find
from trimtab.problems.partition import Pair, Scale, Split, named, scaled


def digits() -> tuple[Pair, Pair]:
    """Return train and test part, 1,438 and 359 samples of 64 features in 0..1.

    Every fifth sample is a test sample.

    >>> (X, y), (X_test, y_test) = digits()
    >>> X.shape, X_test.shape, X.max().item()
    (torch.Size([1438, 64]), torch.Size([359, 64]), 1.0)
    """
    # By its path, since load_digits imports SciPy and pandas, 1,270 modules, for this file.
    package = find_spec("sklearn")
    assert package is not None, "scikit-learn is installed with trimtab"
    file = Path(str(package.origin)).with_name("datasets") / "data" / "digits.csv.gz"
    table = torch.from_numpy(np.loadtxt(file, delimiter=","))
    X, y = table[:, :-1].float() / 16, table[:, -1].long()
    test = torch.arange(len(y)) % 5 == 4
    return (X[~test], y[~test]), (X[test], y[test])


# -- CIFAR-10

_TRAIN_10 = tuple(f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6))
_TEST_10 = "cifar-10-batches-bin/test_batch.bin"
_PIXELS = 3 * 32 * 32

CIFAR10 = Source(
    "cifar10",
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    (*_TRAIN_10, _TEST_10),
    most=170_052_171,
    # tensorflow/datasets, tensorflow_datasets/url_checksums/cifar10.txt; the page
    # https://www.cs.toronto.edu/~kriz/cifar.html has the MD5, c32a1d4ab5d03f1284b67883e8d87530
    digest="sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)


def cifar10(data: Folder = None, pixels: Scale = "unit") -> Split:
    """Return images of shape (3, 32, 32) and their classes: 50,000 / 10,000.

    If only some of the five training batches are available, those; `name` says how many images.

    data: a folder with the files; None searches TRIMTAB_DATA and the cache.
    pixels: "unit" for 0..1, "standardised" for mean 0 and standard deviation 1 of each colour.
    """
    available = [file for file in _TRAIN_10 if find(CIFAR10, file, data)]
    train, test = (
        read_records(CIFAR10, [fetch(CIFAR10, file, data) for file in files], 1, 0, 10)
        for files in (available or _TRAIN_10, [_TEST_10])
    )
    return scaled(named("CIFAR-10", train, test), pixels, (0, 2, 3))


def read_records(source: Source, paths: list[Path], labels: int, place: int, classes: int) -> Pair:
    """Read records of `labels` labels, of which number `place` is used, and 3 x 32 x 32 pixels."""
    size = labels + _PIXELS
    batches = []
    for path in paths:
        raw = np.fromfile(path, np.uint8)
        if not len(raw) or len(raw) % size:
            raise damaged(path, source, f"{len(raw)} bytes are not records of {size}")
        batch = raw.reshape(-1, size)
        if batch[:, place].max() >= classes:
            raise damaged(path, source, f"label {batch[:, place].max()} of {classes} classes")
        batches.append(torch.from_numpy(batch))
    records = torch.cat(batches)
    X = records[:, labels:].float().div_(255).reshape(-1, 3, 32, 32)
    return X, records[:, place].long()


# -- CIFAR-100

_TRAIN_100, _TEST_100 = "cifar-100-binary/train.bin", "cifar-100-binary/test.bin"
_LABELS_100 = {"coarse": (0, 20), "fine": (1, 100)}  # A record begins with both labels.

CIFAR100 = Source(
    "cifar100",
    "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    (_TRAIN_100, _TEST_100),
    most=168_513_733,
    # https://www.cs.toronto.edu/~kriz/cifar.html
    digest="md5:03b5dce01913d631647c71ecec9e9cb8",
)


def cifar100(
    data: Folder = None, pixels: Scale = "unit", labels: Literal["fine", "coarse"] = "fine"
) -> Split:
    """Return images of shape (3, 32, 32) and their classes: 50,000 / 10,000.

    data: a folder with the files; None searches TRIMTAB_DATA and the cache.
    pixels: "unit" for 0..1, "standardised" for mean 0 and standard deviation 1 of each colour.
    labels: "fine" for the hundred classes, "coarse" for their twenty groups.
    """
    if labels not in _LABELS_100:
        raise ValueError(f"labels={labels!r}; pass 'fine' or 'coarse'.")
    place, classes = _LABELS_100[labels]
    train, test = (
        read_records(CIFAR100, [fetch(CIFAR100, file, data)], len(_LABELS_100), place, classes)
        for file in (_TRAIN_100, _TEST_100)
    )
    return scaled(named("CIFAR-100", train, test), pixels, (0, 2, 3))
