"""Tables of pandas: the same numbers as by hand, said, and refused where they are not clear."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trimtab import Columns, Scaffold, Supervised, compare, diagnose, simulate
from trimtab.federation.setup.problem_file import ProblemFile
from trimtab.problems.clients import problem_notes
from trimtab.problems.metrics import ACCURACY

pandas = pytest.importorskip("pandas", reason="pip install 'trimtab[pandas]'")
ROWS = 60


def table(rows=ROWS):
    hospitals = ["rome", "oslo", "bern"]
    age = [30.0 + 7 * j % 40 for j in range(rows)]
    return pandas.DataFrame(
        {
            "hospital": [hospitals[j % 7 % 3] for j in range(rows)],
            "age": age,
            "visits": [j % 5 for j in range(rows)],
            "smokes": [j % 3 == 0 for j in range(rows)],
            "sex": ["fm"[j % 2] for j in range(rows)],
            "grade": pandas.Categorical(["low", "high"] * (rows // 2), ["low", "mid", "high"]),
            "ill": ["yes" if years > 50 else "no" for years in age],
        }
    )


def logistic(inputs):
    return nn.Linear(inputs, 2)


def of_table(frame=None, **changes):
    given = {"client": "hospital", "target": "ill", "module": logistic, "loss": F.cross_entropy}
    return Supervised.from_frame(table() if frame is None else frame, **(given | changes))


def by_hand(frame, standardise=True):
    age, visits = (torch.tensor(frame[name].to_numpy(dtype=float)) for name in ("age", "visits"))
    if standardise:
        age, visits = ((t - t.mean()) / t.std(correction=0) for t in (age, visits))
    smokes = torch.tensor(frame["smokes"].to_numpy()).double()
    sex = [torch.tensor([value == s for value in frame["sex"]]) for s in "fm"]
    grade = [torch.tensor([v == g for v in frame["grade"]]) for g in ("low", "mid", "high")]
    X = torch.stack([age, visits, smokes, *sex, *grade], 1)
    return X, torch.tensor([int(value == "yes") for value in frame["ill"]])


@pytest.mark.parametrize("standardise", [True, False])
def test_the_gradient_is_that_of_the_table_encoded_by_hand(standardise):
    frame = table()
    torch.set_default_dtype(torch.float64)
    try:
        problem = of_table(frame, standardise=standardise, weights="samples")
    finally:
        torch.set_default_dtype(torch.float32)
    assert problem.names == ["bern", "oslo", "rome"]
    X, y = by_hand(frame, standardise)
    module = nn.Linear(8, 2).double()
    module.load_state_dict(problem.unflatten(problem.x0()))
    parts = torch.autograd.grad(F.cross_entropy(module(X), y), list(module.parameters()))
    expected = torch.cat([part.reshape(-1) for part in parts])
    torch.testing.assert_close(problem.gradient(problem.x0()), expected)
    rows = torch.tensor([name == "oslo" for name in frame["hospital"]])
    torch.testing.assert_close(problem.clients[1].X, X[rows])


def test_what_became_of_the_columns_is_said():
    problem = of_table()
    age, *others = str(problem.columns).split("; ")
    assert age.startswith("age is (age - ")
    assert others[1:] == [
        "smokes is as it is",
        "sex is f, m",
        "grade is low, mid, high",
        "the target is ill, no = 0, yes = 1",
    ]
    assert f"columns: {problem.columns}." in problem_notes(problem, ACCURACY)
    parted = problem.split(0.2)
    assert parted.columns == problem.columns
    assert parted.names == problem.names
    assert problem.replace(clients=[problem.clients[0]]).names is None


def test_a_test_table_is_encoded_as_the_table():
    problem = of_table(test=table(20))
    frame = table()
    mean, deviation = frame["age"].mean(), frame["age"].std(ddof=0)
    expected = torch.tensor((table(20)["age"].to_numpy() - mean) / deviation).float()
    torch.testing.assert_close(problem.test.X[:, 0], expected)
    assert problem.has_test


def test_targets_fit_the_loss():
    numbers = {"target": "age", "module": lambda inputs: nn.Linear(inputs, 1)}
    assert of_table(**numbers, loss=F.mse_loss).clients[0].y.shape[1:] == (1,)
    both = of_table(target=["age", "visits"], module=logistic, loss=F.mse_loss)
    assert both.clients[0].y.shape[1:] == (2,)
    logits = of_table(module=numbers["module"], loss=F.binary_cross_entropy_with_logits)
    assert set(logits.clients[0].y.flatten().tolist()) == {0.0, 1.0}
    visits = of_table(target="visits", module=lambda inputs: nn.Linear(inputs, 5))
    assert visits.clients[0].y.dtype == torch.long
    floats = table().assign(visits=lambda frame: frame["visits"].astype(float))
    labels = of_table(floats, target="visits", module=lambda inputs: nn.Linear(inputs, 5))
    assert labels.clients[0].y.dtype == torch.long
    truth = of_table(target="smokes")
    assert truth.columns.classes == (False, True)
    for problem in (both, logits, visits, labels, truth):
        problem.oracle(0, 0, 1)


def missing(name, value):
    frame = table()
    frame[name] = frame[name].astype(object)
    frame.loc[17, name] = value
    return frame


REFUSED = {
    "no table": ([1, 2], {}, ["from_frame got a list", "DataFrame"]),
    "missing number": (missing("age", None), {}, ["'age'", "1 missing", "row 17", "fill in"]),
    "missing text": (missing("sex", None), {}, ["'sex'", "1 missing", "row 17"]),
    "missing client": (missing("hospital", None), {}, ["'hospital'", "missing"]),
    "missing target": (missing("ill", None), {}, ["'ill'", "missing"]),
    "no such client": (table(), {"client": "ward"}, ["no column 'ward'", "hospital, age"]),
    "no such target": (table(), {"target": "y"}, ["no column 'y'"]),
    "dates": (
        table().assign(born=pandas.to_datetime("2001-01-01")),
        {},
        ["'born'", "datetime64", "drop it"],
    ),
    "mixed": (missing("sex", 3), {}, ["'sex'", "neither numbers nor text"]),
    "names": (
        table(600).assign(who=[f"patient {j}" for j in range(600)]),
        {},
        ["'who'", "600 different texts"],
    ),
    "two names": (
        pandas.concat([table(), table()[["age"]]], axis=1),
        {},
        ["two columns of one name"],
    ),
    "nothing to learn from": (
        table()[["hospital", "ill"]],
        {},
        ["no column except ill, hospital"],
    ),
    "targets of text": (table(), {"target": ["age", "sex"]}, ["target column 'sex'", "numbers"]),
    "an unknown value": (
        table(),
        {"test": table(20).assign(sex="x")},
        ["'sex' of the test table has 'x'", "f, m"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_table_that_is_not_clear_is_refused(refused, name):
    frame, changes, words = REFUSED[name]
    with refused(*words):
        of_table(frame, **changes)


def test_a_table_is_simulated_compared_and_diagnosed():
    problem = of_table(batch=0.5)
    next(simulate(Scaffold(eta_l=0.1, K=2), problem))
    found = compare(problem, ["fedavg", "scaffold"], R=3, K=2, budget=200, seeds=1)
    assert any(note.startswith("columns: age is") for note in found.about.notes)
    assert diagnose(problem, minutes=0.02).setting.N == 3


FILE = """
from pathlib import Path
import pandas
from torch import nn
from torch.nn import functional as F
from trimtab import Columns

columns = Columns(
    numbers={"age": (50.0, 10.0)},
    categories={"sex": ("f", "m")},
    target="ill",
    classes=("no", "yes"),
)

def model():
    return nn.Linear(3, 2), F.cross_entropy

def silo(data: Path):
    frame = pandas.read_csv(data)
    return frame[:40], frame[40:]
"""


def test_a_site_of_a_federation_returns_tables(tmp_path, refused):
    (tmp_path / "mine.py").write_text(FILE)
    table().to_csv(tmp_path / "oslo.csv", index=False)
    problem = ProblemFile(tmp_path / "mine.py").site_problem(tmp_path / "oslo.csv", batch=5)
    assert problem.clients.size(0) == 40
    assert len(problem.test) == 20
    assert problem.clients[0].X[0].tolist() == pytest.approx([(table()["age"][0] - 50) / 10, 1, 0])
    server = ProblemFile(tmp_path / "mine.py").server_problem()
    assert torch.equal(server.x0(), problem.x0())
    (tmp_path / "none.py").write_text(FILE.replace("columns =", "other ="))
    with refused("silo", "returned a table", "columns = Columns"):
        ProblemFile(tmp_path / "none.py").site_problem(Path(tmp_path / "oslo.csv"), batch=5)


def test_columns_are_written_by_hand_as_they_are_told():
    columns = Columns.of(table(), target="ill", without=["hospital"])
    again = Columns(**vars(columns))
    found, expected = (each.read(table(), F.cross_entropy)[0] for each in (again, columns))
    assert torch.equal(found, expected)
    assert columns.width == 8
