"""docs/performance.md is what its records say."""

import importlib.util
from copy import deepcopy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("page", ROOT / "benchmarks" / "page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_made_from_the_records(maker):
    assert maker.page(maker.records()) == (ROOT / "docs" / "performance.md").read_text("utf-8"), (
        "run `python benchmarks/page.py` after a new measurement"
    )


def test_a_missed_goal_is_shown(maker):
    found = deepcopy(maker.records())
    row = found["bench"]["rows"][0]
    name = next(iter(row["ratios"]))
    row["ratios"][name], row["met"][name] = 99.0, False
    assert f"| {row['workload']} | {name} | ≤ 1.6 | 99.00 | **missed** |" in maker.page(found)


def test_the_plots_render(maker):
    found = maker.records()
    assert maker.peers_figure(found["peers"]["results"]).axes
    assert len(maker.growth_figure(found["details"]["growth"]).axes) == 3
