"""What the advice saves: a choice with its gain, or no difference to expect."""

import pytest

from tests.helpers.losses import quadratics
from trimtab import diagnose
from trimtab.diagnosis.advise import Gain
from trimtab.diagnosis.intervals import Estimate


@pytest.fixture(scope="module")
def different():
    return diagnose(quadratics(G=3.0, delta=0.1))


def test_a_choice_has_its_gain_and_says_for_which_accuracy(different):
    gain, rounds = different.gain, {}
    for one in different.predicted:
        if one.rounds is not None:
            rounds[one.algorithm] = min(one.rounds, rounds.get(one.algorithm, one.rounds))
    mine = next(
        one.rounds
        for one in different.predicted
        if (one.algorithm, one.K) == (different.algorithm, different.K)
    )
    others = {name: count for name, count in rounds.items() if name != different.algorithm}
    assert different.verdict == "choice"
    assert gain.factor.value == pytest.approx(min(others.values()) / mine)
    assert gain.over == min(others, key=others.get)
    assert gain.factor.low <= gain.factor.value <= gain.factor.high
    assert f"To f - f* = {different.eps:.2g}" in str(different)
    assert different.to_json()["gain"]["over"] == gain.over


def test_clients_that_are_alike_give_no_difference_to_expect():
    found = diagnose(quadratics(G=1e-3, delta=0.02))
    assert found.verdict == "no difference"
    assert str(found).startswith("No difference to expect between ")
    assert found.advised() is not None


@pytest.mark.parametrize(
    ("low", "at_least", "none"), [(0.9, False, True), (1.5, False, False), (0.9, True, False)]
)
def test_no_difference_is_an_interval_that_reaches_one(low, at_least, none):
    factor = Estimate(2.0, low, 3.0, "model")
    assert Gain("fedavg", 4, factor, 0.1, at_least).none_to_expect == none
