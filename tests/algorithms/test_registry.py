"""Algorithms, metrics and executors of one's own: known by name, raced, run, checked, shown."""

import hashlib
import inspect
import json
import subprocess
import sys
from dataclasses import dataclass, fields
from importlib.metadata import EntryPoint, EntryPoints
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import trimtab
from tests.helpers.clamped import CLAMPED
from tests.helpers.command import trimtab as trimtab_command
from trimtab import (
    Adam,
    AdamW,
    Clipped,
    Comparison,
    FedAvg,
    FedOpt,
    Metric,
    Mime,
    Momentum,
    RichardsonRomberg,
    Scaffold,
    ScaffoldOpt,
    Sgd,
    compare,
    simulate,
)
from trimtab.algorithms import registry
from trimtab.algorithms.registry import build, decode, encode, kind
from trimtab.cli.options import PARAMETERS
from trimtab.core.replies import Tally
from trimtab.problems.catalogue import quadratic_problem
from trimtab.problems.loading import load_problem
from trimtab.simulation import Executor, Simulation
from trimtab.studies.compare import DEFAULT
from trimtab.testing import check_algorithm

MINE = (
    CLAMPED.replace("Clamped", "Mine")
    + '''

@dataclass(frozen=True, kw_only=True)
class Wrong(Mine):
    def local(self, g, state, x):
        x -= self.eta_l * g(x, 0)
        return Upload(x), ()


class Near(Quadratic):
    """Judged by how near to x* one is, which the user counts upwards."""

    metric = Metric("nearness", higher=True, low=0.0, high=1.0)

    def evaluate(self, x, client=None):
        found = super().evaluate(x, client)
        return found | {"nearness": 1 / (1 + found["distance"])}


def problem():
    register(Mine, title="mine", colour="#123456")
    return Near(torch.tensor([2.0, 0.5, 1.0]), torch.tensor([1.0, -1.0, 4.0]))
'''
)


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_own", {})
    Path("mine.py").write_text(MINE)


# -- the registry


def test_the_command_line_has_the_hyper_parameters_of_the_registry():
    named = {p.name: p.type for n in registry.NAMES for p in kind(n).parameters}
    named |= {f.name: float for base in registry.bases().values() for f in fields(base)}
    named |= {"clip": float}
    assert {n: t for n, t in named.items() if n not in ("base", "lean")} == PARAMETERS


def test_every_algorithm_can_be_built_and_described_by_its_name():
    for name in registry.NAMES:
        algorithm = registry.trial_of(kind(name))
        assert kind(algorithm) == kind(name) == kind(type(algorithm))
        assert decode(json.loads(json.dumps(encode(algorithm)))) == algorithm
        assert trimtab.ALGORITHMS[name] is kind(name).cls


@pytest.mark.parametrize("name", registry.NAMES)
def test_every_algorithm_by_name_keeps_the_contract(name):
    check_algorithm(registry.trial_of(kind(name)))


def test_kinds_say_what_they_are():
    stateful = "scaffold scaffoldm feddyn scaffnew scallion scaffoldopt"
    assert [n for n in registry.NAMES if kind(n).stateful] == stateful.split()
    without_K = "sgd serveronly scaffnew servermvr"
    assert [n for n in registry.NAMES if not kind(n).has_K] == without_K.split()
    assert kind(Mime(eta=0.1, K=2, base=Momentum())).step == "eta"
    assert kind("richardsonromberg").step == "eta_l"


def in_lab(colour, eye=((1, 0, 0), (0, 1, 0), (0, 0, 1))):
    """Return a colour as CIE L*a*b*, where distances are about those that eyes see."""
    sRGB = np.array([int(colour[j : j + 2], 16) / 255 for j in (1, 3, 5)])
    linear = np.where(sRGB <= 0.04045, sRGB / 12.92, ((sRGB + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.array(eye) @ linear, 0, 1)
    to_xyz = [[0.4339, 0.3762, 0.1899], [0.2126, 0.7152, 0.0722], [0.0177, 0.1095, 0.8729]]
    X, Y, Z = np.cbrt(np.array(to_xyz) @ linear)
    return np.array([116 * Y - 16, 500 * (X - Y), 200 * (Y - Z)])


def test_colours_can_be_told_apart():
    colours = [in_lab(kind(n).colour) for n in registry.NAMES]
    assert min(np.linalg.norm(a - b) for a, b in combinations(colours, 2)) > 15


# What eyes without red, or without green, cones see of linear sRGB (Machado et al., 2009).
WITHOUT_RED = [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]
WITHOUT_GREEN = [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]


@pytest.mark.parametrize("eye", [WITHOUT_RED, WITHOUT_GREEN], ids=["no red", "no green"])
def test_the_colours_that_are_compared_by_default_are_told_apart_by_every_eye(eye):
    seen = [in_lab(kind(n).colour, eye) for n in DEFAULT]
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 15


def test_words_become_an_algorithm(refused):
    assert build("mime", eta=0.1, K=2) == Mime(eta=0.1, K=2, base=Momentum())
    assert build("richardsonromberg", eta_l=0.1, K=2) == RichardsonRomberg(FedAvg(eta_l=0.1, K=2))
    assert build(Scaffold, eta_l=0.1, K=2, lean=True).lean
    with refused("fedavg takes no mu; it has eta_l, K, eta_g."):
        build("fedavg", eta_l=0.1, K=2, mu=1.0)
    with refused("sgd needs a step size; pass eta, or let"):
        build("sgd")
    with refused("'scafold' is not an algorithm (did you mean scaffold?); pass one of sgd, fedavg"):
        kind("scafold")


def test_the_name_of_one_of_ours_is_taken(refused):
    class Scaffold(trimtab.Scaffold):
        pass

    with refused("trimtab has an algorithm of this name"):
        registry.register(Scaffold)
    with refused("is not an algorithm: it has no init_server"):
        registry.register(dict)


def test_an_algorithm_that_reads_differently_here_is_refused(mine, refused):
    cls = kind("mine.py:Mine").cls
    algorithm = cls(eta_l=0.1, K=2)
    with refused("is not in the registry", "register(Mine) in the problem file"):
        encode(algorithm)
    registry.register(cls)
    description = encode(algorithm)
    assert decode(description) == algorithm
    with refused("Mine has other source code here than at the sender"):
        decode(description | {"code": "0"})
    registry._own.clear()
    with refused("there is no algorithm 'mine'"):
        decode(description)


def test_an_entry_point_is_an_algorithm(mine, monkeypatch):
    monkeypatch.syspath_prepend(".")
    points = EntryPoints([EntryPoint("clamped", "mine:Mine", registry.GROUP)])
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    assert kind("Clamped").cls.__name__ == "Mine"
    assert "clamped" in registry.known()
    sys.modules.pop("mine", None)


# -- the command line


def test_an_algorithm_of_ones_own_is_raced_under_its_name_and_colour(mine, capsys):
    command = ("compare", "mine.py:problem", "--algorithms", "mine,sgd", "-R", 30, "--out", "c")
    code, out, err = trimtab_command(capsys, *command, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert [row["name"] for row in found["algorithms"]] == ["mine", "sgd"]
    assert found["algorithms"][0]["settings"].keys() == {"eta_l", "K", "clip"}
    outcome = json.loads(Path("c/compare.json").read_text())["outcome"]
    assert outcome["metric"] == "nearness"
    assert outcome["entries"][0]["colour"] == "#123456"
    assert "#123456" in Path("c/report.html").read_text()
    registry._own.clear()  # a later process has not read mine.py
    code, out, err = trimtab_command(capsys, "report", "c")
    assert code == 0, err
    assert "Mine" in out


def test_an_algorithm_of_ones_own_is_run_with_its_own_options(mine, capsys):
    command = ("run", "mine.py:Mine", "mine.py:problem", "--eta-l", 0.1, "--K", 2, "-R", 3)
    code, out, err = trimtab_command(capsys, *command, "--clip", 0.5, "--json")
    assert code == 0, err
    assert json.loads(out)["settings"] == {"eta_l": 0.1, "K": 2, "clip": 0.5}
    for wrong, sentence in (
        (("--clip", "-1"), "Mine: --clip -1.0; pass a number that is positive."),
        (("--clip", "x"), "'x' is not a valid float"),
        (("--clap", "1"), "mine takes no --clap; it has --eta-l, --K, --clip"),
        (("--mu", "1"), "mine takes no --mu; it has --eta-l, --K, --clip."),
    ):
        code, _, err = trimtab_command(capsys, *command, *wrong)
        assert (code, sentence in err) == (2, True), err


def test_check_says_which_rules_are_broken(mine, capsys):
    code, out, _ = trimtab_command(capsys, "check", "mine.py:Mine", "--clip", 2)
    assert code == 0
    assert "Mine(eta_l=0.1, K=5, clip=2.0) keeps all " in out
    code, out, _ = trimtab_command(capsys, "check", "mine.py:Wrong", "--json")
    assert code == 1
    rules = json.loads(out)["rules"]
    assert rules["is_pure"].startswith("Wrong: the round changes the broadcast in place; write")
    assert rules["stays_finite"] == "kept"
    code, out, _ = trimtab_command(capsys, "check", "feddyn", "--json")
    assert code == 0
    assert "control_is_the_mean_gradient" not in json.loads(out)["rules"]
    code, out, _ = trimtab_command(capsys, "check", "feddyn", "--mean-gradient")
    assert code == 1
    assert "FedDyn: c_i is not the mean of its raw gradients after a round" in out
    code, out, _ = trimtab_command(capsys, "check", "scaffold", "--mean-gradient", "--json")
    assert code == 0
    assert json.loads(out)["rules"]["keeps_what_it_sent"] == "kept"


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("nosuch.py:Mine", "nosuch.py: there is no such file; pass file.py:Class."),
        ("mine.py", "mine.py names no class; pass mine.py:Mine."),
        ("mine.py:Nope", "mine.py has no Nope; pass mine.py:Mine."),
        ("mine.py:Server", "mine.py:Server is not an algorithm: it has no init_server; write"),
        ("mine.py:problem", "mine.py:problem is not an algorithm"),
    ],
)
def test_what_is_no_algorithm_is_one_sentence(mine, capsys, what, sentence):
    code, _, err = trimtab_command(capsys, "check", what)
    assert code == 2
    assert sentence in err


# -- metrics


def test_a_metric_of_ones_own_is_the_goal(mine):
    problem = load_problem("mine.py:problem")
    found = trimtab.compare(problem, [Sgd(eta=0.5), Sgd(eta=0.1)], R=40, target=0.99)
    assert found.metric == "nearness"
    fast, slow = found.entries
    assert fast.rounds < (slow.rounds or 41)
    assert fast.curve[fast.rounds - 1].metrics["nearness"] >= 0.99


def test_a_metric_that_is_not_measured_or_none_is_refused(refused):
    problem = quadratic_problem()
    problem.metric = Metric("auc")
    with refused("which no algorithm can be judged by; return its metric 'auc' too"):
        trimtab.compare(problem, ["sgd"], R=2)
    problem.metric = None
    problem.evaluate = lambda x, client=None: {"loss": 1.0, "cosine": 0.5}
    with refused("evaluate returns 'cosine'", "give the metric another name"):
        trimtab.compare(problem, ["sgd"], R=2)
    del problem.evaluate
    problem.metric = "auc"
    with refused("metric is 'auc'; make it a Metric"):
        trimtab.compare(problem, ["sgd"], R=2)
    problem.metric = Metric("loss", higher=False, low=0.0)
    with refused("target=-1.0; pass a finite loss at least 0."):
        trimtab.compare(problem, ["sgd"], R=2, target=-1.0)


# -- executors


class Backwards(Executor):
    """The last client first."""

    name = "backwards"

    def __init__(self):
        self.ran = 0

    def run(self, exchange, clients):
        tally = Tally()
        for i in reversed(clients):
            upload, state = exchange.run(
                i, exchange.oracle(i), exchange.state(i), exchange.broadcast
            )
            tally.add(exchange.weight(i), upload, state)
            exchange.store_state(i, state)
            self.ran += 1
        return tally


def test_an_executor_of_ones_own(tmp_path, refused):
    mine = Backwards()
    sim = simulate(Scaffold(eta_l=0.1, K=3), quadratic_problem(), S=4, executor=mine)
    usual = simulate(Scaffold(eta_l=0.1, K=3), quadratic_problem(), S=4)
    for _ in range(3):
        torch.testing.assert_close(next(sim).x, next(usual).x)
    assert mine.ran == 12
    assert sim.executor == "backwards"
    sim.save(tmp_path / "s")
    arguments = (tmp_path / "s", Scaffold(eta_l=0.1, K=3), quadratic_problem())
    with refused("run by the executor 'backwards'", "pass it as executor"):
        Simulation.load(*arguments)
    again = Simulation.load(*arguments, executor=Backwards())
    assert torch.equal(next(again).x, next(sim).x)
    with refused("executor=<class", "an instance of Executor"):
        simulate(Scaffold(eta_l=0.1, K=3), quadratic_problem(), executor=Backwards)


def test_names_need_no_torch():
    code = (
        "import sys; from trimtab.algorithms.registry import NAMES; import trimtab.errors\n"
        "assert 'torch' not in sys.modules and len(NAMES) > 8"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_base_optimiser_is_given_by_its_name_or_as_itself(refused):
    words = {"eta": 0.1, "K": 2}
    assert build("mime", **words).base == Momentum()
    assert build("mime", **words, base="adam", eps=0.5).base == Adam(eps=0.5)
    nested = build("mime", **words, base="adamw", weight_decay=0.2, clip=1.5)
    assert nested.base == Clipped(AdamW(weight_decay=0.2), norm=1.5)
    assert decode(encode(nested)) == nested
    with refused("clip=-1.0; pass a number that is positive"):
        build("mime", **words, clip=-1.0)
    assert build("mime", **words, base=Adam(eps=0.5)) == Mime(**words, base=Adam(eps=0.5))
    with refused(
        "'nadam' is not a base optimiser; pass one of momentum, adam, adamw, yogi, adagrad"
    ):
        build("mime", **words, base="nadam")


def test_a_comparison_of_nested_bases_is_resumed_and_read(tmp_path):
    base = Clipped(AdamW(eps=0.1, weight_decay=0.1), norm=1.0)
    algorithms = [kind(eta_l=0.1, K=2, base=base) for kind in (ScaffoldOpt, FedOpt)]
    how = {"R": 3, "seeds": 1, "out": tmp_path / "c"}
    found = compare(quadratic_problem(), algorithms, **how)
    again = compare(quadratic_problem(), algorithms, resume=True, **how)
    for entries in (again.entries, Comparison.load(tmp_path / "c").entries):
        assert [entry.to_json() for entry in entries] == [e.to_json() for e in found.entries]
    assert found.entries[0].settings["base"] == repr(base)
    assert eval(repr(base)) == base
    other = [kind(eta_l=0.1, K=2, base=Clipped(base.base, 2.0)) for kind in (ScaffoldOpt, FedOpt)]
    with pytest.raises(ValueError, match="norm"):
        compare(quadratic_problem(), other, resume=True, **how)


def test_what_is_missing_is_named(refused):
    @dataclass(frozen=True, kw_only=True)
    class Damped(FedAvg):
        damping: float

    with refused("fedavg needs a step size; pass eta_l, or let `trimtab compare` find one."):
        build("fedavg", K=2)
    with refused("fedavg needs a number of local steps; pass K."):
        build("fedavg", eta_l=0.1)
    with refused("damped needs damping; pass it."):
        build(Damped, eta_l=0.1, K=2)


def test_a_description_with_an_unknown_word_is_refused(refused):
    with refused("fedavg cannot be built from {'eta_l': 0.1, 'K': 2, 'steps': 3}"):
        decode({"kind": "fedavg", "eta_l": 0.1, "K": 2, "steps": 3})


def test_others_are_compared_with_the_well_known_alone():
    known = [name for name in registry.NAMES if kind(name).well_known]
    assert known == ["sgd", "fedavg", "scaffold"]
    assert not registry.Kind("mine", FedAvg, "Mine", "#000000", "Mine").well_known


def test_what_is_tried_and_searched_begins_where_it_says():
    trial = registry.trial_of(registry.kind("fedavg"))
    assert (trial.eta_l, trial.K) == (0.1, 5)
    assert registry.trial_of(registry.kind("sgd")).eta == 0.1


@dataclass(frozen=True)
class Wandering:
    """An algorithm that goes nowhere; a field of it happens to be called `algorithm`."""

    algorithm: str = "none"

    def init_server(self, x):
        return (x,)

    def init_client(self, x):
        return ()

    def round(self, server, clients):
        return server


@pytest.fixture
def registered():
    yield
    registry._own.pop("wandering", None)


@pytest.mark.usefixtures("registered")
def test_what_is_registered_is_known_by_its_title_and_where_it_comes_from():
    assert registry.kind(Wandering).title == "Wandering"
    assert registry.kind(Wandering()).source == f"{__name__}:Wandering"
    assert registry.register(Wandering, title="To and fro") is Wandering
    assert registry.kind("wandering").title == "To and fro"
    source = inspect.getsource(Wandering).encode()
    assert registry.encode(Wandering())["code"] == hashlib.sha256(source).hexdigest()[:16]


def test_what_an_entry_point_names_is_held_to_the_contract(monkeypatch):
    point = SimpleNamespace(name="lost", value="lost:Lost", load=lambda: object)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    with pytest.raises(ValueError, match="lost:Lost is not an algorithm"):
        registry.kind("lost")


def test_a_message_of_an_unknown_algorithm_is_told_the_known_ones_and_no_parts():
    with pytest.raises(ValueError, match="use one of") as error:
        registry.decode({"kind": "nothing"})
    said = str(error.value).partition("use one of ")[2].rstrip(".").split(", ")
    assert set(registry.NAMES) <= set(said)
    assert not set(said) & set(registry._parts())
