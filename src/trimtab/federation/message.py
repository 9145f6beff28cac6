"""Messages between server and sites: JSON and arrays, never pickles.

On the wire a message is its header as JSON, and its arrays as a safetensors file. On disk it is one
safetensors file whose metadata hold the header.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from trimtab._version import PROTOCOL, __version__
from trimtab.core import State, leaves, map_leaves
from trimtab.federation.log import printable

_TABLE = 64 << 10  # arrays from outside have a table of names and shapes of <= 64 KiB, in JSON too
_HEADER = "trimtab"
_DEEPEST = 32  # a header has <= this many levels: what is deeper could not even be shown


class BadMessage(ValueError):
    """A message lacks an entry."""


@dataclass(frozen=True)
class Message:
    """A header that JSON can hold, and named arrays of floating-point numbers.

    `most` does not travel: the arrays of the reply to this request have at most so many bytes.
    """

    header: dict[str, Any]
    arrays: dict[str, Tensor] = field(default_factory=dict)
    most: int = 0

    def __getitem__(self, name: str) -> Any:
        try:
            return self.header[name]
        except KeyError:
            raise BadMessage(f"a message has no {name!r}; is its sender a trimtab?") from None


def encode(message: Message, beside: Mapping[str, str] = MappingProxyType({})) -> bytes:
    """Return a message as bytes, with further words beside its header if there are any.

    >>> decode(encode(Message({"kind": "work"}, {"0": torch.ones(2)}))).arrays
    {'0': tensor([1., 1.])}
    """
    return bytes(save(_apart(message.arrays), _metadata(message.header) | dict(beside)))


def decode(data: bytes) -> Message:
    """Read a file; a ValueError says what is wrong with it."""
    try:
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])["__metadata__"][_HEADER]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"a message cannot be read ({_first_line(error)}).") from None
    return Message(decode_header(header, len(data)), _loaded(data))


def encode_header(header: Mapping[str, Any]) -> bytes:
    """Return a header as it travels."""
    return json.dumps(header, allow_nan=False).encode()


def decode_header(data: bytes | str, most: int) -> dict[str, Any]:
    """Read a header from outside that has at most so many bytes."""
    if len(data) > most:
        raise ValueError(
            f"a message cannot be read (its header has {len(data):,} bytes; {most:,} are allowed)."
        )
    try:
        header = json.loads(data)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"a message cannot be read ({_first_line(error)}).") from None
    if not isinstance(header, dict):
        raise ValueError("a message cannot be read (its header is no JSON object).")
    if _depth(header) > _DEEPEST:
        raise ValueError(f"a message cannot be read (its header is > {_DEEPEST} levels deep).")
    return header


def encode_arrays(arrays: Mapping[str, Tensor], salt: str = "") -> bytes:
    """Return arrays as they travel; with another `salt` they are other bytes."""
    return bytes(save(_apart(dict(arrays)), {"salt": salt}))


def decode_arrays(data: bytes) -> dict[str, Tensor]:
    """Read arrays from outside."""
    size = int.from_bytes(data[:8], "little")
    if size > _TABLE:
        raise ValueError(
            f"a message cannot be read (the table of its arrays has {size:,} bytes; {_TABLE:,} are "
            "allowed)."
        )
    return _loaded(data)


def _loaded(data: bytes) -> dict[str, Tensor]:
    try:
        return {name: leaf.clone() for name, leaf in load(data).items()}  # aligned as torch does
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"a message cannot be read ({_first_line(error)}).") from None


def arrays_of(tree: Any) -> dict[str, Tensor]:
    """Return the leaves of a broadcast, upload or state as arrays named by their place."""
    return {str(place): leaf.detach() for place, leaf in enumerate(leaves(tree))}


def filled(like: State, arrays: dict[str, Tensor]) -> State:
    """Return a tree of this structure with the tensors of a message."""
    tensors = iter([arrays[str(place)] for place in range(len(leaves(like)))])
    return map_leaves(lambda _: next(tensors), like)


def check_arrays(
    who: str, arrays: dict[str, Tensor], like: Sequence[Tensor], limit: float | None = None
) -> None:
    """Refuse arrays that are not as many, of the shape and dtype, as those of `like`, or absurd.

    >>> check_arrays("site va", {"0": torch.ones(3)}, [torch.ones(2)])
    Traceback (most recent call last):
    ValueError: site va: array 0 has shape (3,), but (2,) is expected.
    """
    expected = {str(place): leaf for place, leaf in enumerate(like)}
    if arrays.keys() != expected.keys():
        raise ValueError(
            f"{who}: the arrays are named {_listed(arrays)}, but {_listed(expected)} are expected."
        )
    for name, leaf in expected.items():
        got = arrays[name]
        for what in ("shape", "dtype"):
            is_, should = getattr(got, what), getattr(leaf, what)
            if is_ != should:
                shown = [tuple(v) if what == "shape" else v for v in (is_, should)]
                raise ValueError(
                    f"{who}: array {name} has {what} {shown[0]}, but {shown[1]} is expected."
                )
        norm = float(torch.linalg.vector_norm(got))
        if not isfinite(norm) and not bool(torch.isfinite(got).all()):
            raise NotFinite(f"{who}: array {name} holds NaN or infinity.")
        if limit is not None and not norm <= limit:
            raise ValueError(
                f"{who}: array {name} has norm {norm:.3g}, which is beyond the limit {limit:.3g}."
            )


def this_trimtab() -> dict[str, Any]:
    """Return what every message says of its sender: its version, and the protocol it speaks."""
    return {"trimtab": __version__, "protocol": PROTOCOL}


def other_protocol(header: dict[str, Any]) -> tuple[str, str] | None:
    """Return the versions of this trimtab and of a sender if they speak different protocols.

    >>> other_protocol({"trimtab": "0.1.9", "protocol": 1})[1]
    '0.1.9 (protocol 1)'
    """
    if header.get("protocol") == PROTOCOL:
        return None
    theirs, protocol = (printable(str(header.get(name)), 40) for name in ("trimtab", "protocol"))
    return f"{__version__} (protocol {PROTOCOL})", f"{theirs} (protocol {protocol})"


class ReplyStatus(StrEnum):
    """What a site says of a request in the header of its reply."""

    DONE = "done"
    MISMATCH = "mismatch"  # the state that the server counts on is not there
    REFUSED = "refused"
    FAILED = "failed"
    DIVERGED = "diverged"


class NotFinite(ValueError):
    """An array holds NaN or infinity."""


def _listed(names: Iterable[str]) -> str:
    return printable(", ".join(sorted(names)), 200) or "nothing"


def _metadata(header: dict[str, Any]) -> dict[str, str]:
    return {_HEADER: json.dumps(header, allow_nan=False)}


def _apart(arrays: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the arrays without shared memory, which safetensors refuses."""
    seen: set[int] = set()
    apart = {}
    for name, leaf in arrays.items():
        apart[name] = leaf.clone() if leaf.data_ptr() in seen else leaf.contiguous()
        seen.add(leaf.data_ptr())
    return apart


def _depth(value: Any) -> int:
    """Return how many levels a value of JSON has, without a call for each of them."""
    deep, level = 0, [value]
    while level:
        deep += 1
        nested = [v for v in level if isinstance(v, dict | list)]
        level = [w for v in nested for w in (v.values() if isinstance(v, dict) else v)]
    return deep


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
