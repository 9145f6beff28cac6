"""policy.toml: what a site lets its server do. Nothing here needs torch.

It is the site's own file: programs read it, and write the default where there is none. An entry
that it does not have is as in the default. `protocol/policy.py` checks requests against it.
approved.sha256 beside it has the digest of the problem file that the site approved, in the form
that `sha256sum -c` reads.
"""

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from trimtab._files import write_file
from trimtab.algorithms.registry import known
from trimtab.errors import did_you_mean
from trimtab.federation.storage.keys import check_private, write_secret

FILE = "policy.toml"
APPROVED = "approved.sha256"
FEWEST = 2  # A mini-batch has at least 2 samples: the update of one sample is that sample.
_DAY = 24 * 60
_GB = 1 << 30

_DEFAULT = """\
# What this site lets its server do. Each request is checked against it before anything is
# computed; one that is outside is refused, with the line, in the logs of both. The file is yours
# to change; start the site again afterwards.

algorithms = "any"  # or some of them: ["fedavg", "scaffold"]
K = [1, 10000]  # local steps in a round
rounds = [1, 100000]  # the number of a round
batch = [8, 1000000000]  # samples in a mini-batch, or in all data if there are none; never below 2
hours = "00:00-24:00"  # by the clock of this machine; "20:00-06:00" goes over midnight
seconds = 86400  # that the work on one request may take
memory = {memory}  # GB that the worker may take; 0: as much as there is
branches = 100  # experiments, and repetitions from an earlier round, for this problem file
metrics = 1000  # replies with metrics of this site's test data, for this problem file
metrics_per_experiment = 1000  # of these, in one experiment
metrics_per_day = 1000  # and in one day (UTC)

# The other sites, by the fingerprints of their keys. If there are any here, this site takes part
# with these alone.
[sites]
"""


@dataclass(frozen=True)
class Policy:
    """What policy.toml says."""

    problem: str  # the digest of the problem file, as approved
    algorithms: tuple[str, ...] | None  # None: any
    K: tuple[int, int]
    rounds: tuple[int, int]
    batch: tuple[int, int]
    hours: tuple[int, int]  # minutes since midnight: from, until
    seconds: float
    memory: float  # GB
    branches: int
    metrics: int
    metrics_per_experiment: int
    metrics_per_day: int
    sites: Mapping[str, str]  # fingerprints by name; none: any
    lines: Mapping[str, str]  # the file, line and text of each entry

    def is_open_at(self, minute: int) -> bool:
        """Return whether requests are served at this minute of the day."""
        first, end = self.hours
        return first <= minute < end if first < end else minute >= first or minute < end

    @property
    def bytes(self) -> int:
        """How many bytes the worker may take; 0 for as many as there are."""
        return int(self.memory * _GB)


def default_policy() -> str:
    """Return the policy of a site that has not written its own."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return _DEFAULT.format(memory=max(1, round(0.8 * pages / _GB)))


def parse_policy(text: str, problem: str = "", name: str = FILE) -> Policy:
    """Return the policy that a text describes.

    Raises ValueError with the line that is wrong.

    text: the content of policy.toml.
    problem: the digest of the problem file that the site approved; default none.
    name: how errors name the file; default "policy.toml".

    >>> parse_policy('K = [1, 50]').lines["K"]
    'policy.toml, line 1: K = [1, 50]'
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{name} cannot be read ({error}); fix it.") from None
    usual = default_policy()
    default = tomllib.loads(usual)
    if "problem" in content:
        raise ValueError(
            f"{_line('problem', text, name)}: what a site approved is in {APPROVED} now; remove "
            "this line, then run `trimtab federate approve`."
        )
    for key in content.keys() - default.keys():
        raise ValueError(f"{name} has an entry {key[:40]!r}; it may have {', '.join(default)}.")
    lines = {key: _line(key, text, name) or _unsaid(key, usual, name) for key in default}
    given = default | content
    values = {key: _read(key, given[key], lines[key]) for key in default}
    lines = {"problem": f"{APPROVED}: {problem}"} | lines
    return Policy(problem=problem, **values, lines=lines)


def read_policy(folder: Path) -> Policy:
    """Return the policy of a site's folder, and write the default if it has none."""
    path = folder / FILE
    if not path.exists():
        write_secret(path, default_policy().encode())
    check_private(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read ({error}); fix or restore it.") from None
    return parse_policy(text, approved_digest(folder), path.name)


def check_algorithms(policy: Policy) -> None:
    """Raise ValueError if the policy names an algorithm that does not exist.

    A problem file may register algorithms, so it must be loaded before.
    """
    for name in policy.algorithms or ():
        if name not in known():
            near = did_you_mean(name, known())
            raise ValueError(
                f"{policy.lines['algorithms']}: {name[:40]!r} is not an algorithm{near}; write "
                f"some of {', '.join(known())}."
            )


def approve_digest(folder: Path, digest: str) -> None:
    """Write which problem file the site approved."""
    write_file(folder / APPROVED, f"{digest}  problem.py\n")


def approved_digest(folder: Path) -> str:
    """Return which problem file the site approved; empty if none."""
    path = folder / APPROVED
    return path.read_text(encoding="utf-8", errors="replace").split(" ")[0] if path.exists() else ""


def digest_of(problem: bytes) -> str:
    """Return the digest by which a problem file is known."""
    return sha256(problem).hexdigest()


def _line(key: str, text: str, name: str) -> str:
    """Return where a policy says something, and how; empty if it does not."""
    pattern = re.compile(rf"\s*(\[\s*{key}\s*\]|{key}\s*=.*)")
    for number, row in enumerate(text.splitlines(), 1):
        found = pattern.match(row)
        if found:
            return f"{name}, line {number}: {_uncommented(found[1])}"
    return ""


def _unsaid(key: str, usual: str, name: str) -> str:
    said = _line(key, usual, name).partition(": ")[2]
    return f"{name}, which says nothing of it, so {said}"


def _uncommented(row: str) -> str:
    return re.sub(r"\s+#.*", "", row)[:200].strip()


# -- what each entry may be


def _read(key: str, value: Any, line: str) -> Any:
    read, form = _ENTRIES[key]
    found = read(value)
    if found is _NOT:
        raise ValueError(f"{line}: that cannot be; write {form}.")
    return found


_NOT = object()
_COUNTS = ("branches", "metrics", "metrics_per_experiment", "metrics_per_day")


def _names(value: Any) -> Any:
    if value == "any":
        return None
    listed = isinstance(value, list) and value and all(isinstance(v, str) for v in value)
    return tuple(v.lower() for v in value) if listed else _NOT


def _range(least: int) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, list) or len(value) != 2 or not all(type(v) is int for v in value):
            return _NOT
        return (value[0], value[1]) if least <= value[0] <= value[1] else _NOT

    return read


def _hours(value: Any) -> Any:
    found = re.fullmatch(r"(\d\d):(\d\d)-(\d\d):(\d\d)", value) if isinstance(value, str) else None
    if not found:
        return _NOT
    a, b, c, d = map(int, found.groups())
    first, end = 60 * a + b, 60 * c + d
    return (first, end) if max(b, d) < 60 and max(first, end) <= _DAY and first != end else _NOT


def _amount(least: float) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if number and least <= value <= 1e9 else _NOT

    return read


def _count(value: Any) -> Any:
    return value if type(value) is int and 0 <= value <= 10**9 else _NOT


def _fingerprints(value: Any) -> Any:
    if not isinstance(value, dict):
        return _NOT
    sound = all(isinstance(v, str) and v.startswith("SHA256:") for v in value.values())
    return dict(value) if sound else _NOT


# How each entry is read, and what it may be.
_ENTRIES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "algorithms": (_names, '"any", or names such as ["fedavg", "scaffold"]'),
    "K": (_range(1), "[least, most], from 1 on"),
    "rounds": (_range(1), "[least, most], from 1 on"),
    "batch": (
        _range(FEWEST),
        f"[least, most], from {FEWEST} on, for the update of one sample is that sample",
    ),
    "hours": (_hours, '"HH:MM-HH:MM"'),
    "seconds": (_amount(1e-3), "a number above 0"),
    "memory": (_amount(0.0), "a number of GB, or 0"),
    **dict.fromkeys(_COUNTS, (_count, "a whole number, from 0 on")),
    "sites": (_fingerprints, 'name = "SHA256:…", as `trimtab federate fingerprint` prints them'),
}
