"""Concrete: compressive strength of 1,030 mixtures (Yeh, 1998; UCI, CC BY 4.0)."""

from trimtab.problems.data.files import Folder, Source, damaged, fetch, table
from trimtab.problems.data.split import Pair

CONCRETE = Source(
    "concrete",
    "https://archive.ics.uci.edu/static/public/165/data.csv",
    ("concrete.csv",),
    most=1 << 20,
)


def concrete(data: Folder = None) -> Pair:
    """Return eight features, seven ingredients and the age, and the strength, shape (n, 1).

    All nine have mean 0 and deviation 1 over the rows, so a loss of 1 explains nothing.
    """
    path = fetch(CONCRETE, "concrete.csv", data)
    rows = table(path, CONCRETE, columns=9, header=True)
    if rows.isnan().any() or (rows.std(0) == 0).any():
        raise damaged(path, CONCRETE, "a column has gaps, or one value only")
    rows = (rows - rows.mean(0)) / rows.std(0, correction=0)
    return rows[:, :8].float(), rows[:, 8:].float()
