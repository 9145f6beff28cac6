"""A site's line: how it comes back, what it says of a server that it cannot reach, and proxies."""

import threading
import time
from datetime import timedelta

import pytest

pytest.importorskip("flwr")

from flwr.app import Message as FlowerMessage
from flwr.proto.fleet_pb2 import (
    ActivateNodeResponse,
    PullMessagesResponse,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.supercore.task_identity import TaskIdentity

from tests.helpers.connect_proxy import ConnectProxy, Listener
from tests.helpers.guarded import Guarded
from trimtab.errors import BadArgument
from trimtab.federation.log import attached
from trimtab.federation.message import encode_arrays, encode_header
from trimtab.federation.processes.ports import check_proxy, free_port
from trimtab.federation.storage import keys
from trimtab.federation.storage.roster import Roster
from trimtab.federation.transport.flower import line as lines
from trimtab.federation.transport.flower.line import Line
from trimtab.federation.transport.flower.objects import Outgoing, Parcel, record_of

NODE = 7


class Flower:
    """What answers as the SuperLink does; `found` are the messages that wait for the site."""

    def __init__(self, guarded):
        self.app, self.found, self.bodies = guarded.app, [], []
        guarded.app.answers |= {
            "/v1/fleet/activate-node": ActivateNodeResponse(node_id=NODE).SerializeToString(),
            "/v1/fleet/deactivate-node": b"",
            "/v1/fleet/send-node-heartbeat": b"",
            "/v1/fleet/confirm-message-received": b"",
            "/v1/fleet/pull-messages": lambda _: self.found.pop(0) if self.found else b"",
        }

    def send(self, header):
        """Let a request wait for the site; return its objects."""
        content = record_of(encode_header(header), Parcel(None).fill([encode_arrays({})]))
        message = FlowerMessage(content, dst_node_id=NODE, message_type="train", ttl=1000.0)
        out = Outgoing.of(message)
        self.found.append(
            PullMessagesResponse(
                messages_list=[out.about], message_object_trees=[out.tree]
            ).SerializeToString()
        )
        return {name: part.deflate() for name, part in out.objects.items()}

    def asked(self, path):
        return self.app.asked.count(f"/v1/fleet/{path}")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "_AGAIN", 0.05)
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    keys.make_authority(tmp_path)
    keys.make_server_certificate(tmp_path, ["127.0.0.1"])
    private, public = keys.make_site_key()
    (tmp_path / "site.key").write_bytes(private)
    said = []
    with attached(follow=said.append):
        yield Place(tmp_path, public, said)


class Place:
    def __init__(self, folder, public, said):
        self.folder, self.public, self.said = folder, public, said

    def guarded(self, sites=None, **options):
        found = {"rome": self.public} if sites is None else sites
        return Guarded(self.folder, found, hold=0.2, **options)

    def line(self, port, authority="ca.crt", proxy=None):
        where = f"127.0.0.1:{port}", self.folder / authority, self.folder / "site.key"
        return Line(*where, self.folder, threading.Event(), proxy)

    def wait(self, text, seconds=20):
        until = time.monotonic() + seconds
        while not any(text in line for line in self.said):
            assert time.monotonic() < until, self.said
            time.sleep(0.02)


class Running:
    """A line whose requests are taken in a thread."""

    def __init__(self, line):
        self.line, self.requests = line, []
        self.thread = threading.Thread(target=self._take)
        self.thread.start()

    def _take(self):
        for request in self.line.requests():
            self.requests.append(request)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.line.close()
        self.thread.join(10)


def until(true, seconds=20):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_line_deactivates_the_node_that_a_killed_one_has_left(place):
    guarded = place.guarded()
    flower = Flower(guarded)
    try:
        (place.folder / "node").write_text("5")
        with Running(place.line(guarded.port)) as running:
            until(lambda: running.line.connected)
            paths = [path.rpartition("/")[2] for path in guarded.app.asked[:2]]
            assert paths == ["deactivate-node", "activate-node"]
            assert (place.folder / "node").read_text() == str(NODE)
            until(lambda: flower.asked("pull-messages") > 1)
            assert flower.asked("activate-node") == 1
        assert flower.asked("deactivate-node") == 2  # it says goodbye
    finally:
        guarded.close()


def test_after_every_lost_look_a_line_activates_its_node_anew(place):
    """A look that died may have taken a request; the server asks those that connected since."""
    guarded = place.guarded()
    flower = Flower(guarded)
    try:
        with Running(place.line(guarded.port)) as running:
            until(lambda: running.line.connected)
            guarded.app.status = 500
            until(lambda: not running.line.connected)
            place.wait("is busy or starting (HTTP 503); trying on.")
            guarded.app.status = 200
            until(lambda: running.line.activations == 2)
            place.wait("can be reached again.")
            assert flower.asked("deactivate-node") >= 1
    finally:
        guarded.close()


def test_a_later_request_takes_the_place_of_one_that_does_not_come(place):
    guarded = place.guarded()
    flower = Flower(guarded)
    never, whole = flower.send({"r": 1}), flower.send({"r": 2})
    second = flower.found.pop()

    def pull(body):
        name = PullObjectRequest.FromString(body).object_id
        found = name in whole or name in never
        content = whole.get(name, b"")
        return PullObjectResponse(
            object_found=found, object_available=bool(content), object_content=content
        ).SerializeToString()

    guarded.app.answers["/v1/fleet/pull-object"] = pull
    try:
        with Running(place.line(guarded.port)) as running:
            until(lambda: flower.asked("pull-object") > 2)
            flower.found.append(second)
            until(lambda: running.requests)
            (request,) = running.requests
            assert request.parcel.header == encode_header({"r": 2})
            request.parcel.close()
    finally:
        guarded.close()


def test_whatever_the_server_sends_the_site_lives_on(place):
    guarded = place.guarded()
    flower = Flower(guarded)
    flower.send({"r": 1})
    guarded.app.answers["/v1/fleet/pull-object"] = PullObjectResponse(
        object_found=True, object_available=True, object_content=b"Array  1\x00x"
    ).SerializeToString()
    try:
        with Running(place.line(guarded.port)) as running:
            place.wait("a request was lost on its way (")
            looks = flower.asked("pull-messages")
            until(lambda: flower.asked("pull-messages") > looks)
            assert running.thread.is_alive()
    finally:
        guarded.close()


def test_a_reply_is_sent_again_where_the_connection_was_lost(place):
    guarded = place.guarded()
    flower = Flower(guarded)
    pushed = PushMessagesResponse(objects_to_push=[], session_id="s").SerializeToString()
    answers = [None, pushed]

    def push(_):
        answer = answers.pop(0)
        if answer is None:
            raise ConnectionError  # the guard answers 500, which is 503 for a site
        return answer

    guarded.app.answers["/v1/fleet/push-messages"] = push
    line = place.line(guarded.port)
    try:
        line.answer(*request_and_reply())
        assert answers == []
        assert flower.asked("push-messages") == 2
    finally:
        line.close()
        guarded.close()


def test_a_reply_is_given_up_when_its_round_is_over(place):
    guarded = place.guarded()
    flower, over = Flower(guarded), iter([False, False, True])
    guarded.app.status = 500
    line = place.line(guarded.port)
    line.is_over = lambda request: next(over)
    try:
        line.answer(*request_and_reply())
        assert flower.asked("push-messages") == 2
    finally:
        line.close()
        guarded.close()


def request_and_reply():
    content = record_of(encode_header({}), Parcel(None).fill([encode_arrays({})]))
    request = FlowerMessage(content, dst_node_id=NODE, message_type="train", ttl=1000.0)
    request.metadata.__dict__["_message_id"] = "request"
    reply = Parcel(None, encode_header({})).fill([encode_arrays({})])
    return lines.Request(request, Parcel(None)), reply


# -- what it says


def test_an_expired_certificate_is_named(place):
    keys.make_server_certificate(place.folder, ["127.0.0.1"], lasts=timedelta(hours=-1))
    guarded = place.guarded()
    try:
        with Running(place.line(guarded.port)):
            place.wait(
                f"refused the server at 127.0.0.1:{guarded.port}: its certificate has expired; the "
                "operator writes a new one with `trimtab federate renew`."
            )
    finally:
        guarded.close()


def test_a_server_of_another_authority_is_named_in_both_logs(place):
    (place.folder / "other").mkdir()
    keys.make_authority(place.folder / "other")
    guarded = place.guarded()
    try:
        with Running(place.line(guarded.port, "other/ca.crt")):
            place.wait("it is not the server for which this site's archive was made")
        place.wait("refused 127.0.0.1: the TLS handshake failed")
    finally:
        guarded.close()


def test_a_server_that_is_not_there_is_called_again_and_named_once(place):
    port = free_port()
    with Running(place.line(port)):
        place.wait(f"the server at 127.0.0.1:{port} cannot be reached (Connection refused); ")
        time.sleep(0.3)
    assert len(place.said) == 1


def once():
    """Return what is false when it is asked first, and then true."""
    turns = iter([False])
    return lambda *_: next(turns, True)


def test_who_still_asks_when_the_line_is_closed_ends_without_a_word(place):
    line = place.line(1)
    line._client.close()
    for work in (line._look, line._beat):
        line._node = Node(node_id=NODE)
        line.stop.is_set = line.stop.wait = once()
        work()
    assert place.said == []


def test_a_server_that_speaks_no_tls_is_named(place):
    class Plain(Listener):
        def serve(self, link):
            link.recv(1000)
            link.sendall(b"HTTP/1.1 200 OK\r\n\r\n")

    plain = Plain()
    try:
        with Running(place.line(plain.port)):
            place.wait("does not speak TLS as it should (")
    finally:
        plain.close()


def test_a_site_is_told_how_it_stands_and_its_log_says_it_once(place):
    shown = keys.fingerprint(place.public)
    roster = [Roster({}, (), {shown: "rome was let go"})]
    guarded = place.guarded(sites={})
    guarded.guard.notices._read = lambda: roster[0]
    guarded.guard.notices._read_at = -1e9
    flower = Flower(guarded)
    try:
        with Running(place.line(guarded.port)) as running:
            place.wait("the server lets this site in no more: rome was let go.")
            place.wait("does not let this site in (HTTP 403); trying on.")
            guarded.call(guarded.guard.keys.admit, {"rome": place.public})
            until(lambda: running.line.connected)
            place.wait("the server has nothing against this site any more.")
            assert flower.asked("activate-node") == 1
        told = [line for line in place.said if "lets this site in no more" in line]
        assert len(told) == 1
    finally:
        guarded.close()


# -- proxies


class Refuses(Listener):
    def serve(self, link):
        link.recv(1000)
        link.sendall(b"HTTP/1.1 407 \x1b[2JNo\r\n\r\n")


def test_a_line_goes_by_the_proxy_that_was_chosen_and_by_no_other(place, monkeypatch):
    swallows, proxy, refuses = Refuses(), ConnectProxy(), Refuses()
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(variable, f"http://127.0.0.1:{swallows.port}")
    guarded = place.guarded()
    Flower(guarded)
    try:
        with Running(place.line(guarded.port)) as running:
            until(lambda: running.line.connected)
        with Running(
            place.line(guarded.port, proxy=f"http://rome:hidden@127.0.0.1:{proxy.port}")
        ) as running:
            until(lambda: running.line.connected)
        with Running(place.line(guarded.port, proxy=f"http://127.0.0.1:{refuses.port}")):
            place.wait("cannot be reached (407")
    finally:
        guarded.close()
        for listener in (swallows, proxy, refuses):
            listener.close()
    assert swallows.asked == []
    assert {target for _, target, _ in proxy.asked} == {f"127.0.0.1:{guarded.port}"}
    assert all(line.isprintable() for line in place.said)
    assert not any("hidden" in line for line in place.said)


@pytest.mark.parametrize(
    "address",
    ["proxy:3128", "https://proxy:3128", "http://proxy", "http://:3128", "http://a:b:c", "x" * 999],
)
def test_an_odd_proxy_is_one_sentence(address):
    with pytest.raises(BadArgument, match="no proxy's address; pass") as error:
        check_proxy(address)
    assert len(str(error.value)) < 200


def test_no_password_is_shown_of_an_odd_proxy():
    with pytest.raises(BadArgument) as error:
        check_proxy("ftp://rome:hidden@proxy:1")
    assert "hidden" not in str(error.value)
