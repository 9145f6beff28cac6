"""Whatever happens on the way, sites come back: real processes, and the end is what is asserted."""

import os
import re
import signal
import ssl
import time

import pytest

from tests.helpers.connect_proxy import ConnectProxy, Listener, Relay
from tests.helpers.whole_federation import Serving, Whole
from trimtab import Scaffold
from trimtab.federation.processes import operator, site
from trimtab.federation.setup.site import SiteFolder
from trimtab.federation.storage import keys

pytestmark = pytest.mark.federation
SCAFFOLD = Scaffold(eta_l=0.3, K=4)


class Impostor(Listener):
    """Speaks TLS with the certificate of another authority."""

    def __init__(self, folder, port):
        keys.make_authority(folder)
        keys.make_server_certificate(folder, ["127.0.0.1"])
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(folder / "server.crt", folder / "server.key")
        super().__init__(port)

    def serve(self, link):
        self.asked.append(time.monotonic())
        self.context.wrap_socket(link, server_side=True).close()


class Closer(Listener):
    """Accepts and closes."""

    def serve(self, link):
        self.asked.append(time.monotonic())


def at_port(make, seconds=30):
    """Open a port that was in use until now."""
    until = time.monotonic() + seconds
    while True:
        try:
            return make()
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.1)


def test_no_site_stays_deaf_after_others_were_at_the_servers_port(tmp_path):
    whole = Whole(tmp_path, "ab")
    for name in whole.names:
        whole.start_site(name)
    with Serving(whole) as server:
        server.job(algorithm=SCAFFOLD, R=2, round_timeout=60)
        sites, whole.sites = whole.sites, {}  # they outlive this server
    whole.sites = sites
    try:
        (tmp_path / "other").mkdir()
        impostor = at_port(lambda: Impostor(tmp_path / "other", whole.federation.port))
        try:
            for name in whole.names:
                whole.wait_for("it is not the server for which this site's archive was made", name)
        finally:
            impostor.close()
        closer = at_port(lambda: Closer(whole.federation.port))
        try:
            end = time.monotonic() + 120
            while len(closer.asked) < 6:
                assert time.monotonic() < end, whole.logs()
                time.sleep(0.1)
        finally:
            closer.close()
        assert all(process.poll() is None for process in sites.values())
        with Serving(whole) as server:
            told = server.job(R=4, seconds=300)
            assert told.rounds[-1].cohort == ["a", "b"]
            assert told.audit.deviation <= 1e-13 * told.audit.largest
            whole.check_replay()
    finally:
        whole.close()


def test_what_lives_and_does_nothing_is_ended_and_started_again(tmp_path, monkeypatch):
    for module in (operator, site):
        monkeypatch.setattr(module, "_STUCK", 5.0)
    monkeypatch.setattr(operator, "_DEAF", 12.0)
    monkeypatch.setattr(operator, "_ASK", 2.0)
    whole = Whole(tmp_path, "ab")
    for name in whole.names:
        whole.start_site(name)
    stopped = []

    def stop(event):
        if event.r == 2:
            victims = [
                server.superlink.pid,
                server.rounds.pid,
                whole.pid_of(whole.sites["a"], "processes.worker"),
            ]
            for pid in victims:
                os.kill(pid, signal.SIGSTOP)
            stopped.extend(victims)

    with Serving(whole) as server:
        told = server.job(300, stop, algorithm=SCAFFOLD, R=4, round_timeout=60)
        assert told.rounds[-1].cohort == ["a", "b"]
        said = whole.log()
        for name in ("the SuperLink", "the process of the rounds"):
            assert f"{name} has not moved for" in said, whole.logs()
        assert server.superlink.pid != stopped[0]
        assert "the worker has not moved for 30 seconds" in whole.log("a")
        whole.check_replay()


def test_a_straggler_skips_rounds_that_are_closed(tmp_path):
    whole = Whole(tmp_path, "abc")
    for name in whole.names:
        whole.start_site(name)
    with Serving(whole) as server:
        server.job(algorithm=SCAFFOLD, R=2, round_timeout=60)
        held = [whole.sites["c"].pid, *whole.descendants(whole.sites["c"])]
        for pid in held:
            os.kill(pid, signal.SIGSTOP)

        def awake(event):
            if event.r == 5:
                for pid in held:
                    os.kill(pid, signal.SIGCONT)

        told = server.job(400, awake, R=14, min_sites=2, round_timeout=8)
    cohorts = {event.r: event.cohort for event in told.rounds}
    assert any("c" in cohort for r, cohort in cohorts.items() if r > 5), whole.logs()
    worked = whole.log("c").count("work of round")
    counted = 2 + sum("c" in cohort for cohort in cohorts.values())
    # One request may have been on its way when the site was stopped, and one when it woke up.
    assert worked <= counted + 2, whole.log("c")
    whole.check_replay()


def test_a_damaged_database_is_made_anew(tmp_path):
    whole = Whole(tmp_path, "ab")
    database = whole.operator / "superlink.db"
    database.write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 100)
    for name in whole.names:
        whole.start_site(name)
    with Serving(whole) as server:
        server.job(algorithm=SCAFFOLD, R=2, round_timeout=60)
        assert "superlink.db" not in whole.log()  # That of a server that was killed is not used.

        def spoil(event):
            if event.r == 3:
                with open(database, "r+b") as file:
                    file.write(os.urandom(8192))
                for end in ("-wal", "-shm"):
                    database.with_name(database.name + end).unlink(missing_ok=True)
                os.kill(server.superlink.pid, signal.SIGKILL)

        told = server.job(400, spoil, R=5)
        assert told.rounds[-1].cohort == ["a", "b"]
        whole.check_replay()
        assert "superlink.db cannot be used; it is created again (no round is lost)." in whole.log()
    assert not list(whole.operator.glob("superlink.db*"))  # They hold updates of sites.


def test_proxies_of_the_environment_are_left_alone_and_a_chosen_one_is_used(tmp_path, monkeypatch):
    swallows, proxy = Closer(), ConnectProxy()
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(variable, f"http://127.0.0.1:{swallows.port}")
    whole = Whole(tmp_path, "ab", hosts=["::1"])
    assert SiteFolder.read(tmp_path / "sites" / "a").server.startswith("[::1]:")
    whole.start_site("a", TRIMTAB_PROXY=f"http://rome:hidden@127.0.0.1:{proxy.port}")
    whole.start_site("b")
    try:
        with Serving(whole) as server:
            assert [bound.getsockname()[0] for bound in server.superlink.listeners] == ["::1"]
            told = server.job(algorithm=SCAFFOLD, R=2, round_timeout=60)
            assert told.rounds[-1].cohort == ["a", "b"]
            for process in whole.sites.values():
                commands = " ".join(whole.descendants(process).values())
                assert "hidden" not in commands
    finally:
        swallows.close()
        proxy.close()
    assert swallows.asked == []
    targets = {target.replace("[", "").replace("]", "") for _, target, _ in proxy.asked}
    assert targets == {f"::1:{whole.federation.port}"}  # httpx writes it without brackets
    assert all(b"Basic cm9tZTpoaWRkZW4=" in head for *_, head in proxy.asked)


def test_a_clock_that_is_off_is_named_in_both_logs(tmp_path):
    whole = Whole(tmp_path, "ab")
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "sitecustomize.py").write_text(LATE)
    whole.start_site("a")
    whole.start_site("b", PYTHONPATH=str(tmp_path / "late"))
    with Serving(whole) as server:
        told = server.job(algorithm=SCAFFOLD, R=1, round_timeout=10, min_sites=1)
        assert told.rounds[0].cohort == ["a"]
        whole.wait_for("refused site b at 127.0.0.1: its clock is 4")
        whole.wait_for("seconds behind the server's; set both by NTP", "b")
        assert re.search(r"this machine's clock is (399|40\d) seconds behind", whole.log("b"))


LATE = """
import datetime, time
real, now = time.time, datetime.datetime.now
time.time = lambda: real() - 400
class Late(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return now(tz) - datetime.timedelta(seconds=400)
datetime.datetime = Late
"""


def test_a_cut_or_slow_way_is_no_more_than_a_pause(tmp_path):
    whole = Whole(tmp_path, "ab")
    relay = Relay(whole.federation.port)
    whole.lead("b", relay.port)
    for name in whole.names:
        whole.start_site(name)

    def fault(event):
        relay.fault = {1: "slow", 2: "reset", 3: "hole"}.get(event.r, "")
        if relay.fault in ("reset", "hole"):
            relay.drop()
            time.sleep(3)
            relay.fault = ""
            relay.drop()

    try:
        with Serving(whole) as server:
            told = server.job(300, fault, algorithm=SCAFFOLD, R=5, round_timeout=60)
            assert told.rounds[-1].cohort == ["a", "b"]
            whole.check_replay()
    finally:
        relay.close()
