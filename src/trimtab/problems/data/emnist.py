"""EMNIST: handwritten digits and letters, 28 x 28 (Cohen et al., 2017; NIST, public domain).

The files do not name the writers, so clients are partitioned by label, not by writer.
"""

import gzip
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from trimtab.problems.data.files import Folder, Source, damaged, fetch, find
from trimtab.problems.partition import Pair, Scale, Split, named, scaled

CLASSES = {"balanced": 47, "byclass": 62}
_PARTS = ("train", "test")


def _files(stem: str, part: str) -> tuple[str, str]:
    return f"{stem}-{part}-images-idx3-ubyte.gz", f"{stem}-{part}-labels-idx1-ubyte.gz"


EMNIST = Source(
    "emnist",
    "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
    tuple(f for s in CLASSES for part in _PARTS for f in _files(f"emnist-{s}", part)),
    most=561_753_746,
    # tensorflow/datasets, tensorflow_datasets/url_checksums/emnist.txt
    digest="sha256:fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
)


def emnist(
    split: Literal["balanced", "byclass"] = "balanced", data: Folder = None, pixels: Scale = "unit"
) -> Split:
    """Return images as rows of 784 pixels, upright, and their classes; `name` says which files.

    split: "balanced" has 47 classes, the official 112,800 / 18,800 images; if only files called
        emnist47 are available (other images of EMNIST with the same classes), those. "byclass" has
        62 classes, the official 697,932 / 116,323; if only its test file is available, that file's
        first 100,000 images and the rest.
    data: a folder with the files; None searches TRIMTAB_DATA and the cache.
    pixels: "unit" for 0..1, "standardised" for mean 0 and standard deviation 1 over all pixels.
    """
    if split not in CLASSES:
        raise ValueError(f"split={split!r}; pass {' or '.join(map(repr, CLASSES))}.")
    return scaled(_balanced(data) if split == "balanced" else _byclass(data), pixels, (0, 1))


def _balanced(data: Folder) -> Split:
    stem, what = "emnist-balanced", "EMNIST Balanced"
    if not _present(stem, _PARTS, data) and _present("emnist47", _PARTS, data):
        stem, what = "emnist47", "EMNIST, 47 classes"
    return named(what, *(_read(stem, part, CLASSES["balanced"], data) for part in _PARTS))


def _byclass(data: Folder) -> Split:
    stem, classes = "emnist-byclass", CLASSES["byclass"]
    if _present(stem, ("train",), data) or not _present(stem, ("test",), data):
        return named("EMNIST ByClass", *(_read(stem, part, classes, data) for part in _PARTS))
    X, y = _read(stem, "test", classes, data)
    cut = round(len(y) * 100_000 / 116_323)
    return named("EMNIST, 62 classes", (X[:cut], y[:cut]), (X[cut:], y[cut:]))


def _present(stem: str, parts: tuple[str, ...], data: Folder) -> bool:
    return all(find(EMNIST, file, data) for part in parts for file in _files(stem, part))


def _read(stem: str, part: str, classes: int, data: Folder) -> Pair:
    images, labels = (fetch(EMNIST, file, data) for file in _files(stem, part))
    X, y = _idx(images, 3), _idx(labels, 1)
    if len(X) != len(y):
        raise damaged(labels, EMNIST, f"{len(y)} labels for {len(X)} images")
    if len(y) and y.max() >= classes:
        raise damaged(labels, EMNIST, f"label {y.max()} of {classes} classes")
    upright = X.transpose(0, 2, 1).copy()  # the files hold columns where MNIST holds rows
    pixels = torch.from_numpy(upright.reshape(len(X), -1)).float().div_(255)
    return pixels, torch.from_numpy(y.astype(np.int64))


def _idx(path: Path, dimensions: int) -> np.ndarray:
    """Read bytes in LeCun's IDX format: a magic number, the lengths, the numbers."""
    try:
        with gzip.open(path) as file:
            raw = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, EMNIST, error) from None
    start = 4 + 4 * dimensions
    if len(raw) < start or raw[:4] != bytes((0, 0, 8, dimensions)):
        raise damaged(path, EMNIST, f"no IDX file of {dimensions} dimensions")
    shape = np.frombuffer(raw[4:start], ">i4").astype(int)
    if len(raw) - start != shape.prod():
        raise damaged(path, EMNIST, f"{len(raw) - start} bytes of {shape.prod()}")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)
