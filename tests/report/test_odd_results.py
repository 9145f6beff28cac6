"""Pages of results that are unlike others: one round, one client, many, NaN, runs that diverged.

In a browser nothing of them is cut off, and no two texts of a chart lie on each other.
"""

import os
import shutil
from dataclasses import replace
from math import nan
from pathlib import Path

import pytest
import torch
from torch import nn

from trimtab import FedAvg, Quadratic, Scaffold, Supervised, compare
from trimtab.cli import main
from trimtab.errors import BadArgument, Diverged
from trimtab.report import read_source, write_pages
from trimtab.report.page import curves_of_sources, page_of
from trimtab.studies.run import run
from trimtab_papers.page import write_reproduction

ROOT = Path(__file__).parents[2]
CHROMIUM = os.environ.get("TRIMTAB_CHROMIUM") or shutil.which("chromium")
LONG = "a-folder/with_a_very_long_name_that_somebody_gave_it.py:the_function_that_makes_the_problem"
TWELVE = (
    *("sgd", "fedavg", "fedprox", "scaffold", "fedopt", "mimelite", "mime", "serveronly"),
    *("scaffoldm", "feddyn", "scaffnew", "fednova"),
)


class Odd(Quadratic):
    """A problem with a metric that is never a number."""

    def evaluate(self, x):
        return super().evaluate(x) | {"odd": nan}


def labelled(N):
    draw = torch.Generator().manual_seed(0)
    clients = []
    for i in range(N):
        y = (torch.rand(12 + i % 20, generator=draw) * 2 + i / 2).long() % 4
        clients.append((torch.randn(len(y), 4, generator=draw) + nn.functional.one_hot(y, 4), y))
    return Supervised(nn.Linear(4, 4), nn.CrossEntropyLoss(), clients, batch=5)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    home = tmp_path_factory.mktemp("odd")
    scaffold, pair = Scaffold(eta_l=0.05, K=3), ["fedavg", "scaffold"]
    once = {"R": 1, "K": 2, "seeds": 2, "budget": 500}
    compare(labelled(6), pair, **once, out=home / "one round")
    few = {"R": 8, "K": 2, "seeds": 1, "budget": 500, "target": 0.8}
    compare(labelled(6), list(TWELVE), **few, out=home / "twelve")
    run(scaffold, labelled(1), R=6, name=LONG, out=home / "one client")
    run(scaffold, labelled(200), R=6, S=20, name="many", out=home / "many clients")
    compare(Odd([1.0, 3.0], [1.0, -2.0]), pair, R=40, K=3, seeds=2, out=home / "nan")
    steep = Quadratic([1e4, 2e4], [1.0, 2.0])
    with pytest.raises(Diverged):
        run(FedAvg(eta_l=1.0, K=2), steep, R=30, name="steep", out=home / "diverged")
    made = {
        folder.name: write_pages([read_source(folder)], home / f"{folder.name}.html")
        for folder in sorted(home.iterdir())
    }
    for name in ("figure3", "lsa"):
        made[name] = write_reproduction(ROOT / "results" / name, home / f"{name}.html")
    return made


def test_a_metric_that_is_never_a_number_is_said_to_be_none(pages):
    page = pages["nan"].read_text()
    assert "<h3>odd</h3>\n<p>It was never a finite number.</p>" in page
    assert 'id="chart-odd"' not in page
    assert 'id="chart-loss"' in page


def test_one_client_is_one(pages):
    assert "One client with 12 samples, 2 of 2 labels each." in pages["one client"].read_text()
    assert "200 clients with 12 to 31 samples" in pages["many clients"].read_text()


def test_gains_are_drawn_unless_nobody_gains_or_loses(pages):
    source = read_source(pages["one round"].parent / "one round")
    fedavg, scaffold = source.result.entries
    for other, drawn in (([0.5, 0.7], False), ([0.6, 0.7], True)):
        fedavg.per_client, scaffold.per_client = {"values": [0.5, 0.7]}, {"values": other}
        page = page_of([source])
        assert ('<svg class="bars"' in page) is drawn
        assert ("Scaffold: the metric of every client is the same." in page) is not drawn


def test_a_line_is_not_called_by_its_algorithm_twice(pages):
    sources = [read_source(pages[name].parent / name) for name in ("one client", "many clients")]
    sources[0] = replace(sources[0], name="SCAFFOLD")
    labels = [curve.label for curve in curves_of_sources(sources)]
    assert labels == ["Scaffold", "Scaffold (many clients)"]


def test_a_run_that_diverged_has_a_page_which_says_so(pages, tmp_path, capsys):
    page = pages["diverged"].read_text()
    assert "FedAvg(eta_l=1.0, K=2, eta_g=1.0) diverged at round 6; try eta_l below" in page
    folder = pages["diverged"].parent / "diverged"
    main(["report", str(folder), "--out", str(tmp_path / "there")])
    out = capsys.readouterr().out
    assert "diverged at round 6" in out
    assert out.count("Page: ") == 1
    assert (tmp_path / "there" / "report.html").exists()


def test_a_run_that_was_stopped_is_still_to_be_resumed(tmp_path):
    work = run.start(Scaffold(eta_l=0.05, K=3), labelled(2), R=30, name="two", out=tmp_path / "r")
    for _ in range(3):
        next(work)
    work.close()
    with pytest.raises(BadArgument, match="is not finished; repeat its command with resume"):
        read_source(tmp_path / "r")


# -- as a browser shows them

CUT_OFF = """() => [...document.querySelectorAll("main svg text")].filter((one) => {
  const box = one.getBoundingClientRect(), scrolls = one.closest(".wide, .paper, .scroll");
  return box.width && !scrolls && (box.left < 0 || box.right > innerWidth);
}).map((one) => one.textContent)"""
OVERLAPPING = """() => [...document.querySelectorAll("main svg.lines, main svg.bars")].flatMap((svg) => {
  const texts = [...svg.querySelectorAll("text")].map((one) => [one.textContent, one.getBoundingClientRect()]);
  return texts.flatMap(([a, p], j) => texts.slice(j + 1).filter(([b, q]) =>
    p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 4 && q.top < p.bottom - 4
  ).map(([b]) => `${a} | ${b}`));
})"""  # noqa: E501
HALF_HIDDEN = """() => [...document.querySelectorAll("main svg.lines circle.dot")].filter((dot) => {
  const box = dot.getBoundingClientRect(), clip = dot.closest("svg").querySelector("clipPath rect");
  const at = Number(dot.getAttribute("cx")), left = Number(clip.getAttribute("x"));
  return at - 3 < left || at + 3 > left + Number(clip.getAttribute("width"));
}).length"""


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs Playwright: pip install playwright"
    )
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium, or set TRIMTAB_CHROMIUM")
    quiet = ("--no-sandbox", "--headless", "--disable-gpu", "--disable-background-networking")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=list(quiet))
        yield launched
        launched.close()


@pytest.mark.parametrize("width", [400, 1000])
def test_nothing_is_cut_off_and_no_text_lies_on_another(browser, pages, width):
    for name, path in pages.items():
        complaints = []
        tab = browser.new_page(viewport={"width": width, "height": 900})
        tab.on("console", lambda said, to=complaints: to.append(said.text))
        tab.on("pageerror", lambda error, to=complaints: to.append(str(error)))
        tab.goto(path.as_uri())
        if name not in ("figure3", "lsa"):
            tab.wait_for_selector("html[data-ready=yes]")
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert (name, tab.evaluate(wide)) == (name, 0)
        assert (name, tab.evaluate(CUT_OFF)) == (name, [])
        assert (name, tab.evaluate(OVERLAPPING)) == (name, [])
        assert (name, tab.evaluate(HALF_HIDDEN)) == (name, 0)
        tab.evaluate("document.querySelectorAll('details').forEach((one) => one.open = true)")
        assert (name, tab.evaluate(wide)) == (name, 0)
        assert (name, complaints) == (name, [])
        tab.close()
