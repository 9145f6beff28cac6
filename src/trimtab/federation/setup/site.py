"""A site's folder, the archive in which it travels, and the request by which its key is admitted.

The folder holds site.json, problem.py, ca.crt, site.key, policy.toml, state/ and logs/. The private
key never leaves it. A request holds no secret, but anybody can send one: the operator compares its
fingerprint with the site's over the telephone.
"""

import io
import json
import re
import tarfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_bytes
from typing import TYPE_CHECKING, Any, Self

from trimtab._files import write_json
from trimtab._version import __version__
from trimtab.errors import BadArgument
from trimtab.federation.storage import keys
from trimtab.federation.storage.seal import read_sealed, sealed_text

if TYPE_CHECKING:
    from trimtab.federation.setup.problem_file import ProblemFile

Fields = Mapping[str, Any]  # by name, what `isinstance` takes: a type, or several with | between

FORMAT = 2
_READS = (1, FORMAT)  # what 0.1 wrote had no checksums, and said no fingerprints
_FIELDS = {**dict.fromkeys(("name", "federation", "server"), str), "batch": int | float | None}
_SINCE_2 = {"key": str, "authority": str}
REQUEST = "request.json"
KEY, NEXT_KEY = "site.key", "site.key.next"
_OF_REQUEST = dict.fromkeys(("name", "public_key", "signature", "vouched"), str)
_LONGEST = 10_000  # a request has <= this many bytes
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


# -- the request


@dataclass(frozen=True)
class KeyRequest:
    """What a site sends: its name and public key, signed with it, and with the one that it had."""

    name: str
    public_key: str
    signature: str
    vouched: str = ""  # by the key that the site has had so far; empty if it is new

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the key that is to be let in."""
        return keys.fingerprint(self.public_key)

    def is_signed_by(self, public_key: str) -> bool:
        """Tell whether the holder of an older key asks for the new one."""
        return keys.is_signed(public_key, _said(self.name, self.public_key), self.vouched)


def request_key(folder: Path, name: str, rotate: bool = False) -> KeyRequest:
    """Make a site's key in its folder, or its next one, and the request for the operator."""
    check_name(name)
    there = (folder / KEY).exists()
    if there and not rotate:
        raise BadArgument(
            "rotate",
            "{_folder} has a key already; pass {rotate} to make its next one.",
            _folder=folder,
        )
    if rotate and not there:
        raise BadArgument("rotate", "{_folder} has no key yet; drop {rotate}.", _folder=folder)
    private, public = keys.make_site_key()
    said = _said(name, public)
    vouched = keys.sign((folder / KEY).read_bytes(), said) if rotate else ""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / NEXT_KEY).unlink(missing_ok=True)
    keys.write_secret(folder / (NEXT_KEY if rotate else KEY), private)
    request = KeyRequest(name, public, keys.sign(private, said), vouched)
    write_json(folder / REQUEST, asdict(request))
    return request


def read_request(path: Path) -> KeyRequest:
    """Read a request, which may come from anybody."""
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file; pass the request of a site.")
    if path.stat().st_size > _LONGEST:
        raise ValueError(f"{path} is no request (it has more than {_LONGEST:,} bytes).")
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is no request (it is no JSON).") from None
    request = KeyRequest(**check_fields(path, content, _OF_REQUEST, {}))
    check_name(request.name)
    try:
        public = keys.canonical(request.public_key)
    except ValueError as error:
        raise ValueError(f"{path} is no request ({str(error).rstrip('.')}).") from None
    if public != request.public_key:
        raise ValueError(f"{path} is no request (its key is written in a way of its own).")
    if not keys.is_signed(public, _said(request.name, public), request.signature):
        raise ValueError(f"{path} is not signed with its own key; let the site enrol again.")
    return request


def _said(name: str, public_key: str) -> bytes:
    return f"trimtab federation: {name} asks to be let in with\n{public_key}".encode()


# -- entries of JSON files


def check_fields(path: Path, content: Any, fields: Fields, optional: Fields) -> dict[str, Any]:
    """Return the entries of a JSON object; refuse it if one lacks, is unknown, or of another type.

    >>> check_fields(Path("a.json"), {"port": "1"}, {"port": int}, {})
    Traceback (most recent call last):
    ValueError: a.json cannot be read (its port is a str); restore or remove it.
    """
    if not isinstance(content, dict):
        raise _unreadable(path, "it is no JSON object")
    for name, kind in (*fields.items(), *optional.items()):
        if name not in content and name in fields:
            raise _unreadable(path, f"it has no {name!r}")
        if name in content and not _is(content[name], kind):
            raise _unreadable(path, f"its {name} is a {type(content[name]).__name__}")
    for name in content.keys() - fields.keys() - optional.keys():
        raise _unreadable(path, f"its entry {name[:40]!r} is unknown to this trimtab")
    return dict(content)


def _unreadable(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} cannot be read ({why}); restore or remove it.")


def _is(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and (not isinstance(value, bool) or kind is bool)
