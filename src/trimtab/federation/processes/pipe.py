"""Messages through the pipes between our own processes."""

from typing import IO

from trimtab.federation.message import Message, decode, encode

_MOST = 1 << 34  # a message has <= 16 GiB


def send(pipe: IO[bytes], message: Message) -> None:
    """Write a message to a pipe."""
    data = encode(message)
    pipe.write(len(data).to_bytes(8, "little"))
    pipe.write(data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Message | None:
    """Read a message from a pipe; None when it has ended."""
    size = pipe.read(8)
    if len(size) < 8:
        return None
    length = int.from_bytes(size, "little")
    if length > _MOST:
        raise ValueError(f"a message of {length:,} bytes came through a pipe; that is no message.")
    data = pipe.read(length)
    return decode(data) if len(data) == length else None
