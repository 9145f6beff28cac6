"""What a diagnosis expects: where a search begins, and whether the advice was right."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trimtab.algorithms.registry import kind
from trimtab.studies.entry import Entry, listed, rounds_in_words

RIGHT = 1.3  # advice was right if it needs <= 1.3 x the rounds of the best that was looked at


@dataclass(frozen=True)
class Expected:
    """An algorithm at one K: the step size to begin with, and the rounds that are expected."""

    algorithm: str
    K: int
    eta: float
    rounds: int | None = None


@dataclass(frozen=True)
class Prior:
    """Likely settings; a search tries them first, and leaves nothing out because of them."""

    algorithm: str | None = None  # what was advised, if anything was
    K: int | None = None
    eta: float | None = None
    no_difference: bool = False  # whether another algorithm was expected to do as well
    expected: tuple[Expected, ...] = field(default=())

    @classmethod
    def from_diagnosis(cls, content: dict[str, Any]) -> "Prior":
        """Read what `trimtab diagnose` wrote."""
        expected = [
            Expected(one["algorithm"], one["K"], one["eta"], one["rounds"])
            for one in content.get("predicted", ())
            if one["eta"]
        ]
        return cls(
            algorithm=content.get("algorithm"),
            K=content.get("K"),
            eta=content.get("eta_l"),
            no_difference=content.get("verdict") == "no difference",
            expected=tuple(expected),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Prior":
        """Return what `to_json` wrote."""
        expected = tuple(Expected(**one) for one in content["expected"])
        return cls(**content | {"expected": expected})

    def steps(self, name: str) -> dict[int, float]:
        """Return the expected step size of an algorithm by K."""
        found = {one.K: one.eta for one in self.expected if one.algorithm == name}
        if name == self.algorithm and self.K is not None and self.eta is not None:
            found[self.K] = self.eta
        return found

    def judged(self, entries: Sequence[Entry]) -> str:
        """Say whether the advice was right: by the rounds of what the diagnosis had looked at."""
        if self.algorithm is None:
            return "The diagnosis gave no advice, so there is nothing to judge."
        names = {one.algorithm for one in self.expected} | {self.algorithm}
        raced = [e for e in entries if e.name in names and not e.baseline]
        mine = [e for e in raced if e.name == self.algorithm]
        advised = f"{kind(self.algorithm).shown} (K = {self.K})"
        if not mine or len(raced) == len(mine):
            return (
                f"The diagnosis advised {advised}, which cannot be judged: compare it with others."
            )
        there = [e for e in raced if e.rounds is not None and not e.diverged]
        if not there:
            return (
                f"The diagnosis advised {advised}; nobody reached the target, so nothing is said."
            )
        best = min(there, key=lambda e: e.rounds or 0)
        own = min((e.rounds for e in mine if e.rounds is not None), default=None)
        if own is not None and best.rounds is not None and own <= RIGHT * best.rounds:
            looked_at = listed(list(dict.fromkeys(e.shown for e in raced)))
            first = f"of {looked_at}, which it had looked at, it is the best"
            than = first if best in mine else f"{best.shown} needs {best.rounds}"
            return (
                f"The diagnosis was right: it advised {advised}, which needs "
                f"{rounds_in_words(own)}; {than}."
            )
        needs = "does not get there" if own is None else f"needs {rounds_in_words(own)}"
        said = " (no difference was expected)" if self.no_difference else ""
        return (
            f"The diagnosis was wrong: it advised {advised}{said}, which {needs}, where "
            f"{best.shown} needs {best.rounds}."
        )
