"""`trimtab run` beyond its algorithm: when it stops, what it starts from, what it leaves."""

import json
from itertools import islice
from math import inf, nan
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

from tests.helpers.command import trimtab
from trimtab import Epochs, FedAvg, Sgd, Supervised, simulate
from trimtab.problems.adapter import as_problem
from trimtab.problems.loading import load_problem
from trimtab.studies.comparison import Comparison
from trimtab.studies.goal import goal_of
from trimtab.studies.holdout import read_model, with_weights
from trimtab.studies.record import RoundLine
from trimtab.studies.run import run

STEP = Sgd(eta=1.0)
RARE = """
import torch
from torch import nn
from torch.nn import functional as F
from trimtab import Supervised

def rare():
    draw = torch.Generator().manual_seed(0)
    X = torch.randn(200, 3, generator=draw)
    y = (X[:, 0] + 0.5 * torch.randn(200, generator=draw) > 1.7).long()
    return Supervised(nn.Linear(3, 2), F.cross_entropy, [(X[:90], y[:90]), (X[90:], y[90:])])
"""


class Scripted:
    """A client in R^1 whose x is the number of the round; what is measured is written down."""

    N, d, fingerprint = 1, 1, "scripted"
    weights = torch.ones(1, dtype=torch.float64)

    def __init__(self, *losses):
        self.losses = (9.0, *losses)

    def x0(self, seed=0):
        return torch.zeros(1)

    def oracle(self, i, seed, r):
        return lambda y, k=None: -torch.ones_like(y)

    def evaluate(self, x):
        return {"loss": self.losses[round(float(x))]}


class Holding(Scripted):
    """The same with data held out, on which it looks otherwise."""

    has_validation = False

    def __init__(self, losses, held_out):
        super().__init__(*losses)
        self.held_out = (9.0, *held_out)

    def split(self, fraction, seed):
        parted = Holding(self.losses[1:], self.held_out[1:])
        parted.has_validation, parted.how = True, (fraction, seed)
        return parted

    def validate(self, x):
        return {"loss": self.held_out[round(float(x))]}


def ran(algorithm, problem, out="here", **settings):
    return run(algorithm, problem, name="mine", out=Path(out), **settings)


def x_in(path):
    return float(load_file(path)["x"])


def about(folder="here"):
    return json.loads(Path(folder, "run.json").read_text())


def supervised(seed=0, sizes=(20, 30), build=lambda: nn.Linear(3, 2), **settings):
    draw = torch.Generator().manual_seed(seed)
    X = [torch.randn(n, 3, generator=draw) for n in sizes]
    return Supervised(build, F.cross_entropy, [(x, (x[:, 0] > 0).long()) for x in X], **settings)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


# -- patience


@pytest.mark.parametrize(
    ("losses", "patience", "ends", "best"),
    [
        ([5, 4, 4, 6, 3, 2, 1, 1], 2, 4, 2),  # as good is no better
        ([5, 4, 4, 6, 3, 2, 1, 1], 3, 8, 7),
        ([5, 4, 3, 2, 1, 0, 0, 0], 1, 7, 6),
        ([nan, nan, 3, nan, nan, 2, 2, 2], 2, 2, None),
        ([nan, nan, 3, nan, nan, 2, 2, 2], 3, 8, 6),
        ([5, inf, 4, 3, 2, 1, 1, 1], 2, 8, 6),
    ],
)
def test_a_run_stops_after_so_many_rounds_that_are_no_better(losses, patience, ends, best):
    done = ran(STEP, Scripted(*losses), R=8, patience=patience)
    assert len(done.entries[0].curve) == ends
    assert done.chosen.round == best
    assert x_in("here/model.safetensors") == ends
    if best is not None:
        assert x_in("here/best.safetensors") == best


def test_why_a_run_ended():
    losses = [5, 4, 4, 4]
    assert ran(STEP, Scripted(*losses), "a", R=4, patience=2).chosen.stopped == "patience"
    assert ran(STEP, Scripted(*losses), "b", R=3, patience=2).chosen.stopped == "rounds"
    assert ran(STEP, Scripted(*losses), "c", R=4, patience=2, target=4).chosen.stopped == "target"
    assert about("a")["stopped"] == "patience"
    short = ran(STEP, Scripted(*losses), "d", R=4, patience=2, target=3)
    assert (
        "stopped short of loss 3 after 4 rounds; its best loss is 4, after round 2." in short.advice
    )


def test_a_run_out_of_patience_does_not_go_on_when_resumed_but_a_more_patient_one_does():
    problem = Scripted(5, 4, 4, 6, 3, 2, 1, 1)
    ran(STEP, problem, R=8, patience=2)
    again = ran(STEP, problem, R=8, patience=2, resume=True)
    assert (len(again.entries[0].curve), again.chosen.round) == (4, 2)
    more = ran(STEP, problem, R=8, patience=3, resume=True)
    assert (len(more.entries[0].curve), more.chosen.round) == (8, 7)


@pytest.mark.parametrize("patience", [0, -1, 1.5, True, "two"])
def test_patience_is_a_number_of_rounds(patience, refused):
    with refused("patience", ">= 1"):
        ran(STEP, Scripted(1, 2), patience=patience)


# -- a split


@pytest.mark.parametrize("how", [{"patience": 2}, {"save": "best"}, {"split": 0.1}])
def test_what_is_held_out_decides_and_the_test_data_score(how):
    tested, held_out = [5, 3, 1, 2, 4, 6], [5, 2, 3, 4, 5, 6]
    done = ran(STEP, Holding(tested, held_out), R=6, **how)
    ends = 4 if how.get("patience") else 6
    assert [line.metrics["loss"] for line in done.entries[0].curve] == held_out[:ends]
    assert done.chosen.round == 2
    assert done.chosen.validation == {"loss": 2}
    assert done.chosen.test == {"loss": 3}  # not 1, which nobody could have known
    assert x_in("here/best.safetensors") == 2
    assert about()["split"] == 0.1
    assert about()["test"] == {"loss": 3}
    assert "best validation loss is 2, after round 2" in done.advice
    assert "on the test data the model after round 2 has 3" in done.advice


@pytest.mark.parametrize("how", [{}, {"save": "last"}, {"patience": 9, "split": "none"}])
def test_without_a_choice_or_a_split_the_rounds_are_measured_as_they_were(how):
    done = ran(STEP, Holding([5, 3, 1, 2], [5, 2, 3, 4]), R=4, **how)
    assert [line.metrics["loss"] for line in done.entries[0].curve] == [5, 3, 1, 2]
    assert done.chosen.split == "none"
    assert done.chosen.validation is None
    assert about()["split"] == "none"
    assert "split" not in about()["settings"]


def test_where_the_last_model_is_kept_it_is_the_one_scored():
    done = ran(STEP, Holding([5, 3, 1], [5, 2, 3]), R=3, save="last", split=0.2)
    assert (done.chosen.round, done.chosen.test) == (3, {"loss": 1})


def test_validation_data_that_a_problem_has_are_used_as_they_are():
    problem = Holding([5, 3, 1], [5, 2, 3]).split(0.5, 7)
    done = ran(STEP, problem, R=3)
    assert (done.chosen.split, done.chosen.round) == ("given", 2)


def test_a_problem_without_samples_is_not_split():
    done = ran(STEP, Scripted(5, 4, 4), R=3, patience=1)
    assert (done.chosen.split, about()["split"]) == ("none", "none")


def test_what_was_learnt_from_is_no_test_data():
    class Untested(Holding):
        has_test = False

    problem = Untested([5, 3, 1], [5, 2, 3])
    problem.split = lambda fraction, seed: parted
    parted = Untested([5, 3, 1], [5, 2, 3])
    parted.has_validation = True
    assert ran(STEP, problem, R=3, split=0.1).chosen.test is None


@pytest.mark.parametrize("share", [0.0, 1.0, 1.5, 1, "all", nan])
def test_the_share_held_out_is_a_share(share, refused):
    with refused("split", "between 0 and 1"):
        ran(STEP, Scripted(1, 2), split=share)


def test_rows_held_out_are_not_learnt_from_and_the_model_left_is_the_one_scored():
    problem = load_problem("digits", N=5).replace(batch=None)
    done = ran(FedAvg(eta_l=0.5, K=3), problem, R=6, seed=4, split=0.2)
    parted = problem.split(0.2, 4)
    sim = simulate(FedAvg(eta_l=0.5, K=3), parted, seed=4)
    found = [parted.validate(done.x) for done in islice(sim, 6)]
    assert [line.metrics for line in done.entries[0].curve] == found
    assert done.entries[0].curve[0].work == 3 * sum(parted.clients.size(i) for i in range(5))
    model = read_model(Path("here/best.safetensors"), problem)
    assert done.chosen.test == problem.evaluate(model)
    assert done.chosen.validation == parted.validate(model) == found[done.chosen.round - 1]


def test_clients_without_five_rows_are_not_split():
    done = ran(STEP, supervised(sizes=(4, 3)), R=2, split=0.5)
    assert done.chosen.split == "none"


def test_a_metric_by_name_chooses(capsys):
    """Of a few positives: always saying no is the most accurate for long, and has no auc."""
    Path("mine.py").write_text(RARE)
    words = ("run", "sgd", "mine.py:rare", "--eta", 0.5, "-R", 8, "--json")
    by_accuracy, by_auc = (
        json.loads(trimtab(capsys, *words, "--out", out, *more)[1])
        for out, more in (("a", ()), ("b", ("--metric", "auc")))
    )
    assert (by_accuracy["metric"], by_auc["metric"]) == ("accuracy", "auc")
    lines = [json.loads(line) for line in Path("b/rounds.jsonl").read_text().splitlines()]
    assert by_auc["best"] == max(line["auc"] for line in lines)
    assert by_auc["chosen_round"] == 1 + [line["auc"] for line in lines].index(by_auc["best"])
    assert about("b")["settings"]["metric"] == "auc"
    code, _, err = trimtab(capsys, *words[:-1], "--out", "b", "--resume")
    assert code == 2
    assert "b was made with metric='auc', not None" in err
    code, _, err = trimtab(capsys, *words, "--metric", "nosuch")
    assert (code, err.count("\n")) == (2, 1)
    assert "--metric nosuch is not measured here" in err


def test_a_resumed_run_keeps_its_split(refused):
    problem = Holding([5, 3, 1, 2], [5, 2, 3, 4])
    ran(STEP, problem, R=2, split=0.1)
    for other in ({}, {"split": 0.2}, {"split": "none"}):
        with refused("split=0.1"):
            ran(STEP, problem, R=4, resume=True, **other)
    done = ran(STEP, problem, R=4, resume=True, split=0.1)
    assert (done.chosen.round, done.chosen.test) == (2, {"loss": 3})


# -- the cost of a run, and the data that selected its model


def test_without_a_target_the_cost_is_that_of_the_selected_model():
    done = ran(FedAvg(eta_l=0.5, K=3), load_problem("digits", N=5), R=6)
    entry, lines = done.entries[0], done.entries[0].curve[: done.chosen.round]
    assert 1 <= done.chosen.round == entry.rounds <= 6
    assert entry.bytes == sum(line.bytes_down + line.bytes_up for line in lines) > 0
    assert entry.seconds == sum(line.seconds for line in lines) > 0
    assert entry.work == sum(line.work for line in lines) > 0
    assert entry.exchanges == entry.rounds
    assert entry.test == done.chosen.test["accuracy"] == lines[-1].metrics["accuracy"]
    row = dict(zip(*(line.split(",") for line in done.to_csv().splitlines()), strict=True))
    assert int(row["rounds"]) == entry.rounds
    assert int(row["bytes"]) == entry.bytes


def test_the_cost_of_the_last_model_is_that_of_all_rounds():
    done = ran(STEP, Scripted(5, 3, 4, 4), R=4, save="last")
    assert (done.chosen.round, done.entries[0].rounds) == (4, 4)


def test_with_a_target_the_cost_is_that_of_the_round_that_holds_it():
    lucky = ran(STEP, Scripted(5, 1, 5, 5, 2, 2, 2, 2, 1, 1), "lucky", R=10, target=2)
    assert lucky.chosen.stopped == "target"
    assert lucky.entries[0].rounds == 5
    assert "reached loss 2 in 5 rounds" in lucky.advice
    missed = ran(STEP, Scripted(5, 1, 5, 5), "missed", R=4, target=2)
    assert (missed.chosen.stopped, missed.entries[0].rounds) == ("rounds", None)
    assert "met loss 2 in round 2, but did not hold it in 4 rounds" in missed.advice


def with_test():
    problem = supervised()
    return problem.replace(test=problem.clients[0])


@pytest.mark.parametrize(
    ("build", "how", "selected_on", "words"),
    [
        (with_test, {}, "test", "chosen on the test data, so that its test metrics flatter it"),
        (supervised, {}, "training", "chosen on the training data, since there are no others"),
        (with_test, {"split": 0.2}, "validation", "chosen on validation data"),
        (with_test, {"save": "best"}, "validation", "chosen on validation data"),
        (lambda: Scripted(5, 4), {}, "evaluate", "chosen by what evaluate returns"),
        (with_test, {"save": "last"}, None, ""),
    ],
)
def test_a_run_says_on_which_data_its_best_model_was_chosen(build, how, selected_on, words):
    found = ran(STEP, build(), R=2, **how).chosen
    assert found.selected_on == selected_on
    assert words in found.selection
    assert bool(words) == bool(found.selection)
    assert about()["selected_on"] == selected_on
    assert Comparison.load(Path("here")).chosen == found


def test_the_line_of_the_best_model_says_on_which_data_it_was_chosen(capsys):
    words = ("run", "sgd", "digits", "--eta", 1, "-R", 2)
    (line,) = [each for each in trimtab(capsys, *words)[1].splitlines() if "best.safe" in each]
    assert line.endswith(
        "(chosen on the test data, so that its test metrics flatter it; a split avoids that)"
    )
    found = json.loads(trimtab(capsys, *words, "--split", 0.2, "--json")[1])
    assert found["selected_on"] == "validation"


def test_training_data_are_not_reported_as_test_data():
    done = ran(STEP, supervised(), R=2)
    assert (done.about.tested_on, done.chosen.test, done.entries[0].test) == (
        "training",
        None,
        None,
    )


def test_validation_data_of_a_problem_that_cannot_be_split():
    class Validated(Scripted):
        def validate(self, x):
            return {"loss": -float(x)}

    assert ran(STEP, Validated(5, 4, 3), R=3).chosen.selected_on == "validation"
    done = ran(STEP, Validated(5, 4, 3), "whole", R=3, split="none")
    assert [line.metrics["loss"] for line in done.entries[0].curve] == [5, 4, 3]


# -- the start


def test_a_run_from_a_saved_model_goes_on_where_that_one_ended():
    """Of FedAvg with whole batches, which keeps no state and draws nothing."""
    algorithm, problem = FedAvg(eta_l=0.5, K=3), supervised()
    ran(algorithm, problem, "whole", R=5)
    ran(algorithm, problem, "first", R=3)
    ran(algorithm, problem, "rest", R=2, init=Path("first/model.safetensors"))
    whole, rest = (load_file(f"{name}/model.safetensors") for name in ("whole", "rest"))
    assert all(torch.equal(whole[name], rest[name]) for name in whole)


def test_a_model_without_a_module_is_its_x():
    ran(STEP, Scripted(5, 4, 3, 2, 1), "first", R=3)
    done = ran(STEP, Scripted(5, 4, 3, 2, 1), "rest", R=2, init=Path("first/model.safetensors"))
    assert [line.metrics["loss"] for line in done.entries[0].curve] == [2, 1]
    save_file({"x": torch.arange(8.0)}, "x.safetensors")
    assert torch.equal(read_model(Path("x.safetensors"), supervised()), torch.arange(8.0))


def test_frozen_parts_must_be_the_same(refused):
    def build():
        module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        module[0].requires_grad_(requires_grad=False)
        return module

    problem = supervised(build=build)
    x = torch.randn(problem.d)
    model = problem.unflatten(x)
    save_file(model, "model.safetensors")
    assert torch.equal(read_model(Path("model.safetensors"), problem), x)
    save_file(model | {"0.bias": model["0.bias"] + 1}, "model.safetensors")
    with refused("model.safetensors", "another '0.bias'", "frozen"):
        read_model(Path("model.safetensors"), problem)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (
            {"weight": torch.zeros(2, 4), "bias": torch.zeros(2)},
            ("'weight' of shape (2, 4)", "(2, 3)"),
        ),
        ({"weight": torch.zeros(2, 3)}, ("no 'bias'", "(2,)")),
        (
            {"weight": torch.zeros(2, 3), "bias": torch.zeros(2), "more": torch.zeros(1)},
            ("'more'", "has not"),
        ),
        ({"x": torch.zeros(7)}, ("'x' of shape (7,)", "(8,)")),
    ],
)
def test_a_model_of_another_build_is_refused(tensors, words, refused):
    save_file(tensors, "other.safetensors")
    with refused("other.safetensors", *words, "same build"):
        ran(STEP, supervised(), init=Path("other.safetensors"))
    assert not Path("here").exists()


def test_what_is_no_model_is_refused(refused):
    with refused("nosuch", "no such file"):
        ran(STEP, supervised(), init=Path("nosuch"))
    Path("text").write_text("hello")
    with refused("text is no model"):
        ran(STEP, supervised(), init=Path("text"))


# -- what is left


@pytest.mark.parametrize(
    ("save", "left"), [("best", {"best"}), ("last", {"model"}), ("both", {"best", "model"})]
)
def test_the_models_that_are_wanted_are_left(save, left, capsys):
    words = ("run", "sgd", "quadratic", "--eta", 0.1, "-R", 3, "--save", save, "--out", "here")
    code, out, _ = trimtab(capsys, *words, "--json")
    found = json.loads(out)
    assert code == 0
    assert {path.stem for path in Path("here").glob("*.safetensors")} - {"checkpoint"} == left
    paths = {"model": found["model"], "best": found["best_model"]}
    assert {name for name, path in paths.items() if path is not None} == left
    assert all(Path(paths[name]).exists() for name in left)


def test_every_round_says_what_it_cost(capsys):
    trimtab(capsys, "run", "sgd", "digits", "--eta", 1, "-R", 2, "--out", "here")
    lines = [json.loads(line) for line in Path("here/rounds.jsonl").read_text().splitlines()]
    assert [(line["exchanges"], line["work"]) for line in lines] == [(1, 1438)] * 2


def test_lines_of_older_runs_say_nothing_of_it():
    line = RoundLine.from_json({"r": 3, "clients": 20, "accuracy": 0.9})
    assert (line.exchanges, line.work) == (0, 0)


@pytest.mark.parametrize("name", ["work", "exchanges"])
def test_a_metric_cannot_be_called_so(name, refused):
    problem = Scripted(1)
    problem.evaluate = lambda x: {"loss": 1.0, name: 2.0}
    with refused(repr(name), "another name"):
        goal_of(as_problem(problem), None)


# -- settings and resuming

ALL = ("--epochs", 2, "--slow", 0.5, "--lost", 0.1, "--available", "there.csv", "--S", 4)
ALL += ("--split", 0.1, "--weights", "samples", "--init", "start.safetensors", "--patience", 50)


def everything(capsys, out, R, *more):
    given = dict(zip(ALL[::2], ALL[1::2], strict=True))
    given |= dict(zip(more[::2], more[1::2], strict=True))
    words = [word for pair in given.items() if pair[1] is not None for word in pair]
    command = ("run", "scaffold", "digits", "--eta-l", 0.5, "--batch", 50, "-R", R, "--out", out)
    return trimtab(capsys, *command, *words, *(["--resume"] if Path(out).exists() else []))


@pytest.fixture
def given(capsys):
    """A start and a table of who is there."""
    trimtab(capsys, "run", "sgd", "digits", "--eta", 1, "-R", 1, "--out", "before")
    Path("before/model.safetensors").rename("start.safetensors")
    rows = "".join(f"{i},{1 + i // 2},{30 - i}\n" for i in range(10))
    Path("there.csv").write_text("client,from,to\n" + rows)


@pytest.mark.usefixtures("given")
def test_with_everything_a_resumed_run_has_the_same_bits(capsys):
    assert everything(capsys, "whole", 9)[0] == 0
    assert everything(capsys, "parts", 4)[0] == 0
    assert everything(capsys, "parts", 9)[0] == 0

    def left(name):
        lines = [json.loads(line) for line in Path(name, "rounds.jsonl").read_text().splitlines()]
        models = [load_file(f"{name}/{model}.safetensors") for model in ("model", "best")]
        return [line | {"seconds": 0} for line in lines], models, about(name)["test"]

    (lines, models, test), (lines2, models2, test2) = left("whole"), left("parts")
    assert (lines, test) == (lines2, test2)
    for a, b in zip(models, models2, strict=True):
        assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.usefixtures("given")
def test_a_resumed_run_with_other_settings_is_refused(capsys):
    everything(capsys, "here", 2)
    before = Path("here/rounds.jsonl").read_text()
    Path("other.csv").write_text("client,from,to\n0,1,9\n")
    save_file({"x": torch.zeros(650)}, "other.safetensors")
    for name, value in {
        **{"--slow": 0.4, "--lost": 0.2, "--available": "other.csv", "--split": 0.2},
        **{"--init": "other.safetensors", "--epochs": 3, "--weights": "uniform"},
    }.items():
        for changed in (value, None):
            if changed is None and name in ("--epochs", "--split"):
                continue  # without epochs there is no K, and with patience the split is 0.1
            code, _, err = everything(capsys, "here", 3, name, changed)
            assert code == 2, (name, changed)
            assert err.startswith("trimtab: here was made with"), err
            assert err.count("\n") == 1
    assert Path("here/rounds.jsonl").read_text() == before


def test_defaults_are_not_in_the_settings(capsys):
    """So that the folders of earlier versions can be resumed."""
    trimtab(capsys, "run", "sgd", "quadratic", "--eta", 0.1, "-R", 2, "--out", "here")
    assert set(about()["settings"]) == {"problem", "seed", "S", "algorithm", "fingerprint"}


# -- words of the command line


def test_epochs_are_passes_over_the_data(capsys):
    words = ("run", "fedavg", "digits", "--eta-l", 0.1, "--batch", 50, "-R", 1, "--out", "here")
    assert trimtab(capsys, *words, "--epochs", 2)[0] == 0
    assert about()["settings"]["algorithm"] == repr(FedAvg(eta_l=0.1, K=Epochs(2)))


def test_weights_are_those_that_are_asked_for(refused):
    problem = supervised(sizes=(20, 30))
    assert with_weights(problem, "samples").weights.tolist() == pytest.approx([0.4, 0.6])
    given = problem.replace(weights=[1.0, 3.0])
    assert with_weights(given, "uniform").weights.tolist() == [0.5, 0.5]
    assert with_weights(given, None) is given
    with refused("weights", "drop"):
        with_weights(Scripted(1), "samples")
    with refused("weights='equal'", "uniform"):
        with_weights(problem, "equal")


def test_who_is_there_is_asked(capsys):
    Path("there.csv").write_text("client,from,to\n3,1,1\n4,1,2\n")
    words = ("run", "sgd", "quadratic", "--eta", 0.1, "-R", 3, "--out", "here")
    assert trimtab(capsys, *words, "--available", "there.csv")[0] == 0
    lines = [json.loads(line) for line in Path("here/rounds.jsonl").read_text().splitlines()]
    assert [line["clients"] for line in lines] == [2, 1, 0]


FORCED = ("run", "sgd", "quadratic", "--eta", 0.1, "-R", 2, "--out", "here", "--force")


@pytest.mark.filterwarnings("default:here was moved")
def test_a_folder_in_the_way_is_moved_aside(capsys):
    code, _, err = trimtab(capsys, *FORCED)
    assert (code, err) == (0, "")  # nothing was in the way
    about_first = Path("here/run.json").read_bytes()
    code, _, err = trimtab(capsys, *FORCED)
    assert (code, err) == (0, "trimtab: note: here was moved to here.old-1.\n")
    assert Path("here.old-1/run.json").read_bytes() == about_first
    Path("here.old-2").write_text("somebody else's")
    code, _, err = trimtab(capsys, *FORCED)
    assert (code, err) == (0, "trimtab: note: here was moved to here.old-3.\n")
    assert Path("here.old-1/run.json").read_bytes() == about_first
    assert len(Path("here/rounds.jsonl").read_text().splitlines()) == 2


@pytest.mark.filterwarnings("default:here was moved")
def test_a_file_in_the_way_is_moved_aside(capsys):
    Path("here").write_text("mine")
    assert trimtab(capsys, *FORCED)[0] == 0
    assert Path("here.old-1").read_text() == "mine"


def test_a_folder_in_use_is_not_moved(capsys, held):
    trimtab(capsys, *FORCED)
    with held(Path("here")):
        code, _, err = trimtab(capsys, *FORCED)
    assert (code, err.count("\n")) == (2, 1)
    assert "here is in use" in err
    assert not Path("here.old-1").exists()


def test_nothing_is_moved_for_a_command_that_is_wrong(capsys):
    trimtab(capsys, *FORCED)
    for wrong in (("--mu", 3), ("--resume",), ("--metric", "nosuch"), ("--split", 3)):
        assert trimtab(capsys, *FORCED, *wrong)[0] == 2
    code, _, err = trimtab(capsys, *FORCED[:-2], ".", "--force")
    assert (code, err) == (2, "trimtab: . holds the folder you are in; pass another --out.\n")
    assert not Path("here.old-1").exists()


BAD = {
    "sgd --eta 1 --force --resume --out .": "--force starts again and --resume continues; pass one",
    "fedavg --eta-l 1 --K 5 --epochs 5": "--epochs and --K both set the number of local steps;",
    "sgd --eta 1 --epochs 5": "sgd makes no local steps; drop --epochs.",
    "scaffoldm --eta-l 1 --epochs 5": "ScaffoldM: --K Epochs(5), but it counts local steps;",
    "fedavg --eta-l 1 --epochs 0": "Epochs(0); pass a number that is positive.",
    "sgd --eta 1 --weights samples": "this problem weighs its clients itself; drop --weights.",
    "sgd --eta 1 --patience 0": "--patience 0; pass a number of rounds >= 1.",
    "sgd --eta 1 --split 2": "--split 2.0; pass a share of the rows between 0 and 1, or none.",
    "sgd --eta 1 --split some": "'some' is neither a share such as 0.1 nor none; `trimtab run ",
    "sgd --eta 1 --lost 1": "--lost 1.0; pass a share of replies",
    "sgd --eta 1 --slow 2": "--slow 2.0; pass a share of clients",
    "sgd --eta 1 --available nosuch": "nosuch: there is no such file; pass another --available.",
    "sgd --eta 1 --init nosuch": "nosuch: there is no such file; pass a saved model.",
    "sgd --eta 1 --save none": "'none' is not one of 'best', 'last', 'both'; `trimtab run ",
}


@pytest.mark.parametrize("command", BAD)
def test_bad_words_are_one_sentence_and_leave_nothing(capsys, command):
    name, *words = command.split()
    code, out, err = trimtab(capsys, "run", name, "quadratic", *words)
    assert code == 2
    assert BAD[command] in err
    assert err.count("\n") == 1
    assert out == ""
    assert not Path("runs").exists()
