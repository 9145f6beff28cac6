"""What a site takes from its operator: nothing counts before the site has looked at it.

An archive, or a problem file that came by hand, is a proposal. When it is approved, its files are
taken in, the digest of the problem file is written into policy.toml, and a copy is kept so that the
next proposal can be compared with it. The problem file never comes over the wire.
"""

import difflib
import logging
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from trimtab._files import write_file
from trimtab.federation.setup.site import KEY, NEXT_KEY, SiteFolder
from trimtab.federation.storage import keys
from trimtab.federation.storage.policy import FILE, Policy, digest_of, read_policy, write_problem

log = logging.getLogger("trimtab.federation.setup")

PROBLEM, APPROVED = "problem.py", Path("approved") / "problem.py"
_FROM_OPERATOR = ("site.json", "ca.crt", PROBLEM)
_MOST = 10 << 20  # a file in an archive has <= 10 MiB


@dataclass(frozen=True)
class Proposal:
    """What a site is asked to take in: files by name, and what they change."""

    folder: Path
    files: dict[str, bytes]
    changes: list[str]  # for people: what differs besides the problem file
    diff: list[str]  # between the approved problem file and this one; empty if they are the same

    @property
    def digest(self) -> str:
        """The digest of the problem file."""
        return digest_of(self.files[PROBLEM])


def propose(folder: Path, archive: Path | None = None, problem: Path | None = None) -> Proposal:
    """Return what an archive, another problem file, or what is in the folder now would change."""
    files = _unpacked(archive) if archive else _present(folder)
    if problem is not None:
        files[PROBLEM] = _read(problem)
    if KEY in files and (folder / KEY).exists():
        raise ValueError(f"{archive} holds a private key, but {folder} has its own; ask for none.")
    changes = list(_changes(folder, files))
    approved = folder / APPROVED
    before = approved.read_bytes() if approved.exists() else b""
    diff = difflib.unified_diff(_lines(before), _lines(files[PROBLEM]), "approved", "proposed", n=3)
    return Proposal(folder, files, changes, [line.rstrip("\n") for line in diff])


def approve(proposal: Proposal) -> Policy:
    """Take a proposal in; return the policy as it is then."""
    folder, files = proposal.folder, proposal.files
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if KEY in files:
        keys.write_secret(folder / KEY, files[KEY])
    for name in _FROM_OPERATOR:
        write_file(folder / name, files[name])
    site = SiteFolder.read(folder)
    if (folder / NEXT_KEY).exists() and _fingerprint(folder / NEXT_KEY) == site.key:
        os.replace(folder / NEXT_KEY, folder / KEY)  # the operator lets the next key in by now
    write_file(folder / APPROVED, files[PROBLEM])
    write_problem(folder / FILE, proposal.digest)
    return read_policy(folder / FILE)


def policy_of(site: SiteFolder) -> Policy:
    """Return a site's policy; refuse keys and a problem file that are not those it approved.

    A site that has none gets the default, with the problem file that it has, and its log shows it.
    """
    site.check_keys()
    path, digest = site.folder / FILE, digest_of(_read(site.folder / PROBLEM))
    if not path.exists():
        write_file(site.folder / APPROVED, _read(site.folder / PROBLEM))
        write_problem(path, digest)
        log.info(f"{path} is written; read it, and change what you do not want:")
        for line in path.read_text().splitlines():
            if line and not line.startswith("#"):
                log.info(f"  {line}")
    policy = read_policy(path)
    if policy.problem != digest:
        raise ValueError(
            f"{site.folder / PROBLEM} is not the file that was approved; see what has changed with "
            f"`trimtab federate approve {site.folder}`."
        )
    return policy


def _changes(folder: Path, files: dict[str, bytes]) -> Iterator[str]:
    """Go through what an archive says of server, authority, key and batch."""
    with TemporaryDirectory() as temporary:
        there = Path(temporary)
        (there / "site.json").write_bytes(files["site.json"])
        new = SiteFolder.read(there)
    old = SiteFolder.read(folder) if (folder / "site.json").is_file() else None
    known = keys.authority_fingerprint(files["ca.crt"])
    if new.authority and known != new.authority:
        raise ValueError(f"ca.crt is {known}, but the archive is made for {new.authority}.")
    if old is not None and old.name != new.name:
        raise ValueError(f"the archive is for {new.name}; {folder} is the site {old.name}.")
    own = [_fingerprint(path) for path in (folder / KEY, folder / NEXT_KEY) if path.exists()]
    if own and new.key and new.key not in own:
        raise ValueError(
            f"the operator registered the key {new.key}, but this site has {' and '.join(own)}; "
            "send request.json once more, and compare fingerprints."
        )
    for what in ("name", "server", "federation", "batch", "authority", "key"):
        before, now = getattr(old, what, None), getattr(new, what)
        if old is None or before != now:
            yield f"{what}: {now}" if old is None else f"{what}: {before} -> {now}"


def _unpacked(archive: Path) -> dict[str, bytes]:
    """Return the files of an archive, which may be anybody's: those that we know, no other."""
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(archive) as file:
            for member in file:
                parts = Path(member.name).parts
                if member.isdir() and len(parts) == 1:
                    continue
                name = parts[-1] if parts else ""
                if not member.isfile() or len(parts) != 2 or name not in (*_FROM_OPERATOR, KEY):
                    raise ValueError(f"{archive} holds {member.name[:80]!r}; ours do not.")
                if member.size > _MOST or name in files:
                    raise ValueError(f"{archive} holds {name} twice, or it is too large.")
                content = file.extractfile(member)
                assert content is not None
                files[name] = content.read()
    except (OSError, tarfile.TarError, EOFError) as error:
        raise ValueError(f"{archive} cannot be read ({error}); get it again.") from None
    missing = [name for name in _FROM_OPERATOR if name not in files]
    if missing:
        raise ValueError(f"{archive} holds no {missing[0]}; get it again from the operator.")
    return files


def _present(folder: Path) -> dict[str, bytes]:
    if not (folder / "site.json").is_file():
        raise ValueError(f"{folder} holds no site.json; pass the archive that the operator sent.")
    return {name: _read(folder / name) for name in _FROM_OPERATOR}


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file; get it from the operator.")
    return path.read_bytes()


def _fingerprint(path: Path) -> str:
    return keys.fingerprint(keys.public_half(path.read_bytes()))


def _lines(content: bytes) -> list[str]:
    return content.decode("utf-8", "backslashreplace").splitlines(keepends=True)
