"""Find data files in the user's folders and the cache, or download them from their official URL.

A file is searched for in `data`, in the folder that TRIMTAB_DATA names and in the user's cache, in
this order. A file that none of them has is downloaded into the cache, unless TRIMTAB_OFFLINE is
set. A download is verified against a published digest; every file in the cache against the SHA-256
recorded beside it when it was downloaded or first used. The user's own folders are only read.
"""

import hashlib
import os
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO
from urllib.request import Request, urlopen

import torch
from torch import Tensor

from trimtab._files import write_file
from trimtab.errors import DataError

Folder = str | os.PathLike[str] | None

_TIMEOUT = 30.0  # seconds without an answer after which a download fails
_CHUNK = 1 << 20  # bytes per read: large enough that the progress line costs nothing


@dataclass(frozen=True)
class Source:
    """One file at its official URL, or several in an archive (.zip, .tar.gz).

    folder: the subfolder of a data folder that holds the files.
    most: the largest download in bytes; a longer answer is refused.
    digest: "sha256:…" or "md5:…" of the download; None where no source publishes one.
    """

    folder: str
    url: str
    files: tuple[str, ...]
    most: int
    digest: str | None = None


def fetch(source: Source, name: str, data: Folder = None) -> Path:
    """Return the path of a file, which is downloaded into the cache if no folder has it."""
    path = find(source, name, data) or _download(source, name, data)
    if path.is_relative_to(cache()):
        _check_note(path, source)
    return path


def find(source: Source, name: str, data: Folder = None) -> Path | None:
    """Return the path of a file if a folder has it; nothing is downloaded or verified."""
    for data_folder in search_folders(data):
        folder = data_folder / source.folder
        for path in (folder / name, data_folder / name, *folder.glob(f"*/{name}")):
            if path.is_file():
                return path
    return None


def search_folders(data: Folder = None) -> list[Path]:
    """Return the folders that are searched, in order."""
    if data is not None and not Path(data).is_dir():
        raise DataError(f"{data}: there is no such folder; pass one that holds data files.")
    named = (data, os.environ.get("TRIMTAB_DATA") or None)
    return [*(Path(folder) for folder in named if folder is not None), cache()]


def cache() -> Path:
    """Return the folder of downloads."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trimtab"


def damaged(path: Path, source: Source, why: object) -> DataError:
    """Return the error about a file whose content is not what it should be."""
    return DataError(
        f"{path} is damaged ({_line(why)}); download {source.url} again and replace it."
    )


def table(path: Path, source: Source, columns: int, header: bool = False) -> Tensor:
    """Read a CSV file of numbers; '?' is NaN."""
    rows = []
    try:
        for line in path.read_text(encoding="utf-8").splitlines()[header:]:
            if line.strip():
                rows.append([nan if v.strip() == "?" else float(v) for v in line.split(",")])
    except ValueError as error:
        raise damaged(path, source, error) from None
    if not rows or {len(row) for row in rows} != {columns}:
        raise damaged(path, source, f"not all its lines have {columns} numbers")
    return torch.tensor(rows, dtype=torch.float64)


# -- from the network into the cache


def _download(source: Source, name: str, data: Folder) -> Path:
    assert name in source.files
    folder = cache() / source.folder
    try:
        if os.environ.get("TRIMTAB_OFFLINE"):
            raise OSError("TRIMTAB_OFFLINE is set")
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder, prefix=".") as temporary:
            _get(source, Path(temporary) / "answer")
            for file, content in _unpacked(source, Path(temporary) / "answer"):
                _store(content, folder / file, Path(temporary) / "new")
    except (OSError, HTTPException, EOFError, tarfile.TarError, zipfile.BadZipFile) as error:
        *others, last = (str(folder) for folder in search_folders(data))
        where = f"neither in {', '.join(others)} nor in {last}" if others else f"not in {last}"
        what = "unpack it" if len(source.files) > 1 else f"save it as {name}"
        raise DataError(
            f"{name} is {where}, and cannot be downloaded ({_line(error)}); "
            f"download {source.url} by hand and {what} in {folder}."
        ) from None
    if source.digest is None:
        _print_note(
            f"no digest of {source.url} is published; the SHA-256 of {folder / name} is recorded"
        )
    return folder / name


def _store(content: IO[bytes], path: Path, new: Path) -> None:
    """Write a file under a temporary name, record its SHA-256, and rename it."""
    with content, new.open("wb") as out:
        shutil.copyfileobj(content, out, _CHUNK)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(_note(path), f"{_digest(new, 'sha256')}  {path.name}\n")
    new.replace(path)


def _get(source: Source, path: Path) -> None:
    """Download from the URL into `path` and verify the digest."""
    request = Request(source.url, headers={"User-Agent": "trimtab"})
    with urlopen(request, timeout=_TIMEOUT) as answer, path.open("wb") as file:
        length = int(answer.headers.get("Content-Length") or 0)
        _print_note(f"downloading {source.url}" + (f" ({length / 1e6:.1f} MB)" if length else ""))
        while chunk := answer.read(_CHUNK):
            file.write(chunk)
            if file.tell() > source.most:
                raise OSError(f"more than {source.most} bytes were sent")
            if sys.stderr.isatty() and length > 10 * _CHUNK:
                print(f"\r{file.tell() / length:4.0%}", end="\r", file=sys.stderr)
        if file.tell() < length:
            raise OSError(f"only {file.tell()} of {length} bytes arrived")
    if source.digest is not None:
        kind, published = source.digest.split(":")
        digest = _digest(path, kind)
        if digest != published:
            raise OSError(f"its {kind} is {digest}, published is {published}")


def _unpacked(source: Source, archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the names and contents of the source's files."""
    if source.url.endswith(".zip"):
        with zipfile.ZipFile(archive) as zipped:
            for file in source.files:
                yield file, zipped.open(_member(file, zipped.namelist()))
    elif source.url.endswith(".tar.gz"):
        with tarfile.open(archive) as tarred:
            for file in source.files:
                content = tarred.extractfile(_member(file, tarred.getnames()))
                assert content is not None
                yield file, content
    else:
        yield source.files[0], archive.open("rb")


def _member(file: str, names: list[str]) -> str:
    for name in names:
        if name == file or name.endswith(f"/{file}"):
            return name
    raise OSError(f"the archive has no {file}")


# -- digests of cached files


def _check_note(path: Path, source: Source) -> None:
    """Raise DataError if a cached file has changed; record the digest of a new one."""
    digest, note = _digest(path, "sha256"), _note(path)
    if not note.exists():
        write_file(note, f"{digest}  {path.name}\n")
        _print_note(f"{path} is used for the first time; its SHA-256 is recorded in {note}")
    elif note.read_text().split()[:1] != [digest]:
        raise DataError(
            f"{path} has changed since its SHA-256 was recorded in {note.name} beside it; "
            f"delete both, and the file is downloaded again from {source.url} when it is needed."
        )


def _note(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _digest(path: Path, kind: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()


def _print_note(text: str) -> None:
    print(f"trimtab: {text}.", file=sys.stderr)


def _line(error: object) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
