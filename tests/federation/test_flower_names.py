"""Private names of Flower: imported in three files, and each does what these files need of it.

When Flower is raised, this file says what has changed.
"""

import ast
import importlib
import inspect
import sys
import warnings
from pathlib import Path

import httpx
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from google.protobuf.message import Message as Proto

import trimtab.federation.transport.flower as folder
from trimtab.federation.storage import keys
from trimtab.federation.transport.flower import server

FILES = ("objects", "server", "line")
PUBLIC = {"flwr.app"}  # as Flower's documentation has it
ROOT = Path(folder.__file__).parent


def names_of(path):
    """Return the names of Flower that a file imports when it runs, with their modules."""
    tree = ast.parse(path.read_text())
    typing = [
        node
        for part in ast.walk(tree)
        if isinstance(part, ast.If) and ast.unparse(part.test) == "TYPE_CHECKING"
        for node in ast.walk(part)
    ]
    return {
        (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node not in typing
        for alias in node.names
        if str(node.module).split(".")[0] == "flwr" and node.module not in PUBLIC
    }


NAMES = {name: module for file in FILES for module, name in names_of(ROOT / f"{file}.py")}


def test_private_names_are_imported_in_three_files_alone():
    src = ROOT.parents[2]
    for path in sorted(src.rglob("*.py")):
        # trimtab.flower uses public names alone, which tests/docs/test_structure.py checks.
        if path.parent != src / "flower" and (path.parent != ROOT or path.stem not in FILES):
            assert names_of(path) == set(), path


def test_each_name_has_a_contract():
    assert sorted(NAMES) == sorted(CONTRACTS)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_private_name_does_what_we_need(name):
    found = getattr(importlib.import_module(NAMES[name]), name)
    CONTRACTS[name](found)


def fields(*expected):
    """Return a check that a message of protobuf has these fields."""

    def check(kind):
        assert issubclass(kind, Proto)
        assert set(expected) <= {field.name for field in kind.DESCRIPTOR.fields}

    return check


def takes(*expected):
    """Return a check that a function has these parameters first."""

    def check(function):
        assert tuple(inspect.signature(function).parameters)[: len(expected)] == expected

    return check


def methods(*expected):
    """Return a check that a client has these calls, each of one request, and needs no network."""

    def check(kind):
        for name in expected:
            assert list(inspect.signature(getattr(kind, name)).parameters)[:2] == [
                "self",
                "request",
            ]
        client = kind.from_server_address("127.0.0.1:1", True, None, [])
        client.close()

    return check


def is_(value):
    def check(found):
        assert found == value

    return check


CHUNKED = Array("uint8", (3,), "trimtab.safetensors", b"abc")


def chunk(kind):
    made = kind(memoryview(b"abc"))
    assert made.deflate() == b"ArrayChunk  3\x00abc"
    assert kind.__qualname__ == "ArrayChunk"
    CHUNKED.slice_array()
    ((name, part),) = CHUNKED.__dict__["_chunks"]  # where an array keeps its chunks
    assert (name, part.deflate()) == (made.object_id, made.deflate())


def object_body(function):
    from flwr.app.message.arraychunk import ArrayChunk

    assert function(b"ArrayChunk  3\x00abc", ArrayChunk) == b"abc"
    with pytest.raises(ValueError, match="do not match"):
        function(b"Array  3\x00abc", ArrayChunk)


def with_header(function):
    class Part:
        children = None

    Part.__qualname__ = "ArrayChunk"
    assert function(object_body=b"abc", obj=Part()) == b"ArrayChunk  3\x00abc"


def nested(function):
    found = function(RecordDict({"a": ArrayRecord({"b": CHUNKED})}))
    kinds = [type(part).__name__ for part in found.values()]
    assert kinds == ["ArrayChunk", "Array", "ArrayRecord", "RecordDict"]  # children come first


def tree(function):
    found = function(RecordDict({"a": ConfigRecord({"b": b"c"})}))
    assert len(found.object_id) == 64
    assert len(found.children) == 1


def inflate(function):
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    record = RecordDict({"a": ArrayRecord({"b": CHUNKED})})
    contents = {name: part.deflate() for name, part in get_all_nested_objects(record).items()}
    assert function(record.object_id, contents)["a"]["b"].data == b"abc"


def without_recomputing(function):
    with function():
        assert CHUNKED.object_id == CHUNKED.object_id


def pulls(make):
    from flwr.proto.message_pb2 import PullObjectResponse
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError

    answers = [
        PullObjectResponse(object_found=True, object_available=True, object_content=b"a"),
        PullObjectResponse(object_found=True, object_available=False),
        PullObjectResponse(),
    ]
    pull = make(lambda request: answers.pop(0), None, 1)
    assert pull("name") == b"a"
    with pytest.raises(ObjectUnavailableError):
        pull("name")
    with pytest.raises(ObjectPullError):
        pull("name")


def pushes(make):
    from flwr.proto.message_pb2 import PushObjectResponse
    from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

    seen = []
    push = make(lambda r: seen.append(r) or PushObjectResponse(stored=len(seen) == 1), None, 7, "s")
    push("name", b"content")
    assert (seen[0].run_id, seen[0].session_id, seen[0].object_content) == (7, "s", b"content")
    with pytest.raises(ObjectPushError):
        push("name", b"content")


def identity(kind):
    kind.task_id = kind.run_id = kind.node_id = 5
    about = Message(RecordDict(), dst_node_id=1, message_type="train").metadata
    assert (about.run_id, about.src_node_id) == (5, 5)


def there_and_back(function):
    from flwr.common.serde import message_from_proto, message_to_proto
    from flwr.supercore.task_identity import TaskIdentity

    assert function in (message_from_proto, message_to_proto)
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 5
    about = message_to_proto(Message(RecordDict(), dst_node_id=1, message_type="train", ttl=9.0))
    about.metadata.message_id = "name"  # set in the protobuf, it is the message's
    back = message_from_proto(about)
    assert back.metadata.message_id == "name"
    assert Message(RecordDict(), reply_to=back).metadata.reply_to_message_id == "name"
    assert not about.HasField("error")


def remove_content(function):
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 5
    full = Message(RecordDict({"a": ConfigRecord()}), dst_node_id=1, message_type="train")
    assert dict(function(full).content) == {}


def signs(kind):
    private = keys.load_site_key(keys.make_site_key()[0])
    request = httpx.Request("POST", "https://a")
    context = type("Context", (), {"request": request})
    assert kind(private, private.public_key()).intercept(context, lambda given: given) is context
    assert {"flwr-public-key", "flwr-timestamp", "flwr-signature"} <= set(request.headers)


def public_bytes(function):
    private, public = keys.make_site_key()
    assert function(keys.load_site_key(private).public_key()).decode().split() == public.split()


def secret(function):
    path = Path(__file__)
    assert list(inspect.signature(function).parameters) == ["secret_file"]
    with pytest.raises(ValueError, match="secret"):
        function(str(path / "nosuch"))


def superlink(function):
    source = inspect.getsource(inspect.getmodule(function))
    assert source.count("uvicorn.run(\n        app=fastapi_app,") == 1


def build(function):
    with warnings.catch_warnings():  # of a library that Flower uses
        warnings.simplefilter("ignore", DeprecationWarning)
        content, digest = function(server._APP)
    assert isinstance(content, bytes)
    assert digest


def error(kind):
    assert issubclass(kind, Exception)


NODE, ID = "node", "run_id"
CONTRACTS = {
    "ActivateNodeRequest": fields("public_key", "heartbeat_interval"),
    "AcquireTaskRequest": fields("supported_task_types"),
    "ArrayChunk": chunk,
    "ConfirmMessageReceivedRequest": fields(NODE, ID, "message_object_id"),
    "ControlHttpClient": methods("ListNodes", "RegisterNode", "StartRun", "StopRun"),
    "DeactivateNodeRequest": fields("node_id"),
    "ErrorCode": lambda kind: is_(2)(kind.CLIENT_APP_RAISED_EXCEPTION),
    "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE": is_(5 << 20),
    "Fab": fields("hash_str", "content"),
    "FleetHttpClient": methods(
        *("ActivateNode", "DeactivateNode", "SendNodeHeartbeat", "PullMessages"),
        *("PushMessages", "PullObject", "PushObject", "ConfirmMessageReceived"),
    ),
    "GetNodesRequest": fields(),
    "ListNodesRequest": fields(),
    "Message": fields("metadata", "error"),
    "Node": fields("node_id"),
    "NodeAuthHttpInterceptor": signs,
    "ObjectPushError": error,
    "ObjectTree": fields("object_id", "children"),
    "ObjectUnavailableError": error,
    "PullAppMessagesRequest": fields("message_ids"),
    "PullMessagesRequest": fields(NODE),
    "PullMessagesResponse": fields("messages_list", "message_object_trees"),
    "PullObjectRequest": fields(NODE, ID, "object_id"),
    "PullTaskInputRequest": fields(),
    "PushAppMessagesRequest": fields("messages_list", "message_object_trees"),
    "PushMessagesRequest": fields(NODE, "messages_list", "message_object_trees"),
    "PushTaskOutputRequest": fields("sub_status", "details"),
    "RegisterNodeRequest": fields("public_key", "name"),
    "RuntimeHttpClient": methods(
        *("AcquireTask", "SendTaskHeartbeat", "PullTaskInput", "PushTaskOutput", "GetNodes"),
        *("PullMessages", "PushMessages", "PullObject", "PushObject", "ConfirmMessageReceived"),
    ),
    "RuntimeTokenHttpInterceptor": takes("token"),
    "RuntimeVersionHttpInterceptor": takes("component_name"),
    "SUPERLINK_NODE_ID": is_(1),
    "SendNodeHeartbeatRequest": fields(NODE, "heartbeat_interval"),
    "SendTaskHeartbeatRequest": fields(),
    "StartRunRequest": fields("fab"),
    "StopRunRequest": fields("run_id"),
    "SubStatus": lambda kind: is_(("completed", "failed"))((kind.COMPLETED, kind.FAILED)),
    "SuperExecAuthHttpInterceptor": takes("master_secret", "protected_methods"),
    "TaskIdentity": identity,
    "TaskType": lambda kind: is_("flwr-serverapp")(kind.SERVER_APP),
    "add_header_to_object_body": with_header,
    "build_fab_from_files": build,
    "flower_superlink": superlink,
    "get_all_nested_objects": nested,
    "get_object_body": object_body,
    "get_object_head_values_from_object_content": lambda function: is_(("Array", ["a", "b"], 1))(
        function(b"Array a,b 1\x00x")
    ),
    "get_object_tree": tree,
    "inflate_object_from_contents": inflate,
    "load_superexec_auth_secret": secret,
    "make_pull_object_fn_protobuf": pulls,
    "make_push_object_fn_protobuf": pushes,
    "message_from_proto": there_and_back,
    "message_to_proto": there_and_back,
    "no_object_id_recompute": without_recomputing,
    "public_key_to_bytes": public_bytes,
    "remove_content_from_message": remove_content,
}


def test_uvicorns_connection_is_made_as_ours_needs():
    """Not Flower's, but not uvicorn's public interface either."""
    from uvicorn.protocols.http.h11_impl import H11Protocol
    from uvicorn.server import ServerState

    assert list(inspect.signature(H11Protocol).parameters)[:3] == [
        "config",
        "server_state",
        "app_state",
    ]
    for name in ("connection_made", "connection_lost", "data_received", "send_400_response"):
        assert callable(getattr(H11Protocol, name))
    assert ServerState().default_headers == []
    assert "app = self.app" in inspect.getsource(H11Protocol.handle_events)


def test_a_superlink_that_hands_over_no_app_ends_with_a_sentence(monkeypatch):
    from flwr.superlink import cli

    from trimtab.federation.transport.flower.server import run_superlink

    monkeypatch.setattr(sys, "argv", ["superlink"])
    monkeypatch.setattr(cli, "flower_superlink", lambda: None)
    with pytest.raises(SystemExit, match=r"did not hand over its app; run `pip install 'flwr=="):
        run_superlink([], print)
