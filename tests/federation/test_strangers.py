"""Strangers at the guard, in a process of its own: many, slow and large; sites notice nothing."""

import contextlib
import http.client
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.helpers.guarded import guarded_process, signed
from trimtab.federation.log import attached
from trimtab.federation.storage import keys

pytestmark = pytest.mark.federation
CONNECTIONS = 1000
LARGE, LARGEST = 24, 64 << 20
OWN = 5 << 20  # Flower sends objects in pieces of this size
RESIDENT = 500 << 20


@pytest.fixture
def place(tmp_path):
    keys.make_authority(tmp_path)
    keys.make_server_certificate(tmp_path, ["127.0.0.1"])
    private, public = keys.make_site_key()
    process, lines = guarded_process(tmp_path, {"rome": public}), []
    with attached(follow=lines.append):
        process.start()
        place = Place(tmp_path, process, (private, public), lines)
        assert post_at_last(place) == 200
        yield place
        process.close()


class Place:
    def __init__(self, folder, process, key, lines):
        self.folder, self.process, self.key, self.lines = folder, process, key, lines
        self.trust = ssl.create_default_context(cafile=folder / "ca.crt")

    def link(self):
        where = "127.0.0.1", self.process.public_port
        return http.client.HTTPSConnection(*where, timeout=60, context=self.trust)

    def secured(self):
        plain = socket.create_connection(("127.0.0.1", self.process.public_port), timeout=20)
        return self.trust.wrap_socket(plain, server_hostname="127.0.0.1")

    def most_resident(self):
        """Return the most memory that the process has ever had, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) << 10


def post(link, key, body=b"x" * 1000, path="/v1/fleet/push-object"):
    link.request("POST", path, body, signed(*key))
    response = link.getresponse()
    content = response.read()
    return response.status, len(content)


class Site(threading.Thread):
    """A site that is connected, and says something all the time."""

    def __init__(self, place):
        super().__init__(daemon=True)
        self.place, self.answers, self.over = place, [], threading.Event()

    def run(self):
        link = self.place.link()
        while not self.over.wait(0.1):
            try:
                self.answers.append(post(link, self.place.key)[0])
            except (OSError, http.client.HTTPException) as error:
                self.answers.append(repr(error))
                link.close()
        link.close()


def wait_until(true, seconds=60):
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.1)


def post_at_last(place, attempts=5):
    """Post over a new connection; one that was shed tries again, as a site does."""
    for attempt in range(attempts):
        link = place.link()
        try:
            return post(link, place.key)[0]
        except (OSError, http.client.HTTPException):
            time.sleep(attempt)
        finally:
            link.close()
    raise AssertionError("no newcomer comes in")


@contextlib.contextmanager
def connected(place):
    """Have a site at work meanwhile, and see that it was answered each time."""
    site = Site(place)
    site.start()
    wait_until(lambda: site.answers)
    yield site
    before = len(site.answers)
    wait_until(lambda: len(site.answers) >= before + 3)
    site.over.set()
    site.join()
    assert set(site.answers) == {200}


def test_a_thousand_slow_connections_leave_sites_undisturbed(place):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * CONNECTIONS), hard))
    links = []
    try:
        with connected(place):
            for number in range(CONNECTIONS):
                link = socket.create_connection(
                    ("127.0.0.1", place.process.public_port), timeout=20
                )
                with contextlib.suppress(OSError):
                    link.sendall(b"\x16\x03\x01" if number % 2 else b"\x16")  # TLS, very slowly
                links.append(link)
            for link in links[::10]:
                with contextlib.suppress(OSError):
                    link.sendall(b"\x02")
            assert post_at_last(place) == 200
            drip(place)
        assert place.most_resident() < RESIDENT
        assert place.process.starts == 1
    finally:
        for link in links:
            link.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not [line for line in place.lines if "the guard failed" in line]


def drip(place, number=100):
    """Shake hands, then send the head of a request letter by letter; the guard closes in time."""
    links = []
    for _ in range(number):
        with contextlib.suppress(OSError):
            links.append(place.secured())
    over = time.monotonic() + 60
    while links and time.monotonic() < over:
        for link in list(links):
            try:
                link.sendall(b"P")
            except OSError:
                links.remove(link)
                link.close()
        time.sleep(0.5)
    assert not links


def test_large_bodies_leave_memory_and_sites_alone(place):
    def send(headers, path):
        head = f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {LARGEST}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        with contextlib.suppress(OSError), place.secured() as link:
            link.sendall(head.encode() + b"\r\n")
            for _ in range(LARGEST >> 16):
                link.sendall(bytes(1 << 16))
                link.settimeout(20)

    _, other = keys.make_site_key()
    stolen = signed(keys.make_site_key()[0], place.key[1])
    kinds = [
        ({}, "/v1/fleet/push-object"),
        ({"flwr-public-key": other[:20]}, "/v1/fleet/push-object"),
        (stolen, "/v1/fleet/push-object"),
        (signed(*place.key), "/v1/control/start-run"),
        (signed(*place.key), "/v1/fleet/push-messages"),
    ]
    with connected(place):
        threads = [
            threading.Thread(target=send, args=kinds[number % len(kinds)], daemon=True)
            for number in range(LARGE)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads)
    link = place.link()
    body = bytes(OWN)
    status, length = post(link, place.key, body, "/v1/fleet/push-object")  # a site's own passes
    link.close()
    assert (status, length) == (200, OWN + len("/v1/fleet/push-object "))
    assert place.most_resident() < RESIDENT
    assert place.process.starts == 1
    up = place.process.traffic().up["rome"]
    assert OWN < up < 2 * OWN


def test_a_superlink_that_dies_is_started_again_and_goes_on_counting(place):
    link = place.link()
    assert post(link, place.key)[0] == 200
    link.close()
    before = place.process.traffic()
    place.process.kill()
    assert place.process.supervise() == -signal.SIGKILL
    wait_until(lambda: place.process.supervise() is None and place.process.alive)
    assert post_at_last(place) == 200  # the port was ours all the time
    after = place.process.traffic()
    assert before.up["rome"] > 1000
    assert after.up["rome"] > 1000 + before.up["rome"]
    _, newcomer = keys.make_site_key()
    place.process.admit({"oslo": newcomer})
    wait_until(lambda: post_at_last(place) == 403)


@pytest.mark.parametrize("module", ["transport.flower.superlink", "transport.flower.line"])
def test_what_only_carries_needs_no_torch(module):
    code = f"import sys, trimtab.federation.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
