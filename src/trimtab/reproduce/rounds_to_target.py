"""What the records of cells on EMNIST say: rounds to a target, over the seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean, pstdev
from typing import Any, Literal

from trimtab.reproduce.raced_record import RacedRecord, first, stays
from trimtab.reproduce.reproduction import MissingRecordError, Verdict

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
        wanted = getattr(record.setting, self.aim)
        return (first if self.criterion == "first" else stays)(record.accuracy, wanted)

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


def chosen(raced: Sequence[RacedRecord], **wanted: Any) -> list[RacedRecord]:
    """Return the records with these settings, one for each seed; pixels and start as usual."""
    wanted = {"pixels": "unit", "random_start": False, "eta": None} | wanted
    return [
        record
        for record in raced
        if all(getattr(record.setting, word) == value for word, value in wanted.items())
    ]


def values(raced: Sequence[RacedRecord], word: str) -> list[Any]:
    """Return the values of a setting among the records, in order."""
    return sorted({getattr(record.setting, word) for record in raced})


# -- their rounds


def rounds(
    raced: Sequence[RacedRecord], reading: Reading = PUBLISHED, **wanted: Any
) -> float | None:
    """Return the mean of the rounds over the seeds; infinite if not met, None if not computed."""
    seeds = [reading.rounds(record) for record in chosen(raced, **wanted)]
    return fmean(inf if r is None else r for r in seeds) if seeds else None


def needed(raced: Sequence[RacedRecord], reading: Reading, **wanted: Any) -> float:
    """Return the mean of the rounds over the seeds; whoever asks for them cannot do without."""
    mean = rounds(raced, reading, **wanted)
    if mean is None:
        raise MissingRecordError
    return mean


def judged(raced: Sequence[RacedRecord], holds: Callable[[Reading], bool], numbers: str) -> Verdict:
    """Return the verdict by the paper's reading, and behind the numbers those of all."""
    held = {reading: holds(reading) for reading in READINGS}
    told = ", ".join(f"{r.named(raced)}: {'yes' if held[r] else 'no'}" for r in READINGS)
    return Verdict(held[PUBLISHED], f"{numbers}; {told}")


# -- as tables show them


def aimed_at(raced: Sequence[RacedRecord], aim: Aim) -> str:
    """Return the accuracy that is wanted, in words."""
    wanted = {getattr(record.setting, aim) for record in raced if record.setting.eta is None}
    return " or ".join(f"{accuracy:g}" for accuracy in sorted(wanted))


def shown(seeds: Sequence[RacedRecord], reading: Reading) -> str:
    """Return the rounds as tables show them: the mean over the seeds with its spread, or n+."""
    every = [reading.rounds(record) for record in seeds]
    met = [r for r in every if r is not None]
    if len(met) < len(every):
        return f"{seeds[0].limit}+"
    return f"{fmean(met):.0f} ± {pstdev(met):.0f}" if len(met) > 1 else "".join(map(str, met))


def both(seeds: Sequence[RacedRecord], aim: Aim) -> str:
    """Return the rounds by both criteria."""
    return f"{shown(seeds, Reading(aim, 'first'))} / {shown(seeds, Reading(aim, 'stays'))}"


def step_sizes(seeds: Sequence[RacedRecord]) -> str:
    """Return the step sizes chosen, fragile ones marked."""
    return ", ".join(dict.fromkeys(f"{r.eta:.2g}{' †' if r.fragile else ''}" for r in seeds))


def fragile_note(raced: Sequence[RacedRecord]) -> str:
    """Say how many winners are fragile."""
    winners = [record for record in raced if record.setting.eta is None]
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
    """Return a table in Markdown; the first row is its head."""
    head, *body = rows
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body))
