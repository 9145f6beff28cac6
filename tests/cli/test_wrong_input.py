"""Wrong input: one sentence that says what is wrong, where, and what to do."""

import json
from math import inf, nan
from pathlib import Path

import pandas
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import trimtab
from tests.helpers.command import trimtab as command
from trimtab._files import read_json, write_file
from trimtab.algorithms.registry import algorithm_list
from trimtab.cluster.engine import connect
from trimtab.problems.metrics import ACCURACY, LOSS
from trimtab.problems.problem import with_target_metric
from trimtab.studies.goal import check_target, goal_of
from trimtab.studies.holdout import ProblemSpec, check_compare, held_out

X, y = torch.randn(12, 3), torch.tensor([0, 1] * 6)


def supervised(loss=F.cross_entropy, **settings):
    return trimtab.Supervised(nn.Linear(3, 2), loss, [(X, y), (X + 1, y)], **settings)


TABLE = pandas.DataFrame({"site": list("aabb"), "x": [0.0, 1.0, 2.0, 3.0], "label": [0, 1, 0, 1]})


def from_frame(table=TABLE, **names):
    names = {"client": "site", "target": "label"} | names
    return trimtab.Supervised.from_frame(
        table, module=lambda n: nn.Linear(n, 2), loss=F.cross_entropy, **names
    )


def columns(**inputs):
    return trimtab.Columns(**{"numbers": {}, "categories": {}, "target": "y"} | inputs)


def quadratic():
    return trimtab.Quadratic(A=[1.0, 2.0], b=[0.0, 1.0])


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("a,b\n1,2\n")
    Path("empty").mkdir()
    Path("list").mkdir()
    Path("list/run.json").write_text("[]")
    Path("damaged").mkdir()
    Path("damaged/compare.json").write_text('{"outcome": {}}')
    Path("run").mkdir()
    Path("run/run.json").write_text("{}")
    return tmp_path


# -- commands

WORDS = {
    "comprae digits": "No such command 'comprae' (did you mean compare?); `trimtab --help`",
    "federate stauts x": "No such command 'stauts' (did you mean status?); `trimtab federate ",
    "compare --R 3": "No such option '--R'; similar are -R; `trimtab compare --help`",
    "bench --rounds 0": "No such option '--rounds'; `trimtab bench --help` shows the usage.",
    "bench --repeats 0": "Invalid value for '--repeats': 0 is not in the range x>=1;",
    "compare file.csv": "'file.csv' is a table; pass file.py:function, whose function returns",
    "compare --data empty": "digits reads no folder of data; drop --data.",
    "compare digts": "'digts' is not a problem (did you mean digits?); pass one of digits,",
    "compare --seeds 1 --split 1": "--split 1.0; pass a share of the rows between 0 and 1",
    "compare --seeds 1 --lost 1": "--lost 1.0; pass a share of replies that is at least 0",
    "compare --seeds 1 --slow nan": "--slow nan; pass a share of clients, a number from 0 to 1.",
    "run sgd --eta 1 --S 0": "--S 0: pass a whole number S >= 1, or a fraction of the clients.",
    "run sgd --eta 1 --S 11": "--S 11 clients asked for, but the problem has N=10; pass S <= 10.",
    "run sgd --eta 1 --S nan": "--S nan: as a fraction of the clients, pass 0 < S <= 1.",
    "compare --seeds 1 --batch 0": "without --batch, a step uses all of it.",
    "compare --seeds 1 --metric loss --target -3": "--target -3.0; pass a finite loss at least 0.",
    "compare --seeds 1 --resume --out run": "run holds no comparison; drop --resume, or pass",
    "compare --seeds 1 --out file": "file is a file; pass another --out.",
    "run scafold": "'scafold' is not an algorithm (did you mean scaffold?); pass one of sgd,",
    "run fedavg --eta 1": "fedavg takes no --eta; it has --eta-l, --K, --eta-g.",
    "run sgd --eta 1 --clip 2": "sgd takes no --clip; it has --eta.",
    "run sgd --eta 1 --metric loss --target -3": "--target -3.0; pass a finite loss at least 0.",
    "run sgd --eta 1 --resume --out list": "list/run.json holds no JSON object; restore or ",
    "report file": "file is a file; pass the folder of a run.",
    "report nosuch": "nosuch does not exist; pass the folder of a run.",
    "report empty": "empty holds no run (there is no compare.json); pass the folder of one.",
    "report list": "list/run.json holds no JSON object; restore or remove it.",
    "export file --to csv": "file is a file; pass the folder of a run.",
    "check sgd --out empty": "empty: is a directory; pass another path, or fix this one.",
    "run sgd --eta 1 --init empty": "empty is a folder; pass the file of a model,",
    "compare --metric=": "--metric '' is not measured here; pass one of loss, accuracy",
    "compare --available file": "line 1 of file is 'a,b'; begin it with the header client,from,to",
    "diagnose --minutes nan": "--minutes nan; pass a number of minutes that is positive.",
    "diagnose --eps nan": "--eps nan; pass the f(x) - f(x*) that is wanted, a positive number.",
    "report damaged": "damaged/compare.json is damaged (KeyError: 'population'); restore it, or",
    "export run --to csv --algorithm sgd": "--algorithm chooses a model for --to onnx; drop it.",
    "diagnose --minutes 0": "Invalid value for '--minutes': 0.0 is not in the range x>0;",
    "diagnose --eps -1": "Invalid value for '--eps': -1.0 is not in the range x>0;",
}


@pytest.mark.parametrize("words", WORDS)
def test_a_wrong_command_is_one_sentence(words, capsys):
    code, out, err = command(capsys, *words.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("trimtab: ")
    assert WORDS[words] in err
    assert not Path("runs").exists()


def test_a_record_without_settings_is_not_resumed(capsys):
    words = ("run", "sgd", "quadratic", "--eta", 0.1, "-R", 2, "--out", "done")
    command(capsys, *words)
    path = Path("done/run.json")
    path.write_text(json.dumps({k: v for k, v in read_json(path).items() if k != "settings"}))
    code, _, err = command(capsys, *words, "--resume")
    assert (code, err.count("\n")) == (2, 1)
    assert "done/run.json holds no settings; restore it, or remove the folder." in err


def test_a_step_that_is_far_too_large(capsys):
    code, out, err = command(capsys, "run", "sgd", "quadratic", "--eta", 1e30)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "Sgd(eta=1e+30) diverged at round" in err


def test_a_step_that_is_too_large_without_diverging_is_noted(capsys):
    """Accuracy does not see the scale of a linear model."""
    words = ("run", "sgd", "digits", "-R", 3)
    code, out, _ = command(capsys, *words, "--eta", 1e30)
    assert code == 0
    assert "The loss after round" in out
    assert "is above that of the start, 2.3" in out
    assert "a smaller step size may be better." in out
    assert "above that of the start" not in command(capsys, *words, "--eta", 0.1)[1]


def test_given_settings_that_no_algorithm_has_are_noted():
    small = {"target": 0.1, "R": 5, "seeds": 1}

    def notes(algorithms, **given):
        return " ".join(trimtab.compare(quadratic(), algorithms, **small, **given).about.notes)

    useless = notes(["sgd"], K=5, base="adam", eta_g=2.0)
    assert "no algorithm that was searched has K, eta_g and base." in useless
    assert "no algorithm that was searched" not in notes(["sgd", "fedavg"], K=5)
    assert "there are no baselines, since the problem has no" in notes(["sgd"], baselines=True)
    assert "no baselines" not in notes(["sgd"])
    assert "searched has base." in notes(["fedavg"], K=5, eta_g=1.0, base="adam")


def test_a_run_can_be_named_in_any_script(capsys):
    Path("größe ☃.py").write_text(
        "from trimtab import Quadratic\ndef f():\n    return Quadratic(A=[1.0], b=[1.0])\n"
    )
    words = ("run", "sgd", "größe ☃.py:f", "--eta", 0.1, "-R", 2, "--out", "ö x/☃", "--json")
    code, out, _ = command(capsys, *words)
    assert (code, json.loads(out)["problem"]) == (0, "größe ☃.py:f")


# -- functions

FEDAVG = trimtab.FedAvg(eta_l=0.1, K=2)
CALLS = {
    # compare
    "no problem": (lambda: trimtab.compare(None), "None is not a problem; pass one that has N, d"),
    "a class": (
        lambda: trimtab.compare(trimtab.Quadratic),
        "the class Quadratic is not a problem; pass an instance of it.",
    ),
    "a module": (
        lambda: trimtab.compare(nn.Linear(2, 2)),
        "a Linear is not a problem; pass trimtab.Supervised(module, loss, clients).",
    ),
    "a text of algorithms": (
        lambda: algorithm_list("fedavg,scaffold"),
        "algorithms='fedavg,scaffold' is not a list; pass algorithms=['fedavg', 'scaffold'].",
    ),
    "an algorithm": (lambda: algorithm_list(FEDAVG), "is not a list; pass algorithms=[FedAvg("),
    "a class of algorithms": (
        lambda: algorithm_list(trimtab.FedAvg),
        "algorithms=FedAvg is not a list; pass algorithms=[FedAvg].",
    ),
    "a number for algorithms": (lambda: algorithm_list(3), "algorithms=3; pass a list of names"),
    "no algorithms": (lambda: algorithm_list([]), "algorithms is empty; pass one algorithm"),
    "an algorithm twice": (
        lambda: algorithm_list(["fedavg", trimtab.FedAvg]),
        "algorithms has FedAvg twice; pass it once.",
    ),
    "equal instances": (lambda: algorithm_list([FEDAVG, FEDAVG]), "twice; pass it once."),
    "a module as algorithm": (
        lambda: algorithm_list([nn.Linear]),
        "Linear is not an algorithm: it has no init_server",
    ),
    "None as algorithm": (
        lambda: algorithm_list([None]),
        "None is not an algorithm; pass a name, a class or an instance.",
    ),
    "no K": (lambda: check_compare(K=[]), "K=[]; pass a number of local steps, a list of them"),
    "K as text": (lambda: check_compare(K="5"), "K='5'; pass a number of local steps"),
    "K twice": (lambda: check_compare(K=[2, 2]), "K=[2, 2] has a number twice; pass it once."),
    "eta_g 0": (
        lambda: check_compare(eta_g=0.0),
        "eta_g=0 never moves the model; pass a positive number.",
    ),
    "a name": (lambda: check_compare(name=3), "name=3; pass a text."),
    "out": (lambda: check_compare(out=3), "out=3; pass the path of a folder."),
    "resume without out": (
        lambda: check_compare(resume=True),
        "resume=True continues what is in out; pass out too.",
    ),
    "lists of K": (lambda: trimtab.compare(quadratic(), K=[[1], [1]]), "has a number twice;"),
    "x as a list": (
        lambda: trimtab.compare(quadratic(), x=[0.0]),
        "x is a list; pass a tensor of length d=1.",
    ),
    "a prior": (lambda: check_compare(prior=3), "prior=3; pass the Prior of a diagnosis."),
    "a cluster": (lambda: check_compare(cluster=3), "cluster=3; pass an address, or True for"),
    "seed of a name": (lambda: ProblemSpec("digits", seed="a"), "seed='a'; pass a whole number."),
    "seed": (lambda: held_out(supervised(), 0.1, 1.5, None), "seed=1.5; pass a whole number."),
    "split": (lambda: held_out(supervised(), 1, 0, None), "split=1; pass a share of the rows"),
    "metric": (lambda: with_target_metric(supervised(), 3), "metric=3; pass its name."),
    "target as text": (lambda: check_target("0.9", ACCURACY), "target='0.9'; pass an accuracy"),
    "target True": (lambda: check_target(True, ACCURACY), "target=True; pass an accuracy"),
    "target in a list": (lambda: check_target([0.5], ACCURACY), "target=[0.5]; pass an accuracy"),
    "loss below 0": (
        lambda: goal_of(with_target_metric(supervised(), "loss"), -3.0),
        "target=-3.0; pass a finite loss at least 0.",
    ),
    # simulate
    "target of compare": (
        lambda: trimtab.compare(quadratic(), target="high"),
        "target='high'; pass a finite loss",
    ),
    "cohorts": (
        lambda: next(trimtab.simulate(FEDAVG, quadratic(), cohorts=[0])),
        "cohort 0: pass a list of clients for each round.",
    ),
    "a number of cohorts": (
        lambda: trimtab.simulate(FEDAVG, quadratic(), cohorts=3),
        "cohorts=3; pass a list of clients for each round.",
    ),
    "a fraction of clients": (
        lambda: trimtab.simulate(FEDAVG, quadratic(), S="2"),
        "S='2': pass a whole number S >= 1, or a fraction of the clients.",
    ),
    # problems
    "a metric called loss": (
        lambda: supervised(metrics={"loss": lambda outputs, targets: 0.0}),
        "metrics has a function named 'loss', which is the name of the mean of the loss itself;",
    ),
    "more loss is better": (
        lambda: trimtab.Metric("loss"),
        "Metric: a smaller loss is better; pass higher=False.",
    ),
    "a metric without a name": (lambda: trimtab.Metric(""), "Metric: name=''; pass the key"),
    "an empty range": (
        lambda: trimtab.Metric("auc", low=1, high=0),
        "Metric: low=1 and high=0; pass a low that is below high.",
    ),
    "l2 as text": (lambda: supervised(l2="a"), "l2='a'; pass a number that is zero or positive."),
    "l2 inf": (lambda: supervised(l2=inf), "l2=inf; pass a number that is zero or positive."),
    "groups": (lambda: supervised(groups=3), "groups=3; pass a list with one label for each"),
    "weights": (lambda: supervised(weights=["a", "b"]), "weights holds no array of numbers; pass"),
    "quadratic None": (
        lambda: trimtab.Quadratic(A=None, b=None),
        "Quadratic: A holds no array of numbers; pass one.",
    ),
    "quadratic sigma": (
        lambda: trimtab.Quadratic(A=[1.0], b=[1.0], sigma="a"),
        "Quadratic: sigma='a'; pass a number that is zero or positive.",
    ),
    "system None": (
        lambda: trimtab.LinearSystem(A=[[[1.0]]], b=None),
        "LinearSystem: b holds no array of numbers; pass one.",
    ),
    "system noise": (
        lambda: trimtab.LinearSystem(A=[[[1.0]]], b=[[1.0]], noise="a"),
        "LinearSystem: noise holds no array of numbers; pass one.",
    ),
    "garnet": (
        lambda: trimtab.GarnetTD(N="a", states=3, features=2, gamma=0.9, heterogeneity=0.1),
        "GarnetTD: N='a'; pass a whole number.",
    ),
    "fields": (
        lambda: trimtab.Fields(inputs="text"),
        "Fields: inputs='text'; pass the names of the input columns, as inputs=('pixels',).",
    ),
    "no name of a problem": (
        lambda: trimtab.load_problem(Path("mine.py:f")),
        "names no problem; pass a name, or 'file.py:function'.",
    ),
    # tables
    "no rows": (lambda: from_frame(TABLE[:0]), "the table has no rows; pass one with some."),
    "client is target": (
        lambda: from_frame(client="label"),
        "client and target are both 'label'; pass two different columns.",
    ),
    "client is one of the targets": (
        lambda: from_frame(target=["label", "site"]),
        "client and target are both 'site'; pass two different columns.",
    ),
    "two columns of one name": (
        lambda: from_frame(pandas.concat([TABLE, TABLE[["x"]]], axis=1)),
        "the table has two columns of one name; rename one of them.",
    ),
    "two clients": (lambda: from_frame(client=["site"]), "client=['site']; pass the name of one"),
    "no target": (lambda: from_frame(target=[]), "target=[]; pass the name of a column, or a"),
    "target None": (lambda: from_frame(target=None), "target=None; pass the name of a column"),
    "target twice": (
        lambda: from_frame(target=["x", "x"]),
        "target=['x', 'x']; pass the name of a column, or a list of several.",
    ),
    "infinity": (
        lambda: from_frame(TABLE.assign(x=[0.0, -inf, 1.0, 2.0])),
        "column 'x' of the table has infinity (first in row 1); drop such rows.",
    ),
    "all missing": (
        lambda: from_frame(TABLE.assign(x=nan)),
        "column 'x' of the table has 4 missing values (first in row 0); drop or fill in such rows.",
    ),
    "lists": (
        lambda: from_frame(TABLE.assign(x=[[1]] * 4)),
        "column 'x' holds object, neither numbers nor text; make it one of them, or drop it.",
    ),
    "a deviation of 0": (
        lambda: columns(numbers={"a": (0.0, 0.0)}),
        "Columns: 'a' has mean 0.0 and deviation 0.0; pass a finite mean and a positive deviation.",
    ),
    "values as text": (
        lambda: columns(categories={"a": "xy"}),
        "Columns: 'a' has the values 'xy'; pass a list without duplicates.",
    ),
    "a value twice": (
        lambda: columns(categories={"a": ("x", "x")}),
        "Columns: 'a' has the values ('x', 'x'); pass a list without duplicates.",
    ),
    "the target as input": (
        lambda: columns(numbers={"y": (0.0, 1.0)}),
        "Columns: 'y' is an input and a target; pass it once.",
    ),
    # algorithms
    "register": (lambda: trimtab.register(FEDAVG), "is not a class; pass the class of an"),
    "piecewise": (lambda: trimtab.Piecewise(3), "Piecewise: steps=3; pass rounds that grow"),
    "piecewise of three": (
        lambda: trimtab.Piecewise(((1, 2, 3),)),
        "Piecewise: steps=((1, 2, 3),); pass rounds that grow",
    ),
    # files
    "a file as folder": (lambda: read_json(Path("file/run.json")), "file is a file; pass the"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_argument_is_one_sentence(call, refused):
    function, words = CALLS[call]
    with refused(words):
        function()


@pytest.mark.parametrize("loss", [F.nll_loss, lambda outputs, y: outputs.mean()])
def test_a_loss_that_may_be_negative_takes_any_target(loss):
    problem = with_target_metric(supervised(loss), "loss")
    assert goal_of(problem, -3.0).target == -3.0
    assert goal_of(quadratic(), -3.0).target == -3.0


def test_a_target_of_zero_can_be_reached():
    check_target(0, LOSS, least_loss=0.0)
    with pytest.raises(trimtab.BadArgument):
        check_target(nan, LOSS, least_loss=0.0)


@pytest.mark.parametrize(
    "table",
    [TABLE.assign(site="a"), TABLE.assign(label=0), TABLE.assign(x=1.0), TABLE[:1]],
    ids=["one client", "one class", "a constant column", "one row"],
)
def test_small_tables_are_problems(table):
    problem = from_frame(table)
    assert problem.evaluate(problem.x0())["loss"] > 0


def test_a_folder_is_not_replaced_by_a_file():
    with pytest.raises(IsADirectoryError, match="'empty'"):
        write_file(Path("empty"), "text")
    assert not Path("empty.part").exists()


def test_different_instances_of_one_algorithm_are_compared():
    assert len(algorithm_list([FEDAVG, trimtab.FedAvg(eta_l=0.1, K=3), "fedavg"])) == 3


def test_an_unreachable_cluster_is_known_at_once(refused):
    pytest.importorskip("ray")
    with refused("there is no cluster at 127.0.0.1:1 (", "start one with `ray start`"):
        connect("127.0.0.1:1")
