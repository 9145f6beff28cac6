"""Over Flower itself, with TLS and keys, x and every c_i are the simulator's, bit for bit."""

import pytest

from tests.helpers.whole_federation import Serving, Whole
from trimtab import Mime, Momentum, Scaffold

pytestmark = pytest.mark.federation


def test_three_rounds_of_scaffold_and_of_mime_are_the_simulators(tmp_path):
    whole = Whole(tmp_path, "abc")
    for name in whole.names:
        whole.start_site(name)
    with Serving(whole) as server:
        for state, algorithm in {
            "state": Scaffold(eta_l=0.3, K=4),
            "state-mime": Mime(eta=0.3, K=4, base=Momentum()),
        }.items():
            told = server.job(
                algorithm=algorithm, R=3, seed=5, round_timeout=100, state=state, seconds=300
            )
            assert [event.cohort for event in told.rounds] == [["a", "b", "c"]] * 3
            whole.check_replay(state)
            if state == "state":
                assert told.audit.deviation <= 1e-13 * told.audit.largest
        assert told.audit is None
        sim = whole.replay("state-mime")
        found = sim.problem.evaluate(sim.server.x)
        for name, value in told.end.metrics.items():
            assert value == pytest.approx(found[name], rel=5e-3)  # sites send three digits
