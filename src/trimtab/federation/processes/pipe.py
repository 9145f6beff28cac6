"""Messages through the pipes between our own processes: a header, then arrays, piece by piece."""

from collections.abc import Iterable, Iterator
from typing import IO

from trimtab.federation.message import (
    Message,
    decode_arrays,
    decode_header,
    encode_arrays,
    encode_header,
)

_MOST = 1 << 34  # a message has <= 16 GiB
_HEADER = 256 << 10  # its header has <= 256 KiB
_PIECE = 1 << 20  # bytes that are carried at a time


def send(pipe: IO[bytes], message: Message) -> None:
    """Write a message to a pipe."""
    arrays = encode_arrays(message.arrays)
    send_parts(pipe, encode_header(message.header), len(arrays), [arrays])


def receive(pipe: IO[bytes]) -> Message | None:
    """Read a message from a pipe; None when it has ended."""
    head = receive_head(pipe)
    if head is None:
        return None
    header, size = head
    data = pipe.read(size)
    if len(data) < size:
        return None
    return Message(decode_header(header, _HEADER), decode_arrays(data))


def send_parts(pipe: IO[bytes], header: bytes, size: int, arrays: Iterable[bytes]) -> None:
    """Write a header, and arrays of this size in pieces."""
    pipe.write(len(header).to_bytes(8, "little") + size.to_bytes(8, "little"))
    pipe.write(header)
    for piece in arrays:
        pipe.write(piece)
    pipe.flush()


def receive_head(pipe: IO[bytes]) -> tuple[bytes, int] | None:
    """Read a header, and how long the arrays after it are; None when the pipe has ended."""
    sizes = pipe.read(16)
    if len(sizes) < 16:
        return None
    length, size = (int.from_bytes(part, "little") for part in (sizes[:8], sizes[8:]))
    if length + size > _MOST:
        raise ValueError(f"{length + size:,} bytes came through a pipe; that is no message.")
    header = pipe.read(length)
    return (header, size) if len(header) == length else None


def pieces(pipe: IO[bytes], size: int) -> Iterator[bytes]:
    """Read so many bytes, piece by piece; fewer if the pipe ends."""
    while size:
        piece = pipe.read(min(size, _PIECE))
        if not piece:
            return
        size -= len(piece)
        yield piece
