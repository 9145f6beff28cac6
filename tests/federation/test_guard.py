"""The guard, over real sockets: what it lets through, what it refuses, and what it says of it."""

import http.client
import socket
import ssl
import threading
import time
from contextlib import ExitStack, suppress

import pytest

pytest.importorskip("flwr")

from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    Message,
    Metadata,
    ObjectTree,
    PullObjectRequest,
)
from flwr.proto.node_pb2 import Node

from tests.helpers.guarded import Guarded, signed
from trimtab.federation.log import attached
from trimtab.federation.storage import keys
from trimtab.federation.transport.flower import connections
from trimtab.federation.transport.flower import guard as guards


@pytest.fixture
def place(tmp_path):
    keys.make_authority(tmp_path)
    keys.make_server_certificate(tmp_path, ["127.0.0.1"])
    private, public = keys.make_site_key()
    lines = []
    guarded = Guarded(tmp_path, {"rome": public}, limit=5 << 20, hold=2.0)
    with attached(follow=lines.append):
        yield Place(tmp_path, guarded, (private, public), lines)
    guarded.close()


class Place:
    def __init__(self, folder, guarded, key, lines):
        self.folder, self.guarded, self.guard = folder, guarded, guarded.guard
        self.app, self.port = guarded.app, guarded.port
        self.key, self.lines = key, lines

    def post(self, path, body=b"", key=None, method="POST", **signing):
        trust = ssl.create_default_context(cafile=self.folder / "ca.crt")
        link = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=10, context=trust)
        link.request(method, path, body, signed(*(key or self.key), **signing))
        response = link.getresponse()
        found = response.status, response.read()
        link.close()
        return found

    def open(self):
        trust = ssl.create_default_context(cafile=self.folder / "ca.crt")
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        return trust.wrap_socket(plain, server_hostname="127.0.0.1")


def test_the_fleet_path_is_passed_on_and_counted(place):
    body = b"x" * 100_000
    assert place.post("/v1/fleet/push-object", body) == (200, b"/v1/fleet/push-object " + body)
    assert 0 < place.guard.up["rome"] - len(body) < 1000
    assert 0 < place.guard.down["rome"] - len(body) < 1000
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


def test_a_key_is_let_in_and_out_while_the_guard_stands(place):
    newcomer = keys.make_site_key()
    place.guarded.call(place.guard.keys.admit, {"oslo": newcomer[1]})
    assert place.post("/v1/fleet/pull-messages", key=newcomer)[0] == 200
    assert place.post("/v1/fleet/pull-messages")[0] == 403


def test_a_second_node_under_a_name_is_logged(place):
    place.app.status = 409
    assert place.post("/v1/fleet/activate-node")[0] == 409
    assert (
        "refused a node under the name rome at 127.0.0.1: that site is connected" in place.lines[0]
    )


def test_a_bad_signature_is_refused_unread_and_logged(place):
    thief = keys.make_site_key()[0], place.key[1]
    assert place.post("/v1/fleet/push-object", b"x" * 100_000, key=thief)[0] == 401
    assert "refused site rome at 127.0.0.1: its signature is not valid." in place.lines[0]
    assert place.guard.up == {}


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


def tree(name, *children):
    return ObjectTree(object_id=name, children=children)


def reply(sender=1, to="request", objects=None):
    """Return what node 1 pushes to announce a reply."""
    messages = [Message(metadata=Metadata(src_node_id=sender, reply_to_message_id=to))]
    request = PushMessagesRequest(node=Node(node_id=1), messages_list=messages)
    request.message_object_trees.append(objects or tree("message", tree("records")))
    return request.SerializeToString()


def announce(place, objects):
    """Let the site look for a request, and get one of these objects."""
    found = PullMessagesResponse(messages_list=[Message()], message_object_trees=[objects])
    place.app.answers["/v1/fleet/pull-messages"] = found.SerializeToString()
    assert place.post("/v1/fleet/pull-messages")[0] == 200


def test_nobody_answers_in_the_name_of_another_node(place):
    assert place.post("/v1/fleet/push-messages", reply(1))[0] == 200
    assert place.post("/v1/fleet/push-messages", reply(2))[0] == 403
    assert (
        "refused site rome at 127.0.0.1: it answers in the name of another node." in place.lines[0]
    )
    assert place.post("/v1/fleet/push-messages", b"\xff\xff")[0] == 403
    assert "a message that cannot be read (it is no protobuf)." in place.lines[1]
    assert place.app.asked == ["/v1/fleet/push-messages"]


@pytest.mark.parametrize(
    ("path", "kind", "name"),
    [
        ("/v1/fleet/pull-object", PullObjectRequest, "object_id"),
        ("/v1/fleet/confirm-message-received", ConfirmMessageReceivedRequest, "message_object_id"),
    ],
)
def test_a_site_gets_the_objects_that_were_announced_to_it_alone(place, path, kind, name):
    own, other = (kind(**{name: id_}).SerializeToString() for id_ in ("chunk", "another's"))
    assert place.post(path, own) == (200, b"")  # as Flower says that there is no such object
    assert "it asks for an object that is not its own." in place.lines[0]
    announce(place, tree("request", tree("records", tree("chunk"))))
    assert place.post(path, own)[1] == path.encode() + b" " + own
    assert place.post(path, other) == (200, b"")
    assert place.post(path, b"\xff\xff") == (200, b"")
    assert place.app.asked.count(path) == 1


def test_a_reply_has_no_more_objects_and_levels_than_the_model_allows(place):
    def announced(count):
        chunks = [tree(f"chunk{number}") for number in range(count)]
        return reply(objects=tree("message", tree("records", tree("record", tree("a", *chunks)))))

    assert place.post("/v1/fleet/push-messages", announced(4))[0] == 200
    assert place.post("/v1/fleet/push-messages", announced(5))[0] == 403
    assert "a reply of 9 objects; the model allows 8." in place.lines[0]
    place.guard.limit = 100 << 20
    assert place.post("/v1/fleet/push-messages", announced(20))[0] == 200
    deep = tree("0", tree("1", tree("2", tree("3", tree("4", tree("5"))))))
    assert place.post("/v1/fleet/push-messages", reply(objects=deep))[0] == 403
    assert "its objects are > 5 levels deep" in place.lines[1]


def test_a_reply_cannot_alter_an_object_of_the_servers(place):
    """Flower keeps the children that it was told first, and refuses others for everybody."""
    announce(place, tree("request", tree("records", tree("chunk"))))
    same = reply(objects=tree("message", tree("records", tree("chunk"))))
    assert place.post("/v1/fleet/push-messages", same)[0] == 200
    other = reply(objects=tree("message", tree("records", tree("another"))))
    assert place.post("/v1/fleet/push-messages", other)[0] == 403
    assert "a reply that alters an object of the server's." in place.lines[0]


def test_a_request_is_replied_to_some_times_at_most(place):
    for _ in range(4):
        assert place.post("/v1/fleet/push-messages", reply())[0] == 200
    assert place.post("/v1/fleet/push-messages", reply())[0] == 403
    assert place.post("/v1/fleet/push-messages", reply(to="another"))[0] == 200


@pytest.mark.parametrize(
    ("path", "size"),
    [
        ("push-object", (320 << 10) + (64 << 10)),
        ("push-messages", 4 << 20),
        ("activate-node", 64 << 10),
    ],
)
def test_a_body_that_is_too_large_for_the_model_is_refused_unread(place, path, size):
    place.guard.limit = 1000
    with place.open() as link:
        head = f"POST /v1/fleet/{path} HTTP/1.1\r\nhost: a\r\ncontent-length: {size + 1}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in signed(*place.key).items())
        link.sendall(head.encode() + b"expect: 100-continue\r\n\r\n")
        assert link.recv(100).startswith(b"HTTP/1.1 403")
    assert "a request that is too large" in place.lines[0]


# -- long polling


class Looks:
    """Looks for requests in a thread."""

    def __init__(self, place):
        self.found = []
        self.thread = threading.Thread(
            target=lambda: self.found.append(place.post("/v1/fleet/pull-messages"))
        )
        self.thread.start()


def held(place, looks):
    """Wait until so many looks have reached the app and are held."""
    until = time.monotonic() + 10
    while place.app.asked.count("/v1/fleet/pull-messages") < looks:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_look_for_requests_is_answered_when_the_rounds_have_pushed_one(place):
    place.guard.hold = 60.0
    place.app.answers["/v1/fleet/pull-messages"] = b""
    look = Looks(place)
    held(place, 1)
    place.guarded.push()
    held(place, 2)  # another site's: it goes on waiting
    assert look.found == []
    place.app.answers["/v1/fleet/pull-messages"] = b"a message"
    place.guarded.push()
    look.thread.join(10)
    assert look.found == [(200, b"a message")]


def test_the_rounds_wait_for_a_reply_and_no_longer_than_a_round_may(place, monkeypatch):
    path = "/v1/runtime/pull-messages"
    monkeypatch.setattr(guards, "_HOLD_ROUNDS", 60.0)
    look = place.guarded.look_for_replies()
    assert place.post("/v1/fleet/activate-node")[0] == 200
    assert path not in place.app.asked
    assert place.post("/v1/fleet/push-object", b"a part")[0] == 200
    look.result(10)
    look = place.guarded.look_for_replies()
    assert place.post("/v1/fleet/push-messages", reply())[0] == 200
    look.result(10)
    assert place.app.asked.count(path) == 2
    monkeypatch.setattr(guards, "_HOLD_ROUNDS", 0.0)
    place.guarded.look_for_replies().result(10)


def test_a_look_for_requests_ends_after_a_while_without_one(place):
    place.app.answers["/v1/fleet/pull-messages"] = b""
    place.guard.hold = 0.0
    place.guarded.push()
    assert place.post("/v1/fleet/pull-messages") == (200, b"")


@pytest.mark.parametrize("path", ["pull-messages", "activate-node"])
def test_a_request_is_not_given_to_a_look_that_has_been_followed_by_another(place, path):
    """Looking claims a message: one that is given to a dead connection is lost."""
    place.guard.hold = 60.0
    place.app.answers["/v1/fleet/pull-messages"] = b""
    earlier = Looks(place)
    held(place, 1)
    later = Looks(place) if path == "pull-messages" else None
    if later is None:
        assert place.post("/v1/fleet/activate-node")[0] == 200
    else:
        held(place, 2)
    messages = [b"", b"a message"] if later is None else [b"a message", b""]
    place.app.answers["/v1/fleet/pull-messages"] = lambda _: messages.pop(0) if messages else b""
    place.guarded.push()
    earlier.thread.join(10)
    assert earlier.found == [(200, b"")]
    if later is not None:
        later.thread.join(10)
        assert later.found == [(200, b"a message")]


def test_a_request_is_not_given_to_a_look_whose_connection_is_gone(place):
    place.guard.hold = 60.0
    place.app.answers["/v1/fleet/pull-messages"] = b""
    with place.open() as link:
        head = "POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in signed(*place.key).items())
        link.sendall(head.encode() + b"\r\n")
        held(place, 1)
    until = time.monotonic() + 10
    while place.guarded.connections.open:
        assert time.monotonic() < until
        time.sleep(0.01)
    place.guarded.push()
    place.guarded.push()
    assert place.app.asked.count("/v1/fleet/pull-messages") == 1


def test_a_plain_text_connection_is_refused_and_logged(place):
    with socket.create_connection(("127.0.0.1", place.port), timeout=10) as plain:
        plain.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\n\r\n")
        with suppress(ConnectionResetError):
            assert plain.recv(100) == b""
    assert place.lines == [
        "warning: refused 127.0.0.1: a plain-text connection; only TLS is spoken here."
    ]


def test_a_superlink_that_is_busy_is_to_be_asked_again(place):
    place.app.status = 500
    assert place.post("/v1/fleet/push-object")[0] == 503


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999", 403),
        (b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked", 403),
        (b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: a\r\ncontent-length: -1", 400),
        (b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: a\r\ncontent-length: 1e3", 400),
        (b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: a\r\ncontent-length: \xc2\xb2", 400),
        (b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip", 400),
        (b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: a\r\nflwr-public-key: \x01\x1b[2J", 403),
        (b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: a\r\nflwr-public-key: \xff\xfe", 403),
        (b"POST /v1/fleet/\x1b[2J HTTP/1.1\r\nhost: a", 400),
        # Refused by h11, or by its missing key if it arrives in one piece.
        (b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 100_000, 40),
        (b"\x00\x01\x02\x03", 400),
        (b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nhost: a", 403),
    ],
)
def test_whatever_is_odd_gets_an_answer_and_a_line_that_is_plain(place, request_, status):
    with place.open() as link:
        with suppress(ssl.SSLEOFError):  # The guard may answer before it has all of a long head.
            link.sendall(request_ + b"\r\n\r\n")
        assert link.recv(100).startswith(b"HTTP/1.1 %d" % status)
    (line,) = place.lines
    assert line.isprintable()
    assert len(line) < 300
    assert "the guard failed" not in line
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


def test_a_site_has_so_many_connections_and_the_oldest_gives_way(place, monkeypatch):
    monkeypatch.setattr(connections, "_OF_ONE_SITE", 2)
    signs = "".join(f"{name}: {value}\r\n" for name, value in signed(*place.key).items())
    path = "/v1/fleet/push-object"
    request = f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n{signs}\r\n".encode()
    with ExitStack() as stack:
        links = [stack.enter_context(place.open()) for _ in range(3)]

        def ask(link):
            link.sendall(request)
            answer = b""
            while not answer.endswith(path.encode() + b" "):
                answer += link.recv(1000)
            return answer

        for link in (*links, links[1]):
            assert ask(link).startswith(b"HTTP/1.1 200 OK")
        with suppress(ConnectionError, ssl.SSLError):  # It is reset.
            assert links[0].recv(1000) == b""


def test_refusals_of_many_kinds_do_not_fill_the_log(place):
    for number in range(100):
        place.guard.refusals.say("a stranger", f"reason {number}.")
    assert 50 < len(place.lines) < 70
    assert "many are refused" in place.lines[-1]


def test_equal_lines_are_not_repeated_at_once(place):
    for _ in range(5):
        place.post("/v1/control/list-runs")
    assert len(place.lines) == 1
