"""How sites are asked: whom a round waits for, and that a bad reply concerns its site alone."""

import json

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app.message.arraychunk import ArrayChunk
from flwr.proto.message_pb2 import ObjectTree

from tests.helpers.fake_run import NEVER, ask, place  # noqa: F401
from trimtab.federation.log import attached
from trimtab.federation.message import encode_arrays, encode_header
from trimtab.federation.transport.flower import objects
from trimtab.federation.transport.flower.objects import Outgoing, Parcel, record_of

HONEST = ["site1", "site3"]


def obj(kind, children, body):
    """Return the bytes of an object of Flower, as anybody can write them."""
    return f"{kind} {','.join(children)} {len(body)}".encode() + b"\x00" + body


def named(content):
    from hashlib import sha256

    return sha256(content).hexdigest()


def instead(out, *levels):
    """Return a reply that consists of these objects, each the parent of the next."""
    tree, contents = None, {}
    for content in reversed(levels):
        name = named(content)
        contents[name] = content
        tree = ObjectTree(object_id=name, children=[] if tree is None else [tree])
    return Outgoing(out.about, tree, {}), contents


def repacked(out, header, arrays):
    """Return a reply of the same message with another header and other arrays."""
    from flwr.app import Message
    from flwr.common.serde import message_from_proto

    message = message_from_proto(out.about)
    spoiled = Message(record_of(header, Parcel(None).fill([arrays])), reply_to=_request(message))
    made = Outgoing.of(spoiled)
    return made, {name: part.deflate() for name, part in made.objects.items()}


def _request(reply):
    from flwr.app import Message, RecordDict

    request = Message(RecordDict(), dst_node_id=reply.metadata.src_node_id, message_type="train")
    request.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return request


def seventy_bytes(out, _):
    return instead(out, obj("Array", [], b"x"))


def many_names_of_one_chunk(out, _):
    """A chunk of 5 MiB that an array names 320 times: 1.6 GB out of 5 MB."""
    chunk = ArrayChunk(memoryview(bytes(objects.CHUNK))).deflate()
    inner = {"dtype": "uint8", "shape": [1], "stype": "trimtab.safetensors"}
    arrays = obj(
        "Array", [named(chunk)], json.dumps(inner | {"arraychunk_ids": [0] * 320}).encode()
    )
    small = ArrayChunk(memoryview(encode_header({}))).deflate()
    header = obj("Array", [named(small)], json.dumps(inner | {"arraychunk_ids": [0]}).encode())
    names = {"header": named(header), "arrays": named(arrays)}
    record = obj("ArrayRecord", list(names.values()), json.dumps(names).encode())
    records = obj("RecordDict", [named(record)], json.dumps({"trimtab": named(record)}).encode())
    message = obj("Message", [named(records)], out.about.SerializeToString())
    leaves = [
        ObjectTree(object_id=named(header), children=[ObjectTree(object_id=named(small))]),
        ObjectTree(object_id=named(arrays), children=[ObjectTree(object_id=named(chunk))]),
    ]
    tree = ObjectTree(object_id=named(record), children=leaves)
    for parent in (records, message):
        tree = ObjectTree(object_id=named(parent), children=[tree])
    every = (chunk, arrays, small, header, record, records, message)
    return Outgoing(out.about, tree, {}), {named(content): content for content in every}


SPOILED = {
    "an array of one letter": seventy_bytes,
    "no kind": lambda out, _: instead(out, b"\xff\xfe"),
    "an unknown kind": lambda out, _: instead(out, obj("Pickle", [], b"x")),
    "a message of nothing": lambda out, _: instead(out, obj("Message", [], b"")),
    "a chunk as a message": lambda out, _: instead(out, obj("ArrayChunk", [], b"x")),
    "no chunk in a chunk's place": lambda out, _: instead(
        out, *(obj("RecordDict", [], b"%d" % i) for i in range(5))
    ),
    "too deep": lambda out, _: instead(out, *(obj("RecordDict", [], b"%d" % i) for i in range(9))),
    "many names of one chunk": many_names_of_one_chunk,
    "a header that is too long": lambda out, _: repacked(
        out, encode_header({"x": "y" * 70_000}), encode_arrays({})
    ),
    "a header of 6 MiB": lambda out, _: repacked(
        out, encode_header({"x": [[]] * (2 << 20)}), encode_arrays({})
    ),
    "arrays that are too large": lambda out, _: repacked(
        out, b"{}", encode_arrays({"0": torch.zeros(100_000)})
    ),
    "large arrays": lambda out, _: repacked(
        out, b"{}", encode_arrays({"0": torch.zeros(3_000_000)})
    ),
    "a table that is too long": lambda out, _: repacked(
        out, b"{}", encode_arrays({f"{i:01000d}": torch.zeros(1) for i in range(100)})
    ),
    "a header that is no object": lambda out, _: repacked(out, b"[]", encode_arrays({})),
    "a header that is deep": lambda out, _: repacked(out, b"[" * 60_000, encode_arrays({})),
    "arrays that are none": lambda out, _: repacked(out, b"{}", b"x" * 100),
    "objects that are gone": lambda out, _: (out, {}),
}


@pytest.mark.parametrize("what", SPOILED)
def test_whatever_one_site_sends_it_alone_sits_out_by_name(place, what):  # noqa: F811
    place.run.spoil[2] = SPOILED[what]
    replies, _ = ask(place, most=160)
    assert sorted(replies) == ["site1", "site2", "site3"]
    assert [name for name in sorted(replies) if replies[name]["status"] == "done"] == HONEST
    spoiled = replies["site2"]
    assert spoiled["status"] == "failed"
    assert spoiled["tag"] == "t"
    assert spoiled["why"].startswith("its reply cannot be read (")
    assert len(spoiled["why"]) < 400
    assert spoiled["why"].isprintable()


@pytest.mark.parametrize(
    ("what", "most", "why"),
    [
        ("many names of one chunk", 160, "an object of it has 5,242,"),
        ("many names of one chunk", 12_000_000, "its arrays has 1,677,721,600 bytes; 12,065,536"),
        ("a header that is too long", 160, "its header has 70,009 bytes; 65,536 are allowed"),
        ("a chunk as a message", 160, "its objects are not put together as those of trimtab are"),
        ("no chunk in a chunk's place", 160, "its objects are not put together as those of"),
    ],
)
def test_sizes_and_kinds_are_refused_before_they_are_read(place, what, most, why):  # noqa: F811
    place.run.spoil[2] = SPOILED[what]
    replies, _ = ask(place, most=most)
    assert why in replies["site2"]["why"]


def test_nothing_of_a_reply_that_is_too_large_is_pulled(place):  # noqa: F811
    place.run.spoil[2] = SPOILED["large arrays"]
    replies, _ = ask(place, most=160)
    assert "it has 9 objects; 7 are allowed" in replies["site2"]["why"]
    assert len(place.run.pulled) == 6  # the three objects of each honest reply
    place.run.spoil[2] = SPOILED["large arrays"]
    assert "site2" in ask(place, most=12_000_000)[0]


def test_an_error_in_place_of_a_reply_is_that_sites_reply(place):  # noqa: F811
    def failed(out, contents):
        out.about.error.code, out.about.error.reason = 3, "no\x1b[2J memory.\nat line 7"
        return out, contents

    place.run.spoil[2] = failed
    replies, _ = ask(place)
    assert replies["site2"]["why"].endswith("(ValueError: no\\x1b[2J memory)")


def test_a_reply_that_is_announced_and_never_comes_does_not_outlast_the_round(place):  # noqa: F811
    place.run.spoil[1] = lambda out, contents: (out, dict.fromkeys(contents, b""))
    place.run.delays[3] = 4.0
    replies, seconds = ask(place, timeout=10.0)
    assert sorted(replies) == ["site2", "site3"]
    assert 10.0 <= seconds < 10.5


def test_after_enough_replies_the_others_have_three_times_as_long(place):  # noqa: F811
    place.run.delays |= {1: 6.0, 2: 8.0, 3: NEVER}
    replies, seconds = ask(place, timeout=3600.0, least=2)
    assert sorted(replies) == ["site1", "site2"]
    assert 24.0 <= seconds < 26.0
    place.run.delays[3] = 20.0
    replies, seconds = ask(place, timeout=3600.0, least=2)
    assert len(replies) == 3
    assert 20.0 <= seconds < 21.0
    place.run.delays |= {1: 0.0, 2: 0.0, 3: 4.5}  # a pause is no silence
    assert len(ask(place, timeout=3600.0, least=2)[0]) == 3
    place.run.delays[3] = NEVER
    assert 60.0 <= ask(place)[1] < 61.0  # what needs all waits for all


def test_a_site_that_was_silent_three_times_is_asked_and_not_waited_for(place):  # noqa: F811
    place.run.delays[3], lines = NEVER, []
    with attached(follow=lines.append):
        for _ in range(3):
            assert ask(place, timeout=100.0, least=2)[1] >= 5.0
    assert lines[-1].endswith("from now on it is not waited for.")
    replies, seconds = ask(place, timeout=100.0, least=2)
    assert len(replies) == 2
    assert seconds < 1.0
    assert [node for node, _, _ in place.run.sent].count(3) == 4  # it was asked each time
    place.run.since[3] = "later"  # it connected anew
    assert ask(place, timeout=100.0, least=2)[1] >= 5.0
    place.run.delays[3] = 0.0
    assert len(ask(place, timeout=100.0, least=2)[0]) == 3


def test_a_site_without_which_there_are_too_few_is_waited_for_however_silent(place):  # noqa: F811
    place.run.delays[3] = NEVER
    for _ in range(5):
        assert ask(place, timeout=30.0, least=3)[1] >= 30.0


def test_a_site_that_connects_anew_is_asked_again_and_its_first_reply_counts_too(place):  # noqa: F811
    place.run.delays[2] = 5.0
    began = place.clock.sleep

    def sleep(seconds):
        began(seconds)
        if place.clock.now > 1.0 and place.run.since[2] == "then":
            place.run.since[2], place.run.delays[2] = "later", NEVER

    place.clock.sleep = sleep
    replies, seconds = ask(place)
    assert len(replies) == 3
    assert 5.0 <= seconds < 6.0
    assert len(place.run.confirmed) == 3


def test_another_nodes_reply_is_refused(place):  # noqa: F811
    def forged(out, contents):
        out.about.metadata.src_node_id = 1
        return out, contents

    place.run.spoil[2], lines = forged, []
    with attached(follow=lines.append):
        replies, _ = ask(place, timeout=5.0)
    assert sorted(replies) == HONEST
    assert "warning: refused a reply to site2's request: another node sent it." in lines


def test_arrays_that_go_to_all_sites_are_stored_once_and_anew_in_each_attempt():
    arrays = {"0": torch.zeros(3_000_000)}
    chunks = [
        [chunk.object_id for chunk in Parcel(None).fill([encode_arrays(arrays, salt)]).chunks()]
        for salt in ("a", "a", "b")
    ]
    assert chunks[0] == chunks[1]
    assert chunks[0][0] != chunks[2][0]
