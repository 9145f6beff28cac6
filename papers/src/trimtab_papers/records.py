"""The records of cells: compressed JSON, one file each, written whole."""

import gzip
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trimtab._files import write_file

Record = dict[str, Any]
"""What the file of a cell holds; its module reads it into types of its own."""

Records = Mapping[str, Record]
"""The records of a reproduction by the names of their cells; those not computed are not there."""


SUFFIX = ".json.gz"


def path_of(folder: Path, name: str) -> Path:
    """Return where the record of a cell is."""
    return folder / f"{name}{SUFFIX}"


def read(folder: Path) -> dict[str, Record]:
    """Return the records in a folder by the names of their cells."""
    records = {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            record = json.loads(gzip.decompress(path.read_bytes()))
            if not isinstance(record, dict):
                raise ValueError("it is no record")
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise ValueError(f"{path} cannot be read ({error}); remove it and run again.") from None
        records[path.name.removesuffix(SUFFIX)] = record
    return records


def write(path: Path, record: Record) -> None:
    """Write a record whole; equal records are equal files."""
    content = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
    write_file(path, gzip.compress(content.encode(), mtime=0))


def of_kind(records: Records, kind: str) -> dict[int, Record]:
    """Return the records of cells whose settings name this kind, by seed."""
    found = {r["settings"]["seed"]: r for r in records.values() if r["settings"]["kind"] == kind}
    return dict(sorted(found.items()))
