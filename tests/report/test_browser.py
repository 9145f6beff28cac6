"""The page in a browser: no errors, hover, switches, zoom, keyboard, phones, accessibility.

It runs in Chromium, which Debian has as a package: apt-get install chromium. Elsewhere, say where
it is with TRIMTAB_CHROMIUM.
"""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from trimtab import Scaffold, Supervised, compare, diagnose
from trimtab.cli.output import LivePage
from trimtab.problems.catalogue import quadratic_problem
from trimtab.report import read_source, write_diagnosis, write_page, write_pages
from trimtab.report.page import empty_page
from trimtab.studies.run import run
from trimtab_papers.page import write_reproduction

ROOT = Path(__file__).parents[2]
CHROMIUM = os.environ.get("TRIMTAB_CHROMIUM") or shutil.which("chromium")
FLAGS = (
    *("--no-sandbox", "--headless", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None,
    reason="needs Chromium: apt-get install chromium, or set TRIMTAB_CHROMIUM to where it is",
)
playwright = pytest.importorskip(
    "playwright.sync_api", reason="needs Playwright: pip install playwright"
)


def labelled():
    """Return six clients of unequal sizes, whose labels differ."""
    draw = torch.Generator().manual_seed(0)
    clients = []
    for i in range(6):
        y = (torch.rand(20 + 10 * i, generator=draw) * 2 + i / 2).long() % 4
        X = torch.randn(len(y), 4, generator=draw) + 2 * nn.functional.one_hot(y, 4)
        clients.append((X, y))
    return Supervised(nn.Linear(4, 4), nn.CrossEntropyLoss(), clients, batch=10)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Pages of all kinds, by name."""
    home = tmp_path_factory.mktemp("pages")
    algorithms = ["sgd", "fedavg", "scaffold", "mime"]
    compare(labelled(), algorithms, R=40, seeds=3, target=0.8, budget=40_000, out=home / "c")
    options = {"R": 40, "name": "<b>quadratic</b>", "out": home / "r"}
    run(Scaffold(eta_l=0.05, K=3), quadratic_problem(), **options)
    (home / "c" / "diagnosis.json").write_text(json.dumps({"advice": "Use Scaffold.", "L": 0.5}))
    compared, alone = read_source(home / "c"), read_source(home / "r")
    return {
        "comparison": write_pages([compared], home / "comparison.html"),
        "run": write_pages([alone], home / "run.html"),
        "side by side": write_pages([compared, alone], home / "both.html"),
        "reproduction": write_reproduction(ROOT / "results" / "figure3", home / "figure3.html"),
        "diagnosis": write_diagnosis(diagnose(labelled(), minutes=0.05), home / "d.html", "again"),
    }


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield launched
        launched.close()


@pytest.fixture
def opened(browser, pages):
    """Open a page; at the end, nothing may have been complained of or fetched."""
    complaints, tabs = [], []

    def open_page(name, width=1100, **media):
        tab = browser.new_page(viewport={"width": width, "height": 900})
        tabs.append(tab)
        tab.emulate_media(**media)
        tab.on("console", lambda said: complaints.append(said.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on(
            "request",
            lambda asked: asked.url.startswith(("file:", "blob:")) or complaints.append(asked.url),
        )
        tab.goto(pages[name].as_uri())
        if name not in ("reproduction", "diagnosis"):
            tab.wait_for_selector("html[data-ready=yes]")
        return tab

    yield open_page
    for tab in tabs:
        tab.close()
    assert complaints == []


def path_of(tab, chart="#chart-accuracy", key="s0-0"):
    return tab.locator(f"{chart} g[data-key={key}] path.line").first.get_attribute("d")


def ticks(tab, chart="#chart-accuracy"):
    return tab.locator(f"{chart} svg text").all_text_contents()


NAMES = ("comparison", "run", "side by side", "reproduction", "diagnosis")


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_wider_than_a_phone(opened, name):
    tab = opened(name, width=400)
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert tab.evaluate(wide) == 0
    tab.evaluate("document.querySelectorAll('details').forEach((one) => one.open = true)")
    assert tab.evaluate(wide) == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", NAMES)
def test_axe_finds_nothing_serious(opened, name, scheme):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="needs axe-playwright-python"
    )
    tab = opened(name, color_scheme=scheme)
    found = axe.Axe().run(tab).response["violations"]
    serious = {
        v["id"]: v["nodes"][0]["html"] for v in found if v["impact"] in ("serious", "critical")
    }
    assert serious == {}


def test_the_pointer_tells_the_numbers(opened):
    tab = opened("comparison")
    figure = tab.locator("#chart-accuracy")
    tip = figure.locator(".tip")
    assert tip.is_hidden()
    box = figure.locator("svg.lines").bounding_box()
    tab.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.5 * box["height"])
    assert tip.is_visible()
    assert "rounds" in tip.text_content()
    assert "FedAvg" in tip.text_content()
    tab.mouse.move(5, 5)
    assert tip.is_hidden()


def test_a_line_is_switched_off_and_on_again_in_every_chart(opened):
    tab = opened("comparison")
    button = tab.locator(".legend button", has_text="FedAvg").first
    lines = tab.locator("figure g.series[data-key=s0-1] path.line")
    before = lines.count()
    assert before > 2
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert lines.count() == 0
    pressed = tab.locator(".legend button", has_text="FedAvg").evaluate_all(
        "all => all.map((one) => one.ariaPressed)"
    )
    assert set(pressed) == {"false"}
    button.press("Enter")
    assert lines.count() == before


def test_the_axis_is_chosen(opened):
    tab = opened("comparison")
    drawn = {}
    for axis in ("rounds", "exchanges", "bytes", "work", "seconds"):
        tab.locator(".controls select").select_option(axis)
        drawn[axis] = path_of(tab, key="s0-3")
        assert drawn[axis]
    tab.locator(".controls select").select_option("bytes")
    assert any(word.startswith("bytes") for word in ticks(tab))
    log = tab.locator(".controls input")
    before = path_of(tab)
    log.click()
    assert path_of(tab) != before


@pytest.mark.parametrize("leave", ["reload", "return"])
def test_the_check_box_shows_the_state_of_the_axis_after_a_reload(opened, leave):
    tab = opened("comparison")
    box, axis = tab.locator(".controls input"), tab.locator(".controls select")
    state, before = box.is_checked(), path_of(tab)
    box.click()
    axis.select_option("bytes")
    changed = path_of(tab)
    assert changed != before
    if leave == "reload":
        tab.reload()
    else:
        tab.goto("about:blank")
        tab.go_back()
    tab.wait_for_selector("html[data-ready=yes]")
    shown = path_of(tab)
    assert shown in (before, changed)  # A browser may keep the whole page when it returns.
    assert (box.is_checked() == state) == (shown == before)
    assert (axis.input_value() == "rounds") == (shown == before)


def test_a_line_that_diverged_leaves_the_axis_in_the_browser_too(browser, tmp_path):
    result = compare(labelled(), ["fedavg", "scaffold"], R=20, K=2, seeds=1, budget=20_000)
    for entry in result.entries:
        entry.runs = []
    gone = result.entries[0]
    gone.diverged_at = len(gone.curve)
    for r, line in enumerate(gone.curve):
        line.metrics["loss"] = 3.0**r
    path = write_page(result, tmp_path / "page.html")
    tab = browser.new_page(viewport={"width": 1000, "height": 900})
    tab.goto(path.as_uri())
    tab.wait_for_selector("html[data-ready=yes]")
    assert tab.locator("#chart-loss .leaves").count() == 1
    assert "diverged at round" in tab.locator(".legend").first.text_content()
    numbers = [float(text) for text in ticks(tab, "#chart-loss") if text.replace(".", "").isdigit()]
    assert max(numbers) <= max(20, len(gone.curve))
    assert path_of(tab, "#chart-loss")
    tab.close()


def test_dragging_zooms_and_a_double_click_shows_everything(opened):
    tab = opened("comparison")
    before, svg = ticks(tab), tab.locator("#chart-accuracy svg.lines")
    box = svg.bounding_box()
    tab.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 100)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 100, steps=4)
    tab.mouse.up()
    assert tab.locator("#chart-accuracy").get_attribute("data-zoomed") == "yes"
    assert ticks(tab) != before
    svg.dblclick(position={"x": 200, "y": 100})
    assert ticks(tab) == before
    tab.locator("#chart-accuracy").get_by_role("button", name="Zoom in").click()
    assert ticks(tab) != before
    tab.locator("#chart-accuracy").get_by_role("button", name="Show everything").click()
    assert ticks(tab) == before


def test_the_keyboard_does_what_the_pointer_does(opened):
    tab = opened("comparison")
    before, svg = ticks(tab), tab.locator("#chart-accuracy svg.lines")
    svg.focus()
    tab.keyboard.press("ArrowRight")
    said = tab.locator("#chart-accuracy [role=status]")
    first = said.text_content()
    assert first.startswith("rounds")
    assert "Scaffold" in first
    tab.keyboard.press("End")
    assert said.text_content() != first
    tab.keyboard.press("Home")
    for _ in range(5):
        tab.keyboard.press("ArrowRight")
    tab.keyboard.press("+")
    assert ticks(tab) != before
    assert said.text_content().startswith("rounds from")
    tab.keyboard.press("0")
    assert ticks(tab) == before


def test_the_data_can_be_downloaded(opened):
    tab = opened("comparison")
    with tab.expect_download() as asked:
        tab.get_by_role("button", name="Curves as CSV").click()
    lines = asked.value.path().read_text().splitlines()
    assert lines[0].startswith('"folder","algorithm","rounds"')
    assert len(lines) > 40
    with tab.expect_download() as asked:
        tab.get_by_role("button", name="Curves as JSON").click()
    assert len(json.loads(asked.value.path().read_text())["series"]) == 4


def test_names_run_no_script_in_what_the_browser_draws(opened):
    tab = opened("run")
    assert "<b>quadratic</b>" in tab.locator("h1").text_content()
    tab.locator("#chart-loss svg").focus()
    tab.keyboard.press("ArrowRight")
    assert tab.locator("#chart-loss .tip script").count() == 0


def test_a_print_is_light_and_has_no_controls(opened):
    tab = opened("comparison", color_scheme="dark", media="print")
    assert tab.locator(".controls").first.is_hidden()
    assert tab.locator(".hint").is_hidden()
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


LINES = """[...document.querySelectorAll("td")]
.filter(cell => cell.offsetParent && !cell.closest(".facts"))
.map(cell => {
    const words = document.createRange();
    words.selectNodeContents(cell);
    return new Set([...words.getClientRects()].map(box => Math.round(box.top))).size;
})"""


def test_a_number_is_not_broken_over_lines_in_a_print(opened):
    lines = opened("comparison", width=700, media="print").evaluate(LINES)
    assert len(lines) > 40
    assert set(lines) == {1}


def test_without_script_the_charts_are_there(browser, pages):
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(pages["comparison"].as_uri())
    assert tab.locator("#chart-accuracy path.line").count() >= 4
    assert tab.locator(".controls").first.is_hidden()
    context.close()


# -- a page that a command is still writing


def test_a_live_page_reloads_itself_until_the_last_one(browser, tmp_path):
    path, complaints = tmp_path / "report.html", []
    live = LivePage(path, lambda: empty_page("mine"), live=True)
    live.update("1 round")
    tab = browser.new_page()
    tab.on("console", lambda said: complaints.append(said.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.goto(path.as_uri())
    assert tab.locator(".live").text_content() == "Live: 1 round."
    live.update("2 rounds", now=True)
    tab.wait_for_selector("text=Live: 2 rounds.")
    path.write_text(empty_page("the last"))
    tab.wait_for_selector("text=the last has nothing to show yet")
    tab.evaluate("window.notLoadedAgain = true")
    tab.wait_for_timeout(3_000)
    assert tab.evaluate("window.notLoadedAgain")
    tab.close()
    assert complaints == []


def test_a_live_page_does_not_reload_while_its_reader_moves_the_pointer(browser, tmp_path):
    path = tmp_path / "report.html"
    LivePage(path, lambda: empty_page("mine"), live=True).update("1 round")
    tab = browser.new_page()
    tab.goto(path.as_uri())
    tab.evaluate("""() => {
        window.notLoadedAgain = true;
        dispatchEvent(new Event("pointermove"));
        window.moving = setInterval(() => dispatchEvent(new Event("pointermove")), 100);
    }""")
    tab.wait_for_timeout(3_000)
    assert tab.evaluate("window.notLoadedAgain")
    tab.evaluate("clearInterval(window.moving)")
    tab.wait_for_function("window.notLoadedAgain === undefined")
    tab.close()
