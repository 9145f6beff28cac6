"""Behind every panel of a reproduction's figure is a table of what it shows."""

import re
from pathlib import Path

import pytest

from trimtab.core.sections import sections_html
from trimtab_papers.figures import POINTS, label_of, new_figure, tables_behind
from trimtab_papers.items import REPRODUCTIONS, read
from trimtab_papers.page import reproduction_page

RESULTS = Path(__file__).parents[2] / "results"


def cells(html):
    """Return the rows of all tables, as text."""
    rows = re.findall("<tr>(.*?)</tr>", html)
    return [re.findall("<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_every_panel_has_its_numbers_under_the_names_of_its_lines(name):
    figure = REPRODUCTIONS[name].figure(read(RESULTS / name))
    html = sections_html(tables_behind(figure))
    drawn = [axes for axes in figure.axes if axes.lines or axes.patches]
    titles = re.findall("<summary>(.*?)</summary>", html)
    assert len(titles) == len(set(titles)) == len(drawn) > 0
    heads = [head for row in re.findall("<thead>.*?</thead>", html) for head in cells(row)[0][1:]]
    assert heads
    assert not [head for head in heads if re.match(r"_|child|container|nolegend|$", head)]


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_a_page_is_made_of_one_record_without_a_warning(name):
    records = read(RESULTS / name)
    for key in (min(records), max(records)):
        assert "<figure" in reproduction_page(REPRODUCTIONS[name], {key: records[key]})


def test_the_table_of_figure_3_has_the_records_numbers():
    record = read(RESULTS / "figure3")["G10-K2"]
    html = reproduction_page(REPRODUCTIONS["figure3"], {"G10-K2": record})
    assert "<summary>G = 10, K = 2: f(x) - f* against rounds</summary>" in html
    rows = {row[0]: row[1:] for row in cells(html.partition("K = 2: f(x)")[2])}
    curves = record["curves"]
    assert rows["rounds"] == ["SGD", "FedAvg", "SCAFFOLD"]
    last = len(curves["fedavg"]) - 1
    for r in (0, last):
        shown = [float(value) for value in rows[str(r)]]
        assert shown == pytest.approx([curves[n][r] for n in ("sgd", "fedavg", "scaffold")], 1e-3)


def test_seeds_levels_bars_bands_and_errors_are_told():
    with new_figure(9, 3) as made:
        lines, words = made.subplots(1, 2)
        for seed in range(2):
            values = [seed + r / 100 for r in range(100)]
            lines.plot(range(100), values, label=label_of("ours", seed == 0))
        lines.axhline(0.5, label=label_of("target"))
        lines.axvline(7, label=label_of("knee"))
        lines.fill_between([0, 99], [-1, -2], [1, 2], label=label_of("ours"))
        lines.set(xlabel="rounds", ylabel="loss", title="some")
        words.bar([0, 1], [3, 4], label=label_of("bars"))
        words.errorbar([0.1, 1.1], [5, 6], yerr=[0.25, 0.5], fmt="o", label="points")
        words.set_xticks([0, 1], ["here", "there"])
    first, second = sections_html(tables_behind(made)).split("</details>")[:2]
    rows = {row[0]: row[1:] for row in cells(first)}
    heads = rows.pop("rounds")
    assert heads == ["ours", "ours, least", "ours, greatest", "target", "knee (rounds)"]
    assert len(rows) == POINTS + 1
    assert rows["0"] == ["0, 1", "-1", "1", "-", "-"]
    assert rows["99"] == ["0.99, 1.99", "-2", "2", "-", "-"]
    assert rows["everywhere"] == ["-", "-", "-", "0.5", "7"]
    assert "<summary>some: loss against rounds</summary>" in first
    rows = {row[0]: row[1:] for row in cells(second)}
    assert rows.pop("") == ["points, ±", "points", "bars"]
    assert rows == {"here": ["0.25", "5", "3"], "there": ["0.5", "6", "4"]}
