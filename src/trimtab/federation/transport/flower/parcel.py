"""A message on its way through a site: its header in memory, its arrays in a file.

The process that only carries messages never holds the arrays as a whole. Flower cuts an array into
chunks of some MiB; they are written to the file one after the other as they come, and read from it
one after the other as they go.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.app.message import remove_content_from_message
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, Metadata, ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PushAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import (
    add_header_to_object_body,
    get_all_nested_objects,
    get_object_body,
    get_object_head_values_from_object_content,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
from flwr.supercore.runtime import RuntimeHttpClient

from trimtab.federation.message import Message, decode, encode
from trimtab.federation.transport.flower.api import SMALL, WHOLE

_PIECE = 1 << 20  # bytes that are read at a time
_MARK = 16  # bytes in place of a chunk: where it begins in the file, and how long it is


class Parcel:
    """A header, and the file that holds the arrays."""

    def __init__(self, folder: Path, header: bytes = b"") -> None:
        self.header = header
        self._file: IO[bytes] = TemporaryFile(dir=folder)  # noqa: SIM115 (it lives as long as this)
        self._places: list[tuple[int, int]] = []  # of the arrays, in their order

    @classmethod
    def of(cls, folder: Path, message: Message) -> "Parcel":
        """Put a message into a parcel."""
        parcel = cls(folder, encode(Message(message.header)))
        parcel.fill([encode(Message({}, message.arrays))])
        return parcel

    def message(self) -> Message:
        """Read the whole message."""
        return Message(decode(self.header).header, decode(b"".join(self.pieces())).arrays)

    def fill(self, pieces: Iterable[bytes]) -> None:
        """Take the arrays, piece by piece."""
        size = 0
        for piece in pieces:
            self._file.write(piece)
            size += len(piece)
        self._file.flush()
        self._places = [(0, size)]

    @property
    def size(self) -> int:
        """How many bytes the arrays have."""
        return sum(length for _, length in self._places)

    def pieces(self) -> Iterator[bytes]:
        """Go through the arrays, piece by piece."""
        for begin, length in self._places:
            for at in range(begin, begin + length, _PIECE):
                yield self.read(at, min(_PIECE, begin + length - at))

    def read(self, at: int, length: int) -> bytes:
        """Return some bytes of the file."""
        self._file.seek(at)
        return self._file.read(length)

    def close(self) -> None:
        """Throw the file away."""
        self._file.close()

    # -- from Flower

    def put(self, content: bytes) -> bytes:
        """Write a chunk to the file; return a mark in its place."""
        body = get_object_body(content, ArrayChunk)
        at = self._file.seek(0, 2)
        self._file.write(body)
        mark = at.to_bytes(8, "little") + len(body).to_bytes(8, "little")
        return ArrayChunk(memoryview(mark)).deflate()

    def open(self, content: RecordDict) -> None:
        """Read the record whose chunks were put into this file."""
        record: Any = content.get("trimtab")
        if isinstance(record, ConfigRecord) and set(record) == {"header", "arrays"}:
            small, arrays = record["header"], record["arrays"]
            if isinstance(small, bytes) and isinstance(arrays, bytes):
                self.header = small
                self.fill([arrays])
                return
        if not isinstance(record, ArrayRecord) or set(record) != {"header", "arrays"}:
            raise ValueError("a message cannot be read (it is not one of trimtab's).")
        header = [self.read(*place) for place in _places(record["header"].data)]
        self.header = b"".join(header)
        self._places = _places(record["arrays"].data)

    # -- to Flower

    def record(self) -> RecordDict:
        """Return the parcel as Flower carries it; of a large one, the chunks are in the file."""
        if len(self.header) + self.size <= SMALL:
            small = ConfigRecord({"header": self.header, "arrays": b"".join(self.pieces())})
            return RecordDict({"trimtab": small})
        sizes = {"header": len(self.header), "arrays": self.size}
        data = {"header": self.header, "arrays": b""}
        record = ArrayRecord(
            {k: Array("uint8", (n,), "trimtab.safetensors", data[k]) for k, n in sizes.items()}
        )
        ((begin, size),) = self._places
        step = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
        chunks = [
            _Chunk(self, at, min(step, begin + size - at))
            for at in range(begin, begin + size, step)
        ]
        # A record copies the arrays it is made of, so they get their chunks in the end.
        record["arrays"].__dict__["_chunks"] = [(chunk.object_id, chunk) for chunk in chunks]
        return RecordDict({"trimtab": record})


class _Chunk(ArrayChunk):
    """A chunk that is read from the file when it goes."""

    def __init__(self, parcel: Parcel, at: int, length: int) -> None:
        self._parcel, self._at, self._length = parcel, at, length

    def deflate(self) -> bytes:
        """Return the chunk as it travels."""
        body = self._parcel.read(self._at, self._length)
        return add_header_to_object_body(object_body=body, obj=self)


_Chunk.__qualname__ = ArrayChunk.__qualname__  # by which Flower knows what it is


def fetch_parcel(
    client: RuntimeHttpClient, node: Node, about: Metadata, tree: ObjectTree, folder: Path
) -> tuple[Any, Parcel]:
    """Return the message whose parts, those of the tree, may be on their way, and its content."""
    pull = make_pull_object_fn_protobuf(client.PullObject, node, about.run_id)
    parcel, contents = Parcel(folder), dict[str, bytes]()
    try:
        for part in iterate_object_tree(tree):
            if part.object_id in contents:
                continue
            found = pull_objects(
                [part.object_id], pull, max_time=WHOLE, initial_backoff=0.05, backoff_cap=1
            )
            (content,) = found.values()
            kind, _, _ = get_object_head_values_from_object_content(content)
            is_chunk = kind == ArrayChunk.__qualname__
            contents[part.object_id] = parcel.put(content) if is_chunk else content
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=node, run_id=about.run_id, message_object_id=about.message_id
            )
        )
        message: Any = inflate_object_from_contents(about.message_id, contents)
        message.metadata.__dict__["_message_id"] = about.message_id
        parcel.open(message.content)
    except BaseException:
        parcel.close()
        raise
    return remove_content_from_message(message), parcel


def push_reply(client: RuntimeHttpClient, node: int, run: int, reply: FlowerMessage) -> None:
    """Send a reply, one part of it after the other."""
    with no_object_id_recompute():
        reply.metadata.__dict__["_message_id"] = reply.object_id
        pushed = client.PushMessages(
            PushAppMessagesRequest(
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[get_object_tree(reply)],
            )
        )
        push = make_push_object_fn_protobuf(
            client.PushObject, Node(node_id=node), run_id=run, session_id=pushed.session_id
        )
        wanted = set(pushed.objects_to_push)
        for name, part in get_all_nested_objects(reply).items():
            if name in wanted:
                push(name, part.deflate())


def _places(marks: bytes) -> list[tuple[int, int]]:
    cut = [marks[at : at + _MARK] for at in range(0, len(marks), _MARK)]
    return [(int.from_bytes(m[:8], "little"), int.from_bytes(m[8:], "little")) for m in cut]
