"""The operator's folder: the federation, its keys, and an archive for each site.

It holds federation.json, problem.py, keys/ (authority and server), sites/ (one archive for each
site), run.json and state/ (the coordinator's), experiments/ (the same for each named experiment)
and logs/.
"""

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Self

from trimtab.errors import BadArgument
from trimtab.federation.setup.site import (
    KEY,
    NEXT_KEY,
    KeyRequest,
    SiteFolder,
    about,
    check_name,
    pack,
    read_archive,
    read_facts,
)
from trimtab.federation.storage import keys
from trimtab.federation.storage.policy import digest_of
from trimtab.federation.storage.roster import FILE, OPTIONAL, Roster, RosterFile

if TYPE_CHECKING:
    from trimtab.federation.setup.problem_file import ProblemFile

_FIELDS = {
    **dict.fromkeys(("id", "weights"), str),
    "sites": dict,
    "batch": int | float | None,
    "hosts": list,
    "port": int,
}
_HOST = re.compile(r"[A-Za-z0-9_.:-]{1,253}")


@dataclass(frozen=True)
class Federation:
    """What federation.json said when it was read."""

    folder: Path
    id: str
    roster: Roster
    weights: str
    batch: int | float | None
    hosts: list[str]
    port: int

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read federation.json."""
        facts = read_facts(folder, FILE, "federate init", _FIELDS, OPTIONAL)
        roster = Roster.from_json(facts)
        rest = {k: v for k, v in facts.items() if k not in ("sites", *OPTIONAL)}
        return cls(folder=folder, roster=roster, **rest)

    @property
    def sites(self) -> Mapping[str, str]:
        """The public keys of the sites, in the order of the clients."""
        return self.roster.sites

    @property
    def keys(self) -> Path:
        """Where the authority and the server's certificate are."""
        return self.folder / "keys"

    @property
    def problem(self) -> "ProblemFile":
        """The problem file."""
        from trimtab.federation.setup.problem_file import ProblemFile  # it imports torch

        return ProblemFile(self.folder / "problem.py")

    def check_keys(self) -> None:
        """Refuse a certificate that is not valid now, and private keys that others may read."""
        keys.check_certificate(self.keys / "server.crt")
        for path in self.keys.glob("*.key"):
            keys.check_private(path)

    def expiring(self) -> list[str]:
        """Return a sentence for each key and certificate that expires within 30 days."""
        remedies = {
            "server.crt": "write a new one with `trimtab federate renew`",
            "ca.crt": "make a new federation with `trimtab federate init`",
        }
        said = (
            keys.expiry_warning(str(self.keys / name), keys.expires(self.keys / name), remedy)
            for name, remedy in remedies.items()
        )
        return [sentence for sentence in (*said, *self.roster.expiring()) if sentence]

    def archive(self, site: str) -> Path:
        """Return where a site's archive is."""
        return self.folder / "sites" / f"{site}.tar.gz"


def create(
    folder: Path,
    sites: list[str],
    problem: Path,
    *,
    weights: str,
    batch: int | float | None,
    hosts: list[str],
    port: int,
) -> Federation:
    """Make the operator's folder; nothing is overwritten.

    The keys of the sites that are named are made here: a reader of this folder, or of one of their
    archives, can impersonate them. Other sites make their own keys, and are registered.
    """
    from trimtab.federation.setup.problem_file import ProblemFile  # it imports torch

    _check(sites, hosts)
    ProblemFile(problem).server_problem()
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty; pass another folder.")
    for part in (folder, folder / "keys", folder / "sites"):
        part.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.copyfile(problem, folder / "problem.py")
    keys.make_authority(folder / "keys")
    keys.make_server_certificate(folder / "keys", hosts)
    new = Federation(folder, token_hex(6), Roster(), weights, batch, hosts, port)
    public = {name: _make_archive(new, name) for name in sites}
    facts = {"id": new.id, "weights": weights, "batch": batch, "hosts": hosts, "port": port}
    RosterFile(folder).create(about() | facts, public)
    return Federation.read(folder)


def renew(federation: Federation, hosts: list[str] | None) -> Federation:
    """Write a new certificate of the server, and the sites' archives if its names change."""
    if hosts is not None:
        _check([], hosts)
    keys.make_server_certificate(federation.keys, hosts or federation.hosts)
    if hosts is not None:
        RosterFile(federation.folder).note(hosts=hosts)
        federation = Federation.read(federation.folder)
        for name, public in federation.sites.items():
            path = federation.archive(name)
            # An archive that was not sent yet may hold the site's only key.
            private = read_archive(path).get(KEY) if path.exists() else None
            _write_archive(federation, name, public, private)
    return federation


def admit(federation: Federation, name: str) -> Federation:
    """Make the key and the archive of one more site; return the federation with it."""
    check_name(name)
    roster = RosterFile(federation.folder)
    roster.read().check_new(name)
    public = _make_archive(federation, name)
    try:
        roster.admit(name, public)
    except BaseException:
        federation.archive(name).unlink()  # Its key is not admitted, and the name stays free.
        raise
    return Federation.read(federation.folder)


def register(
    federation: Federation, request: KeyRequest, replace: bool = False, readmit: bool = False
) -> Federation:
    """Admit a site that made its key itself, or its new key; write the archive that it gets.

    A request for the key that the site has already writes its archive again, and nothing else.

    federation: the operator's folder.
    request: the site's request.
    replace: whether the request needs no signature of the site's key so far, because the operator
        compared the fingerprint of the new one; default no.
    readmit: whether a site of this name that was removed may come back; default no.
    """
    roster, name = RosterFile(federation.folder), request.name
    request.check(federation.id)
    known = roster.read().sites.get(name)
    used = request.public_key, request.nonce, request.made
    if known is None:
        roster.admit(name, *used, readmit=readmit)
    elif known != request.public_key:
        if not replace and not request.is_signed_by(known):
            raise BadArgument(
                "replace",
                "the request is not signed with the key of {name}, {_known}; if that is lost, "
                "compare {_new} over the telephone, then pass {replace}.",
                name=name,
                _known=keys.fingerprint(known),
                _new=request.fingerprint,
            )
        roster.replace_key(name, *used)
    federation = Federation.read(federation.folder)
    _write_archive(federation, name, request.public_key, None)
    return federation


def _check(sites: list[str], hosts: list[str]) -> None:
    """Refuse names that make no sense."""
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise BadArgument(
                "host", "{name} is no host name or address; pass {host:NAME}.", name=repr(host)
            )
    if len(set(sites)) != len(sites):
        raise BadArgument(
            "sites",
            "{sites:{names}}: two sites have one name; name them apart.",
            names=",".join(sites),
        )
    for name in sites:
        check_name(name)


def _make_archive(federation: Federation, name: str) -> str:
    """Write the archive of a site with a new key; return the key's public half."""
    private, public = keys.make_site_key()
    _write_archive(federation, name, public, private)
    return public


def _write_archive(federation: Federation, name: str, public: str, private: bytes | None) -> None:
    """Write a site's archive, in place of an older one."""
    host = federation.hosts[0]
    server = f"[{host}]:{federation.port}" if ":" in host else f"{host}:{federation.port}"
    authority = (federation.keys / "ca.crt").read_bytes()
    problem = (federation.folder / "problem.py").read_bytes()
    known = keys.fingerprint(public), keys.authority_fingerprint(authority)
    until = federation.roster.until.get(name, "")
    site = SiteFolder(Path(), name, federation.id, server, federation.batch, *known, until)
    federation.archive(name).unlink(missing_ok=True)
    keys.write_secret(federation.archive(name), pack(site, authority, problem, private))


# -- fingerprints


def fingerprints_of(folder: Path) -> dict[str, str]:
    """Return what operator and site compare over the telephone, from the folder of either."""
    if (folder / FILE).is_file():
        federation = Federation.read(folder)
        shown = dict(federation.roster.fingerprints)
        shown["(federation)"] = federation.id
        authority = federation.keys / "ca.crt"
    elif (folder / KEY).is_file():
        shown = {"key": _of_key(folder / KEY)}
        if (folder / NEXT_KEY).is_file():
            shown["next key"] = _of_key(folder / NEXT_KEY)
        authority = folder / "ca.crt"
    else:
        raise ValueError(f"{folder} is no folder of an operator or a site; pass one of them.")
    if authority.is_file():
        shown["(authority)"] = keys.authority_fingerprint(authority.read_bytes())
    problem = folder / "problem.py"
    if problem.is_file():
        shown["(problem.py)"] = digest_of(problem.read_bytes())
    return shown


def _of_key(path: Path) -> str:
    return keys.fingerprint(keys.public_half(path.read_bytes()))
