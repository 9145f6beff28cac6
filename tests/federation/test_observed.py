"""What operators see: logs as lines or JSON, files of a size, metrics on loopback, contacts."""

import http.client
import json
import logging
import socket
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from trimtab.federation.events import RoundCommitted, SiteReport, Traffic, round_text, to_json
from trimtab.federation.log import LogStyle, attached, log_facts
from trimtab.federation.processes import metrics
from trimtab.federation.processes.metrics import MetricsPage, OperatorView, SiteView, family
from trimtab.federation.processes.site import AnsweredRequest
from trimtab.federation.setup.status import CONTACTS
from trimtab.federation.storage import keys

ROOM = logging.getLogger("trimtab.federation.processes")
ROUND = RoundCommitted(
    r=3,
    cohort=["rome", "oslo"],
    bytes_down=64,
    bytes_up=2048,
    seconds=1.25,
    drift=0.5,
    cosine=None,
    metrics={"loss": 0.25, "accuracy": None},
    absent={"lima": "no answer within 3 s"},
    sites={"rome": SiteReport({"loss": 0.25}, 10, 0.1, 1024)},
)


# -- logs


def test_a_round_is_a_line_of_the_file_and_not_of_those_who_follow(tmp_path):
    lines = []
    with attached(tmp_path / "server.log", lines.append):
        log_facts(round_text(ROUND), **to_json(ROUND))
        ROOM.info("a line.")
    kept = (tmp_path / "server.log").read_text().splitlines()
    assert kept[0][21:] == round_text(ROUND)
    assert kept[0][21:].startswith("round 3: 2 of 3 sites, 2.05 kB up")
    assert lines == ["a line."]


def test_as_json_each_line_is_an_object_and_a_round_has_its_numbers(tmp_path):
    with attached(tmp_path / "server.log", style=LogStyle(as_json=True)):
        log_facts(round_text(ROUND), **to_json(ROUND))
        ROOM.warning("a \x1b[2K\n line.")
    first, second = map(json.loads, (tmp_path / "server.log").read_text().splitlines())
    assert (first["level"], first["event"], first["r"]) == ("info", "round", 3)
    assert first["absent"] == {"lima": "no answer within 3 s"}
    assert (second["level"], second["line"]) == ("warning", "a \\x1b[2K\\n line.")
    assert set(second) == {"time", "level", "line"}


def test_files_of_a_size_and_no_more_than_are_kept(tmp_path):
    with attached(tmp_path / "site.log", style=LogStyle(most=200, kept=3)):
        for number in range(60):
            ROOM.info(f"line {number:03d} of sixty.")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["site.log", "site.log.1", "site.log.2", "site.log.3"]
    assert all(path.stat().st_size <= 250 for path in tmp_path.iterdir())
    order = [tmp_path / f"site.log.{n}" for n in (3, 2, 1)] + [tmp_path / "site.log"]
    numbers = [int(row.split()[2]) for path in order for row in path.read_text().splitlines()]
    assert numbers == list(range(numbers[0], 60))


# -- metrics


def exposition(view):
    """Return what a view shows as Prometheus reads it."""
    registry = CollectorRegistry()
    registry.register(view)
    return generate_latest(registry).decode()


class Shown:
    """A view of these numbers and troubles."""

    def __init__(self, *families, troubles=()):
        self.collect, self.troubles = lambda: families, lambda: troubles


def get(port, path, method="GET"):
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    link.request(method, path)
    response = link.getresponse()
    body = response.read().decode()
    link.close()
    return response.status, body


def test_the_page_listens_on_loopback_and_answers_questions_only():
    troubles = []
    page = MetricsPage(0, Shown(family("round", "The last.", 3), troubles=troubles))
    try:
        assert get(page.port, "/healthz") == (200, "ok\n")
        assert get(page.port, "/metrics")[1].endswith("trimtab_round 3.0\n")
        troubles.append("the worker is not running")
        assert get(page.port, "/healthz?x=1") == (503, "the worker is not running\n")
        assert get(page.port, "/etc/passwd")[0] == 404
        assert get(page.port, "/metrics", "POST")[0] == 405
        assert page._listener.server_address[0] == "127.0.0.1"
    finally:
        page.close()


def test_a_port_that_is_taken_is_one_sentence(refused):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with refused(f"port {port} of 127.0.0.1 cannot be opened", "pass another metrics_port"):
            MetricsPage(port, Shown())


Text = st.text(st.characters(codec="utf-8"), max_size=20)


@given(st.dictionaries(st.tuples(Text, Text), st.floats(), max_size=8), st.floats() | st.none())
def test_whatever_is_told_a_number_is_one_line(told, value):
    labelled = family("a", "Help\nme.", by=told, labels=("site", "way"))
    rows = exposition(Shown(labelled, family("b", "Help\nme.", value))).split("\n")[:-1]
    numbers = [row for row in rows if not row.startswith(("# HELP ", "# TYPE "))]
    assert len(numbers) == len(told) + (value is not None)
    assert all(row.startswith("trimtab_") for row in numbers)


@pytest.fixture
def process(tmp_path):
    """What a view looks at of the operator's process."""
    (tmp_path / "keys").mkdir()
    (tmp_path / "run").mkdir()
    keys.make_authority(tmp_path / "keys")
    keys.make_server_certificate(tmp_path / "keys", ["localhost"])
    return SimpleNamespace(
        federation=SimpleNamespace(folder=tmp_path, keys=tmp_path / "keys"),
        superlink=SimpleNamespace(
            name="the SuperLink",
            alive=True,
            traffic=lambda: Traffic({"rome": 10}, {"rome": 20}),
            told=Traffic({"rome": 10}, {"rome": 20}),
            seen={"rome": 107.0, "oslo": 100.0},
        ),
        rounds=SimpleNamespace(name="the process of the rounds", alive=False),
    )


def test_a_server_shows_rounds_bytes_contacts_and_what_is_down(process):
    view = OperatorView(process, R=9)
    try:
        view.note(ROUND)
        text = exposition(view)
    finally:
        view.close()
    for line in (
        "trimtab_round 3.0",
        "trimtab_rounds_wanted 9.0",
        "trimtab_round_sites 2.0",
        "trimtab_round_absent 1.0",
        'trimtab_metric{name="loss"} 0.25',
        'trimtab_bytes_total{site="rome",way="down"} 20.0',
        'trimtab_contact_seconds{site="rome"}',
        "trimtab_certificate_seconds",
    ):
        assert f"\n{line}" in text
    assert "accuracy" not in text
    assert view.troubles() == ["the process of the rounds is not running"]


def test_a_site_shows_what_it_answered():
    line = SimpleNamespace(connected=False, activations=3)
    worker = SimpleNamespace(child=SimpleNamespace(name="the worker", alive=True, starts=2))
    view = SiteView(SimpleNamespace(line=line, worker=worker))
    view.note(AnsweredRequest("work", 4, "done", 1.5, ""))
    view.note(AnsweredRequest("work", 5, "refused", 0.5, "policy"))
    text = exposition(view)
    assert 'trimtab_requests_total{kind="work",status="refused"} 1.0' in text
    assert "trimtab_work_seconds_total 2.0\n" in text
    assert "trimtab_round 5.0\n" in text
    assert 'trimtab_starts_total{process="worker"} 2.0' in text
    assert "trimtab_connections_total 3.0\n" in text
    assert view.troubles() == ["the server is not connected"]


def test_when_a_site_was_heard_of_is_written_down(process, monkeypatch):
    monkeypatch.setattr(metrics, "_WRITE", 0.01)
    view, path = OperatorView(process, R=1), process.federation.folder / CONTACTS
    while not path.exists():
        time.sleep(0.01)
    view.close()
    assert json.loads(path.read_text()) == {
        "rome": "1970-01-01T00:01:47Z",
        "oslo": "1970-01-01T00:01:40Z",
    }
