"""A server that is busy is borne with: 500 for a while, and a database that waits for its lock."""

import sqlite3

import httpx
import pytest

pytest.importorskip("flwr")

from flwr.supercore import sql_mixin

from trimtab.federation.transport.flower import superlink
from trimtab.federation.transport.flower.patience import LONGEST, patient


def answer(code):
    request = httpx.Request("POST", "https://127.0.0.1/v1/runtime/pull-messages")
    httpx.Response(code, request=request).raise_for_status()
    return "messages"


class Clock:
    def __init__(self):
        self.time = 0.0

    def __call__(self):
        return self.time

    def sleep(self, seconds):
        self.time += seconds


@pytest.fixture
def retries():
    clock = Clock()
    made = patient(clock)
    made.wait_function = clock.sleep
    made.jitter = None
    return made


def test_a_busy_server_is_asked_again(retries):
    codes = iter([500, 500, 500, 200])
    assert retries.invoke(lambda: answer(next(codes))) == "messages"


def test_a_server_that_only_fails_is_given_up(retries):
    asked = []

    def broken():
        asked.append(1)
        return answer(500)

    with pytest.raises(httpx.HTTPStatusError):
        retries.invoke(broken)
    assert len(asked) > 3


def test_patience_begins_anew_after_an_answer(retries):
    for _ in range(20):  # 500 for longer than LONGEST, all in all
        codes = iter([500] * 4 + [200])
        assert retries.invoke(lambda codes=codes: answer(next(codes))) == "messages"
    assert retries.wait_function.__self__.time > LONGEST


def test_what_is_wrong_with_the_request_is_not_asked_again(retries):
    codes = iter([404])
    with pytest.raises(httpx.HTTPStatusError, match="404"):
        retries.invoke(lambda: answer(next(codes)))


def test_any_word_of_tls_is_borne_with(retries):
    errors = iter([httpx.ConnectError("ssl handshake"), httpx.ReadTimeout("tls")])

    def target():
        for error in errors:
            raise error
        return "connected"

    assert retries.invoke(target) == "connected"


def test_the_database_of_a_superlink_waits_longer_for_its_lock(monkeypatch, tmp_path):
    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", sql_mixin.SQLITE_PRAGMAS)
    monkeypatch.setattr(superlink, "flower_superlink", lambda: None)
    superlink.main()
    connection = sqlite3.connect(tmp_path / "links.db")
    sql_mixin._set_sqlite_pragmas(connection, None)
    (waits,) = connection.execute("PRAGMA busy_timeout").fetchone()
    connection.close()
    assert waits == 20_000
