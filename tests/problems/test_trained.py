"""Saved models: the same bits, the same predictions as in training, and one sentence otherwise."""

import json
from importlib.util import find_spec
from itertools import permutations

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import trimtab
from tests.helpers.command import trimtab as command
from trimtab import Columns, FedAvg, OnBatch, Quadratic, Supervised, load_problem
from trimtab.federation.setup.problem_file import ProblemFile
from trimtab.problems.clients import problem_notes
from trimtab.problems.identity import matches_fingerprint
from trimtab.problems.metrics import ACCURACY, LOSS
from trimtab.problems.saved import Card, Description, recommend, save_model
from trimtab.studies.run import run

pandas = pytest.importorskip("pandas", reason="pip install 'trimtab[pandas]'")
needs_onnx = pytest.mark.skipif(
    not all(map(find_spec, ("onnxscript", "onnxruntime"))), reason="pip install 'trimtab[onnx]'"
)


def card(**changes):
    given = {"data": "mine", "algorithm": "scaffold", "settings": {"K": 5}, "seed": 0, "round": 3}
    given |= {"metrics": {"accuracy": 0.5}, "measured_on": "test data"}
    return Card(**given | changes)


def table(rows=80, seed=0):
    draw = numpy.random.default_rng(seed)
    age, sex = draw.integers(30, 80, rows), draw.choice(["f", "m"], rows)
    cost = 40_000 + 300 * (age - 50) + 2_000 * (sex == "f") + draw.normal(0, 500, rows)
    ill = numpy.where(age + 5 * (sex == "m") + draw.normal(0, 3, rows) > 55, "yes", "no")
    given = {"hospital": draw.choice(["bern", "oslo"], rows), "age": age, "sex": sex}
    return pandas.DataFrame(given | {"smokes": draw.random(rows) > 0.5, "cost": cost, "ill": ill})


def classifier(frame=None, **changes):
    frame = (table() if frame is None else frame).drop(columns="cost")
    given = {"client": "hospital", "target": "ill", "loss": F.cross_entropy, "test": frame[60:]}
    given |= {"module": lambda inputs: nn.Linear(inputs, 2)} | changes
    return Supervised.from_frame(frame[:60], **given)


def regression(frame=None, **changes):
    frame = (table() if frame is None else frame).drop(columns="ill")
    given = {"client": "hospital", "target": "cost", "loss": F.mse_loss, "test": frame[60:]}
    given |= {"module": lambda inputs: nn.Linear(inputs, 1), "metrics": ["mse", "mae", "r2"]}
    return Supervised.from_frame(frame[:60], **given | changes)


def point(problem, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(problem.d, generator=draw, dtype=torch.float64).to(problem.x0())


def saved(folder, problem, x=None, module=None, **changes):
    """Save a model and load it again."""
    save_model(folder, problem, point(problem) if x is None else x, card(**changes))
    width = getattr(problem.columns, "width", 0)
    rebuilt = nn.Linear(width, problem.d // (width + 1)) if width else None
    return trimtab.load(folder, module=rebuilt if module is None else module)


# -- the same bits


class Tied(nn.Module):
    """A layer used twice, a frozen part, a buffer, and one that is not saved."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(4, 4), nn.GroupNorm(2, 4)
        self.again, self.out = self.first, nn.Linear(4, 3)
        self.norm.weight.requires_grad_(False)
        self.register_buffer("shift", torch.randn(4))
        self.register_buffer("unsaved", torch.ones(4), persistent=False)

    def forward(self, X):
        return self.out(self.norm(self.again(self.first(X) * self.unsaved + self.shift)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("build", [Tied, lambda: nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 3))])
def test_a_model_is_loaded_bit_for_bit(tmp_path, dtype, build):
    X = torch.randn(10, 4, dtype=dtype)
    problem = Supervised(build, F.cross_entropy, [(X, torch.arange(10) % 3)])
    x = point(problem)
    torch.manual_seed(7)  # The module that is passed has other numbers.
    model = saved(tmp_path, problem, x, build)
    assert torch.equal(problem.flatten(model.module.state_dict()), x)
    for name, tensor in problem.unflatten(x).items():
        assert torch.equal(model.module.state_dict()[name], tensor), name
    assert {t.dtype for t in model.module.state_dict().values()} == {dtype}
    assert not model.module.training
    expected = problem.model.at(x).eval()(X)
    assert torch.equal(model.module(X), expected)
    assert model.predict(X.numpy()).tolist() == expected.argmax(1).tolist()


def test_the_module_that_is_passed_stays_as_it_is(tmp_path):
    given = nn.Linear(4, 3)
    before = given.weight.clone()
    problem = Supervised(given, F.cross_entropy, [(torch.randn(9, 4), torch.arange(9) % 3)])
    model = saved(tmp_path, problem, module=given)
    assert torch.equal(given.weight, before)
    assert not torch.equal(model.module.weight, before)


def test_what_model_json_holds_is_read_as_it_was_written(tmp_path):
    for problem in (classifier(), regression(), load_problem("digits", N=5)):
        save_model(tmp_path, problem, point(problem), card(notes=("one",)))
        content = json.loads((tmp_path / "model.json").read_text())
        described = Description.from_json(content)
        assert described.to_json() == content
        assert described.card.clients == problem.N
        assert described.card.samples == sum(map(problem.clients.size, range(problem.N)))
        assert described.columns is None or described.columns == problem.columns


def test_columns_with_numbers_as_names_keep_them(tmp_path):
    frame = table()[["age", "smokes", "ill", "hospital"]].set_axis([0, 1, "y", "who"], axis=1)
    problem = classifier(frame.assign(cost=0), client="who", target="y")
    model = saved(tmp_path, problem)
    assert model.description.columns == problem.columns
    assert set(model.predict(frame)) <= {"no", "yes"}


# -- the same predictions


def accuracy(model, frame):
    return float((model.predict(frame) == frame["ill"].to_numpy()).mean())


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000))
def test_predictions_are_those_of_training(tmp_path_factory, seed):
    frame = table(seed=seed)
    problem = classifier(frame)
    x = point(problem, seed)
    model = saved(tmp_path_factory.mktemp("saved"), problem, x)
    assert accuracy(model, frame[60:]) == problem.evaluate(x)["accuracy"]
    assert torch.equal(model.description.columns.inputs(frame[60:]), problem.test.X)
    found = model.predict_proba(frame[60:])
    expected = problem.model.at(x)(problem.test.X).softmax(1).detach()
    torch.testing.assert_close(torch.from_numpy(found), expected)


def test_the_order_of_columns_and_others_beside_them_make_no_difference(tmp_path):
    model, frame = saved(tmp_path, classifier()), table(seed=3)
    expected = model.predict_proba(frame)
    for order in permutations(["age", "sex", "smokes"]):
        assert (model.predict_proba(frame[[*order]].assign(more=1)) == expected).all()


def test_run_leaves_a_model_with_the_metrics_of_its_record(tmp_path):
    problem = classifier(batch=10)
    done = run(FedAvg(eta_l=0.3, K=3), problem, R=6, name="mine", out=tmp_path / "run")
    model = trimtab.load(tmp_path / "run", module=lambda: nn.Linear(4, 2))
    line = done.entries[0].curve[done.chosen.round - 1]
    assert model.card.round == done.chosen.round
    assert accuracy(model, table()[60:]) == line.metrics["accuracy"]
    assert model.card.metrics == line.metrics
    assert (model.card.measured_on, model.card.settings["K"]) == ("test data", 3)
    assert repr(model).startswith("TrainedModel(Linear, fedavg on mine, round ")
    last = run(FedAvg(eta_l=0.3, K=3), problem, R=2, name="m", out=tmp_path / "last", save="last")
    assert trimtab.load(tmp_path / "last", module=nn.Linear(4, 2)).card.round == 2
    assert last.chosen.round == 2


def test_a_run_that_holds_rows_out_says_what_its_metrics_are_of(tmp_path):
    problem = classifier(test=None)
    done = run(FedAvg(eta_l=0.3, K=3), problem, R=4, split=0.3, name="mine", out=tmp_path / "run")
    found = trimtab.load(tmp_path / "run", module=nn.Linear(4, 2)).card
    assert found.measured_on == "validation data"
    assert found.metrics == done.chosen.validation


def test_compare_recommends_one_model_and_keeps_all(tmp_path):
    problem = load_problem("digits", N=4)
    out = tmp_path / "compare"
    found = trimtab.compare(
        problem, ["sgd", "scaffold"], R=4, K=3, budget=2e4, seeds=1, baselines=True, out=out
    )
    for name in ("sgd", "scaffold"):
        model = trimtab.load(out, algorithm=name)
        assert model.card.algorithm == name
        right = model.predict(problem.test.X) == problem.test.y.numpy()
        assert right.mean() == model.card.metrics["accuracy"]
    (best,) = {*found.advised[:1]} or {max(found.entries, key=lambda e: e.best or 0).label}
    assert best.startswith(trimtab.load(out).card.algorithm)
    assert not list(out.glob("*local*/model.json"))


# -- regressions


@settings(max_examples=15)
@given(scale=st.floats(1e-3, 1e3), shift=st.floats(-1e4, 1e4), seed=st.integers(0, 1000))
def test_the_units_of_the_target_are_those_of_the_table(tmp_path_factory, scale, shift, seed):
    frame = table(seed=seed)
    frame["cost"] = (frame["cost"] - 40_000) / 5_000
    other = frame.assign(cost=scale * frame["cost"] + shift)
    problems = regression(frame), regression(other)
    x = 0.3 * point(problems[0], seed)
    one, two = (problem.evaluate(x) for problem in problems)
    # The targets are rounded to float32 after the shift is taken away.
    exact = {"rel": 1e-4, "abs": 1e-6}
    assert two["loss"] == pytest.approx(one["loss"], **exact)
    assert two["mse"] == pytest.approx(scale**2 * one["mse"], rel=1e-4)
    assert two["mae"] == pytest.approx(scale * one["mae"], rel=1e-4)
    assert two["r2"] == pytest.approx(one["r2"], **exact)
    folders = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    models = [saved(*both, x) for both in zip(folders, problems, strict=True)]
    first, second = (model.predict(frame) for model in models)
    assert second == pytest.approx(scale * first + shift, rel=1e-5, abs=1e-4 * (scale + 1))


def test_mse_is_that_of_the_predictions_and_the_loss_is_said_to_be_another(tmp_path):
    problem, frame = regression(), table()[60:]
    x = point(problem)
    model, found = saved(tmp_path, problem, x), problem.evaluate(x)
    wrong = model.predict(frame) - frame["cost"].to_numpy()
    assert found["mse"] == pytest.approx((wrong**2).mean(), rel=1e-5)
    assert found["mae"] == pytest.approx(abs(wrong).mean(), rel=1e-5)
    (_, deviation) = problem.columns.target_scale["cost"]
    assert found["loss"] == pytest.approx(found["mse"] / deviation**2, rel=1e-4)
    assert problem.validation_error is not None
    parted = problem.split(0.3)
    assert parted.validate(x)["mse"] > 1e4 * parted.validate(x)["loss"]
    notes = problem_notes(problem, LOSS)
    assert any("loss is in units of the scaled target" in note for note in notes)
    assert "the target is (cost - 4." in str(problem.columns)
    assert not any("scaled target" in note for note in problem_notes(classifier(), ACCURACY))


def test_a_users_metric_is_in_units_of_the_target_too():
    def worst(output, y):
        return float((output - y).abs().max())

    scaled, plain = (
        regression(metrics={"worst": worst, "r2": "r2"}, standardise=s) for s in (True, False)
    )
    assert plain.columns.target_scale == {}
    assert scaled.evaluate(scaled.x0())["worst"] > 1000
    # On the clients' data, pooled metrics are computed from what all of them put out.
    alone = regression(metrics={"worst": worst, "r2": "r2"}, test=None)
    assert alone.evaluate(alone.x0())["worst"] > 1000


def test_only_a_regression_scales_its_target():
    frame = table()
    build = {"module": lambda inputs: nn.Linear(inputs, 1)}
    for loss in (F.binary_cross_entropy_with_logits, lambda output, y: (output - y).abs().mean()):
        problem = classifier(frame, target="smokes", loss=loss, **build)
        assert problem.columns.target_scale == {}
    own = regression(loss=lambda output, y: (output - y).square().mean())
    assert own.columns.target_scale == {}  # A function of the user's own is not known.
    several = regression(target=["cost", "age"], module=lambda inputs: nn.Linear(inputs, 2))
    assert set(several.columns.target_scale) == {"cost", "age"}
    assert several.columns.in_target_units(several.test.y).numpy() == pytest.approx(
        frame[60:][["cost", "age"]].to_numpy(), rel=1e-6
    )


def test_a_problem_without_a_scaled_target_keeps_its_fingerprint():
    assert "target_scale" not in classifier().fingerprint
    problem = regression()
    assert problem.fingerprint.count(" target_scale=") == 1
    other = regression()
    other.columns = Columns(**vars(problem.columns) | {"target_scale": {"cost": (0.0, 2.0)}})
    assert matches_fingerprint(other, problem.fingerprint).differs == (
        "the mean or the deviation of the target differs",
    )


FILE = """
import pandas
from torch import nn
from torch.nn import functional as F
from trimtab import Columns

columns = {columns!r}
metrics = ["mse", "r2"]

def model():
    return nn.Linear({columns.width}, 1), F.mse_loss

def silo(data):
    frame = pandas.read_csv(data)
    return frame, frame
"""


def test_sites_that_share_columns_have_the_data_of_the_pooled_table(tmp_path):
    frame = table()
    problem = regression(frame)
    # Lines of a problem file are short, so that a site's terminal shows them whole.
    text = FILE.format(columns=problem.columns).replace(", '", ",\n    '")
    (tmp_path / "mine.py").write_text(text)
    x = point(problem)
    for i, name in enumerate(problem.names):
        rows = frame[:60][frame[:60]["hospital"] == name]
        rows.drop(columns="ill").to_csv(tmp_path / f"{name}.csv", index=False)
        site = ProblemFile(tmp_path / "mine.py").site_problem(tmp_path / f"{name}.csv", None)
        torch.testing.assert_close(site.clients[0].X, problem.clients[i].X)
        torch.testing.assert_close(site.clients[0].y, problem.clients[i].y)
        own, pooled = site.evaluate(x, client=0), problem.evaluate(x, client=i)
        assert own["mse"] == pytest.approx(pooled["mse"], rel=1e-5)
        assert own["loss"] == pytest.approx(pooled["loss"], rel=1e-5)
        gradient = site.client_gradient(0, x)
        torch.testing.assert_close(gradient, problem.client_gradient(i, x))


# -- other outputs and inputs


def test_binary_losses_give_names_and_both_probabilities(tmp_path):
    build = {"module": lambda inputs: nn.Linear(inputs, 1)}
    problem = classifier(loss=nn.BCEWithLogitsLoss(), **build)
    x, frame = point(problem), table()[60:]
    model = saved(tmp_path, problem, x)
    p = model.predict_proba(frame)
    assert p.shape == (20, 2)
    assert p.sum(1) == pytest.approx(1)
    assert ((p[:, 1] > 0.5) == (model.predict(frame) == "yes")).all()
    assert accuracy(model, frame) == problem.evaluate(x)["accuracy"]
    truth = saved(tmp_path, classifier(target="smokes"))
    assert truth.predict(frame).dtype == bool
    squashed = nn.Sequential(nn.Linear(3, 2), nn.Sigmoid())
    X, y = torch.randn(8, 3), torch.ones(8, 2)
    two = saved(tmp_path, Supervised(squashed, F.binary_cross_entropy, [(X, y)]), module=squashed)
    assert (two.predict(X) == (two.predict_proba(X) > 0.5)).all()
    assert two.predict(X).shape == (8, 2)


class Named(nn.Module):
    """A module with two inputs by name, and its logits in a dict."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, left, right):
        return {"logits": self.layer(torch.cat([left, right], 1))}


def named(rows=9):
    X = {"left": torch.randn(rows, 2), "right": torch.randn(rows, 1)}
    loss = lambda output, y: F.cross_entropy(output["logits"], y)  # noqa: E731
    return X, Supervised(Named(), loss, [(X, torch.arange(rows) % 2)])


def test_dicts_of_inputs_and_of_outputs(tmp_path, refused):
    X, problem = named()
    x = point(problem)
    model = saved(tmp_path, problem, x, Named())
    expected = problem.model.at(x)(**X)["logits"].argmax(1)
    assert model.predict({name: part.numpy() for name, part in X.items()}).tolist() == (
        expected.tolist()
    )
    with refused("no probabilities", "call predict"):
        model.predict_proba(X)
    with refused("several parts", "torch.onnx.export"):
        model.to_onnx(tmp_path)


def test_a_data_set_of_hugging_face(tmp_path):
    datasets = pytest.importorskip("datasets", reason="pip install 'trimtab[datasets]'")
    rows = {"who": [0, 1] * 5, "X": torch.randn(10, 3).tolist(), "y": [0, 1] * 5}
    rows = datasets.Dataset.from_dict(rows)
    how = {"client": "who", "target": "y", "module": nn.Linear(3, 2), "loss": F.cross_entropy}
    problem = Supervised.from_datasets(rows, **how)
    model = saved(tmp_path, problem, module=nn.Linear(3, 2))
    found = model.predict(rows.remove_columns(["y"]))
    assert found.tolist() == model.predict(torch.tensor(rows["X"][:])).tolist()


def test_inputs_of_whole_numbers_are_codes(tmp_path, refused):
    build = lambda: nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(6, 2))  # noqa: E731
    X = torch.randint(5, (10, 3))
    model = saved(tmp_path, Supervised(build, F.cross_entropy, [(X, X[:, 0] % 2)]), module=build)
    assert (model.predict(X.int().numpy()) == model.predict(X.tolist())).all()
    with refused("torch.float32", "whole numbers", "pass integers"):
        model.predict(X.float())


def test_the_outputs_of_other_losses_are_returned_as_they_are(tmp_path, refused):
    X = torch.randn(6, 3)
    loss = OnBatch(lambda module, batch: (module(batch["X"])).square().mean())
    problem = Supervised(nn.Linear(3, 2), loss, [{"X": X}])
    model = saved(tmp_path, problem, module=nn.Linear(3, 2), metrics={"loss": 1.0})
    assert model.predict(X).shape == (6, 2)
    pair = Supervised(nn.Linear(3, 2), F.cross_entropy, [(X, torch.arange(6) % 2)])
    model = saved(tmp_path, pair, module=nn.Linear(3, 2))
    assert model.predict(pandas.DataFrame(X.numpy())).tolist() == model.predict(X).tolist()
    model = saved(tmp_path, named()[1], module=Named())
    model.module.forward = lambda **X: (X["left"], X["right"])
    with refused("returns a tuple", "call model.module"):
        model.predict(named()[0])


# -- what is refused


@pytest.fixture
def model(tmp_path):
    return saved(tmp_path, classifier())


WRONG_INPUT = {
    "missing columns": (
        table().drop(columns=["age", "sex"]),
        ["has no column 'age', 'sex'", "add"],
    ),
    "unknown category": (table().assign(sex="x"), ["'sex' of the table has 'x'", "f, m"]),
    "text for numbers": (table().assign(age="old"), ["'age' of the table holds", "not numbers"]),
    "missing values": (table().assign(age=float("nan")), ["'age'", "80 missing"]),
    "an array": (numpy.zeros((3, 4)), ["takes a table", "got a ndarray", "age, smokes, sex"]),
    "a column alone": (table()["age"], ["takes a table", "got a Series"]),
    "a name twice": (table()[["age", "age", "smokes", "sex"]], ["2 columns 'age'", "drop one"]),
    "nothing": (None, ["takes a table", "NoneType"]),
}


@pytest.mark.parametrize("name", WRONG_INPUT)
def test_a_wrong_table_is_refused(model, refused, name):
    frame, words = WRONG_INPUT[name]
    with refused(*words):
        model.predict(frame)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (torch.zeros(3, 63), ["shape (3, 63)", "(n, 64)"]),
        (torch.zeros(3, 64).index_fill(0, torch.tensor(1), float("nan")), ["NaN", "in row 1"]),
        (torch.zeros(64), ["shape (64,)", "a row for each sample"]),
        (numpy.array([["a"] * 64]), ["the inputs are not numbers"]),
        ({"left": torch.zeros(3, 64)}, ["does not take these inputs", "those of the clients"]),
    ],
)
def test_wrong_arrays_are_refused(tmp_path, refused, data, words):
    model = saved(tmp_path, load_problem("digits"))
    assert model.predict(torch.zeros(3, 64, dtype=torch.int32)).shape == (3,)
    with refused(*words):
        model.predict(data)


def test_folders_without_a_model_are_refused(tmp_path, refused):
    with refused("load got a NoneType", "pass the folder"):
        trimtab.load(None)
    with refused("no such folder", "pass that of a run"):
        trimtab.load(tmp_path / "none")
    with refused("has no model.json", "trimtab federate model"):
        trimtab.load(tmp_path)
    (tmp_path / "run.json").write_text('{"settings": {}}')
    with refused("is not finished", "resume=True first"):
        trimtab.load(tmp_path)
    (tmp_path / "run.json").write_text(
        '{"settings": {}, "outcome": {"about": {"finished": false}}}'
    )
    with refused("is not finished"):
        trimtab.load(tmp_path, algorithm="scaffold")
    (tmp_path / "run.json").write_text('{"settings": {}, "diverged": {"r": 1}}')
    with refused("did not diverge"):
        trimtab.load(tmp_path)


def edited(folder, **changes):
    path = folder / "model.json"
    content = json.loads(path.read_text()) | changes
    kept = {name: value for name, value in content.items() if value != "gone"}
    path.write_text(json.dumps(kept))


def test_models_that_cannot_be_loaded_are_refused(tmp_path, refused):
    problem = load_problem("digits")
    saved(tmp_path, problem)
    with refused("has one model", "drop algorithm"):
        trimtab.load(tmp_path, algorithm="scaffold")
    with refused("does not fit", "size mismatch", "that was trained"):
        trimtab.load(tmp_path, module=nn.Linear(64, 9))
    with refused("does not fit", "Unexpected key"):
        trimtab.load(tmp_path, module=nn.Sequential(nn.Linear(64, 10)))
    edited(tmp_path, format=2)
    with refused("newer trimtab in format 2", "up to 1", "update trimtab"):
        trimtab.load(tmp_path)
    edited(tmp_path, format=1, spec="elsewhere.py:problem")
    with refused("elsewhere.py: there is no such file", "trimtab.load(folder, module=…)"):
        trimtab.load(tmp_path)
    edited(tmp_path, spec=None)
    with refused("passed from Python", "trimtab.load(folder, module=…)"):
        trimtab.load(tmp_path)
    edited(tmp_path, card="gone")
    with refused("does not describe a model", "'card'"):
        trimtab.load(tmp_path)
    saved(tmp_path, problem)
    (tmp_path / "model.safetensors").unlink()
    with refused("model.safetensors cannot be read", "restore it beside model.json"):
        trimtab.load(tmp_path)
    saved(tmp_path / "compare" / "sgd-K5", problem, algorithm="sgd")
    recommend(tmp_path / "compare", "sgd-K5")
    assert trimtab.load(tmp_path / "compare").card.algorithm == "sgd"
    with refused("no model of 'mime'", "pass algorithm as one of sgd"):
        trimtab.load(tmp_path / "compare", algorithm="mime")


def test_a_problem_without_a_module_has_no_model_to_load(tmp_path, refused):
    problem = Quadratic(A=[1.0, 2.0], b=[0.0, 1.0])
    save_model(tmp_path, problem, problem.x0(), card())
    with refused("holds the x of a Quadratic", "no module"):
        trimtab.load(tmp_path)


def test_target_scale_names_targets_of_numbers(refused):
    how = {"numbers": {"age": (0.0, 1.0)}, "categories": {}, "target": "y"}
    with refused("names 'x'", "no target"):
        Columns(**how, target_scale={"x": (0.0, 1.0)})
    with refused("names 'y'", "without classes"):
        Columns(**how, classes=(0, 1), target_scale={"y": (0.0, 1.0)})


# -- the command line


def test_predict_writes_a_csv_file(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import sys; sys.path.insert(0, '.')\n"
        "from torch import nn\nimport pandas\nfrom trimtab import Supervised\n"
        "from torch.nn import functional as F\n"
        "def problem():\n"
        "    frame = pandas.read_csv('table.csv', dtype={'sex': str})\n"
        "    how = dict(client='hospital', target='ill', loss=F.cross_entropy)\n"
        "    return Supervised.from_frame(frame, module=lambda n: nn.Linear(n, 2), **how)\n"
    )
    frame = table().drop(columns="cost")
    frame["sex"] = frame["sex"].map({"f": "1", "m": "2"})  # texts that look like numbers
    frame.to_csv("table.csv", index=False)
    code, *_ = command(
        capsys, "run", "fedavg", "mine.py:problem", "--eta-l", 0.5, "--K", 4, "-R", 9, "--out", "r"
    )
    assert code == 0
    expected = trimtab.load("r").predict(frame)
    frame[["sex", "smokes", "age"]].to_csv("rows.csv", index=False)
    code, out, _ = command(capsys, "predict", "r", "rows.csv", "--out", "found.csv")
    assert (code, out) == (0, "Predictions of 80 rows: found.csv\n")
    assert pandas.read_csv("found.csv")["ill"].tolist() == expected.tolist()
    code, out, _ = command(capsys, "predict", "r", "rows.csv", "--proba")
    assert out.splitlines()[0] == "no,yes"
    assert len(out.splitlines()) == 81
    (tmp_path / "twice.csv").write_text("age,sex,age\n")
    for words, said in {
        ("r", "twice.csv"): "twice.csv has 2 columns 'age'; rename or drop one.",
        ("r", "rows.csv", "--out", "rows.csv"): "--out is DATA itself; pass another --out.",
        ("r", "no.csv"): "no.csv: there is no such file; pass a CSV file.",
        ("r", "rows.csv", "--algorithm", "sgd"): "r has one model; drop --algorithm.",
    }.items():
        code, _, err = command(capsys, "predict", *words)
        assert (code, err) == (2, f"trimtab: {said}\n")
    (tmp_path / "empty.csv").write_text("")
    code, _, err = command(capsys, "predict", "r", "empty.csv")
    assert (code, "empty.csv is no CSV file" in err) == (2, True)


# -- other programs


def by_onnx(folder, inputs):
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "model.onnx")
    return session.run(None, {"inputs": inputs})[0]


@needs_onnx
@pytest.mark.parametrize("make", [classifier, regression])
def test_onnx_scales_numbers_and_target_in_its_graph(tmp_path, make):
    frame = table(seed=5)
    problem = make(table().assign(age=table()["age"] + 1e6))
    frame["age"] += 1e6  # In float32 it would keep no decimal place.
    model = saved(tmp_path, problem, 0.3 * point(problem))
    assert [path.name for path in model.to_onnx(tmp_path)] == ["model.onnx", "onnx.json"]
    said = json.loads((tmp_path / "onnx.json").read_text())
    rows = [
        frame[each["column"]] == each["value"] if "value" in each else frame[each["column"]]
        for each in said["inputs"]
    ]
    inputs = numpy.stack(rows, 1).astype(said["dtype"])
    found = by_onnx(tmp_path, inputs)
    if make is classifier:
        assert said["outputs"] == "probabilities"
        assert found == pytest.approx(model.predict_proba(frame), abs=1e-5)
        names = numpy.array(said["classes"])[found.argmax(1)]
        assert names.tolist() == model.predict(frame).tolist()
    else:
        assert said["target"] == "cost"
        assert found[:, 0] == pytest.approx(model.predict(frame), rel=1e-5)


@needs_onnx
def test_onnx_of_arrays(tmp_path, capsys):
    problem = load_problem("digits")
    model = saved(tmp_path, problem)
    code, out, _ = command(capsys, "export", tmp_path, "--to", "onnx", "--json")
    assert code == 0
    assert json.loads(out)["paths"] == [str(tmp_path / n) for n in ("model.onnx", "onnx.json")]
    found = by_onnx(tmp_path, problem.test.X.numpy())
    assert found == pytest.approx(model.predict_proba(problem.test.X), abs=1e-5)
    code, _, err = command(capsys, "export", tmp_path, tmp_path, "--to", "onnx")
    assert (code, err) == (2, "trimtab: --to onnx takes one DIR, not 2.\n")


def test_onnx_that_is_not_installed_is_said(tmp_path, monkeypatch, refused):
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with refused("ONNX is not installed", "trimtab[onnx]"):
        saved(tmp_path, load_problem("digits")).to_onnx(tmp_path)


# -- what a problem says it is


def test_a_problem_shows_what_it_is():
    assert repr(load_problem("digits", N=10)) == (
        "Supervised(Linear, cross_entropy, 10 clients, 1,438 samples, d = 650)"
    )
    one = Supervised(nn.Linear(2, 1), lambda o, y: o.mean(), [(torch.ones(2, 2), torch.ones(2))])
    assert repr(one) == "Supervised(Linear, lambda, 1 client, 2 samples, d = 3)"
    assert repr(Quadratic(A=[1.0, 2.0], b=[0.0, 1.0])) == "Quadratic(2 clients, d = 1)"
    assert repr(load_problem("garnet")) == "GarnetTD(10 clients, d = 4)"
