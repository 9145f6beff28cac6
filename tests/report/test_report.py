"""The page of results: every panel gives whole HTML for whatever there is to show."""

import gzip
import io
import json
import re
import subprocess
import sys
import tomllib
from base64 import b64decode
from dataclasses import replace
from fnmatch import fnmatch
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch import nn

from trimtab import (
    FedAvg,
    Metric,
    Quadratic,
    Scaffold,
    Sgd,
    Supervised,
    compare,
    diagnose,
    simulate,
)
from trimtab.cli import main
from trimtab.core.sections import sections_html
from trimtab.report import print_sections, read_source, write_page, write_pages
from trimtab.report.page import curves_of_sources, page_sections
from trimtab.report.search import dot_kind
from trimtab.report.sources import source_of
from trimtab.studies.entry import Candidate, Entry
from trimtab.studies.record import RoundLine
from trimtab.studies.run import run
from trimtab.studies.sections import origin, sections

ROOT = Path(__file__).parents[2]
VOID = {"br", "meta", "hr", "img", "path", "use", "rect", "link", "circle", "input"}
EVIL = "<script>alert(1)</script>"


class Tags(HTMLParser):
    """Checks that tags are closed in the order in which they were opened."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.seen = [], "", []

    def handle_starttag(self, tag, attributes):
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def parsed(html):
    tags = Tags()
    tags.feed(html)
    assert tags.open == []
    return tags


class Named(Quadratic):
    metric = Metric(f"a {EVIL} & c", higher=True)

    def evaluate(self, x, client=None):
        return {self.metric.name: -super().evaluate(x, client)["loss"]}


def pair(kind=Quadratic):
    return kind([1.0, 3.0], [1.0, -2.0])


def labelled():
    """Return four clients of unequal sizes, whose labels differ."""
    draw = torch.Generator().manual_seed(0)
    clients = []
    for i in range(4):
        y = (torch.rand(10 + 10 * i, generator=draw) * 2 + i / 2).long() % 3
        X = torch.randn(len(y), 3, generator=draw) + nn.functional.one_hot(y, 3)
        clients.append((X, y))
    return Supervised(nn.Linear(3, 3), nn.CrossEntropyLoss(), clients, batch=5)


def with_test_rows():
    """Return the labelled clients with test data."""
    known = labelled()
    return known.replace(test=(known.clients[0].X, known.clients[0].y))


RESULTS = {
    "a comparison": lambda: compare(pair(), ["sgd", "fedavg"], K=[1, 3], R=20),
    "one algorithm": lambda: compare(pair(), [Sgd(eta=0.1)], R=5),
    "all diverged": lambda: compare(pair(), [FedAvg(eta_l=1e30, K=5)], R=5, target=-1.0),
    "names to escape": lambda: compare(pair(Named), ["sgd", "fedavg"], R=5, name=EVIL),
    "clients with labels": lambda: compare(labelled(), ["fedavg", "scaffold"], R=8, seeds=1),
}


@pytest.fixture(scope="module", params=RESULTS)
def result(request):
    return RESULTS[request.param]()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A comparison on disk, with three seeds."""
    out = tmp_path_factory.mktemp("runs") / "compared"
    compare(labelled(), ["fedavg", "scaffold"], R=12, K=3, seeds=3, target=0.7, out=out)
    return out


def copied(folder, to, change=lambda content: None):
    """Return a copy of a comparison's folder, its JSON file changed."""
    content = json.loads((folder / "compare.json").read_text())
    change(content)
    to.mkdir()
    (to / "compare.json").write_text(json.dumps(content))
    return to


def data_of(html):
    packed = re.search(r'id="data">([^<]*)<', html)[1]
    return json.loads(gzip.decompress(b64decode(packed)))


# -- panels


def sections_of(result):
    source = source_of(result)
    return page_sections([source], curves_of_sources([source]))


def test_every_section_is_whole_html(result):
    for section in sections_of(result):
        assert "script" not in parsed(sections_html([section])).seen


def test_the_page_has_every_section_in_order_and_fetches_nothing(result, tmp_path):
    text = write_page(result, tmp_path / "page.html").read_text()
    at = -1
    for section in sections_of(result)[:-1]:  # the last one has links to files
        part = sections_html([section])
        assert not part or text.find(part, at + 1) > at, section.title
        at = text.find(part, at + 1) if part else at
    # The name of the format is no address that a browser fetches.
    assert set(re.findall(r"https?://([^/\"\s]+)", text)) <= {"www.w3.org"}
    assert not re.search(r"<(link|img|iframe)\b|\bsrc=|@import|url\((?!#)", text)


def test_names_are_shown_as_they_are(tmp_path):
    found = RESULTS["names to escape"]()
    found.entries[0].shown = EVIL
    text = write_page(found, tmp_path / "page.html").read_text()
    assert EVIL not in text
    assert text.count("<script") == 2  # the data, and the page's own
    assert parsed(text.partition("<main>")[2].partition("</main>")[0]).text.count(EVIL) > 3


def test_every_chart_says_what_it_shows_and_has_its_numbers_beside_it(folder, tmp_path):
    text = write_pages([read_source(folder)], tmp_path / "page.html").read_text()
    charts = re.findall(r'<svg class="(\w+)"([^>]*)>', text)
    pictures = [(kind, rest) for kind, rest in charts if kind != "sample"]
    kinds = {kind for kind, _ in pictures}
    assert kinds - {"bars"} == {"lines", "dots", "labels", "strips"}
    assert all('role="img"' in rest and "aria-label=" in rest for _, rest in pictures)
    assert text.count("<details>") >= len(re.findall(r"<figure id=", text))


def test_a_result_shows_itself_in_a_notebook_and_is_short_elsewhere(result):
    tags = parsed(result._repr_html_())
    assert tags.seen.count("tr") == 1 + len(result.entries)
    assert "script" not in tags.seen
    assert result.advice in tags.text
    assert len(repr(result)) < 100 + len(result.problem) + len(result.advice)


def test_rounds_simulations_and_diagnoses_show_themselves_and_are_short_elsewhere():
    sim = simulate(Scaffold(eta_l=0.1, K=2), labelled(), S=2)
    done = next(sim)
    found = diagnose(pair(), minutes=0.02)
    for shown, word in ((sim, "Scaffold(eta_l=0.1"), (done, "drift"), (found, found.advice)):
        tags = parsed(shown._repr_html_())
        assert "script" not in tags.seen
        assert word in tags.text
        assert word in repr(shown)
        assert len(repr(shown)) < 400
        assert "tensor(" not in repr(shown)


def test_nothing_that_shows_itself_imports_the_report():
    code = (
        "import sys, trimtab; q = trimtab.Quadratic([1.0, 3.0], [1.0, -2.0])\n"
        "sim = trimtab.simulate(trimtab.Sgd(eta=0.1), q)\n"
        "next(sim)._repr_html_(), sim._repr_html_(), trimtab.diagnose(q)._repr_html_()\n"
        "trimtab.compare(q, ['sgd'], R=3)._repr_html_()\n"
        "assert not [name for name in sys.modules if name.startswith('trimtab.report')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("there", [True, False])
def test_long_work_shows_a_line_in_a_notebook_alone(monkeypatch, there):
    class Shell:
        kernel = object()

    class Handle:
        def update(self, look, raw):
            lines.append(look)

    def display(look, raw, display_id):
        lines.append(look)
        return Handle()

    lines = []
    shell = Shell() if there else None
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    found = compare(pair(), [Sgd(eta=0.1)], R=5, name=EVIL)
    assert found.entries[0].curve
    assert bool(lines) == there
    if there:
        assert "eta = 0.1, round 1" in lines[0]["text/plain"]
        assert re.fullmatch(r"compare: \d+\.\d s", lines[-1]["text/plain"])
        assert all(EVIL not in line["text/html"] for line in lines)


# -- what older folders have


def test_an_algorithm_has_the_colour_of_the_registry_whatever_a_record_says(folder, tmp_path):
    def pink(content):
        content["outcome"]["entries"][0]["colour"] = "#ff00ff"

    curves = curves_of_sources([read_source(copied(folder, tmp_path / "pink", pink))])
    assert [curve.colour for curve in curves] == ["#d1495b", "#00798c"]


# -- several folders


def test_folders_stand_side_by_side(folder, tmp_path):
    other = copied(folder, tmp_path / "other")
    sources = [read_source(folder), read_source(other)]
    text = write_pages(sources, tmp_path / "page.html").read_text()
    names = [one["label"] for one in data_of(text)["series"]]
    assert names == [f"{a} ({f})" for f in ("compared", "other") for a in ("FedAvg", "Scaffold")]
    settings = text.partition("<h2>Settings</h2>")[2]
    assert '<th scope="col">compared</th><th scope="col">other</th>' in settings
    dashes = [one["dash"] for one in data_of(text)["series"]]
    assert dashes[0] == dashes[1] != dashes[2] == dashes[3]


def test_folders_of_one_name_are_told_apart(folder, tmp_path):
    (tmp_path / "a").mkdir()
    other = copied(folder, tmp_path / "a" / "compared")
    sources = [read_source(folder), read_source(other)]
    text = write_pages(sources, tmp_path / "page.html").read_text()
    assert len({one["label"] for one in data_of(text)["series"]}) == 4


# -- curves


def test_the_whole_data_is_in_the_page(folder, tmp_path):
    source = read_source(folder)
    text = write_pages([source], tmp_path / "page.html").read_text()
    for entry, one in zip(source.result.entries, data_of(text)["series"], strict=True):
        losses = [line.metrics["loss"] for line in entry.curve]
        assert one["y"]["loss"] == losses
        moved = [line.bytes_down + line.bytes_up for line in entry.curve]
        assert one["x"]["bytes"][len(losses) - 1] == sum(moved)
        assert one["x"]["bytes"] == sorted(one["x"]["bytes"])


def test_ten_runs_of_a_thousand_rounds_are_less_than_a_megabyte(tmp_path):
    draw = torch.Generator().manual_seed(0)

    def line(r):
        a, b, c, d, e, f = torch.rand(6, generator=draw, dtype=torch.float64).tolist()
        cost = {"bytes_down": 4000, "bytes_up": 4000, "exchanges": 1, "work": 640, "clients": 10}
        moves = {"seconds": a, "drift": b, "spread": c, "cosine": d}
        return RoundLine(r=r, **cost, **moves, metrics={"accuracy": e, "loss": f})

    found = RESULTS["one algorithm"]()
    found.entries = [
        Entry(name=f"a{j}", label=f"a{j}", shown=f"a{j}", settings={}, colour="#00798c")
        for j in range(10)
    ]
    for entry in found.entries:
        entry.curve = [line(r) for r in range(1, 1001)]
    page = write_page(found, tmp_path / "page.html")
    assert page.stat().st_size < 1_000_000
    longest = max(
        len(d.split("L")) for d in re.findall(r'class="line"[^>]* d="([^"]*)"', page.read_text())
    )
    assert longest <= 400


# -- the command


def test_the_command_that_makes_it_again_is_in_the_record_and_on_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["run", "fedavg", "quadratic", "--eta-l", "0.1", "--K", "2", "-R", "3", "--out", "a b"]
    main([*words, "--json"])
    command = "trimtab run fedavg quadratic --eta-l 0.1 --K 2 -R 3 --out 'a b'"
    assert json.loads(Path("a b/run.json").read_text())["command"] == command
    assert command in parsed(Path("a b/report.html").read_text()).text
    main([*words, "--resume", "--json"])
    assert json.loads(Path("a b/run.json").read_text())["command"] == command


def test_report_takes_several_folders(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    other = copied(folder, tmp_path / "other")
    diagnosed = tmp_path / "diagnosed"
    diagnosed.mkdir()
    found = {"advice": "Use Scaffold.", "sure": "hardly", "doubts": ["much"], "delta": 0.25}
    (diagnosed / "diagnosis.json").write_text(json.dumps(found))
    main(["report", str(folder), str(other), str(diagnosed), "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert printed["page"] == "runs/report-1/report.html"
    text = parsed(Path(printed["page"]).read_text()).text
    assert "Use Scaffold." in text
    assert "0.25" in text
    main(["report", str(diagnosed), "--json"])
    assert json.loads(capsys.readouterr().out)["page"] == "runs/report-2/report.html"
    assert [path.name for path in diagnosed.iterdir()] == ["diagnosis.json"]


def test_report_shows_a_reproduction(tmp_path, capsys):
    main(["report", str(ROOT / "results" / "figure3"), "--out", str(tmp_path), "--json"])
    page = Path(json.loads(capsys.readouterr().out)["page"])
    text = parsed(page.read_text().partition("<main>")[2].partition("</main>")[0]).text
    assert "trimtab reproduce figure3" in text
    assert "held" in text


def test_a_reproduction_under_another_name_or_beside_others_is_refused(tmp_path, folder, capsys):
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "cell.json.gz").write_bytes(gzip.compress(b"{}"))
    for words, sentence in (
        ([strange], "is called as no reproduction is; rename it to one of figure3"),
        ([strange, folder], "is a reproduction, which has a separate page; pass it alone."),
    ):
        with pytest.raises(SystemExit):
            main(["report", *map(str, words)])
        assert sentence in capsys.readouterr().err


# -- what is in the package


def test_styles_and_scripts_are_package_data():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["trimtab"]
    package = ROOT / "src" / "trimtab"
    for suffix in ("css", "js"):
        found = [str(path.relative_to(package)) for path in package.rglob(f"*.{suffix}")]
        assert found
        assert all(any(fnmatch(name, pattern) for pattern in patterns) for name in found)


def test_a_winner_that_is_fragile_is_marked(tmp_path):
    found = compare(pair(), [Scaffold(eta_l=0.1, K=2)], R=8, seeds=1)
    entry = found.entries[0]
    again = replace(entry.again, fragile=True)
    tried = Candidate(0.1, 8, None, entry.best, None, K=2)
    searched = [tried, replace(tried, step=0.2)]
    found.entries = [replace(entry, again=again, searched=searched)]
    text = write_page(found, tmp_path / "page.html").read_text()
    assert "fragile winner" in text
    assert "fragile where the start moves by a millionth: Scaffold" in text


# -- which of several is the winner


def test_a_momentum_whose_number_begins_like_the_winners_is_no_winner():
    settings = {"eta": 0.1, "K": 5, "base": "Momentum(beta=0.9)"}
    entry = Entry("mime", "mime", settings, step="eta")
    tried = [Candidate(0.1, 8, None, 0.5, None, K=5, beta=beta) for beta in (0.0, 0.9)]
    assert [dot_kind(entry, one, searching=False) for one in tried] == ["run", "winner"]
    assert [dot_kind(entry, one, searching=True) for one in tried] == ["run", "leader"]


# -- what a reader must know


def test_the_page_says_on_which_data_the_best_model_was_chosen(tmp_path):
    for split, words in (("none", "chosen on the test data"), (0.3, "chosen on validation data")):
        out = tmp_path / str(split)
        run(FedAvg(eta_l=0.1, K=2), with_test_rows(), R=3, name="tested", out=out, split=split)
        text = write_page(read_source(out).result, out / "page.html").read_text()
        (line,) = (part for part in text.split("<li>") if "best.safetensors" in part)
        assert f"model after the best round, {words}" in line.partition("</li>")[0]


def test_what_is_cut_short_or_at_the_edge_is_visible_everywhere(folder, tmp_path):
    found = read_source(folder).result
    entry = found.entries[0]
    entry.complete, entry.at_edge = False, ["K", "step"]
    entry.not_run, entry.spent = ["K = 64 stopped because the budget ran out"], 50.0
    found.about = replace(
        found.about, budget=100.0, round_cost=3.0, target_from="The target is that of a pilot."
    )
    shown = io.StringIO()
    print_sections(sections(found), Console(file=shown, width=200))
    for text in (
        shown.getvalue(),
        parsed(found._repr_html_()).text,
        parsed(write_page(found, tmp_path / "page.html").read_text()).text,
    ):
        assert "The target is that of a pilot." in text
        assert "FedAvg is not complete: K = 64 stopped because the budget ran out." in text
        assert "the best K of FedAvg is at the edge of the search" in text
        assert "3 ^" in text
        assert "50%" in text
        assert "100 sample gradients, a round counting 3 besides its own" in text


def test_many_seeds_are_not_listed_one_by_one(result):
    found = replace(result, about=replace(result.about, seeds=tuple(range(5, 45))))
    (note,) = (note for note in origin(found).notes if note.startswith("Report seeds"))
    assert note == "Report seeds: 5 to 44, 40 in all; the search has others."
