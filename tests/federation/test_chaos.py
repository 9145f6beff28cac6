"""The chaos of `make soak` in its short form: two minutes, one seed."""

import pytest

from tests.federation.chaos import survive

pytestmark = pytest.mark.soak  # How many faults fit into two minutes, the machine decides.


def test_two_minutes_of_chaos_change_no_bit(tmp_path):
    faults, rounds = survive(tmp_path, seed=23, seconds=120)
    assert len(faults) >= 10
    assert rounds >= 3
