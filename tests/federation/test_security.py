"""Who is refused, and how the log says it: a whole federation, over real sockets."""

import http.client
import json
import shutil
import socket
import ssl
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from tests.helpers import rogue_site
from tests.helpers.guarded import Guarded
from tests.helpers.whole_federation import Serving, Whole
from trimtab import Scaffold
from trimtab.federation.storage import keys

pytestmark = pytest.mark.federation

ROOT = Path(__file__).parents[2]


def test_strangers_and_liars_are_refused_and_named_in_the_log(tmp_path):
    whole = Whole(tmp_path, "abc")
    for name in "ac":
        whole.start_site(name)
    whole.sites["b"] = start_rogue(whole, "b")
    strangers = [twin(whole, "a", "second"), twin(whole, "a", "stranger", keys.make_site_key()[0])]
    with Serving(whole) as server:
        whole.wait_for("connecting to", "a")

        def on_round(event):
            if event.r == 1:
                for folder in strangers:
                    whole.start_site("a", folder=folder)

        honest = whole.sites["a"]
        told = server.job(
            *(300, on_round), algorithm=Scaffold(eta_l=0.3, K=4), R=9, min_sites=2, round_timeout=60
        )
        assert honest.poll() is None

        # wrong shape, dtype, NaN, absurd norm, version, name: that site sits the round out
        assert [event.r for event in told.rounds] == list(range(1, 10))
        for event in told.rounds:
            if event.r in rogue_site.WAYS:
                assert event.cohort == ["a", "c"], event
                assert rogue_site.WAYS[event.r][1] in event.absent["b"]
                assert any(
                    "site b sits out" in line and rogue_site.WAYS[event.r][1] in line
                    for line in whole.log().splitlines()
                ), event
        assert told.rounds[-1].cohort == ["a", "b", "c"]
        assert told.audit.deviation <= 1e-13 * told.audit.largest
        whole.check_replay()

        # an unknown key, and a second node under a registered name
        whole.wait_for("an unknown key (SHA256:")
        whole.wait_for("refused a node under the name a at 127.0.0.1: that site is connected")
        whole.wait_for("another copy of this site is running, at 127.0.0.1", "a")
        stranger = whole.folder / "elsewhere" / "stranger" / "logs" / "site.log"
        assert "the server does not know the key SHA256:" in stranger.read_text()

        # Control: not through the guard, and not from outside at all
        trust = ssl.create_default_context(cafile=whole.federation.keys / "ca.crt")
        link = http.client.HTTPSConnection("127.0.0.1", server.superlink.public_port, context=trust)
        link.request("POST", "/v1/control/list-runs", b"")
        assert link.getresponse().status == 403
        link.close()
        whole.wait_for("refused 127.0.0.1: POST /v1/control/list-runs; only the fleet path is open")
        assert listening_on(server.port) == {"127.0.0.1"}

        # plain text
        with socket.create_connection(
            ("127.0.0.1", server.superlink.public_port), timeout=10
        ) as plain:
            plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
            whole.wait_for("refused 127.0.0.1: a plain-text connection; only TLS is spoken here.")

        # an expired certificate: the server does not start with it, and sites refuse it
        server.close()
        keys.make_server_certificate(whole.federation.keys, ["127.0.0.1"], timedelta(days=-1))
        with pytest.raises(ValueError, match=r"expired on .*federate renew"):
            Serving(whole)
        expired = guard_at(whole, server.superlink.public_port)
        try:
            whole.wait_for("its certificate has expired; the operator writes a new one", "a")
        finally:
            expired.close()


def start_rogue(whole, name):
    folder = whole.folder / "sites" / name
    (folder / "logs").mkdir()
    with open(folder / "logs" / "output.log", "ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", rogue_site.__name__, str(folder), str(whole.data(name))],
            cwd=ROOT,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def twin(whole, name, called, key=None):
    """Return a copy of a site's folder, with another key if one is given."""
    folder = whole.folder / "elsewhere" / called
    shutil.copytree(whole.folder / "sites" / name, folder, ignore=lambda *_: ["run", "state"])
    if key is not None:
        (folder / "site.key").write_bytes(key)
        about = json.loads((folder / "site.json").read_text())
        own = {k: v for k, v in about.items() if k not in ("key", "sha256")}
        (folder / "site.json").write_text(json.dumps(own))
    return folder


def guard_at(whole, port):
    """Return a guard with the certificate as it is now, at the port that sites know."""
    until = time.monotonic() + 30
    while True:
        try:
            return Guarded(whole.federation.keys, {}, port)
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.2)


def listening_on(port):
    """Return the addresses on which this machine listens at a port."""
    found = set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(path).read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            host, number = local.split(":")
            if int(number, 16) == port and state == "0A":
                found.add(socket.inet_ntoa(bytes.fromhex(host)[::-1]) if len(host) == 8 else host)
    return found
