"""Defaults are those that the papers and the documentation say: what rejects mutants of them."""

import hashlib
import inspect
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

import trimtab
from trimtab import Cosine, Decay, FedAvg, Piecewise, Scheduled
from trimtab.algorithms import registry

DEFAULTS = {
    "sgd": {},
    "fedavg": {"eta_g": 1.0},
    "fedprox": {"mu": 1.0, "eta_g": 1.0},
    "scaffold": {"eta_g": 1.0, "option": "II", "lean": False},
    "fedopt": {"eta_g": 1.0},
    "mimelite": {},
    "mime": {},
    "serveronly": {},
    "richardsonromberg": {},
    "scaffoldm": {"a": 0.1, "eta_g": 1.0},
    "feddyn": {"alpha": 0.1},
    "scaffnew": {"p": 0.1},
    "scallion": {"eta_g": 1.0, "alpha": 1.0},
    "fednova": {"eta_g": 1.0},
    "scaffoldopt": {"eta_g": 1.0},
    "servermvr": {"a": 0.1},
    "mimelitemvr": {"a": 0.1},
    "mimemvr": {"a": 0.1},
    "dane": {"mu": 1.0},
}
BASES = {
    "momentum": {"beta": 0.9},
    "adam": {"beta1": 0.9, "beta2": 0.99, "eps": 1e-3},
    "yogi": {"beta1": 0.9, "beta2": 0.99, "eps": 1e-3},
    "adagrad": {"eps": 1e-3},
}


def defaults_of(cls):
    fields = cls.__dataclass_fields__.values()
    return {f.name: f.default for f in fields if not str(f.default).startswith("<dataclasses")}


@pytest.mark.parametrize("name", registry.NAMES)
def test_the_defaults_of_an_algorithm(name):
    assert defaults_of(registry.kind(name).cls) == DEFAULTS[name]


@pytest.mark.parametrize("name", registry.BASE_NAMES)
def test_the_defaults_of_a_base_optimiser(name):
    assert defaults_of(registry.bases()[name]) == BASES[name]


def test_what_is_tried_and_searched_begins_where_it_says():
    trial = registry.trial_of(registry.kind("fedavg"))
    assert (trial.eta_l, trial.K) == (0.1, 5)
    assert registry.trial_of(registry.kind("sgd")).eta == 0.1


# -- schedules


def test_a_cosine_is_half_of_one_between_its_ends():
    fall = Cosine(R=4)
    assert [round(fall(r), 6) for r in range(1, 7)] == [
        1.0,
        round(0.01 + 0.99 * (1 + 2**-0.5) / 2, 6),
        0.505,
        round(0.01 + 0.99 * (1 - 2**-0.5) / 2, 6),
        0.01,
        0.01,
    ]


def test_a_decay_begins_at_one():
    assert [Decay(0.5)(r) for r in (1, 2, 4)] == [1.0, 0.5, 0.125]


def test_pieces_begin_with_the_rounds_that_they_name():
    steps = Piecewise(((3, 0.1), (5, 0.01)))
    assert [steps(r) for r in (1, 2, 3, 4, 5, 6)] == [1.0, 1.0, 0.1, 0.1, 0.01, 0.01]


def test_a_number_of_steps_is_rounded_and_never_below_one():
    halved = Scheduled(FedAvg(eta_l=0.1, K=5), K=Decay(0.5))
    assert [halved.at(r).K for r in (1, 2, 3, 4, 9)] == [5, 2, 1, 1, 1]
    assert halved.at(2).eta_l == 0.1


def test_who_does_not_ask_for_the_round_gets_the_first():
    problem = trimtab.Quadratic(A=torch.tensor([2.0, 1.0]), b=torch.tensor([-1.0, 1.0]))
    scheduled = Scheduled(FedAvg(eta_l=0.1, K=2), eta_l=Decay(0.5))

    class Asked(FedAvg):
        def round(self, server, clients):
            return self.eta_l

    asked = Scheduled(Asked(eta_l=0.1, K=2), eta_l=Decay(0.5))
    assert asked.round(None, None) == 0.1
    sim = trimtab.simulate(scheduled, problem, x=torch.ones(1))
    plain = trimtab.simulate(FedAvg(eta_l=0.1, K=2), problem, x=torch.ones(1))
    assert torch.equal(next(sim).x, next(plain).x)
    assert not torch.equal(next(sim).x, next(plain).x)


# -- what is checked when one is made


@pytest.mark.parametrize("name", [n for n in registry.NAMES if n != "richardsonromberg"])
def test_every_algorithm_checks_its_hyper_parameters(refused, name):
    kind = registry.kind(name)
    with refused("positive", kind.cls.__name__):
        registry.trial_of(kind, **{kind.step: -1.0})
    if kind.has_K:
        with refused("whole number", kind.cls.__name__):
            registry.trial_of(kind, K=0)


@pytest.mark.parametrize("name", registry.BASE_NAMES)
def test_every_base_optimiser_checks_its_hyper_parameters(refused, name):
    cls = registry.bases()[name]
    word = "beta" if name == "momentum" else "eps"
    with refused(cls.__name__, f"{word}=-1.0"):
        cls(**{word: -1.0})


def test_lean_is_for_option_II_and_a_whole_K(refused):
    for words in ({"option": "I"}, {"K": trimtab.Epochs(1)}, {"option": "I", "K": 5}):
        with refused("lean"):
            trimtab.Scaffold(**{"eta_l": 0.1, "K": 5, "lean": True} | words)
        trimtab.Scaffold(**{"eta_l": 0.1, "K": 5, "lean": False} | words)
    assert trimtab.Scaffold(eta_l=0.1, K=5, lean=True).lean


def test_the_rounds_of_a_cosine_are_counted():
    with pytest.raises(ValueError, match="R"):
        Cosine(R=0)


@pytest.mark.parametrize("rate", [0.0, 1.5])
def test_a_decay_shrinks(refused, rate):
    with refused("Decay", f"rate={rate}"):
        Decay(rate)


@pytest.mark.parametrize("step", [0.0, -0.1])
def test_the_step_of_a_rounding_is_positive(refused, step):
    with refused("Rounding", f"step={step}"):
        trimtab.Rounding(step)


# -- clients that make unequal numbers of steps


@pytest.mark.parametrize(
    "algorithm",
    [
        trimtab.Scallion(eta_l=0.1, K=5),
        trimtab.ScaffoldM(eta_l=0.1, K=5),
        trimtab.Scaffnew(eta_l=0.1, p=0.5),
    ],
    ids=repr,
)
def test_who_divides_by_a_common_number_of_steps_refuses_slow_clients(algorithm):
    problem = trimtab.Quadratic(A=torch.tensor([2.0, 1.0]), b=torch.tensor([-1.0, 1.0]))
    with pytest.raises(ValueError, match="steps"):
        next(trimtab.simulate(algorithm, problem, slow=0.5))


# -- algorithms of one's own


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
    with pytest.raises(ValueError, match="lost:Lost is no algorithm"):
        registry.kind("lost")


def test_a_message_of_an_unknown_algorithm_is_told_the_known_ones_and_no_parts():
    with pytest.raises(ValueError, match="use one of") as error:
        registry.decode({"kind": "nothing"})
    said = str(error.value).partition("use one of ")[2].rstrip(".").split(", ")
    assert set(registry.NAMES) <= set(said)
    assert not set(said) & set(registry._parts())
