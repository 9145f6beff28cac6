"""The documentation site, built as it is published, over HTTP and in a browser.

`make test-site` runs it. It needs Chromium, which Debian has as a package (apt-get install
chromium); elsewhere TRIMTAB_CHROMIUM says where it is.
"""

import os
import shutil
import subprocess
import sys
from collections import Counter
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urljoin, urlparse

import pytest

pytestmark = pytest.mark.site
pytest.importorskip("mkdocs", reason="needs MkDocs: pip install 'trimtab[docs]'")

ROOT = Path(__file__).parents[2]
CHROMIUM = os.environ.get("TRIMTAB_CHROMIUM") or shutil.which("chromium")
FLAGS = ("--no-sandbox", "--headless", "--disable-gpu", "--disable-background-networking")
in_a_browser = pytest.mark.skipif(
    CHROMIUM is None,
    reason="needs Chromium: apt-get install chromium, or set TRIMTAB_CHROMIUM to where it is",
)
# One page of each kind.
KINDS = (
    *("index", "studies", "algorithms/scaffold", "algorithms/bases", "papers/table3"),
    *(
        "papers/index",
        "reference/run",
        "reference/commands",
        "gallery/data_to_advice",
        "gallery/own_data",
    ),
)


class Page(HTMLParser):
    """What a page links to, loads and can be linked at."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links, self.loads, self.ids, self.alone = [], [], Counter(), []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids.update(found[name] for name in ("id",) if name in found)
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag in ("script", "img", "iframe", "source") and found.get("src"):
            self.loads.append(found["src"])
        if tag == "link" and found.get("rel") in ("stylesheet", "icon", "preconnect", "preload"):
            self.loads.append(found["href"])
        if tag == "img" and not found.get("alt"):
            self.alone.append(found.get("src"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "docs.generate"], cwd=ROOT, check=True)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    """All pages by their address in the site."""
    paths = sorted(site.rglob("*.html"))
    return {path.relative_to(site).as_posix(): Page(path) for path in paths}


@pytest.fixture(scope="module")
def address(site):
    handler = partial(Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs Playwright: pip install playwright"
    )
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield launched
        launched.close()


@pytest.fixture
def opened(browser, address):
    """Open a page; at the end, nothing may have been complained of or fetched elsewhere."""
    complaints, tabs = [], []

    def open_page(name, width=1100, **media):
        tab = browser.new_page(viewport={"width": width, "height": 900})
        tabs.append(tab)
        tab.emulate_media(**media)
        tab.on("console", lambda said: said.type == "error" and complaints.append(said.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on(
            "request",
            lambda asked: (
                asked.url.startswith((address, "data:", "blob:")) or complaints.append(asked.url)
            ),
        )
        tab.goto(f"{address}{name}.html")
        return tab

    yield open_page
    for tab in tabs:
        tab.close()
    assert complaints == []


def test_every_link_inside_the_site_leads_somewhere(site, pages):
    lost = []
    for name, page in pages.items():
        for link in page.links:
            there = urlparse(urljoin(f"http://site/{name}", link))
            if there.netloc != "site" or name == "404.html":  # that page has absolute links
                continue
            path = unquote(there.path).lstrip("/") or "index.html"
            found = (site / path).is_file()
            if found and there.fragment and path in pages:
                found = unquote(there.fragment) in pages[path].ids
            if not found:
                lost.append(f"{name}: {link}")
    assert lost == []


def test_no_page_loads_anything_from_elsewhere(pages):
    assert not [load for page in pages.values() for load in page.loads if urlparse(load).netloc]


def test_no_figure_is_without_a_text_and_no_id_is_there_twice(pages):
    assert not {name: page.alone for name, page in pages.items() if page.alone}
    twice = {name: [i for i, n in page.ids.items() if n > 1] for name, page in pages.items()}
    assert not {name: ids for name, ids in twice.items() if ids}


@in_a_browser
def test_every_page_opens_on_a_phone_without_an_error(opened, pages):
    tab = opened("index", width=390)
    here = tab.url.removesuffix("index.html")
    wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    too_wide = []
    for name in pages:
        tab.goto(f"{here}{name}")
        if tab.evaluate(wide):
            too_wide.append(name)
    assert too_wide == []


@in_a_browser
def test_the_search_finds_batchnorm(opened):
    tab = opened("index")
    tab.keyboard.press("/")
    tab.locator("input.md-search__input").fill("BatchNorm")
    result = tab.locator(".md-search-result__link").first
    result.wait_for()
    assert "BatchNorm" in tab.locator(".md-search-result__list").text_content()
    result.click()
    tab.wait_for_url("**h=*")
    assert "BatchNorm" in tab.locator("article").inner_text()


@in_a_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", KINDS)
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


@in_a_browser
def test_equations_are_mathml_that_the_browser_lays_out(opened):
    tab = opened("algorithms/scaffold")
    sizes = tab.locator("article math").evaluate_all(
        "found => found.map(one => one.getBoundingClientRect().height)"
    )
    assert sizes
    assert min(sizes) > 20
    assert "η" in tab.locator("article math").first.text_content()
