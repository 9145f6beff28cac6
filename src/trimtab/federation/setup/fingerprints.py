"""What operator and site read out to each other over the telephone. Nothing here needs torch."""

from pathlib import Path

from trimtab.federation.setup.key_request import KEY, NEXT_KEY
from trimtab.federation.setup.operator_folder import Federation
from trimtab.federation.storage import keys
from trimtab.federation.storage.policy import digest_of
from trimtab.federation.storage.roster import FILE


def fingerprints_of(folder: Path) -> dict[str, str]:
    """Return what a folder holds: at the operator's all sites, at a site its own key."""
    if (folder / FILE).is_file():
        federation = Federation.read(folder)
        shown = dict(federation.roster.fingerprints)
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
