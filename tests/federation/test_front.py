"""The front, over real sockets: what it lets through, what it refuses, and what it says of it."""

import base64
import http.client
import socket
import ssl
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node

from trimtab.federation.log import attached
from trimtab.federation.processes.ports import listener, probe
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
    private, public = keys.make_site_key()
    upstream = ThreadingHTTPServer(("127.0.0.1", 0), SuperLink)
    upstream.status, upstream.daemon_threads = 200, True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    upstream.socket = context.wrap_socket(upstream.socket, server_side=True)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    lines = []
    front = make_front(tmp_path, upstream.server_address[1], {"rome": public})
    with attached(follow=lines.append):
        yield Place(tmp_path, front, upstream, (private, public), lines)
    front.close()
    upstream.shutdown()
    upstream.server_close()


class Place:
    def __init__(self, folder, front, upstream, key, lines):
        self.folder, self.front, self.upstream = folder, front, upstream
        self.key, self.lines = key, lines

    def post(self, path, body=b"", key=None, method="POST", **signing):
        trust = ssl.create_default_context(cafile=self.folder / "ca.crt")
        link = http.client.HTTPSConnection("127.0.0.1", self.front.port, timeout=10, context=trust)
        link.request(method, path, body, signed(*(key or self.key), **signing))
        response = link.getresponse()
        found = response.status, response.read()
        link.close()
        return found

    def open(self):
        trust = ssl.create_default_context(cafile=self.folder / "ca.crt")
        plain = socket.create_connection(("127.0.0.1", self.front.port), timeout=10)
        return trust.wrap_socket(plain, server_hostname="127.0.0.1")


def signed(private, public, ahead=0.0):
    """Return the headers with which a SuperNode signs, at a time by its own clock."""
    at = (datetime.now(UTC) + timedelta(seconds=ahead)).isoformat()
    signature = load_ssh_private_key(private, None).sign(at.encode(), ec.ECDSA(hashes.SHA256()))
    return {
        "flwr-public-key": base64.b64encode(public.encode()).decode(),
        "flwr-timestamp": at,
        "flwr-signature": base64.b64encode(signature).decode(),
    }


def make_front(folder, upstream, sites, port=0):
    certificates = folder / "server.crt", folder / "server.key"
    bound = [listener("127.0.0.1", port)]
    front = Front(bound, *certificates, upstream, folder / "ca.crt", sites)
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
    stranger = keys.make_site_key()
    assert place.post("/v1/fleet/activate-node", key=stranger)[0] == 403
    assert place.lines == [
        f"warning: refused 127.0.0.1: an unknown key ({keys.fingerprint(stranger[1])}); no site of "
        "this federation has it."
    ]
    assert place.post("/v1/fleet/activate-node", key=(stranger[0], ""))[0] == 403
    assert "an unknown key (none)" in place.lines[-1]


def test_a_key_is_let_in_and_out_while_the_front_stands(place):
    newcomer = keys.make_site_key()
    place.front.admit({"oslo": newcomer[1]})
    assert place.post("/v1/fleet/pull-messages", key=newcomer)[0] == 200
    assert place.post("/v1/fleet/pull-messages")[0] == 403


def test_a_second_node_under_a_name_is_logged(place):
    place.upstream.status = 409
    assert place.post("/v1/fleet/activate-node")[0] == 409
    assert (
        "refused a node under the name rome at 127.0.0.1: that site is connected" in place.lines[0]
    )


def test_a_bad_signature_is_refused_unread_and_logged(place):
    thief = keys.make_site_key()[0], place.key[1]
    assert place.post("/v1/fleet/pull-messages", b"x" * 100_000, key=thief)[0] == 401
    assert "refused site rome at 127.0.0.1: its signature is not valid." in place.lines[0]
    assert place.front.traffic().up == {}


@pytest.mark.parametrize(
    ("ahead", "status", "said"),
    [
        (6.5, 401, "refused site rome at 127.0.0.1: its clock is 6 seconds ahead of the server's"),
        (-311, 401, "refused site rome at 127.0.0.1: its clock is 311 seconds behind the server's"),
        (-100, 200, "site rome's clock is 100 seconds behind the server's; set both by NTP"),
    ],
)
def test_a_clock_that_is_off_is_named_with_its_offset(place, ahead, status, said):
    assert place.post("/v1/fleet/pull-messages", ahead=ahead)[0] == status
    (line,) = place.lines
    assert line.startswith(f"warning: {said}")


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


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999", 403),
        (b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked", 403),
        (b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: a\r\ncontent-length: -1", 400),
        (b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: a\r\ncontent-length: 1e3", 400),
        (b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: a\r\ncontent-length: \xc2\xb2", 400),
        (b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip", 501),
        (b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: a\r\nflwr-public-key: \x01\x1b[2J", 403),
        (b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: a\r\nflwr-public-key: \xff\xfe", 403),
        (b"POST /v1/fleet/\x1b[2J HTTP/1.1\r\nhost: a", 400),
        (b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 100_000, 431),
        (b"\x00\x01\x02\x03", 400),
        (b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nhost: a", 403),
    ],
)
def test_whatever_is_odd_gets_an_answer_and_a_line_that_is_plain(place, request_, status):
    with place.open() as link:
        link.sendall(request_ + b"\r\n\r\n")
        assert link.recv(100).startswith(b"HTTP/1.1 %d " % status)
    (line,) = place.lines
    assert line.isprintable()
    assert len(line) < 300
    assert "the front failed" not in line
    assert place.post("/v1/fleet/pull-messages")[0] == 200


def test_a_body_that_announces_itself_is_asked_for_after_the_key_was_seen(place):
    head = b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\n"
    head += b"content-length: 5\r\n"
    with place.open() as link:
        link.sendall(head + b"\r\n")
        assert link.recv(100).startswith(b"HTTP/1.1 403")
    for name, value in signed(*place.key).items():
        head += f"{name}: {value}\r\n".encode()
    with place.open() as link:
        link.sendall(head + b"\r\n")
        assert link.recv(100).startswith(b"HTTP/1.1 100")
        link.sendall(b"12345")
        assert link.recv(100).startswith(b"HTTP/1.1 200")


def test_refusals_of_many_kinds_do_not_fill_the_log(place):
    for number in range(100):
        place.front.refusals.say("a stranger", f"reason {number}.")
    assert 50 < len(place.lines) < 70
    assert "many are refused" in place.lines[-1]


def test_equal_lines_are_not_repeated_at_once(place):
    for _ in range(5):
        place.post("/v1/control/list-runs")
    assert len(place.lines) == 1
