"""The operator's folder: the federation, its keys, and an archive for each site.

It holds federation.json, problem.py, keys/ (authority and server), sites/ (one archive for each
site), state/ (the coordinator's), logs/ and flower/.
"""

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Self

from trimtab.errors import BadArgument
from trimtab.federation.setup.site_folder import (
    SiteFolder,
    about,
    check_fields,
    check_name,
    pack,
    read_facts,
)
from trimtab.federation.storage import keys
from trimtab.federation.storage.roster import FILE, Roster, RosterFile

if TYPE_CHECKING:
    from trimtab.federation.setup.problem_file import ProblemFile

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
        facts = read_facts(folder, FILE, "federate init")
        check_fields(folder / FILE, cls, facts, "sites", "leaving")
        if "sites" not in facts:
            raise ValueError(f"{folder / FILE} has no 'sites'; restore it.")
        roster = Roster.from_json(facts)
        rest = {k: v for k, v in facts.items() if k not in ("sites", "leaving")}
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
    """Make the operator's folder and the archives of all sites; nothing is overwritten."""
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
    """Write a new certificate of the server; its names, if they have changed, are kept."""
    if hosts is not None:
        _check([], hosts)
    keys.make_server_certificate(federation.keys, hosts or federation.hosts)
    if hosts is not None:
        RosterFile(federation.folder).note(hosts=hosts)
    return Federation.read(federation.folder)


def admit(federation: Federation, name: str) -> Federation:
    """Make the key and the archive of one more site; return the federation with it."""
    check_name(name)
    roster = RosterFile(federation.folder)
    roster.read().check_new(name)
    public = _make_archive(federation, name)
    try:
        roster.admit(name, public)
    except BaseException:
        federation.archive(name).unlink()  # its key opens nothing, and the name stays free
        raise
    return Federation.read(federation.folder)


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
    host = federation.hosts[0]
    server = f"[{host}]:{federation.port}" if ":" in host else f"{host}:{federation.port}"
    site = SiteFolder(Path(), name, federation.id, server, federation.batch)
    authority = (federation.keys / "ca.crt").read_bytes()
    problem = (federation.folder / "problem.py").read_bytes()
    keys.write_secret(federation.archive(name), pack(site, private, authority, problem))
    return public
