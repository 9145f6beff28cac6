"""Identify a problem in a saved run by a line of named parts.

A fingerprint is `Supervised/2 N=10 d=650 batch=32 loss=1f2e3d4c5b6a7988 …`: numbers are written
out, everything else is hashed. A loss is hashed by what it computes (its code, its parameters and
the values it captured), not by its address in memory. A hash that ends with `?` covers only a part.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trimtab.problems.problem import Problem

_FORM = 2  # It rises when the same problem gets other parts.
_WORDS = {
    "module": "the module differs",
    "start": "the parameters or buffers of the module differ",
    "loss": "the loss differs",
    "metrics": "the metrics differ",
    "collate": "the collate differs",
    "data": "the data of the clients differ",
    "test": "the test data differ",
    "tests": "the test parts of the clients differ",
    "validation": "the validation data differ",
    "weights": "the weights of the clients differ",
    "A": "the matrices A differ",
    "b": "the vectors b differ",
    "noise": "the covariances of the noise differ",
}
# A line without these says that there are none.
_OFTEN_ABSENT = ("tests", "validation", "collate")


@dataclass(frozen=True)
class FingerprintComparison:
    """How a stored fingerprint compares with a problem."""

    differs: tuple[str, ...] = ()  # e.g. 'batch was 32, is now 64'
    unknown: tuple[str, ...] = ()  # parts that cannot be compared

    @property
    def warning(self) -> str:
        """A sentence about the parts that cannot be compared; empty if there are none."""
        if not self.unknown:
            return ""
        return (
            f"nothing can be said of {' and '.join(self.unknown)}; make sure that they are what "
            "they were when this was saved."
        )


def line(kind: str, parts: Mapping[str, Any]) -> str:
    """Return a fingerprint.

    >>> line("Supervised", {"N": 3, "batch": 0.2})
    'Supervised/2 N=3 batch=0.2'
    """
    return " ".join([f"{kind}/{_FORM}", *(f"{name}={value}" for name, value in parts.items())])


def is_line(stored: str) -> bool:
    """Return whether a stored fingerprint has named parts."""
    return stored.partition(" ")[0].endswith(f"/{_FORM}")


def matches_fingerprint(problem: Problem, stored: str) -> FingerprintComparison:
    """Compare a problem with the fingerprint in a saved run."""
    now = problem.fingerprint
    if is_line(stored) and is_line(now):
        return compare_fingerprints(stored, now)
    if stored != now:
        return FingerprintComparison((f"it was {stored}, is now {now}",))
    if problem._overrides("fingerprint"):
        return FingerprintComparison()
    return FingerprintComparison(unknown=(f"this {now}, which has no fingerprint",))


def compare_fingerprints(stored: str, now: str) -> FingerprintComparison:
    """Compare two fingerprints part by part.

    >>> compare_fingerprints("Supervised/2 N=3 batch=32", "Supervised/2 N=3 batch=64").differs
    ('batch was 32, is now 64',)
    """
    if stored == now and "?" not in now:
        return FingerprintComparison()
    (old_kind, old), (kind, new) = _parts(stored), _parts(now)
    if old_kind != kind:
        return FingerprintComparison((f"it was a {_name(old_kind)}, is now a {_name(kind)}",))
    differs, unknown = list[str](), list[str]()
    for name in {**old, **new}:
        absent = "None" if name in _OFTEN_ABSENT else "?"
        was, now_is = old.get(name, absent), new.get(name, absent)
        if was != now_is and _comparable(was, now_is):
            differs.append(_WORDS.get(name, f"{name} was {was}, is now {now_is}"))
        elif was != now_is or "?" in was:
            unknown.append(_WORDS.get(name, name).removesuffix("s").removesuffix(" differ"))
    return FingerprintComparison(tuple(differs), tuple(unknown))


def _comparable(was: str, now: str) -> bool:
    # A hash of code depends on the version of Python, which is written before it.
    pythons = {value.partition(":")[0] for value in (was, now) if ":" in value}
    return "?" not in (was, now) and len(pythons) < 2


def _name(kind: str) -> str:
    return kind.partition("/")[0]


def _parts(text: str) -> tuple[str, dict[str, str]]:
    kind, *parts = text.split(" ")
    return kind, {name: value for name, _, value in (part.partition("=") for part in parts)}
