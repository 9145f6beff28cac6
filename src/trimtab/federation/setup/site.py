"""A site's folder, the archive in which it travels, and the request by which its key is admitted.

The folder holds site.json, problem.py, ca.crt, site.key, policy.toml, state/ and logs/. A key that
is made there never leaves it. A request holds no secret, but may come from any sender: the operator
compares its fingerprint with the site's over the telephone.
"""

import gzip
import io
import json
import re
import tarfile
import time
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import token_bytes, token_hex
from typing import TYPE_CHECKING, Any, Self

from trimtab._files import write_file, write_json
from trimtab._version import __version__
from trimtab.errors import BadArgument
from trimtab.federation.storage import keys
from trimtab.federation.storage.files import read_sealed, sealed_text
from trimtab.federation.storage.policy import approved_digest
from trimtab.federation.storage.roster import REQUEST_DAYS

if TYPE_CHECKING:
    from trimtab.federation.setup.problem_file import ProblemFile

Fields = Mapping[str, Any]  # by name, what `isinstance` takes: a type, or several with | between

FORMAT = 2
_READS = (1, FORMAT)  # Files of 0.1 had no checksums and no fingerprints.
_FIELDS = {**dict.fromkeys(("name", "federation", "server"), str), "batch": int | float | None}
_SINCE_2 = dict.fromkeys(("key", "authority", "until"), str)
REQUEST = "request.json"
KEY, NEXT_KEY = "site.key", "site.key.next"
DRAWS, SERVERS_SEED = "draws.key", b"draw from the seed of the server\n"
_OF_REQUEST = ("name", "federation", "made", "nonce", "public_key", "signature", "vouched")
_LONGEST = 10_000  # bytes of a request
# An archive has four files and their folder. The limits are far above what ours need, and low
# enough for any machine.
_ENTRIES, _BYTES = 8, 32 << 20
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,30}")
_ID = re.compile(r"[0-9a-f]{12}")
_NONCE = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class SiteFolder:
    """What a site's folder says."""

    folder: Path
    name: str
    federation: str
    server: str  # host:port
    batch: int | float | None
    key: str = ""  # the fingerprint of the key that the operator registered
    authority: str = ""  # the fingerprint of the certificate by which the site knows the server
    until: str = ""  # when the key expires

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read site.json."""
        facts = read_facts(folder, "site.json", "federate site", _FIELDS, _SINCE_2)
        for name, value in facts.items():
            if isinstance(value, str) and (len(value) > 300 or not value.isprintable()):
                raise ValueError(f"{folder / 'site.json'} cannot be read (its {name} is no text).")
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
        """The problem file, which must be the one that the site approved."""
        from trimtab.federation.setup.problem_file import ProblemFile  # it imports torch

        return ProblemFile(self.folder / "problem.py", approved_digest(self.folder))

    def draws(self) -> bytes | None:
        """Return the secret of mini-batches, dropout and noise; make it if there is none.

        None if the site's own file says to draw from the server's seed: then a run gives the
        simulator's bits, and the server knows each mini-batch. Only demonstrations do that.
        """
        path = self.folder / DRAWS
        if not path.exists():
            keys.write_secret(path, token_bytes(32))
        keys.check_private(path)
        content = path.read_bytes()
        return None if content == SERVERS_SEED else content

    def check_keys(self) -> None:
        """Refuse a key or an authority that is not the one in site.json, or not private."""
        keys.check_private(self.folder / KEY)
        own = keys.fingerprint(keys.public_half((self.folder / KEY).read_bytes()))
        if self.key and own != self.key:
            raise ValueError(
                f"{self.folder / KEY} is {own}, but the operator registered {self.key}; "
                "take in the archive of that key with `trimtab federate approve`."
            )
        known = keys.authority_fingerprint((self.folder / "ca.crt").read_bytes())
        if self.authority and known != self.authority:
            raise ValueError(
                f"{self.folder / 'ca.crt'} is {known}, but {self.authority} came in the archive; "
                "take the archive in again with `trimtab federate approve`."
            )

    def expiring(self) -> list[str]:
        """Return a sentence for the key and the authority if they expire within 30 days."""
        said = [
            keys.expiry_warning(
                str(self.folder / "ca.crt"),
                keys.expires(self.folder / "ca.crt"),
                "ask the operator for a new federation",
            )
        ]
        if self.until:
            until = datetime.fromisoformat(self.until)
            remedy = "run `trimtab federate enroll` with its option to rotate"
            said.append(keys.expiry_warning(str(self.folder / KEY), until, remedy))
        return [sentence for sentence in said if sentence]


# -- archives


def pack(site: SiteFolder, authority: bytes, problem: bytes, private_key: bytes | None) -> bytes:
    """Return the archive of a site's folder; a private key is in it if it was not made there."""
    contents = {"site.json": sealed_text(site.to_json()).encode()}
    contents |= {} if private_key is None else {KEY: private_key}
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


def read_archive(archive: Path) -> dict[str, bytes]:
    """Return the files of a site's archive by name; refuse anything that ours do not hold.

    The archive may come from any sender, so it is decompressed up to a limit before it is parsed.
    """
    files: dict[str, bytes] = {}
    try:
        with gzip.open(archive) as packed:
            content = packed.read(_BYTES + 1)
        if len(content) > _BYTES:
            raise ValueError(f"it holds more than {_BYTES >> 20} MiB")
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as file:
            for number, member in enumerate(file, 1):
                if number > _ENTRIES:
                    raise ValueError(f"it has more than {_ENTRIES} entries")
                _take(file, member, files)
        missing = [name for name in ("site.json", "ca.crt", "problem.py") if name not in files]
        if missing:
            raise ValueError(f"it holds no {missing[0]}")
    except (
        OSError,
        tarfile.TarError,
        EOFError,
        ValueError,
        OverflowError,
        RecursionError,
        zlib.error,
    ) as error:
        why = str(error).rstrip(".")[:200]
        raise ValueError(
            f"{archive} cannot be read ({why}); get it again from the operator."
        ) from None
    return files


def _take(file: tarfile.TarFile, member: tarfile.TarInfo, files: dict[str, bytes]) -> None:
    """Read one entry of an archive."""
    parts = member.name.split("/")
    if member.isdir() and len(parts) == 1:
        return
    name = parts[-1]
    # Sparse files and links count as files for `isfile`, but not here.
    plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and len(parts) == 2
    if not plain or name not in ("site.json", "ca.crt", "problem.py", KEY):
        raise ValueError(f"it holds {member.name[:80]!r}, and ours do not")
    if name in files:
        raise ValueError(f"it holds {name} twice")
    content = file.extractfile(member)
    assert content is not None
    files[name] = content.read()


def unpack(archive: Path, into: Path) -> Path:
    """Unpack a site's archive into a folder of its name; return that folder."""
    files = read_archive(archive)
    folder = into / archive.name.removesuffix(".tar.gz")
    folder.mkdir(mode=0o700, parents=True)
    for name, content in files.items():
        if name == KEY:
            keys.write_secret(folder / name, content)
        else:
            write_file(folder / name, content)
    return folder


def secret(folder: Path) -> Path:
    """Return the file of the secret by which local processes know each other; make it if needed."""
    path = folder / "secret"
    if not path.exists():
        keys.write_secret(path, token_bytes(32))
    keys.check_private(path)
    return path


def check_name(name: str, what: str = "a site") -> None:
    """Refuse a name that cannot be a folder's."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name[:40]!r} is no name for {what}; use small letters, digits, - and _, at most 31."
        )


# -- the request


@dataclass(frozen=True)
class KeyRequest:
    """What a site sends: its name and public key, signed with that key and with the one before."""

    name: str
    federation: str  # the id of the federation that it asks
    made: str  # when, in UTC
    nonce: str  # A request is used once.
    public_key: str
    signature: str = ""
    vouched: str = ""  # by the key that the site has had so far; empty if it is new

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the key that is to be admitted."""
        return keys.fingerprint(self.public_key)

    @property
    def signed(self) -> bytes:
        """What the signatures are of."""
        facts = f"{self.name} of {self.federation}, {self.made}, {self.nonce}"
        return f"trimtab key request: {facts}\n{self.public_key}".encode()

    def is_signed_by(self, public_key: str) -> bool:
        """Return whether the holder of an older key asks for the new one."""
        return keys.is_signed(public_key, self.signed, self.vouched)

    def check(self, federation: str) -> None:
        """Refuse a request to another federation, or one that is too old."""
        if self.federation != federation:
            raise ValueError(
                f"the request of {self.name} is to the federation {self.federation}, this is "
                f"{federation}; let the site make another."
            )
        age = datetime.now(UTC) - datetime.fromisoformat(self.made)
        # Clocks differ; a request from the future could be kept for later.
        if not timedelta(days=-1) < age < timedelta(days=REQUEST_DAYS):
            raise ValueError(
                f"the request of {self.name} was made on {self.made}; a request is valid for "
                f"{REQUEST_DAYS} days: let the site make another with `trimtab federate enroll`."
            )


def request_key(
    folder: Path, name: str | None = None, federation: str | None = None, rotate: bool = False
) -> KeyRequest:
    """Make a site's key in its folder, or its next one, and the request for the operator.

    A key that has not been admitted yet stays; the request for it is made again.

    folder: the site's folder.
    name: the site's name; default that in site.json, or the folder's.
    federation: the id of the federation; default that in site.json.
    rotate: whether the site has a key and is to get its next one; default no.
    """
    site = SiteFolder.read(folder) if (folder / "site.json").exists() else None
    name = name or (site.name if site else folder.resolve().name)
    check_name(name)
    known = site.federation if site else federation
    if known is None or not _ID.fullmatch(known) or federation not in (None, known):
        known = known if site else None
        raise BadArgument(
            "federation",
            "{_given}; pass {federation:ID}, the 12 digits that the operator's `trimtab federate "
            "fingerprint` shows.",
            _given=f"{folder} belongs to {known or 'no federation yet'}",
        )
    has, pending = (folder / KEY).exists(), (folder / NEXT_KEY).exists()
    if rotate and not has:
        raise BadArgument("rotate", "{_folder} has no key yet; drop {rotate}.", _folder=folder)
    if rotate and pending:
        raise BadArgument(
            "rotate",
            "{_folder} has a next key already, which waits for its archive; drop {rotate} to make "
            "the request for it again.",
            _folder=folder,
        )
    if site and not rotate and not pending:
        raise BadArgument(
            "rotate",
            "{_folder} has a key already; pass {rotate} to make its next one.",
            _folder=folder,
        )
    path = folder / (NEXT_KEY if rotate or pending else KEY)
    if not path.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        keys.write_secret(path, keys.make_site_key(keys.passphrase())[0])
    private = path.read_bytes()
    now = datetime.now(UTC).isoformat(timespec="seconds")
    request = KeyRequest(name, known, now, token_hex(16), keys.public_half(private))
    signatures = {"signature": keys.sign(private, request.signed)}
    if path.name == NEXT_KEY:
        signatures["vouched"] = keys.sign((folder / KEY).read_bytes(), request.signed)
    request = KeyRequest(**asdict(request) | signatures)
    write_json(folder / REQUEST, asdict(request))
    return request


def read_request(path: Path) -> KeyRequest:
    """Read a request, which may come from any sender."""
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file; pass the request of a site.")
    if path.stat().st_size > _LONGEST:
        raise ValueError(f"{path} is no request (it has more than {_LONGEST:,} bytes).")
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is no request (it is no JSON).") from None
    request = KeyRequest(**check_fields(path, content, dict.fromkeys(_OF_REQUEST, str), {}))
    check_name(request.name)
    try:
        if datetime.fromisoformat(request.made).utcoffset() != timedelta(0):
            raise ValueError("its time is not in UTC")
        if not _ID.fullmatch(request.federation) or not _NONCE.fullmatch(request.nonce):
            raise ValueError("its federation or its nonce is none")
        public = keys.canonical(request.public_key)
    except ValueError as error:
        why = ascii(str(error).rstrip("."))[1:-1]
        raise ValueError(f"{path} is no request ({why}).") from None
    if public != request.public_key:
        raise ValueError(f"{path} is no request (its key is written in a way of its own).")
    if not keys.is_signed(public, request.signed, request.signature):
        raise ValueError(f"{path} is not signed with its own key; let the site enroll again.")
    return request


# -- entries of JSON files


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
