"""a9a: who earns more than 50,000 a year, from the census of 1994 (Platt, 1998; LIBSVM)."""

import torch

from trimtab.problems.data.files import Folder, Source, damaged, fetch
from trimtab.problems.data.split import Pair, Split, named

_ADDRESS = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
TRAIN, TEST = (Source("a9a", _ADDRESS + file, (file,), most=1 << 23) for file in ("a9a", "a9a.t"))


def a9a(data: Folder = None) -> Split:
    """Return 123 features, each 0 or 1, and the class, 0 or 1: 32,561 / 16,281."""
    return named("a9a", _read(TRAIN, data), _read(TEST, data))


def _read(source: Source, data: Folder) -> Pair:
    from sklearn.datasets import load_svmlight_file  # slow to import, and only needed here

    path = fetch(source, source.files[0], data)
    try:
        X, y = load_svmlight_file(str(path), n_features=123)
    except ValueError as error:
        raise damaged(path, source, error) from None
    if not len(y):
        raise damaged(path, source, "it is empty")
    return torch.from_numpy(X.toarray()).float(), torch.from_numpy(y > 0).long()
