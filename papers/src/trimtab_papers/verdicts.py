"""Records of cells, and what they say of the sentences of a paper and of our own checks."""

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import numpy as np

from trimtab._files import write_file

Record = dict[str, Any]
"""What the file of a cell holds; its module reads it into types of its own."""

Records = Mapping[str, Record]
"""The records of a reproduction by the names of their cells; those not computed are not there."""


SUFFIX = ".json.gz"


def path_of(folder: Path, name: str) -> Path:
    return folder / f"{name}{SUFFIX}"


def read(folder: Path) -> dict[str, Record]:
    """Return the records in a folder by the names of their cells."""
    records = {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            record = json.loads(gzip.decompress(path.read_bytes()))
            if not isinstance(record, dict):
                raise ValueError("it is not a record")
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise ValueError(f"{path} cannot be read ({error}); remove it and run again.") from None
        records[path.name.removesuffix(SUFFIX)] = record
    return records


def write(path: Path, record: Record) -> None:
    """Write a record whole; equal records are equal files."""
    content = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
    write_file(path, gzip.compress(content.encode(), mtime=0))


def of_kind(records: Records, kind: str) -> dict[int, Record]:
    """Return the records of cells whose settings name this kind, by seed."""
    found = {r["settings"]["seed"]: r for r in records.values() if r["settings"]["kind"] == kind}
    return dict(sorted(found.items()))


def grouped(records: Iterable[Record], word: str) -> dict[Any, list[Record]]:
    """Return the records by the value of a setting, in its order."""
    found: dict[Any, list[Record]] = {}
    for record in records:
        found.setdefault(record["settings"][word], []).append(record)
    return dict(sorted(found.items()))


def complete(records: Records, kinds: Iterable[str]) -> dict[str, dict[int, Record]]:
    """Return the records by kind and seed; every seed must have a record of every kind."""
    found = {kind: of_kind(records, kind) for kind in kinds}
    seeds = {tuple(by_seed) for by_seed in found.values()}
    if len(seeds) != 1 or seeds == {()}:
        raise MissingRecordError
    return found


# -- numbers


def rounded(record: dict[str, Any], digits: int = 6) -> dict[str, Any]:
    """Return a record with its floats, however deep, rounded to significant digits.

    >>> rounded({"f": [1234567.8, 0.1 + 0.2], "K": 10})
    {'f': [1234570.0, 0.3], 'K': 10}
    """
    return {key: _rounded(value, digits) for key, value in record.items()}


def _rounded(value: Any, digits: int) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return rounded(value, digits)
    if isinstance(value, list | tuple):
        return [_rounded(v, digits) for v in value]
    return value


def thinned(values: Sequence[float], most: int = 300) -> dict[str, list[Any]]:
    """Return at most so many points of a curve that starts at round 0, both ends among them.

    >>> thinned([1.0, 0.5, 0.25, 0.125, 0.0625], most=3)
    {'rounds': [0, 2, 4], 'values': [1.0, 0.25, 0.0625]}
    """
    kept = np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(int).tolist()
    return {"rounds": kept, "values": [_rounded(float(values[r]), 6) for r in kept]}


def first_below(values: Sequence[float], target: float) -> int | None:
    """Return the first round at or below the target; the curve starts at round 0.

    >>> first_below([1.0, 0.5, 0.25], 0.3), first_below([1.0, 0.5], 0.3)
    (2, None)
    """
    return next((r for r, value in enumerate(values) if value <= target), None)


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the exponent p of y ~ x^p, by least squares.

    >>> round(slope([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    return float(np.polyfit([log(v) for v in x], [log(v) for v in y], 1)[0])


def spread(values: Iterable[float], form: str = ".3g") -> str:
    """Return the mean, and behind it the least and the greatest if they differ in print.

    >>> spread([1.5]), spread([1.0, 2.0]), spread([1.5, 1.5001])
    ('1.5', '1.5 (1 to 2)', '1.5')
    """
    known = list(values)
    mean, low, high = (f"{value:{form}}" for value in (fmean(known), min(known), max(known)))
    return mean if low == high else f"{mean} ({low} to {high})"


# -- verdicts


@dataclass(frozen=True)
class Verdict:
    """Whether a sentence holds in our records (None: open), and the numbers that decide it.

    mixed: some seeds say yes and some no, whatever held says.
    seeds: how many seeds decide it; None if nothing in the computation is random.
    """

    held: bool | None
    numbers: str
    mixed: bool = False
    seeds: int | None = None


class MissingRecordError(Exception):
    """A cell that a sentence is judged by has no record yet, so the sentence is open."""


Judge = Callable[[Records], Verdict]


@dataclass(frozen=True)
class Claim:
    """A sentence; whether it holds in our records (None: unknown).

    numbers: what decided it, or why nothing here can. own: it is ours and no paper's.
    seeds: how many seeds decided it; None if nothing is random. repeats: the sentence of the same
    reproduction that states the same fact.
    """

    sentence: str
    held: bool | None
    numbers: str = ""
    mixed: bool = False
    own: bool = False
    judgeable: bool = True
    seeds: int | None = None
    repeats: str = ""

    @property
    def is_judged(self) -> bool:
        """Whether the records decide it: it is neither open nor without a judge."""
        return self.held is not None or self.mixed

    @property
    def verdict(self) -> str:
        """Held, mixed, not held, open, or not judged."""
        if not self.judgeable:
            return "not judged"
        return "mixed" if self.mixed else {True: "held", False: "not held", None: "open"}[self.held]


@dataclass(frozen=True)
class Sentence:
    """What a paper says, where it says it, and the function that judges it.

    own: it is a check of ours. judge is None if nothing here can judge it; reason says why.
    repeats: the text of another sentence that states the same fact.
    """

    text: str
    where: str
    judge: Judge | None
    own: bool = False
    reason: str = ""
    repeats: str = ""

    def judged(self, records: Records) -> Claim:
        if self.judge is None:
            return Claim(self.text, None, self.reason, own=self.own, judgeable=False)
        try:
            verdict = self.judge(records)
        except MissingRecordError:
            return Claim(self.text, None, own=self.own, repeats=self.repeats)
        same = f"; the same fact as '{self.repeats}'" if self.repeats else ""
        return Claim(
            self.text,
            verdict.held,
            f"{verdict.numbers}{same}",
            verdict.mixed,
            self.own,
            seeds=verdict.seeds,
            repeats=self.repeats,
        )


class Sentences(list[Sentence]):
    """The sentences of an item, in the order of the functions that judge them.

    where: the section, table, figure or slide of those that name no other.
    ours: the same for checks of our own, which no paper states and which are counted apart.

    >>> PAPER = Sentences("section 1")
    >>> @PAPER.says("SCAFFOLD arrives.")
    ... def arrives(records: Records) -> Verdict:
    ...     return Verdict(records["cell"]["rounds"] < 10, f"{records['cell']['rounds']} rounds")
    >>> claim = PAPER[0].judged({"cell": {"rounds": 7}})
    >>> claim.verdict, claim.numbers
    ('held', '7 rounds')
    """

    def __init__(self, where: str = "", ours: str = "ours") -> None:
        super().__init__()
        self.where, self.ours = where, ours

    def says(
        self, text: str, where: str | None = None, repeats: Sentence | None = None
    ) -> Callable[[Judge], Sentence]:
        """Make a sentence of the function below that judges it.

        text: what the paper says, with what we take it to mean in brackets.
        repeats: a sentence that states the same fact; the two are counted as one fact.
        """
        same = repeats.text if repeats else ""
        return lambda judge: self._add(Sentence(text, where or self.where, judge, repeats=same))

    def check(self, text: str, where: str | None = None) -> Callable[[Judge], Sentence]:
        return lambda judge: self._add(Sentence(text, where or self.ours, judge, own=True))

    def not_judged(self, text: str, where: str, reason: str) -> Sentence:
        """Add a sentence that nothing here can judge, and why."""
        return self._add(Sentence(text, where, None, reason=reason))

    def _add(self, sentence: Sentence) -> Sentence:
        self.append(sentence)
        return sentence


T = TypeVar("T")

Held = Mapping[Any, bool]
"""Whether a sentence holds, by seed, or by the name of a run that stands for one."""


def over_seeds(held: Held, numbers: str) -> Verdict:
    """Return held if every seed says so, not held if none does, and mixed if they disagree.

    >>> over_seeds({0: True, 1: False}, "7 and 12 rounds")
    Verdict(held=None, numbers='7 and 12 rounds; seed 0: yes, seed 1: no', mixed=True, seeds=2)
    >>> over_seeds({0: True}, "7 rounds").numbers
    '7 rounds; one seed'
    >>> over_seeds({"full size, seed 0": True, "small clients, seed 0": True}, "7 rounds").numbers
    '7 rounds; all agree: full size, seed 0; small clients, seed 0; one seed'
    """
    if not held:
        raise MissingRecordError
    answers = set(held.values())
    mixed = len(answers) > 1
    seeds = {_seed_of(run) for run in held}
    text = f"{numbers}; {_answers(held, mixed)}"
    if len(held) > len(seeds) == 1:
        text += "; one seed"
    return Verdict(None if mixed else answers.pop(), text, mixed, len(seeds))


def each_seed(values: Mapping[int, T], holds: Callable[[T], bool], numbers: str) -> Verdict:
    """Judge each seed by what was found of it."""
    return over_seeds({seed: holds(value) for seed, value in values.items()}, numbers)


def _seed_of(run: int | str) -> str:
    """Return the seed of a run; two sizes of clients with one seed are one seed."""
    return str(run).rpartition("seed ")[2]


def _answers(held: Held, mixed: bool) -> str:
    """Return what each seed says, or that all agree; runs that are no seeds are named."""
    if mixed:
        named = {f"seed {run}" if isinstance(run, int) else run: held[run] for run in held}
        return ", ".join(f"{name}: {'yes' if yes else 'no'}" for name, yes in named.items())
    if len(held) == 1:
        return "one seed"
    if all(isinstance(run, int) for run in held):
        return f"all {len(held)} seeds"
    return f"all agree: {'; '.join(map(str, held))}"


VERDICTS = ("held", "mixed", "not held", "open", "not judged")


def counted(verdicts: Iterable[str]) -> str:
    """Return how many there are of each verdict.

    >>> counted(["not held", "held", "held"])
    '2 held, 1 not held'
    """
    known = list(verdicts)
    return ", ".join(f"{known.count(v)} {v}" for v in VERDICTS if v in known)


def by_seeds(claims: Iterable[Claim]) -> str:
    """Return how many claims rest on how many seeds; those that are not judged rest on none.

    >>> by_seeds([Claim("a", True, seeds=1), Claim("b", False, seeds=3), Claim("c", True)])
    '1 where nothing is random, 1 by several seeds, 1 by one seed'
    """
    judged = [claim for claim in claims if claim.is_judged]
    kinds = {
        "where nothing is random": sum(claim.seeds is None for claim in judged),
        "by several seeds": sum(claim.seeds is not None and claim.seeds > 1 for claim in judged),
        "by one seed": sum(claim.seeds == 1 for claim in judged),
    }
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count)


def weighed(claims: Iterable[Claim]) -> str:
    """Return how many there are of each verdict, by one seed, and repeating another.

    >>> weighed([Claim("a", True, seeds=1), Claim("b", False, seeds=3)])
    '1 held, 1 not held; 1 by one seed'
    """
    known = list(claims)
    judged = [claim for claim in known if claim.is_judged]
    one_seed, again = sum(claim.seeds == 1 for claim in judged), repeated(known)
    notes = [f"{'all' if one_seed == len(judged) else one_seed} by one seed"] if one_seed else []
    notes += [f"{again} repeated"] if again else []
    return "; ".join([counted(claim.verdict for claim in known), *notes])


def repeated(claims: Iterable[Claim]) -> int:
    """Return how many claims repeat another one that has the same verdict."""
    known = list(claims)
    verdicts = {claim.sentence: claim.verdict for claim in known}
    return sum(verdicts.get(claim.repeats) == claim.verdict for claim in known if claim.is_judged)
