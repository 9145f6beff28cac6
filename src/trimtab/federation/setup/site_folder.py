"""A site's folder, and the archive in which it travels.

It holds site.json, problem.py, ca.crt, site.key, policy.toml, state/, logs/ and flower/.
"""

import io
import re
import tarfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_bytes
from typing import TYPE_CHECKING, Any, Self

from trimtab._version import __version__
from trimtab.federation.setup.fields import Fields, check_fields
from trimtab.federation.storage import keys
from trimtab.federation.storage.seal import read_sealed, sealed_text

if TYPE_CHECKING:
    from trimtab.federation.setup.problem_file import ProblemFile

FORMAT = 2
_READS = (1, FORMAT)  # what 0.1 wrote had no checksums, and said no fingerprints
_FIELDS = {**dict.fromkeys(("name", "federation", "server"), str), "batch": int | float | None}
_SINCE_2 = {"key": str, "authority": str}
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,30}")


@dataclass(frozen=True)
class SiteFolder:
    """What a site's folder says."""

    folder: Path
    name: str
    federation: str
    server: str  # host:port
    batch: int | float | None
    key: str = ""  # the fingerprint of the key that the operator registered
    authority: str = ""  # the fingerprint of the certificate by which the server is known

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read site.json."""
        facts = read_facts(folder, "site.json", "federate site", _FIELDS, _SINCE_2)
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

    def check_keys(self) -> None:
        """Refuse a key, or an authority, that is not the one which site.json tells of."""
        own = keys.fingerprint(keys.public_half((self.folder / "site.key").read_bytes()))
        if self.key and own != self.key:
            raise ValueError(
                f"{self.folder / 'site.key'} is {own}, but the operator registered {self.key}; "
                "take in the archive of that key with `trimtab federate approve`."
            )
        known = keys.authority_fingerprint((self.folder / "ca.crt").read_bytes())
        if self.authority and known != self.authority:
            raise ValueError(
                f"{self.folder / 'ca.crt'} is {known}, but {self.authority} came in the archive; "
                "take the archive in again with `trimtab federate approve`."
            )


def pack(site: SiteFolder, authority: bytes, problem: bytes, private_key: bytes | None) -> bytes:
    """Return the archive of a site's folder; a private key is in it if it was not made there."""
    contents = {"site.json": sealed_text(site.to_json()).encode()}
    contents |= {} if private_key is None else {"site.key": private_key}
    contents |= {"ca.crt": authority, "problem.py": problem}
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
            f"{name[:40]!r} is no name for a site; use small letters, digits, - and _, at most 31."
        )


def about() -> dict[str, Any]:
    """Return how federation.json and site.json begin."""
    return {"format": FORMAT, "trimtab": __version__}


def read_facts(
    folder: Path, name: str, command: str, fields: Fields, optional: Fields
) -> dict[str, Any]:
    """Return what federation.json or site.json says, without its beginning."""
    path = folder / name
    if not path.is_file():
        raise ValueError(f"{folder} holds no {name}; pass the folder of `trimtab {command}`.")
    content = read_sealed(path)
    if content.pop("format", None) not in _READS:
        raise ValueError(f"{path} is of another trimtab; make a new federation with this.")
    content.pop("trimtab", None)
    return check_fields(path, content, fields, optional)
