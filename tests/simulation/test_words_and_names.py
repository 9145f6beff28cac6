"""Words for numbers, names of algorithms, and long work that is thrown at."""

from dataclasses import dataclass

import pytest

from trimtab import FedAvg, Rounding, Through, register
from trimtab.algorithms import registry
from trimtab.algorithms.registry import build, decode, encode
from trimtab.core.display import format_bytes, format_number
from trimtab.core.task import Progress, Task


@pytest.mark.parametrize(
    ("n", "said"),
    [
        (999.4, "999 "),
        (999.6, "1 k"),
        (999_499, "999 k"),
        (999_600, "1 M"),
        (999.7e9, "1 T"),
        (0, "0 "),
        (5e15, "5000 T"),
    ],
)
def test_a_number_is_never_a_thousand_of_a_unit_that_has_a_larger_one(n, said):
    assert format_number(n) == said
    assert format_bytes(n) == f"{said}B"


def test_a_base_optimiser_that_is_not_known_is_a_sentence(refused):
    with refused("'sgd' is not a base optimiser", "momentum, adam, adamw, yogi, adagrad"):
        build("mime", eta=0.1, K=5, base="sgd")


def test_nobody_takes_the_name_of_a_part_of_algorithms(refused, monkeypatch):
    monkeypatch.setattr(registry, "_own", {})

    def named(name):
        body = {"init_server": None, "init_client": None, "round": None}
        return dataclass(frozen=True)(type(name, (), body))

    for name in ("Through", "Epochs", "Rounding", "Momentum", "Sgd"):
        with refused(name, "choose another"):
            register(named(name))
    wrapped = Through(FedAvg(eta_l=0.1, K=5), (Rounding(0.1),))
    assert decode(encode(wrapped)) == wrapped


@pytest.mark.parametrize("kind", [["fedavg"], {"a": 1}, 3, None])
def test_a_description_of_no_kind_is_refused_in_a_sentence(refused, kind):
    with refused("there is no algorithm"):
        decode({"kind": kind, "eta_l": 0.1, "K": 5})


def work():
    try:
        yield Progress("at it")
        yield Progress("still")
    except KeyError:
        return "put right"


def test_a_task_that_puts_an_error_right_has_its_result():
    task = Task(work())
    next(task)
    with pytest.raises(StopIteration):
        task.throw(KeyError("a"))
    assert task.result() == "put right"


def test_a_task_that_an_error_has_ended_raises_it_again():
    task = Task(work())
    next(task)
    with pytest.raises(ArithmeticError):
        task.throw(ArithmeticError("b"))
    with pytest.raises(ArithmeticError):
        task.result()
