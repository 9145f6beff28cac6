"""What a round costs over Flower: bytes at the wire, time beside bare Flower, and no outside."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import federation as benchmark

pytestmark = pytest.mark.federation


@pytest.mark.filterwarnings("ignore:GitWildMatch:DeprecationWarning")
def test_lean_scaffold_uploads_what_fedavg_does_and_a_round_costs_no_more_than_flowers(tmp_path):
    row = benchmark.measure(tmp_path, sites=2, features=50_000, R=4)
    assert row["up_fedavg"] > 2 * 4 * row["d"]  # it was counted where everything passes
    assert row["up_ratio"] == pytest.approx(1, abs=0.01), row
    assert row["ratio"] < 1.2, row
