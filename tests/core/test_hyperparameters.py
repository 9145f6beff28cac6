"""Every algorithm refuses hyper-parameters that make no sense, in one sentence."""

import numpy
import pytest
import torch

import trimtab
import trimtab.algorithms
from trimtab import (
    ALGORITHMS,
    Adagrad,
    Adam,
    Dane,
    FedAvg,
    FedDyn,
    FedNova,
    FedOpt,
    FedProx,
    Mime,
    MimeLite,
    MimeLiteMvr,
    MimeMvr,
    Momentum,
    RichardsonRomberg,
    Scaffnew,
    Scaffold,
    ScaffoldM,
    ScaffoldOpt,
    Scallion,
    ServerMvr,
    ServerOnly,
    Sgd,
    Yogi,
)

BASE = Momentum()
STEPS = {
    Sgd: {"eta": 0.1},
    FedAvg: {"eta_l": 0.1, "K": 2},
    FedProx: {"eta_l": 0.1, "K": 2},
    Scaffold: {"eta_l": 0.1, "K": 2},
    FedOpt: {"eta_l": 0.1, "K": 2, "base": BASE},
    MimeLite: {"eta": 0.1, "K": 2, "base": BASE},
    Mime: {"eta": 0.1, "K": 2, "base": BASE},
    ServerOnly: {"eta": 0.1, "base": BASE},
    Dane: {"eta_l": 0.1, "K": 2},
    MimeMvr: {"eta": 0.1, "K": 2},
    MimeLiteMvr: {"eta": 0.1, "K": 2},
    ServerMvr: {"eta": 0.1},
    ScaffoldOpt: {"eta_l": 0.1, "K": 2, "base": BASE},
    FedNova: {"eta_l": 0.1, "K": 2},
    Scallion: {"eta_l": 0.1, "K": 2},
    Scaffnew: {"eta_l": 0.1},
    FedDyn: {"eta_l": 0.1, "K": 2},
    ScaffoldM: {"eta_l": 0.1, "K": 2},
}
NAN, INFINITY = float("nan"), float("inf")
every_algorithm = pytest.mark.parametrize("kind", STEPS, ids=lambda kind: kind.__name__)


def step(kind):
    return "eta_l" if "eta_l" in STEPS[kind] else "eta"


def test_all_algorithms_are_tried():
    assert {*STEPS, RichardsonRomberg} == set(ALGORITHMS.values())


@every_algorithm
@pytest.mark.parametrize("value", [-0.1, 0, NAN, INFINITY, "0.1", None, True], ids=repr)
def test_a_step_size_is_a_positive_number(refused, kind, value):
    with refused(kind.__name__, f"{step(kind)}={value!r}", "positive"):
        kind(**STEPS[kind] | {step(kind): value})


@every_algorithm
@pytest.mark.parametrize("number", [numpy.float32, numpy.float64, numpy.float16, torch.tensor])
def test_numbers_of_numpy_and_torch_become_pythons(kind, number):
    words = STEPS[kind] | {step(kind): number(0.5)}
    words |= {"K": numpy.int64(5)} if "K" in words else {}
    made = kind(**words)
    assert made == kind(**STEPS[kind] | {step(kind): 0.5} | ({"K": 5} if "K" in words else {}))
    assert type(getattr(made, step(kind))) is float
    assert eval(repr(made), vars(trimtab.algorithms)) == made


@every_algorithm
def test_a_step_size_has_no_default(kind):
    rest = {name: value for name, value in STEPS[kind].items() if name != step(kind)}
    with pytest.raises(TypeError, match=f"'{step(kind)}'"):
        kind(**rest)


@pytest.mark.parametrize("kind", [kind for kind in STEPS if "K" in STEPS[kind]])
@pytest.mark.parametrize("K", [0, -1, 2.0, True, "2", None], ids=repr)
def test_K_counts_steps(refused, kind, K):
    with refused(kind.__name__, f"K={K!r}", "K >= 1"):
        kind(**STEPS[kind] | {"K": K})


@pytest.mark.parametrize("kind", [kind for kind in STEPS if hasattr(kind, "eta_g")])
def test_eta_g_may_be_zero_and_not_negative(refused, kind):
    assert kind(**STEPS[kind], eta_g=0.0).eta_g == 0
    with refused(kind.__name__, "eta_g=-1", "zero or positive"):
        kind(**STEPS[kind], eta_g=-1)


def test_mu_is_zero_or_positive(refused):
    with refused("FedProx", "mu=-1"):
        FedProx(eta_l=0.1, K=2, mu=-1)


SHARES = [(kind, "a") for kind in (ScaffoldM, ServerMvr, MimeLiteMvr, MimeMvr)]
SHARES += [(Scaffnew, "p"), (Scallion, "alpha")]


@pytest.mark.parametrize(("kind", "name"), SHARES)
def test_a_share_is_above_0_and_at_most_1(refused, kind, name):
    assert getattr(kind(**STEPS[kind], **{name: 1}), name) == 1
    for value in (0, 1.5, -0.1, NAN):
        with refused(kind.__name__, f"{name}={value!r}", "above 0 and at most 1"):
            kind(**STEPS[kind], **{name: value})


def test_weights_of_proximal_terms(refused):
    assert Dane(eta_l=0.1, K=2, mu=0).mu == 0
    with refused("Dane", "mu=-1", "zero or positive"):
        Dane(eta_l=0.1, K=2, mu=-1)
    with refused("FedDyn", "alpha=0", "positive"):  # the server divides by it
        FedDyn(eta_l=0.1, K=2, alpha=0)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (Momentum, {"beta": 1.0}),
        (Momentum, {"beta": -0.1}),
        (Adam, {"beta1": 1.0}),
        (Adam, {"beta2": NAN}),
        (Adam, {"eps": 0}),
        (Yogi, {"beta2": 2}),
        (Adagrad, {"eps": -1}),
    ],
)
def test_a_base_refuses_bad_numbers(refused, kind, settings):
    ((name, value),) = settings.items()
    with refused(kind.__name__, f"{name}={value!r}"):
        kind(**settings)


def test_an_option_is_one_of_those_that_its_type_names(refused):
    with refused("Scaffold", "option='III'", "'I' or 'II'"):
        Scaffold(eta_l=0.1, K=2, option="III")


def test_richardson_romberg_wraps_fedavg(refused):
    with refused("RichardsonRomberg", "FedAvg"):
        RichardsonRomberg(Sgd(eta=0.1))


@pytest.mark.parametrize("base", [None, "adam", trimtab.Adam])
def test_a_base_is_an_optimiser(base):
    with pytest.raises(ValueError, match=r"pass an optimiser such as Momentum\(\)"):
        trimtab.Mime(eta=0.1, K=2, base=base)


def test_lean_is_for_option_II_and_a_whole_K(refused):
    with refused("Scaffold", "option='I'", "lean with option 'II' only"):
        Scaffold(eta_l=0.1, K=2, option="I", lean=True)
    for words in ({"option": "I"}, {"K": trimtab.Epochs(1)}, {"option": "I", "K": 5}):
        with refused("lean"):
            Scaffold(**{"eta_l": 0.1, "K": 5, "lean": True} | words)
        Scaffold(**{"eta_l": 0.1, "K": 5, "lean": False} | words)
    assert Scaffold(eta_l=0.1, K=5, lean=True).lean
