"""The page of a comparison: every panel gives whole HTML for whatever there is to show."""

import re
from html.parser import HTMLParser

import pytest

from trimtab import FedAvg, Metric, Quadratic, Sgd, compare
from trimtab.report.page import write_page
from trimtab.report.panels import PANELS

VOID = {"br", "meta", "hr", "img", "path", "use", "rect", "link"}


class Tags(HTMLParser):
    """Checks that tags are closed in the order in which they were opened."""

    def __init__(self):
        super().__init__()
        self.open, self.text = [], ""

    def handle_starttag(self, tag, attributes):
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


class Named(Quadratic):
    metric = Metric("a <b> & c", higher=True)

    def evaluate(self, x, client=None):
        return {"a <b> & c": -super().evaluate(x, client)["loss"]}


def problem(kind=Quadratic):
    return kind([1.0, 3.0], [1.0, -2.0])


RESULTS = {
    "a comparison": lambda: compare(problem(), ["sgd", "fedavg"], K=[1, 3], R=20),
    "one algorithm": lambda: compare(problem(), [Sgd(eta=0.1)], R=5),
    "all diverged": lambda: compare(problem(), [FedAvg(eta_l=1e30, K=5)], R=5, target=-1.0),
    "a metric with a name to escape": lambda: compare(problem(Named), ["sgd"], R=5),
}


@pytest.fixture(scope="module", params=RESULTS)
def result(request):
    return RESULTS[request.param]()


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.__name__)
def test_every_panel_is_whole_html(panel, result):
    tags = Tags()
    tags.feed(panel(result))
    assert tags.open == []
    assert panel.__doc__


def test_the_page_has_every_panel_in_order(result, tmp_path):
    text = write_page(result, tmp_path / "page.html").read_text()
    at = -1
    for panel in PANELS:
        part = panel(result)
        if part and "<svg" not in part:
            assert text.find(part, at + 1) > at
            at = text.find(part, at + 1)
    links = set(re.findall(r"https?://([^/\"\s]+)", text))
    # These are names of formats and of the maker, which nobody fetches.
    assert links <= {"www.w3.org", "purl.org", "creativecommons.org", "matplotlib.org"}
