"""docs/performance.md is what its records say."""

from copy import deepcopy
from pathlib import Path

import goals
import page as maker

from trimtab_papers.bench import WORKLOADS

ROOT = Path(__file__).parents[2]


def row(workload, **milliseconds):
    """Return a row of `trimtab bench` with these times."""
    return {"workload": workload, "milliseconds": milliseconds}


def result(workload, algorithm, peer, ratio):
    """Return a result of a peer that takes so many times what we take."""
    times = {"ms": 10 * ratio, "ours": 10.0, "ratio": ratio}
    return {"workload": workload, "algorithm": algorithm, "peer": peer, **times}


def test_the_page_is_made_from_the_records():
    assert maker.page(maker.records()) == (ROOT / "docs" / "performance.md").read_text("utf-8"), (
        "run `python benchmarks/page.py` after a new measurement"
    )


def test_a_goal_is_met_missed_or_not_measured():
    rows = [row("W8", bare=1.0, scaffold=1.4, plain=20.0)]
    found = {(v.workload, v.ratio): (v.goal, v.measured, v.word) for v in goals.verdicts(rows, [])}
    assert found["W8", "scaffold / bare"] == ("≤ 1.5", "1.40", "met")
    assert found["W8", "plain / scaffold"] == ("≥ 40", "14.29", "**missed**")
    assert found["W9", "scaffold / bare"] == ("≤ 1.2", None, "not measured")
    assert found["W5", "compiled / bare"] == ("≤ 1.35", None, "not measured")
    assert found["W8", "ours / JAX"] == ("≤ 1.7", None, "not measured")
    assert found["W10c", "ours compiled / JAX"] == ("≤ 2", None, "not measured")


def test_a_ratio_near_its_goal_has_its_quartiles():
    one = row("W8", bare=1.0, scaffold=1.4, plain=140.0)
    one["spread"] = {"scaffold / bare": (1.3, 1.7), "plain / scaffold": (90.0, 110.0)}
    found = {v.ratio: v.measured for v in goals.verdicts([one], []) if v.workload == "W8"}
    assert found["scaffold / bare"] == "1.40 [1.30, 1.70]"
    assert found["plain / scaffold"] == "100.00"


def test_a_goal_beside_peers_is_held_to_the_fastest_of_them_with_both_algorithms():
    results = [
        result("W1", "fedavg", "pfl", 4.0),
        result("W1", "fedavg", "fedjax", 3.0),
        result("W1", "fedavg", "jax", 1.25),
        result("W1", "scaffold", "pfl", 2.0),
        {"workload": "W1", "algorithm": "scaffold", "peer": "fedjax", "cannot": "No SCAFFOLD."},
    ]
    found = {v.ratio: v for v in goals.verdicts([], results) if v.workload == "W1"}
    best = found["ours / the best framework"]
    assert best.measured == "FedAvg 0.33 (FedJAX), SCAFFOLD 0.50 (pfl)"
    assert best.word == "**missed**"  # 0.5 > 0.4
    assert found["ours / JAX"].measured == "FedAvg 0.80 (JAX)"


def test_every_goal_is_of_a_workload_that_is_measured():
    assert {wanted.workload for wanted in goals.PEER_GOALS} <= set(WORKLOADS)
    assert {*goals.COMPILED, *goals.ALL_PEERS} == set(maker.PEERS)


def test_our_compiled_steps_have_a_goal_of_their_own():
    results = [result("W10c", "scaffold", "jax", 0.5), result("W10c", "fedavg", "jax", 0.5)]
    compiled = result("W10c", "scaffold", "compiled", 0.8)
    verdicts = goals.verdicts([], [*results, compiled])
    found = {v.ratio: v.measured for v in verdicts if v.workload == "W10c"}
    assert found["ours compiled / JAX"] == "SCAFFOLD 1.60 (JAX)"
    assert found["ours / JAX"] == "FedAvg 2.00 (JAX), SCAFFOLD 2.00 (JAX)"


def test_every_workload_has_its_line_measured_or_not():
    found = deepcopy(maker.records())
    found["bench"]["rows"] = [
        row("W9", bare=1.0, fedavg=1.5, scaffold=2.0, plain=90.0) | {"executor": "batched"}
    ]
    found["peers"]["results"] = [result("W9", "scaffold", "jax", 0.5)]
    text = maker.page(found)
    shows = WORKLOADS["W9"].shows
    assert f"| W9 | {shows} | batched | 2.0 | 2.00 | 45.0 × | 0.5 × (JAX) |" in text
    assert f"| W8 | {WORKLOADS['W8'].shows} | not measured |" in text
    assert "| W9 | scaffold / bare 2.00 (≤ 1.2, **missed**); plain / scaffold 45.00 (≥ 60, " in text
    assert "| W8 | scaffold / bare (≤ 1.5, not measured); " in text
    missing = "W1, W1x10, W2, W4, W4x5, W5, W6, W7, W8, W10a, W10b, W10c, W11"
    assert f"- {missing}: not measured yet." in text


def test_peers_that_were_measured_elsewhere_are_not_passed_off_as_measured_here():
    found = deepcopy(maker.records())
    found["peers"]["machine"]["kernel"] = 7
    assert "- Measured on another machine than the above: " in maker.page(found)
    found["peers"]["machine"] = found["bench"]["machine"]
    assert "another machine than the above" not in maker.page(found)


def test_comparisons_are_shown_with_their_goals():
    found = deepcopy(maker.records())
    case = {"shows": "W8, somehow", "cpu": 7.25, "goal": 5, "met": False, "rounds": 2612}
    found["comparisons"] = {"cases": [case]}
    assert "| W8, somehow | 7.2 | ≤ 5 | **missed** | 2,612 |" in maker.page(found)


def test_the_plots_render():
    found = maker.records()
    fedavg, scaffold = maker.peers_figure(found["peers"]["results"]).axes
    assert (fedavg.get_title(), scaffold.get_title()) == ("FedAvg", "SCAFFOLD")
    one = maker.peers_figure([result("W8", "scaffold", "jax", 0.5)])
    dots = [list(line.get_xdata()) for line in one.axes[1].lines if line.get_label() == "JAX"]
    assert dots == [[0.5]]
    assert len(maker.growth_figure(found["details"]["growth"]).axes) == 3
