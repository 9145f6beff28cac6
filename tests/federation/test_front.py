"""The front, over real sockets: what it lets through, what it refuses, and what it says of it."""

import base64
import http.client
import socket
import ssl
import threading
from contextlib import suppress
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node

from trimtab.federation.log import attached
from trimtab.federation.processes.ports import probe
from trimtab.federation.storage import keys
from trimtab.federation.transport.flower.front import Front


class SuperLink(BaseHTTPRequestHandler):
    """Answers what it gets: the path and the body."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(self.server.status)
        content = self.path.encode() + b" " + body
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def place(tmp_path):
    keys.make_authority(tmp_path)
    keys.make_server_certificate(tmp_path, ["127.0.0.1"])
    _, public = keys.make_site_key()
    upstream = ThreadingHTTPServer(("127.0.0.1", 0), SuperLink)
    upstream.status, upstream.daemon_threads = 200, True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    upstream.socket = context.wrap_socket(upstream.socket, server_side=True)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    lines = []
    front = make_front(tmp_path, upstream.server_address[1], {"rome": public})
    with attached(follow=lines.append):
        yield Place(tmp_path, front, upstream, public, lines)
    front.close()
    upstream.shutdown()
    upstream.server_close()


class Place:
    def __init__(self, folder, front, upstream, public, lines):
        self.folder, self.front, self.upstream = folder, front, upstream
        self.public, self.lines = public, lines

    def post(self, path, body=b"", key=None, method="POST"):
        trust = ssl.create_default_context(cafile=self.folder / "ca.crt")
        link = http.client.HTTPSConnection("127.0.0.1", self.front.port, timeout=10, context=trust)
        public = (self.public if key is None else key).encode()
        link.request(method, path, body, {"flwr-public-key": base64.b64encode(public).decode()})
        response = link.getresponse()
        found = response.status, response.read()
        link.close()
        return found


def make_front(folder, upstream, sites, port=0):
    certificates = folder / "server.crt", folder / "server.key"
    front = Front(("127.0.0.1", port), *certificates, upstream, folder / "ca.crt", sites)
    front.start()
    return front


def test_the_fleet_path_is_passed_on_and_counted(place):
    body = b"x" * 100_000
    assert place.post("/v1/fleet/pull-messages", body) == (200, b"/v1/fleet/pull-messages " + body)
    traffic = place.front.traffic()
    assert 0 < traffic.up["rome"] - len(body) < 1000
    assert 0 < traffic.down["rome"] - len(body) < 1000
    assert place.lines == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/control/start-run"),
        ("POST", "/v1/runtime/acquire-task"),
        ("GET", "/v1/fleet/pull-messages"),
        ("POST", "/v1/fleet/../control/start-run"),
        ("POST", "/v1/fleet/%2e%2e/control/start-run"),
        ("POST", "/"),
    ],
)
def test_everything_else_is_refused_and_logged(place, method, path):
    assert place.post(path, method=method)[0] == 403
    (line,) = place.lines
    assert line == f"warning: refused 127.0.0.1: {method} {path}; only the fleet path is open."


def test_an_unknown_key_is_refused_and_its_fingerprint_logged(place):
    _, stranger = keys.make_site_key()
    assert place.post("/v1/fleet/activate-node", key=stranger)[0] == 403
    assert place.lines == [
        f"warning: refused 127.0.0.1: an unknown key ({keys.fingerprint(stranger)}); no site of "
        "this federation has it."
    ]
    assert place.post("/v1/fleet/activate-node", key="")[0] == 403
    assert "an unknown key (none)" in place.lines[-1]


def test_a_key_is_let_in_and_out_while_the_front_stands(place):
    _, newcomer = keys.make_site_key()
    place.front.admit({"oslo": newcomer})
    assert place.post("/v1/fleet/pull-messages", key=newcomer)[0] == 200
    assert place.post("/v1/fleet/pull-messages")[0] == 403


def test_a_second_node_under_a_name_is_logged(place):
    place.upstream.status = 409
    assert place.post("/v1/fleet/activate-node")[0] == 409
    assert (
        "refused a node under the name rome at 127.0.0.1: that site is connected" in place.lines[0]
    )


def test_a_bad_signature_is_logged(place):
    place.upstream.status = 401
    assert place.post("/v1/fleet/pull-messages")[0] == 401
    assert "refused site rome at 127.0.0.1: its signature is not valid." in place.lines[0]


def test_nobody_answers_in_the_name_of_another_node(place):
    def push(sender):
        messages = [Message(metadata=Metadata(src_node_id=sender))]
        request = PushMessagesRequest(node=Node(node_id=1), messages_list=messages)
        return place.post("/v1/fleet/push-messages", request.SerializeToString())[0]

    assert push(1) == 200
    assert push(2) == 403
    assert (
        "refused site rome at 127.0.0.1: it answers in the name of another node." in place.lines[0]
    )
    assert place.post("/v1/fleet/push-messages", b"\xff\xff")[0] == 403
    assert "a message that cannot be read." in place.lines[1]


def test_a_plain_text_connection_is_refused_and_logged(place):
    with socket.create_connection(("127.0.0.1", place.front.port), timeout=10) as plain:
        plain.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\n\r\n")
        with suppress(ConnectionResetError):
            assert plain.recv(100) == b""
    assert place.lines == [
        "warning: refused 127.0.0.1: a plain-text connection; only TLS is spoken here."
    ]


def test_a_client_that_trusts_another_authority_is_logged(place, tmp_path):
    (tmp_path / "other").mkdir()
    keys.make_authority(tmp_path / "other")
    said = probe(f"127.0.0.1:{place.front.port}", tmp_path / "other" / "ca.crt")
    assert "it is not the server for which this site's archive was made" in said
    for _ in range(100):
        if place.lines:
            break
        threading.Event().wait(0.05)
    assert "the TLS handshake failed" in place.lines[0]


def test_an_expired_certificate_is_refused_by_the_site(place):
    assert probe(f"127.0.0.1:{place.front.port}", place.folder / "ca.crt") == ""
    keys.make_server_certificate(place.folder, ["127.0.0.1"], lasts=timedelta(hours=-1))
    expired = make_front(place.folder, 1, {})
    try:
        said = probe(f"127.0.0.1:{expired.port}", place.folder / "ca.crt")
        assert said.startswith(f"refused the server at 127.0.0.1:{expired.port}: its certificate ")
        assert "has expired; the operator writes a new one with `trimtab federate renew`" in said
    finally:
        expired.close()


def test_a_server_that_is_not_there_is_tried_again(place):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        said = probe(f"127.0.0.1:{nobody.getsockname()[1]}", place.folder / "ca.crt")
    assert said.endswith("cannot be reached (Connection refused); trying on.")


def test_while_the_superlink_is_away_sites_are_told_to_try_again(place):
    place.upstream.shutdown()
    place.upstream.server_close()
    assert place.post("/v1/fleet/pull-messages")[0] == 503


def test_what_is_too_large_is_refused_unread(place):
    trust = ssl.create_default_context(cafile=place.folder / "ca.crt")
    with (
        socket.create_connection(("127.0.0.1", place.front.port), timeout=10) as plain,
        trust.wrap_socket(plain, server_hostname="127.0.0.1") as link,
    ):
        link.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n")
        assert link.recv(100).startswith(b"HTTP/1.1 403")


def test_equal_lines_are_not_repeated_at_once(place):
    for _ in range(5):
        place.post("/v1/control/list-runs")
    assert len(place.lines) == 1
