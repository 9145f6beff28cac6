"""What is shown of a checkpoint: the head of its file. Nothing here needs torch.

A safetensors file begins with the length of its head in 8 bytes, then the head as JSON.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trimtab.federation.storage.seal import check_seal

CHECKPOINT = "checkpoint.safetensors"
FORMAT = 1
_KEY = "summary"
_MOST = 100_000_000  # a head has <= this many bytes, as safetensors itself demands


@dataclass(frozen=True)
class Summary:
    """How far an experiment is, and whom it counts on."""

    algorithm: str  # as Python shows it
    commit: int
    r: int
    epoch: int
    p: dict[str, float]  # the weights by the names of the sites, in their order

    def to_header(self) -> dict[str, Any]:
        """Return what the ledger adds to a checkpoint's header."""
        return {_KEY: {name: asdict(self)[name] for name in ("algorithm", "p")}}


def without_summary(header: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint's header as it was before it had a summary."""
    return {name: value for name, value in header.items() if name != _KEY}


def check_format(path: Path, header: dict[str, Any]) -> None:
    """Refuse a checkpoint of another format."""
    there = header.get("format")
    if there != FORMAT:
        raise ValueError(f"{path} has format {there}, this trimtab reads {FORMAT}; use that one's.")


def read_summary(folder: Path) -> Summary | None:
    """Return the summary of the checkpoint in a folder; None if the experiment has not begun."""
    path = folder / CHECKPOINT
    try:
        header = _header(path)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); restore it from a backup.") from None
    check_format(path, header)
    try:
        facts = {name: header[name] for name in ("commit", "r", "epoch")}
        return Summary(**facts, **header[_KEY])
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is no checkpoint of this trimtab ({error}); restore it from a backup."
        ) from None


def _header(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        check_seal(file)
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        if length > _MOST:
            raise ValueError("its head is too long")
        head = json.loads(file.read(length))
        size = os.fstat(file.fileno()).st_size
    ends = [entry["data_offsets"][1] for name, entry in head.items() if name != "__metadata__"]
    if 8 + length + max(ends, default=0) != size:
        raise ValueError("it has been cut off")
    header = json.loads(head["__metadata__"]["trimtab"])
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    return header
