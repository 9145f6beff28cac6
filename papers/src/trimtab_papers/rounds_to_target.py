"""What the records of cells on EMNIST say: rounds to a target, over the seeds."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from statistics import fmean, pstdev
from typing import Any, Literal, TypeVar

from trimtab_papers.raced import RacedRecord, first, stays
from trimtab_papers.verdicts import MissingRecordError, Verdict, over_seeds, spread

# Karimireddy et al. 2020, Table 3: rounds to 0.5 test accuracy, by (algorithm, epochs); None where
# the paper says '1k+'.
TABLE3: dict[tuple[str, int], dict[float, int | None]] = {
    ("sgd", 1): {0: 317, 10: 365, 100: 416},
    ("scaffold", 1): {0: 77, 10: 62, 100: 60},
    ("scaffold", 5): {0: 152, 10: 20, 100: 10},
    ("scaffold", 10): {0: 286, 10: 16, 100: 7},
    ("scaffold", 20): {0: 266, 10: 11, 100: 4},
    ("fedavg", 1): {0: 258, 10: 74, 100: 83},
    ("fedavg", 5): {0: 428, 10: 34, 100: 10},
    ("fedavg", 10): {0: 711, 10: 25, 100: 6},
    ("fedavg", 20): {0: None, 10: 18, 100: 4},
    ("fedprox", 1): {0: None, 10: 979, 100: 459},
    ("fedprox", 5): {0: None, 10: 794, 100: 351},
    ("fedprox", 10): {0: None, 10: 894, 100: 308},
    ("fedprox", 20): {0: None, 10: 916, 100: 351},
}

# Table 4: rounds to 0.45 with 5 epochs, by (algorithm, clients sampled of 100); None: '1k+'.
TABLE4: dict[tuple[str, int], dict[float, int | None]] = {
    ("scaffold", 20): {0: 143, 10: 9},
    ("scaffold", 5): {0: 290, 10: 13},
    ("scaffold", 1): {0: 790, 10: 28},
    ("fedavg", 20): {0: 179, 10: 12},
    ("fedavg", 5): {0: 334, 10: 17},
    ("fedavg", 1): {0: None, 10: 35},
}

# Table 5: best test accuracy of a two-layer network in 1,000 rounds with 5 epochs, by algorithm.
TABLE5: dict[str, dict[float, float]] = {
    "sgd": {0: 0.766, 10: 0.764},
    "fedavg": {0: 0.787, 10: 0.828},
    "scaffold": {0: 0.801, 10: 0.842},
}


def published_rounds(algorithm: str, epochs: int, similarity: float) -> int | None:
    """Return the rounds of Table 3; None where the paper says 1k+, or nothing.

    >>> published_rounds("scaffold", 5, 10), published_rounds("fedavg", 20, 0)
    (20, None)
    """
    return TABLE3.get((algorithm, epochs), {}).get(similarity)


# -- rounds to a target


T = TypeVar("T")

Aim = Literal["target", "until"]
"""The accuracy that the race is for, or the one that the winner runs on to."""

AIMS: tuple[Aim, Aim] = ("target", "until")


@dataclass(frozen=True)
class Reading:
    """What 'rounds' may mean: to which accuracy, and touching it or staying there."""

    aim: Aim
    criterion: Literal["first", "stays"]

    def rounds(self, record: RacedRecord) -> int | None:
        """Return the rounds of one record; None if not met."""
        target = getattr(record.setting, self.aim)
        return (first if self.criterion == "first" else stays)(record.accuracy, target)

    def named(self, raced: Sequence[RacedRecord]) -> str:
        """Return it in words, such as 'first at 0.5'."""
        return f"{self.criterion} at {aimed_at(raced, self.aim)}"


PUBLISHED = Reading("target", "first")
READINGS = (
    PUBLISHED,
    Reading("target", "stays"),
    Reading("until", "first"),
    Reading("until", "stays"),
)


# -- which records


def select(raced: Sequence[RacedRecord], **settings: Any) -> list[RacedRecord]:
    """Return the records with these settings, one for each seed.

    Pixels and start are as usual, and clients as large as there are.
    """
    every = min((record.setting.every for record in raced), default=1)
    settings = {"pixels": "unit", "random_start": False, "eta": None, "every": every} | settings
    return [
        record
        for record in raced
        if all(getattr(record.setting, word) == value for word, value in settings.items())
    ]


def values(raced: Sequence[RacedRecord], word: str) -> list[Any]:
    return sorted({getattr(record.setting, word) for record in raced})


# -- their rounds


def _each(raced: Sequence[RacedRecord], reading: Reading, **settings: Any) -> list[float]:
    """Return the rounds of each seed that ran as far as the reading asks; infinite if not met."""
    seeds = _as_far_as(select(raced, **settings), reading.aim)
    return [inf if r is None else r for r in map(reading.rounds, seeds)]


def _as_far_as(seeds: Sequence[RacedRecord], aim: Aim) -> list[RacedRecord]:
    """Return the seeds that ran on to an aim: further ones end at the target of the race."""
    return [r for r in seeds if aim == "target" or r.setting.around is None]


def rounds(
    raced: Sequence[RacedRecord], reading: Reading = PUBLISHED, **settings: Any
) -> float | None:
    """Return the mean of the rounds over the seeds; infinite if not met, None if not computed."""
    seeds = _each(raced, reading, **settings)
    return fmean(seeds) if seeds else None


def rounds_text(raced: Sequence[RacedRecord], **settings: Any) -> str:
    """Return the rounds in words, with their spread over the seeds; a question mark if unknown."""
    seeds = _each(raced, PUBLISHED, **settings)
    return spread(seeds, ".4g") if seeds else "?"


def required_rounds(raced: Sequence[RacedRecord], reading: Reading, **settings: Any) -> float:
    """Return the mean of the rounds over the seeds; raise MissingRecordError if there is none."""
    mean = rounds(raced, reading, **settings)
    if mean is None:
        raise MissingRecordError
    return mean


Holds = Callable[[Sequence[RacedRecord], Reading], bool]
"""Whether a sentence holds in the records of one seed, by one reading."""


def by_size(raced: Sequence[RacedRecord]) -> dict[str, list[RacedRecord]]:
    """Return the records of full size, and those on small clients, if there are both."""
    sizes = values(raced, "every")
    names = ("full size", "small clients") if len(sizes) > 1 else ("",) * len(sizes)
    named = zip(names, sizes, strict=True)
    return {name: [r for r in raced if r.setting.every == every] for name, every in named}


def by_seed(raced: Sequence[RacedRecord]) -> dict[int | str, list[RacedRecord]]:
    """Return the records of each seed; of either size of clients, if there are two."""
    found: dict[int | str, list[RacedRecord]] = {}
    for size, records in by_size(raced).items():
        for seed in values(records, "seed"):
            key = f"{size}, seed {seed}" if size else seed
            found[key] = [record for record in records if record.setting.seed == seed]
    return found


def text_by_size(
    raced: Sequence[RacedRecord], describe: Callable[[Sequence[RacedRecord]], str]
) -> str:
    """Return the numbers of the full size, then those of small clients."""
    return "; ".join(
        f"{size}: {describe(records)}" if size else describe(records)
        for size, records in by_size(raced).items()
    )


def map_seeds(
    raced: Sequence[RacedRecord], look: Callable[[list[RacedRecord]], T]
) -> dict[int | str, T]:
    """Look at each seed by itself; one that lacks a record is left out."""
    found: dict[int | str, T] = {}
    for seed, records in by_seed(raced).items():
        with suppress(MissingRecordError):
            found[seed] = look(records)
    return found


def judged(raced: Sequence[RacedRecord], holds: Holds, numbers: str) -> Verdict:
    """Return the verdict of all seeds by the paper's reading, and the first seed's by the others.

    Only the first seed runs on to what the other readings ask for.
    """
    verdict = over_seeds(map_seeds(raced, lambda seed: holds(seed, PUBLISHED)), numbers)
    first_seed = next(iter(by_seed(raced).values()), [])
    other = {reading: holds(first_seed, reading) for reading in READINGS[1:]}
    answers = ", ".join(f"{r.named(raced)}: {'yes' if other[r] else 'no'}" for r in other)
    return replace(verdict, numbers=f"{verdict.numbers}; seed 0 by other readings: {answers}")


# -- as tables show them


def aimed_at(raced: Sequence[RacedRecord], aim: Aim) -> str:
    """Return the accuracy to reach, in words."""
    winners = [record for record in raced if record.setting.eta is None]
    targets = {getattr(record.setting, aim) for record in _as_far_as(winners, aim)}
    return " or ".join(f"{accuracy:g}" for accuracy in sorted(targets))


def rounds_cell(seeds: Sequence[RacedRecord], reading: Reading) -> str:
    """Return the rounds as tables show them: the mean over the seeds with its spread, or n+."""
    every = [reading.rounds(record) for record in _as_far_as(seeds, reading.aim)]
    met = [r for r in every if r is not None]
    if len(met) < len(every):
        return f"{seeds[0].limit}+"
    return f"{fmean(met):.0f} ± {pstdev(met):.0f}" if len(met) > 1 else "".join(map(str, met))


def small_clients(
    raced: Sequence[RacedRecord], rows: Sequence[tuple[str, dict[str, Any]]]
) -> list[str]:
    """Return a table of the rounds on small clients: so many rows, a column for each similarity."""
    small = by_size(raced).get("small clients", [])
    similarities = values(small, "similarity")
    table = [["small clients", "seeds", *(f"{s:g} %" for s in similarities)]]
    for title, settings in rows:
        cells = [select(small, similarity=s, **settings) for s in similarities]
        if any(cells):
            each = [rounds_cell(seeds, PUBLISHED) if seeds else "" for seeds in cells]
            table.append([title, str(min(map(len, cells))), *each])
    return [lines(table)] if len(table) > 1 else []


def both(seeds: Sequence[RacedRecord], aim: Aim) -> str:
    return (
        f"{rounds_cell(seeds, Reading(aim, 'first'))} / {rounds_cell(seeds, Reading(aim, 'stays'))}"
    )


def step_sizes(seeds: Sequence[RacedRecord]) -> str:
    """Return the step sizes chosen, fragile ones marked."""
    return ", ".join(dict.fromkeys(f"{r.eta:.2g}{' †' if r.fragile else ''}" for r in seeds))


def fragile_note(raced: Sequence[RacedRecord]) -> str:
    """Say how many winners are fragile."""
    winners = [r for r in raced if r.setting.eta is None and r.setting.around is None]
    tried = [record for record in winners if record.fragile is not None]
    fragile = sum(bool(record.fragile) for record in tried)
    left = len(winners) - len(tried)
    if not tried:
        return "Whether a winner comes out again from a start moved by a millionth: not tried."
    return (
        f"† fragile: {fragile} of {len(tried)} winners come out otherwise from a start moved by a "
        "millionth, by more than a tenth of their rounds and more than one, or by 0.01 in their "
        "best accuracy; another processor may then give other numbers as well."
        + (f" Not tried for {left}." if left else "")
    )


def lines(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body))
