"""The 8 x 8 digits that come with scikit-learn (UCI, Alpaydin and Kaynak 1998): no download."""

import torch

from trimtab.problems.data.split import Pair


def digits() -> tuple[Pair, Pair]:
    """Return train and test part, 1,438 and 359 samples of 64 features in 0..1.

    Every fifth sample is a test sample.

    >>> (X, y), (X_test, y_test) = digits()
    >>> X.shape, X_test.shape, X.max().item()
    (torch.Size([1438, 64]), torch.Size([359, 64]), 1.0)
    """
    from sklearn.datasets import load_digits  # slow to import, and only needed here

    bunch = load_digits()
    X = torch.from_numpy(bunch.data).float() / 16
    y = torch.from_numpy(bunch.target).long()
    test = torch.arange(len(y)) % 5 == 4
    return (X[~test], y[~test]), (X[test], y[test])
