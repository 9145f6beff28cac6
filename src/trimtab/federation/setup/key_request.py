"""A site asks to be let in: a key that is made there, and the request that goes to the operator.

The private half never leaves the site's folder. The request holds no secret, but who lets it in
compares its fingerprint with the site's over the telephone: what comes by mail may be anybody's.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from trimtab._files import write_json
from trimtab.errors import BadArgument
from trimtab.federation.setup.fields import check_fields
from trimtab.federation.setup.site_folder import check_name
from trimtab.federation.storage import keys

REQUEST = "request.json"
KEY, NEXT_KEY = "site.key", "site.key.next"
_FIELDS = dict.fromkeys(("name", "public_key", "signature", "vouched"), str)
_MOST = 10_000  # a request has <= this many bytes


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

    def is_vouched_for_by(self, public_key: str) -> bool:
        """Tell whether the holder of an older key asks for the new one."""
        return keys.is_signed(public_key, _said(self.name, self.public_key), self.vouched)


def enrol(folder: Path, name: str, rotate: bool = False) -> KeyRequest:
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
    if path.stat().st_size > _MOST:
        raise ValueError(f"{path} is no request (it has more than {_MOST:,} bytes).")
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is no request (it is no JSON).") from None
    request = KeyRequest(**check_fields(path, content, _FIELDS, {}))
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
