"""From data to a paper's table: three hospitals, log loss, five seeds, LaTeX."""

import torch
from sklearn.datasets import load_breast_cancer
from torch.nn import Linear
from torch.nn.functional import cross_entropy

from trimtab import Supervised, compare


def problem():
    X, y = load_breast_cancer(return_X_y=True)  # 30 features of a tumour; is it benign?
    X = torch.as_tensor((X - X.mean(0)) / X.std(0), dtype=torch.float32)
    y = torch.as_tensor(y)
    rows = X[:, 0].argsort()  # by size: each hospital sees tumours of another one
    test, train = rows[::4], rows[torch.arange(len(rows)) % 4 != 0]
    hospitals = [(X[part], y[part]) for part in train.chunk(3)]
    return Supervised(Linear(30, 2), cross_entropy, hospitals, (X[test], y[test]), batch=16)


if __name__ == "__main__":
    found = compare(problem(), metric="log loss", target=0.06, minutes=1, R=60, baselines=True)
    print(found.advice)
    print(found.to_latex())
