"""What a round costs over Flower: bytes at the wire, and memory of who only carries.

How long it takes beside bare Flower is measured by `benchmarks/federation.py`.
"""

import time

import federation as benchmark
import pytest

from trimtab import FedAvg, Scaffold

pytestmark = pytest.mark.federation


def test_lean_scaffold_uploads_what_fedavg_does_one_vector_a_site_and_round(tmp_path):
    features, sites = 50_000, 2
    vectors = sites * 4 * (10 * features + 10)  # one of float32 from each site
    with benchmark.serving(tmp_path / "federation", sites, features) as server:
        lean = benchmark.rounds(server, Scaffold(eta_l=0.01, K=1, lean=True), 3, "state")
        fedavg = benchmark.rounds(server, FedAvg(eta_l=0.01, K=1), 3, "state-fedavg")
    for told, broadcast in ((lean, 2), (fedavg, 1)):
        assert [event.bytes_up for event in told] == 3 * [vectors]
        assert [event.bytes_down for event in told] == 3 * [broadcast * vectors]
        # Headers and looks for requests come on top; a second vector would make it two.
        assert vectors < benchmark.wire(told) < 1.25 * vectors


def test_who_only_carries_never_holds_the_model(tmp_path):
    d = 20_000_010
    with benchmark.serving(tmp_path / "federation", sites=1, features=(d - 10) // 10) as server:
        while len(benchmark.peaks()) < 3:  # site, worker and SuperLink
            time.sleep(0.5)
        idle = benchmark.peaks()
        lean = Scaffold(eta_l=0.01, K=1, lean=True)
        assert len(benchmark.rounds(server, lean, 2, "state")) == 2
        most = benchmark.peaks()
    copy = 4 * d / 1e6
    assert most["site"] - idle["site"] < 2 * copy, (idle, most)
