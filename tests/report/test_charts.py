"""Charts: the axis follows the usual lines, the median and the band of seeds."""

import re
from math import inf, nan

import pytest

from trimtab import Quadratic, compare
from trimtab.core.sections import sections_html
from trimtab.report.charts.lines import Line, followed_values, line_chart
from trimtab.report.curves import curve_sections, curves_of, over_seeds
from trimtab.studies.entry import SeedRun


def line(*y, **words):
    return Line("k", "label", "#00798c", "", range(1, len(y) + 1), y, **words)


def seed(scores, diverged_at=None):
    return SeedRun(1, None, None, None, {}, diverged_at, scores=scores)


def ticks(svg):
    """Return the numbers at the vertical axis."""
    left = re.findall(r'<text x="52.0"[^>]*text-anchor="end"[^>]*>([^<]*)<', svg)
    return [float(text.replace("k", "e3").replace("M", "e6")) for text in left]


# -- the axis


def test_a_line_that_diverged_does_not_set_the_axis_and_is_seen_to_leave_it():
    calm, gone = line(1.0, 0.5, 0.3), line(2.0, 50.0, 1e30, diverged=True)
    svg = line_chart([calm, gone], "rounds", "loss")
    assert max(ticks(svg)) <= 1.1
    assert svg.count('class="dot leaves"') == 1
    assert line_chart([calm], "rounds", "loss").count("leaves") == 0


def test_if_all_lines_diverged_the_axis_follows_them():
    svg = line_chart([line(1.0, 4.0, diverged=True)], "rounds", "loss")
    assert max(ticks(svg)) == 4.0
    assert 'class="gone"' in svg


def test_a_line_that_diverges_inside_the_axis_ends_with_a_cross():
    calm, gone = line(1.0, 0.5, 0.1), line(0.9, 0.8, nan, diverged=True)
    svg = line_chart([calm, gone], "rounds", "loss")
    assert svg.count('class="gone"') == 1
    assert "leaves" not in svg


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("better", ["low", "high"])
def test_one_run_that_is_far_worse_does_not_count(log, better):
    turn = (lambda v: v) if better == "low" else (lambda v: 1 / v if log else -v)
    calm = [line(*map(turn, (1.0, 0.5, 0.2))), line(*map(turn, (2.0, 1.0, 0.9)))]
    wild = line(*map(turn, (2.0, 1e9)))
    values = followed_values([*calm, wild], log, better)
    assert turn(1e9) not in values
    assert {v for one in calm for v in one.y} <= set(values)
    assert turn(1e9) in followed_values([*calm, wild], log, "")


def test_a_slow_run_is_not_taken_for_a_bad_one():
    fast, slow = line(0.12, 0.11, 0.1), line(2.3, 2.0, 1.9)
    assert len(followed_values([fast, slow], True, "low")) == 6
    assert len(followed_values([line(0.95, 0.96), line(0.1, 0.2)], False, "high")) == 4


# -- seeds


def test_the_line_is_the_median_and_the_band_the_range():
    runs = [seed([0.1, 0.5]), seed([0.3, 0.4]), seed([0.2, 0.9])]
    assert over_seeds(runs, higher=True) == ([0.2, 0.5], [0.1, 0.4], [0.3, 0.9])


def test_a_seed_that_ended_keeps_its_last_score():
    runs = [seed([0.5]), seed([0.1, 0.2, 0.3]), seed([0.2, 0.3, 0.4])]
    middle, low, high = over_seeds(runs, higher=True)
    assert middle == [0.2, 0.3, 0.4]
    assert (low[-1], high[-1]) == (0.3, 0.5)


@pytest.mark.parametrize(("higher", "bad"), [(True, -inf), (False, inf)])
def test_a_seed_that_diverged_counts_as_the_worst_and_is_outside_the_band(higher, bad):
    gone = seed([0.5, bad], diverged_at=2)
    middle, low, high = over_seeds([gone, seed([0.4, 0.4, 0.4]), seed([0.6, 0.6, 0.6])], higher)
    assert middle == [0.5, 0.4, 0.4] if higher else middle == [0.5, 0.6, 0.6]
    assert (low, high) == ([0.4] * 3, [0.6] * 3)
    middle, low, _ = over_seeds([gone, gone, seed([0.4, 0.4, 0.4])], higher)
    assert middle[1:] == [None, None]
    assert low == [0.4] * 3


@pytest.fixture
def compared():
    """A comparison with two seeds, one of which diverged, and one algorithm that diverged."""
    result = compare(Quadratic([1.0, 3.0], [1.0, -2.0]), ["sgd", "fedavg"], R=8, K=2, seeds=2)
    sgd, fedavg = result.entries
    sgd.runs = [seed([3.0, 2.0, 1.0]), seed([4.0, 9.0], diverged_at=3)]
    fedavg.runs = [seed([9.0, 99.0], diverged_at=4), seed([8.0, 98.0], diverged_at=3)]
    fedavg.diverged_at, sgd.diverged_at = 4, 3
    return result


def test_the_legend_says_what_diverged(compared):
    sgd, fedavg = curves_of(compared)
    assert (sgd.note, sgd.diverged) == ("1 of 2 seeds diverged", False)
    assert (fedavg.note, fedavg.diverged) == ("diverged at round 3", True)
    html = sections_html(curve_sections([compared], [sgd, fedavg]))
    assert "FedAvg: diverged at round 3" in html
    assert "an arrow is where a line leaves it" in html


def test_costs_go_as_far_as_the_longest_seed(compared):
    entry = compared.entries[0]
    entry.curve = entry.curve[:2]
    curve = curves_of(compared)[0]
    assert len(curve.x["bytes"]) == len(curve.x["rounds"]) == len(curve.y["loss"]) == 3
    each = entry.curve[0].bytes_down + entry.curve[0].bytes_up
    assert curve.x["bytes"] == [each, 2 * each, 3 * each]
