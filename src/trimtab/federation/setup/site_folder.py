"""A site's folder, and the archive in which it travels.

It holds site.json, problem.py, ca.crt, site.key, state/, logs/ and flower/.
"""

import io
import json
import re
import tarfile
import time
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from secrets import token_bytes
from typing import TYPE_CHECKING, Any, Self

from trimtab._files import read_json
from trimtab._version import __version__
from trimtab.federation.storage import keys

if TYPE_CHECKING:
    from trimtab.federation.setup.problem_file import ProblemFile

FORMAT = 1
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,30}")


@dataclass(frozen=True)
class SiteFolder:
    """What a site's folder says."""

    folder: Path
    name: str
    federation: str
    server: str  # host:port
    batch: int | float | None

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read site.json."""
        facts = read_facts(folder, "site.json", "federate site")
        check_fields(folder / "site.json", cls, facts)
        return cls(folder=folder, **facts)

    def to_json(self) -> dict[str, Any]:
        """Return what site.json holds."""
        return about() | {k: v for k, v in asdict(self).items() if k != "folder"}

    @property
    def state(self) -> Path:
        """Where c_i lives."""
        return self.folder / "state"

    @property
    def problem(self) -> "ProblemFile":
        """The problem file."""
        from trimtab.federation.setup.problem_file import ProblemFile  # it imports torch

        return ProblemFile(self.folder / "problem.py")


def pack(site: SiteFolder, private_key: bytes, authority: bytes, problem: bytes) -> bytes:
    """Return the archive of a site's folder."""
    contents = {
        "site.json": (json.dumps(site.to_json(), indent=2) + "\n").encode(),
        "site.key": private_key,
        "ca.crt": authority,
        "problem.py": problem,
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as file:
        folder = tarfile.TarInfo(site.name)
        folder.type, folder.mode, folder.mtime = tarfile.DIRTYPE, 0o700, int(time.time())
        file.addfile(folder)
        for path, content in contents.items():
            entry = tarfile.TarInfo(f"{site.name}/{path}")
            entry.size, entry.mode, entry.mtime = len(content), 0o600, folder.mtime
            file.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def unpack(archive: Path, into: Path) -> Path:
    """Unpack a site's archive; return the site's folder."""
    with tarfile.open(archive) as file:
        file.extractall(into, filter="data")
        return into / file.getnames()[0].split("/")[0]


def secret(folder: Path) -> Path:
    """Return the file of the secret by which local processes know each other; make it if needed."""
    path = folder / "secret"
    if not path.exists():
        keys.write_secret(path, token_bytes(32))
    return path


def check_name(name: str) -> None:
    """Refuse a name that cannot be a folder's."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is no name for a site; use small letters, digits, - and _, at most 31."
        )


def about() -> dict[str, Any]:
    """Return how federation.json and site.json begin."""
    return {"format": FORMAT, "trimtab": __version__}


def check_fields(path: Path, kind: type, facts: dict[str, Any], *besides: str) -> None:
    """Refuse facts that lack a field of the class, or have one that this trimtab does not know."""
    known = {field.name for field in fields(kind)} | set(besides)
    odd = sorted(str(name)[:40] for name in facts.keys() - known)
    missing = [f.name for f in fields(kind) if f.default is MISSING and f.name not in facts]
    missing = [name for name in missing if name not in ("folder", "roster")]
    if missing or odd:
        what = f"has no {missing[0]!r}" if missing else f"has {odd[0]!r}, which is unknown here"
        raise ValueError(f"{path} {what}; restore it, or use the trimtab that wrote it.")


def read_facts(folder: Path, name: str, command: str) -> dict[str, Any]:
    """Return what federation.json or site.json says, without its beginning."""
    if not (folder / name).is_file():
        raise ValueError(f"{folder} holds no {name}; pass the folder of `trimtab {command}`.")
    content = read_json(folder / name)
    if not isinstance(content, dict):
        raise ValueError(f"{folder / name} is no JSON object; restore it.")
    if content.pop("format", None) != FORMAT:
        raise ValueError(f"{folder / name} is of another trimtab; make a new federation with this.")
    content.pop("trimtab", None)
    return content
