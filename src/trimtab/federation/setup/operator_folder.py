"""The folders of operator and site, and how they are made.

The operator's: federation.json, problem.py, keys/ (authority and server), sites/ (one archive for
each site), state/ (the coordinator's), logs/, flower/. A site's: site.json, problem.py, ca.crt,
site.key, state/, logs/, flower/.
"""

import io
import json
import re
import shutil
import tarfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from secrets import token_bytes, token_hex
from typing import Any, Self

from trimtab._files import read_json, write_json
from trimtab._version import __version__
from trimtab.federation.setup.problem_file import ProblemFile
from trimtab.federation.storage import keys

FORMAT = 1
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,30}")
_HOST = re.compile(r"[A-Za-z0-9_.:-]{1,253}")


@dataclass(frozen=True)
class Federation:
    """What the operator's folder says."""

    folder: Path
    id: str
    sites: dict[str, str]  # their public keys, in the order of the clients
    weights: str
    batch: int | float | None
    hosts: list[str]
    port: int
    leaving: list[str] = field(default_factory=list)  # sites that go before the next round

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read federation.json."""
        return cls(folder=folder, **_read(folder, "federation.json", "federate init"))

    def write(self) -> None:
        """Write federation.json."""
        _write(self.folder / "federation.json", self)

    @property
    def keys(self) -> Path:
        """Where the authority and the server's certificate are."""
        return self.folder / "keys"

    @property
    def problem(self) -> ProblemFile:
        """The problem file."""
        return ProblemFile(self.folder / "problem.py")

    def archive(self, site: str) -> Path:
        """Return where a site's archive is."""
        return self.folder / "sites" / f"{site}.tar.gz"


@dataclass(frozen=True)
class SiteFolder:
    """What a site's folder says."""

    folder: Path
    name: str
    federation: str
    server: str
    batch: int | float | None

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read site.json."""
        return cls(folder=folder, **_read(folder, "site.json", "federate site"))

    @property
    def state(self) -> Path:
        """Where c_i lives."""
        return self.folder / "state"

    @property
    def problem(self) -> ProblemFile:
        """The problem file."""
        return ProblemFile(self.folder / "problem.py")


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
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise ValueError(f"{host!r} is no host name or address; pass --host NAME.")
    if len(set(sites)) != len(sites):
        raise ValueError(f"--sites {','.join(sites)}: two sites have one name; name them apart.")
    for name in sites:
        check_name(name)
    ProblemFile(problem).server_problem()
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty; pass another folder.")
    for part in (folder, folder / "keys", folder / "sites"):
        part.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.copyfile(problem, folder / "problem.py")
    keys.make_authority(folder / "keys")
    keys.make_server_certificate(folder / "keys", hosts)
    federation = Federation(folder, token_hex(6), {}, weights, batch, hosts, port)
    for name in sites:
        admit(federation, name)
    federation.write()
    return federation


def admit(federation: Federation, name: str) -> None:
    """Make the key and the archive of one more site."""
    check_name(name)
    if name in federation.sites:
        raise ValueError(f"there is a site {name} already; give the new one another name.")
    private, public = keys.make_site_key()
    server = f"{federation.hosts[0]}:{federation.port}"
    site_folder = SiteFolder(Path(), name, federation.id, server, federation.batch)
    keys.write_secret(
        federation.archive(name),
        _archive(
            name,
            {
                "site.json": _text(site_folder).encode(),
                "site.key": private,
                "ca.crt": (federation.keys / "ca.crt").read_bytes(),
                "problem.py": (federation.folder / "problem.py").read_bytes(),
            },
        ),
    )
    federation.sites[name] = public


def dismiss(federation: Federation, name: str) -> None:
    """Note that a site is to go."""
    if name not in federation.sites:
        known = ", ".join(federation.sites)
        raise ValueError(f"there is no site {name!r}; the sites are {known}.")
    if len(federation.sites) - len({*federation.leaving, name}) < 1:
        raise ValueError(f"{name!r} is the only site left; end the experiment instead.")
    if name not in federation.leaving:
        federation.leaving.append(name)
        federation.write()


def dismissed(federation: Federation, name: str) -> None:
    """Forget a site that has gone; its key opens nothing any more."""
    federation.leaving.remove(name)
    federation.sites.pop(name)
    federation.write()


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


def _archive(name: str, files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as file:
        folder = tarfile.TarInfo(name)
        folder.type, folder.mode, folder.mtime = tarfile.DIRTYPE, 0o700, int(time.time())
        file.addfile(folder)
        for path, content in files.items():
            about = tarfile.TarInfo(f"{name}/{path}")
            about.size, about.mode, about.mtime = len(content), 0o600, folder.mtime
            file.addfile(about, io.BytesIO(content))
    return buffer.getvalue()


def _read(folder: Path, name: str, command: str) -> dict[str, Any]:
    if not (folder / name).is_file():
        raise ValueError(f"{folder} holds no {name}; pass the folder of `trimtab {command}`.")
    content = read_json(folder / name)
    if content.pop("format", None) != FORMAT:
        raise ValueError(f"{folder / name} is of another trimtab; make a new federation with this.")
    content.pop("trimtab", None)
    return content


def _write(path: Path, what: Any) -> None:
    write_json(path, json.loads(_text(what)))


def _text(what: Any) -> str:
    content = {k: v for k, v in asdict(what).items() if k != "folder"}
    about = {"format": FORMAT, "trimtab": __version__}
    return json.dumps(about | content, indent=2) + "\n"
