"""What a round costs over Flower: bytes at the wire, time beside bare Flower, and no outside."""

import time

import federation as benchmark
import pytest

from trimtab import Scaffold

pytestmark = pytest.mark.federation


@pytest.mark.filterwarnings("ignore:GitWildMatch:DeprecationWarning")
def test_lean_scaffold_uploads_what_fedavg_does_and_a_round_costs_no_more_than_flowers(tmp_path):
    row = benchmark.measure(tmp_path, sites=2, features=50_000, R=4)
    assert row["up_fedavg"] > 2 * 4 * row["d"]  # it was counted where everything passes
    assert row["up_ratio"] == pytest.approx(1, abs=0.01), row
    assert row["ratio"] < 1.2, row


def test_who_only_carries_never_holds_the_model(tmp_path):
    d = 20_000_010
    with benchmark.serving(tmp_path / "federation", sites=1, features=(d - 10) // 10) as server:
        while len(benchmark.peaks()) < 5:
            time.sleep(0.5)
        idle = benchmark.peaks()
        lean = Scaffold(eta_l=0.01, K=1, lean=True)
        assert len(benchmark.rounds(server, lean, 2, "state")) == 2
        most = benchmark.peaks()
    copy = 4 * d / 1e6
    assert most["site"] - idle["site"] < 2 * copy, (idle, most)
    assert most["front"] - idle["front"] < 2 * copy, (idle, most)
