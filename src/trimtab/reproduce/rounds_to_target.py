"""What the records of cells on EMNIST say: rounds to a target, over the seeds."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from math import inf
from statistics import fmean, pstdev
from typing import Any, Literal

from trimtab.reproduce.raced_cells import Setting, first, stays
from trimtab.reproduce.reproduction import Claim, Record, Records

_USUAL = asdict(Setting("", 1, 0)) | {"algorithm": None}

# What 'rounds' may mean: to the target of the race, or to the accuracy the winner runs on to; the
# first round there, or the first that stays.
Reading = tuple[Literal["target", "until"], Literal["first", "stays"]]
PUBLISHED: Reading = ("target", "first")
READINGS: tuple[Reading, ...] = (
    PUBLISHED,
    ("target", "stays"),
    ("until", "first"),
    ("until", "stays"),
)

Need = Callable[..., float]
"""Rounds of the cell with these settings by one of the readings."""


class MissingError(Exception):
    """A cell has no record yet."""


def setting(record: Record) -> dict[str, Any]:
    """Return the settings of a record; what it does not name was as usual."""
    return {**_USUAL, **record["setting"]}


def chosen(records: Records, **wanted: Any) -> list[Record]:
    """Return the records with these settings, one for each seed; pixels and start as usual."""
    wanted = {"pixels": "unit", "random_start": False, "eta": None} | wanted
    return [r for r in records.values() if all(setting(r)[k] == v for k, v in wanted.items())]


def values(records: Records, of: str) -> list[Any]:
    """Return the values of a setting among the records, in order."""
    return sorted({setting(r)[of] for r in records.values()})


def need(record: Record, reading: Reading) -> int | None:
    """Return the rounds of one record; None if not met."""
    target, criterion = reading
    return {"first": first, "stays": stays}[criterion](record["accuracy"], setting(record)[target])


def rounds(records: Records, reading: Reading = PUBLISHED, **wanted: Any) -> float | None:
    """Return the mean of the rounds over the seeds; infinite if not met, None if not computed."""
    found = [need(r, reading) for r in chosen(records, **wanted)]
    return fmean(inf if n is None else n for n in found) if found else None


def judged(records: Records, sentence: str, judge: Callable[[Need], bool], text: str) -> Claim:
    """Return a claim by the paper's reading, with the verdicts of the others."""
    verdicts: dict[Reading, bool] = {}
    for reading in READINGS:

        def needed(reading: Reading = reading, **wanted: Any) -> float:
            found = rounds(records, reading, **wanted)
            if found is None:
                raise MissingError
            return found

        with suppress(MissingError):
            verdicts[reading] = judge(needed)
    others = ", ".join(
        f"{named(records, reading)}: {'yes' if v else 'no'}" for reading, v in verdicts.items()
    )
    return Claim(sentence, verdicts.get(PUBLISHED), f"{text}; {others}" if others else "")


def goal(records: Records, of: Literal["target", "until"]) -> str:
    """Return the accuracy that is wanted, in words."""
    usual = {setting(r)[of] for r in records.values() if setting(r)["eta"] is None}
    return " or ".join(f"{t:g}" for t in sorted(usual))


def named(records: Records, reading: Reading) -> str:
    """Return a reading in words, such as 'first at 0.5'."""
    target, criterion = reading
    return f"{criterion} at {goal(records, target)}"


def shown(here: Sequence[Record], reading: Reading) -> str:
    """Return the rounds as tables show them: the mean over the seeds with its spread, or n+."""
    found = [need(r, reading) for r in here]
    met = [n for n in found if n is not None]
    if len(met) < len(found):
        return f"{here[0]['limit']}+"
    return f"{fmean(met):.0f} ± {pstdev(met):.0f}" if len(met) > 1 else "".join(map(str, met))


def both(here: Sequence[Record], target: Literal["target", "until"]) -> str:
    """Return the rounds by both criteria."""
    return f"{shown(here, (target, 'first'))} / {shown(here, (target, 'stays'))}"


def step_sizes(here: Sequence[Record]) -> str:
    """Return the step sizes chosen, fragile ones marked."""
    return ", ".join(dict.fromkeys(f"{r['eta']:.2g}{' †' if fragile(r) else ''}" for r in here))


def fragile(record: Record) -> bool | None:
    """Tell whether a winner comes out otherwise from a moved start; None: it was not tried."""
    again = record.get("again")
    return None if again is None else bool(again["fragile"])


def fragile_note(records: Records) -> str:
    """Say how many winners are fragile."""
    raced = [r for r in records.values() if setting(r)["eta"] is None]
    tried = [r for r in raced if fragile(r) is not None]
    found = sum(bool(fragile(r)) for r in tried)
    left = len(raced) - len(tried)
    if not tried:
        return "Whether a winner comes out again from a start moved by a millionth: not tried."
    return (
        f"† fragile: {found} of {len(tried)} winners come out otherwise from a start moved by a "
        "millionth, by more than a tenth of their rounds and more than one, or by 0.01 in their "
        "best accuracy; another processor may then give other numbers as well."
        + (f" Not tried for {left}." if left else "")
    )


def lines(rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; the first row is its head."""
    head, *body = rows
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body))
