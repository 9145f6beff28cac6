"""What a site takes from its operator: nothing is used before the site has approved it.

An archive, or a problem file that came by hand, is a proposal. When it is approved, its files are
written, approved.sha256 gets the digest of the problem file, and a copy is kept with which the next
proposal is compared. The problem file never comes over the network. Nothing here needs torch.
"""

import difflib
import io
import logging
import os
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from trimtab._files import write_file
from trimtab.federation.setup.site import KEY, NEXT_KEY, SiteFolder, read_archive
from trimtab.federation.storage import keys
from trimtab.federation.storage.policy import (
    APPROVED,
    FILE,
    Policy,
    approve_digest,
    digest_of,
    read_policy,
)

log = logging.getLogger("trimtab.federation.setup")

PROBLEM, COPY = "problem.py", Path("approved") / "problem.py"
_FROM_OPERATOR = ("site.json", "ca.crt", PROBLEM)
_WIDEST = 200  # characters of a line, which a terminal shows whole
_COOKIE = re.compile(r"[ \t\f]*#.*?coding[:=][ \t]*[-_.a-zA-Z0-9]")


@dataclass(frozen=True)
class Proposal:
    """The files that a site is asked to approve, and what they change."""

    folder: Path
    files: dict[str, bytes]
    changes: list[str]  # for people: what differs besides the problem file
    diff: list[str]  # between the approved problem file and this one; empty if they are the same

    @property
    def digest(self) -> str:
        """The digest of the problem file."""
        return digest_of(self.files[PROBLEM])


def problem_text(path: Path, content: bytes) -> str:
    """Return the text of a problem file, which is shown and compiled as it is.

    Raises ValueError if a reader could overlook a part of it: a line that is too long, an
    unprintable character, an encoding of its own, or a name that is not in ASCII and only looks
    like another one.

    path: how errors name the file.
    content: its bytes.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error.reason}); save it as UTF-8.") from None
    for number, line in enumerate(text.split("\n"), 1):
        where = f"{path}, line {number}"
        if len(line) > _WIDEST:
            raise ValueError(f"{where} has {len(line)} characters; break it, {_WIDEST} are shown.")
        for character in line:
            if not character.isprintable():
                shown = ascii(character)
                raise ValueError(
                    f"{where} has the unprintable character {shown}; remove it, or write an escape."
                )
        if number <= 2 and _COOKIE.match(line):
            raise ValueError(f"{where} declares an encoding; remove it, the file is read as UTF-8.")
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            # An f-string holds names too, and before Python 3.12 it is one token.
            literal = re.match(r"[bru]*['\"]", token.string, re.I)
            text_alone = token.type == tokenize.COMMENT or (
                token.type == tokenize.STRING and literal
            )
            if not token.string.isascii() and not text_alone:
                raise ValueError(
                    f"{path}, line {token.start[0]} has {token.string[:40]!a} outside of a "
                    "comment or plain string; write it in ASCII."
                )
        compile(text, str(path), "exec", dont_inherit=True)
    except (tokenize.TokenError, SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{path} cannot be compiled ({error}); fix it.") from None
    return text


def propose(folder: Path, archive: Path | None = None, problem: Path | None = None) -> Proposal:
    """Return what an archive, another problem file, or what is in the folder now would change."""
    files = read_archive(archive) if archive else _present(folder)
    if problem is not None:
        files[PROBLEM] = _read(problem)
    if KEY in files and (folder / KEY).exists():
        raise ValueError(f"{archive} holds a private key, but {folder} has its own; ask for none.")
    changes = list(_changes(folder, files))
    approved = folder / COPY
    before = approved.read_text("utf-8", "backslashreplace") if approved.exists() else ""
    text = problem_text(problem or folder / PROBLEM, files[PROBLEM])
    lines = before.splitlines(), text.split("\n")[: -1 if text.endswith("\n") else None]
    diff = difflib.unified_diff(*lines, "approved", "proposed", n=3, lineterm="")
    return Proposal(folder, files, changes, list(diff))


def approve(proposal: Proposal) -> Policy:
    """Write the files of a proposal; return the policy as it is then."""
    folder, files = proposal.folder, proposal.files
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if KEY in files:
        keys.write_secret(folder / KEY, files[KEY])
    for name in _FROM_OPERATOR:
        write_file(folder / name, files[name])
    site = SiteFolder.read(folder)
    if (folder / NEXT_KEY).exists() and _fingerprint(folder / NEXT_KEY) == site.key:
        os.replace(folder / NEXT_KEY, folder / KEY)  # the operator admits the next key by now
    write_file(folder / COPY, files[PROBLEM])
    approve_digest(folder, proposal.digest)
    return read_policy(folder)


def policy_of(site: SiteFolder) -> Policy:
    """Return a site's policy; refuse keys and a problem file that are not those it approved.

    A site that has neither a policy nor an approved file gets the default policy, with the problem
    file that it has, and its log shows it.
    """
    site.check_keys()
    folder, content = site.folder, _read(site.folder / PROBLEM)
    if not (folder / FILE).exists() and not (folder / APPROVED).exists():
        problem_text(folder / PROBLEM, content)
        write_file(folder / COPY, content)
        approve_digest(folder, digest_of(content))
        log.info(f"{folder / FILE} is written; read it, and change what you do not want:")
        for line in read_policy(folder).lines.values():
            log.info(f"  {line}")
    policy = read_policy(folder)
    if policy.problem != digest_of(content):
        raise ValueError(
            f"{folder / PROBLEM} is not the file that was approved; see what has changed with "
            f"`trimtab federate approve {folder}`."
        )
    return policy


def _changes(folder: Path, files: dict[str, bytes]) -> Iterator[str]:
    """Yield what an archive says of server, authority, key and batch, where it is new."""
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
    own += [keys.fingerprint(keys.public_half(files[KEY]))] if KEY in files else []
    if own and new.key and new.key not in own:
        raise ValueError(
            f"the operator registered the key {new.key}, but this site has {' and '.join(own)}; "
            "send request.json again, and compare fingerprints."
        )
    for what in ("name", "server", "federation", "batch", "authority", "key", "until"):
        before, now = getattr(old, what, None), getattr(new, what)
        if old is None or before != now:
            yield f"{what}: {now}" if old is None else f"{what}: {before} -> {now}"


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
