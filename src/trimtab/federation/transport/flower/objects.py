"""Messages as objects of Flower, in which they are stored and travel.

A message is a header and the bytes of its arrays. Flower cuts an array into chunks of 5 MiB and
names each object by its SHA-256, so arrays that go to all sites are stored once. Whoever reads a
message looks at the tree of its objects first, then pulls the few that say how it is made, and only
then the chunks, one after the other: nothing larger than was expected is ever pulled.
Private names of Flower are imported here, in `server.py` and in `line.py`. No torch is needed here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.app.message import remove_content_from_message
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.supercore.inflatable.inflatable_object import (
    add_header_to_object_body,
    get_all_nested_objects,
    get_object_body,
    get_object_head_values_from_object_content,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

HEADER_UP = 64 << 10  # the header of a reply has <= 64 KiB: a MiB of JSON takes 33 MiB of memory
HEADER_DOWN = 256 << 10  # that of a request has <= 256 KiB, since it names every site
CHUNK: int = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
SMALL = 256 << 10  # a message goes whole if it has <= 256 KiB, since each object costs a request
Shape = Mapping[str, tuple[str, ...]]  # the objects of a message: each with its children
Pull = Callable[[str], bytes]  # returns an object by its name; ObjectUnavailableError: not yet
_INNER = (
    5  # a message, its RecordDict and record, and two Arrays say how the chunks are put together
)
_DEEP = 5  # they are 4 levels; the chunks are the fifth
_INNER_BYTES = SMALL + (64 << 10)  # one of them has at most so many bytes
_OVERHEAD = 64 << 10  # arrays have a table of their names and shapes of at most so many bytes
_PIECE = 1 << 20  # bytes of a file that are read at a time
_MARK = 16  # bytes in place of a chunk: where it begins in the file, and how long it is


class Unreadable(ValueError):
    """A message that is not made as those of trimtab are, or is larger than was asked for."""


def most_objects(limit: int) -> int:
    """Return how many objects a message has at most whose arrays have `limit` bytes."""
    return _INNER + 1 + _chunks(limit + _OVERHEAD)


def largest_object(limit: int) -> int:
    """Return how many bytes an object of such a message has at most."""
    return max(_INNER_BYTES, min(CHUNK + 256, limit + _OVERHEAD))


def _chunks(size: int) -> int:
    return -(-size // CHUNK)


# -- what the guard looks at


@dataclass(frozen=True)
class Announced:
    """A reply that a node announces: who says it sends it, to which request, of which objects."""

    node: int
    sender: int
    request: str
    shape: Shape


def announced(body: bytes) -> Announced:
    """Read a request to push messages."""
    try:
        push = PushMessagesRequest.FromString(body)
    except DecodeError:
        raise Unreadable("it is no protobuf") from None
    if len(push.messages_list) != 1 or len(push.message_object_trees) != 1:
        raise Unreadable(f"it announces {len(push.messages_list)} messages, not one")
    about = push.messages_list[0].metadata
    shape = shape_of(push.message_object_trees[0])
    return Announced(push.node.node_id, about.src_node_id, about.reply_to_message_id, shape)


def shapes(body: bytes) -> list[Shape]:
    """Return the objects of each message in Flower's answer to a node that looks for messages."""
    try:
        return [
            shape_of(tree) for tree in PullMessagesResponse.FromString(body).message_object_trees
        ]
    except DecodeError:
        return []  # an answer that is no list of messages announces none


def named(path: str, body: bytes) -> str:
    """Return the object that a request to pull or to confirm is about."""
    try:
        if path == "pull-object":
            return str(PullObjectRequest.FromString(body).object_id)
        return str(ConfirmMessageReceivedRequest.FromString(body).message_object_id)
    except DecodeError:
        return ""


def shape_of(tree: ObjectTree) -> Shape:
    """Return the objects of a tree, each with its children."""
    shape, level = dict[str, tuple[str, ...]](), [tree]
    for _ in range(_DEEP):
        # Flower keeps children without an order.
        shape |= {
            node.object_id: tuple(sorted(c.object_id for c in node.children)) for node in level
        }
        level = [child for node in level for child in node.children]
    if level:
        raise Unreadable(f"its objects are > {_DEEP} levels deep")
    return shape


# -- a message on its way


class Parcel:
    """A header, and the arrays in a file, or in memory where there is no folder."""

    def __init__(self, folder: Path | None, header: bytes = b"") -> None:
        self.header = header
        self._file: IO[bytes] = (
            BytesIO() if folder is None else TemporaryFile(dir=folder)  # noqa: SIM115
        )
        self._places: list[tuple[int, int]] = []  # of the arrays, in their order

    def fill(self, pieces: Iterable[bytes]) -> "Parcel":
        """Take the arrays, piece by piece."""
        size = 0
        for piece in pieces:
            self._file.write(piece)
            size += len(piece)
        self._file.flush()
        self._places = [(0, size)]
        return self

    @property
    def size(self) -> int:
        """How many bytes the arrays have."""
        return sum(length for _, length in self._places)

    def pieces(self) -> Iterator[bytes]:
        """Go through the arrays, piece by piece."""
        for begin, length in self._places:
            for at in range(begin, begin + length, _PIECE):
                yield self.read(at, min(_PIECE, begin + length - at))

    def arrays(self) -> bytes:
        """Return the arrays."""
        return b"".join(self.pieces())

    def read(self, at: int, length: int) -> bytes:
        """Return some bytes of the file."""
        self._file.seek(at)
        return self._file.read(length)

    def close(self) -> None:
        """Delete the file."""
        self._file.close()

    # -- from Flower

    def put(self, content: bytes) -> bytes:
        """Write a chunk to the file; return a mark in its place."""
        body = get_object_body(content, ArrayChunk)
        at = self._file.seek(0, 2)
        self._file.write(body)
        mark = at.to_bytes(8, "little") + len(body).to_bytes(8, "little")
        return ArrayChunk(memoryview(mark)).deflate()

    def open(self, content: RecordDict, header: int, most: int) -> None:
        """Read the record whose chunks were put into this file; these are its greatest sizes."""
        record: Any = content.get("trimtab")
        if not isinstance(record, ArrayRecord | ConfigRecord) or set(record) != _PARTS:
            raise Unreadable("a message cannot be read (it is not one of trimtab's)")
        parts: dict[str, Any] = {
            name: getattr(record[name], "data", record[name]) for name in _PARTS
        }
        if not all(isinstance(part, bytes) for part in parts.values()):
            raise Unreadable("a message cannot be read (a part of it is no bytes)")
        whole = isinstance(record, ConfigRecord)
        places = {} if whole else {name: _places(parts[name]) for name in _PARTS}
        for name, limit in {"header": header, "arrays": most + _OVERHEAD}.items():
            size = len(parts[name]) if whole else sum(length for _, length in places[name])
            if size > limit:
                raise Unreadable(f"its {name} has {size:,} bytes; {limit:,} are allowed")
        if whole:
            self.header = parts["header"]
            self.fill([parts["arrays"]])
        else:
            self.header = b"".join(self.read(*place) for place in places["header"])
            self._places = places["arrays"]

    # -- to Flower

    def chunks(self) -> list["_Chunk"]:
        """Return the chunks of the arrays, which are read from the file when they go."""
        ((begin, size),) = self._places
        return [
            _Chunk(self, at, min(CHUNK, begin + size - at))
            for at in range(begin, begin + size, CHUNK)
        ]


_PARTS = {"header", "arrays"}


def record_of(header: bytes, arrays: Parcel, chunks: "list[_Chunk] | None" = None) -> RecordDict:
    """Return a message as Flower carries it; `chunks` are those of the arrays, if they are known.

    Of a larger one header and arrays go apart: what is the same for all sites is then stored once.
    """
    if len(header) + arrays.size <= SMALL:
        small = ConfigRecord({"header": header, "arrays": arrays.arrays()})
        return RecordDict({"trimtab": small})
    sizes, data = {"header": len(header), "arrays": arrays.size}, {"header": header, "arrays": b""}
    record = ArrayRecord(
        {k: Array("uint8", (n,), "trimtab.safetensors", data[k]) for k, n in sizes.items()}
    )
    # A record copies the arrays it is made of, so they get their chunks in the end.
    known = arrays.chunks() if chunks is None else chunks
    record["arrays"].__dict__["_chunks"] = [(chunk.object_id, chunk) for chunk in known]
    return RecordDict({"trimtab": record})


class _Chunk(ArrayChunk):
    """A chunk that is read from the file when it goes, and whose name is computed once."""

    def __init__(self, parcel: Parcel, at: int, length: int) -> None:
        self._parcel, self._at, self._length = parcel, at, length

    @property
    def is_dirty(self) -> bool:
        """Whether the name must be computed again: the file does not change."""
        return False

    def deflate(self) -> bytes:
        """Return the chunk as it travels."""
        body = self._parcel.read(self._at, self._length)
        return add_header_to_object_body(object_body=body, obj=self)


_Chunk.__qualname__ = ArrayChunk.__qualname__  # by which Flower knows what it is


@dataclass(frozen=True)
class Outgoing:
    """A message to be pushed: what announces it, and its objects by their names."""

    about: ProtoMessage
    tree: ObjectTree
    objects: Mapping[str, Any]

    @classmethod
    def of(cls, message: FlowerMessage) -> "Outgoing":
        """Name the objects of a message; its own name is set in the protobuf."""
        with no_object_id_recompute():
            about = message_to_proto(remove_content_from_message(message))
            about.metadata.message_id = message.object_id
            return cls(about, get_object_tree(message), get_all_nested_objects(message))


class Incoming:
    """A message that was announced; its objects are pulled as they come.

    `header` and `most` are the greatest sizes of its header and arrays in bytes.
    """

    def __init__(
        self, tree: ObjectTree, pull: Pull, folder: Path | None, *, header: int, most: int
    ) -> None:
        self.pull, self.limits, self.name = pull, (header, most), tree.object_id
        shape = shape_of(tree)
        inner = [tree.object_id]
        for _ in range(_DEEP - 2):
            inner += [child for name in inner for child in shape[name] if child not in inner]
        if len(inner) > _INNER or len(shape) > most_objects(most):
            raise Unreadable(f"it has {len(shape)} objects; {most_objects(most)} are allowed")
        self._inner = inner
        self._wanted = [*inner, *(name for name in shape if name not in inner)]
        self._contents: dict[str, bytes] = {}
        self.parcel = Parcel(folder)

    def advance(self) -> bool:
        """Pull what is there by now; return whether that is all."""
        while self._wanted:
            name = self._wanted[0]
            try:
                content = self.pull(name)
            except ObjectUnavailableError:
                return False
            self._take(name, content)
            self._wanted.pop(0)
        message: Any = inflate_object_from_contents(self.name, self._contents)
        self.parcel.open(message.content, *self.limits)
        return True

    def _take(self, name: str, content: bytes) -> None:
        limit = _INNER_BYTES if name in self._inner else largest_object(self.limits[1])
        if len(content) > limit:
            raise Unreadable(f"an object of it has {len(content):,} bytes; {limit:,} are allowed")
        kind, _, _ = get_object_head_values_from_object_content(content)
        is_chunk = kind == ArrayChunk.__qualname__
        if is_chunk == (name in self._inner):
            raise Unreadable("its objects are not put together as those of trimtab are")
        self._contents[name] = self.parcel.put(content) if is_chunk else content


def _places(marks: bytes) -> list[tuple[int, int]]:
    cut = [marks[at : at + _MARK] for at in range(0, len(marks), _MARK)]
    return [(int.from_bytes(m[:8], "little"), int.from_bytes(m[8:], "little")) for m in cut]
