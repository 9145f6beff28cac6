"""Tables of numbers: a9a, concrete and heart disease.

a9a: who earns more than 50,000 a year, from the census of 1994 (Platt, 1998; LIBSVM). Concrete:
compressive strength of 1,030 mixtures (Yeh, 1998; UCI, CC BY 4.0). Heart disease: patients of four
hospitals, which are natural clients (Janosi, Steinbrunn, Pfisterer and Detrano, 1988; UCI, CC BY
4.0).
"""

from math import nan

import torch
from torch import Tensor

from trimtab.problems.data.files import Folder, Source, damaged, fetch, table
from trimtab.problems.partition import Pair, Split, named

# -- a9a

_A9A_URL = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
A9A_TRAIN, A9A_TEST = (
    Source("a9a", _A9A_URL + file, (file,), most=1 << 23) for file in ("a9a", "a9a.t")
)


def a9a(data: Folder = None) -> Split:
    """Return 123 features, each 0 or 1, and the class, 0 or 1: 32,561 / 16,281."""
    return named("a9a", _read(A9A_TRAIN, data), _read(A9A_TEST, data))


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


# -- concrete

CONCRETE = Source(
    "concrete",
    "https://archive.ics.uci.edu/static/public/165/data.csv",
    ("concrete.csv",),
    most=1 << 20,
)


def concrete(data: Folder = None) -> Pair:
    """Return eight features (seven ingredients and the age) and the strength, shape (n, 1).

    All nine have mean 0 and deviation 1 over the rows, so the mean alone has a loss of 1.
    """
    path = fetch(CONCRETE, "concrete.csv", data)
    rows = table(path, CONCRETE, columns=9, header=True)
    if rows.isnan().any() or (rows.std(0) == 0).any():
        raise damaged(path, CONCRETE, "a column has gaps, or one value only")
    rows = (rows - rows.mean(0)) / rows.std(0, correction=0)
    return rows[:, :8].float(), rows[:, 8:].float()


# -- heart disease

# Their MD5: owkin/FLamby, flamby/datasets/fed_heart_disease/dataset_creation_scripts/download.py
_MD5 = {
    "cleveland": "2d91a8ff69cfd9616aa47b59d6f843db",
    "hungarian": "22e96bee155b5973568101c93b3705f6",
    "switzerland": "9a87f7577310b3917730d06ba9349e20",
    "va": "4249d03ca7711e84f4444768c9426170",
}
_HEART_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/"
HOSPITALS = {
    hospital: Source(
        "heart-disease",
        f"{_HEART_URL}processed.{hospital}.data",
        (f"processed.{hospital}.data",),
        most=1 << 20,
        digest=f"md5:{md5}",
    )
    for hospital, md5 in _MD5.items()
}
HEART_COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal"),
)
HEART_CATEGORIES = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2), "slope": (1, 2, 3), "thal": (3, 6, 7)}
HEART_FEATURES = 22  # one per number, and one per kind of pain, ECG, slope and thallium scan


def heart_disease(data: Folder = None) -> dict[str, Split]:
    """Return each hospital's patients: 22 features, and 1 for a narrowed artery, else 0.

    Every fifth patient is a test patient. Features have mean 0 and deviation 1 over the training
    patients of all hospitals together. A missing value becomes 0, that common mean. A blood
    pressure or cholesterol of 0 counts as missing: Switzerland reports it for every patient.
    """
    rows = {hospital: _rows(source, data) for hospital, source in HOSPITALS.items()}
    known = torch.cat([_features(r[~_is_test(r)]) for r in rows.values()])
    mean = known.nanmean(0)
    deviation = (known - mean).square().nanmean(0).sqrt()
    splits = {}
    for hospital, r in rows.items():
        X = ((_features(r) - mean) / deviation).nan_to_num(0, 0, 0).float()
        y, test = (r[:, 13] > 0).long(), _is_test(r)
        splits[hospital] = named(hospital, (X[~test], y[~test]), (X[test], y[test]))
    return splits


def _is_test(rows: Tensor) -> Tensor:
    return torch.arange(len(rows)) % 5 == 4


def _rows(source: Source, data: Folder) -> Tensor:
    path = fetch(source, source.files[0], data)
    rows = table(path, source, columns=14)
    if rows[:, 13].isnan().any():
        raise damaged(path, source, "a patient without a diagnosis")
    return rows


def _features(rows: Tensor) -> Tensor:
    """Return the columns that are numbers, and the categories as columns of 0 and 1."""
    columns = []
    for name, column in zip(HEART_COLUMNS, rows[:, :13].T, strict=True):
        if name in HEART_CATEGORIES:
            is_kind = column[:, None] == torch.tensor(HEART_CATEGORIES[name])
            columns.append(torch.where(column.isnan()[:, None], nan, is_kind.to(column)))
        else:
            missing = (column == 0) & (name in ("trestbps", "chol"))
            columns.append(torch.where(missing, nan, column)[:, None])
    return torch.cat(columns, 1)
