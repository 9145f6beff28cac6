"""The advice of a comparison: which algorithm to use, by rules that are stated and tested.

An algorithm is worse than another only if the seeds show it; see `_is_worse`. Among the others the
recommended one keeps no client state, then sends the fewest bytes per round, then is the simplest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, inf

from trimtab.algorithms.registry import NAMES, kind
from trimtab.studies.entry import (
    Entry,
    describe,
    listed,
    relaxed,
    rounds_in_words,
    settings_in_words,
    two_ends,
)
from trimtab.studies.goal import UNIT_TITLES, Goal
from trimtab.studies.statistics import LEAST_SEEDS, ratio, rounding_error

# A difference must be larger than what the search itself leaves unknown: the settings that it
# chooses need up to 1.2 times the rounds of the best ones in 90 % of the problems measured. Seeds
# cannot show this error, because all of them share one choice.
MATERIAL = 1.2
ALIKE = 1.05  # cohorts of random size vary the bytes per round by less than 5 % over a run
FRAGILE = (
    "but this step is fragile: from a start moved by a millionth the run needs other rounds, as it "
    "may on another processor, so a smaller step is safer"
)


@dataclass(frozen=True)
class Verdict:
    """The recommended algorithm for a goal, and what is known of the others.

    alike: no difference to it was found.
    unsure: there is one at the target, and none at an easier one that the held-out rows cannot
        tell from it.
    worse: the seeds show that another algorithm is better.
    unknown: they differ, but the searches or the seeds do not allow a claim.
    reasons: the rules that chose among algorithms with no difference.
    """

    goal: Goal  # the easier one, where no algorithm reached the target itself
    chosen: Entry | None = None  # None: no algorithm reached it
    alike: tuple[Entry, ...] = ()
    unsure: tuple[Entry, ...] = ()
    worse: tuple[Entry, ...] = ()
    unknown: tuple[Entry, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def labels(self) -> list[str]:
        """The labels of the recommended one, and of those to which no difference was found."""
        chosen = [] if self.chosen is None else [self.chosen]
        return [entry.label for entry in (*chosen, *self.alike, *self.unsure)]


def verdict(entries: Sequence[Entry], goal: Goal) -> Verdict:
    """Return which algorithm to use, and how each of the others compares with it."""
    entries = [entry for entry in entries if not entry.baseline]
    reached = [entry for entry in entries if not entry.failed]
    if not reached:
        if not goal.slack:
            return Verdict(goal, unknown=tuple(entries))
        return verdict([relaxed(entry, goal) for entry in entries], goal.easier())
    worse = [e for e in entries if any(_is_worse(e, other, goal) for other in reached)]
    # The one with the least mean cost is never worse, so that at least one is left.
    left = [e for e in reached if e not in worse]
    first = min(left, key=lambda entry: _cost(entry, goal))
    equals = [
        e
        for e in left
        if e is first or not obstacle(e, first) or _cost(e, goal) <= MATERIAL * _cost(first, goal)
    ]
    chosen, reasons = _preferred(equals, goal)
    others = [e for e in entries if e is not chosen and e not in worse]
    unsure = [e for e in others if _differs(e, chosen, goal) or _differs(chosen, e, goal)]
    others = [e for e in others if e not in unsure]
    alike = [e for e in others if e in equals or not obstacle(e, chosen)]
    unknown = [e for e in others if e not in alike]
    return Verdict(goal, chosen, tuple(alike), tuple(unsure), tuple(worse), tuple(unknown), reasons)


# -- differences


def _is_worse(entry: Entry, other: Entry, goal: Goal) -> bool:
    """Return whether the seeds show that another algorithm is better than this one.

    They must show it for the target, and for the easiest one that the held-out rows cannot tell
    from it.
    """
    easier = goal.easier()
    return _differs(entry, other, goal) and (
        easier is goal or _differs(relaxed(entry, goal), relaxed(other, goal), easier)
    )


def _differs(entry: Entry, other: Entry, goal: Goal) -> bool:
    """Return whether an algorithm surely costs over 1.2 times as much as another, or never ends."""
    if entry is other or other.failed or obstacle(entry, other):
        return False
    if entry.reached == 0:
        return True
    ours, theirs = ([r.cost for r in e.runs if r.cost is not None] for e in (other, entry))
    # The rounding of the two is independent, so that their errors add up as deviations do.
    error = hypot(*(rounding_error([cost.rounds for cost in costs]) for costs in (ours, theirs)))
    a, b = ([getattr(cost, goal.unit) for cost in costs] for costs in (ours, theirs))
    found = ratio(a, b, error)
    return found is not None and found.low > MATERIAL


def obstacle(entry: Entry, other: Entry) -> str:
    """Return why no difference between two algorithms can be claimed; empty if one can.

    An algorithm that reaches the target with no seed is comparable, since its search is complete.
    """
    seeds = min(len(entry.runs), len(other.runs))
    if seeds < LEAST_SEEDS:
        return f"{'one seed is' if seeds == 1 else f'{seeds} seeds are'} too few"
    if [run.seed for run in entry.runs] != [run.seed for run in other.runs]:
        return "their seeds differ"
    for each in (other, entry):
        if _is_open(each):
            return f"the search of {each.shown} {_unfinished(each)}"
    if any(each.failed and each.reached for each in (entry, other)):
        return "not every seed gets there"
    return ""


def _cost(entry: Entry, goal: Goal) -> float:
    value = getattr(entry, goal.unit)
    return float(entry.rounds or 0) if value is None else float(value)


# -- which of several without a difference


def _preferred(entries: Sequence[Entry], goal: Goal) -> tuple[Entry, tuple[str, ...]]:
    """Return the entry that the rules prefer, and what the rules that decided say of it."""
    rules = (
        ("keeps no client state", lambda entry: float(entry.stateful), 1.0),
        ("sends the fewest bytes per round", _bytes_per_round, ALIKE),
        ("is the simplest", simplicity, 1.0),
        (f"needs the fewest {UNIT_TITLES[goal.unit]}", lambda entry: _cost(entry, goal), 1.0),
    )
    reasons = []
    for reason, value, tolerance in rules:
        least = min(map(value, entries))
        kept = [entry for entry in entries if value(entry) <= tolerance * least]
        reasons += [reason] if len(kept) < len(entries) else []
        entries = kept
    return entries[0], tuple(reasons or ["comes first"] * (len(entries) > 1))


def _bytes_per_round(entry: Entry) -> float:
    return (entry.bytes or 0) / entry.rounds if entry.rounds else inf


def simplicity(entry: Entry) -> int:
    """Return an algorithm's place in the registry, where the simplest is first.

    A user's own algorithm, or one in a wrapper, comes after all of them.
    """
    name = entry.name.partition("#")[0]
    return NAMES.index(name) if name in NAMES else len(NAMES)


# -- in words


def advise(entries: Sequence[Entry], goal: Goal) -> str:
    """Say which algorithm to use, for which target, how sure that is, and what it costs."""
    entries = [entry for entry in entries if not entry.baseline]
    found = verdict(entries, goal)
    chosen = found.chosen
    if chosen is None:
        return _none_reached(entries, goal)
    others = [*found.worse, *found.unknown]
    said = _opening(found, goal, alone=len(entries) == 1)
    said += _against(chosen, others, found.goal)
    said += f"; {FRAGILE}" if chosen.fragile else ""
    return f"{said}{_caveats(found)}."


def _opening(found: Verdict, goal: Goal, alone: bool) -> str:
    """Return the first part: an imperative, unless there is no difference at all."""
    chosen, reached = found.chosen, found.goal
    assert chosen is not None
    reasons = listed(list(found.reasons))
    reaches = f"it reaches {reached.name} {reached.target:g} in {_needs(chosen, reached)}"
    easier = f"{reached.easier().target:g}, which the validation rows cannot tell from it"
    before = ""
    if reached is not goal:
        before = (
            f"No algorithm reached {goal.name} {goal.target:g} with every seed; for "
            f"{reached.target:g}, which the validation rows cannot tell from it, "
        )
    if alone or found.worse or found.unknown or not reasons:
        said = f"Use {describe(chosen)}: {reaches}"
        if found.alike:
            why = f", and it {reasons}" if reasons else ""
            said += f"; no difference found to {_names(found.alike)}{why}"
        if found.unsure:
            none = "nor" if found.alike else "no difference found"
            said += f"; {none} to {_names(found.unsure)} at {easier}"
    else:
        unsure = f", to {_names(found.unsure)} at {easier}" if found.unsure else ""
        settings = settings_in_words(chosen)
        said = f"No difference found{unsure}; {chosen.shown} {reasons}. "
        said += f"With {settings} {reaches}" if settings else f"{reaches[:1].upper()}{reaches[1:]}"
    return before + (f"{said[:1].lower()}{said[1:]}" if before else said)


def _names(entries: Sequence[Entry]) -> str:
    return listed([entry.shown for entry in entries])


def _needs(entry: Entry, goal: Goal) -> str:
    """Return the rounds of an algorithm, with their interval and its other costs."""
    assert entry.rounds is not None
    facts = []
    for title, ends in (("90 % interval", entry.interval), ("range", entry.range)):
        if ends is not None:
            facts.append(f"{title} {two_ends(ends, ' to ')}, {len(entry.runs)} seeds")
    if entry.exchanges and entry.exchanges != entry.rounds:
        facts.append(f"{entry.exchanges} exchanges")
    if goal.unit not in ("rounds", "exchanges"):
        facts.append(f"{_cost(entry, goal):,.0f} {UNIT_TITLES[goal.unit]}")
    return rounds_in_words(entry.rounds) + (f" ({'; '.join(facts)})" if facts else "")


def _against(chosen: Entry, others: Sequence[Entry], goal: Goal) -> str:
    """Compare with well-known algorithms: by rounds, and by what else is preferred."""
    slower: dict[str, str] = {}
    for entry in sorted(others, key=lambda e: inf if e.failed else _cost(e, goal)):
        well_known = entry.name in NAMES and kind(entry.name).well_known
        if not well_known or entry.name in slower or entry.name == chosen.name:
            continue
        if not entry.failed:
            cost = f" ({_cost(entry, goal):,.0f} {UNIT_TITLES[goal.unit]})"
            also = "" if goal.unit == "rounds" else cost
            slower[entry.name] = f"{entry.shown} needs {entry.rounds}{also}"
        elif entry.reached and len(entry.runs) > 1:
            slower[entry.name] = (
                f"{entry.shown} gets there with {entry.reached} of {len(entry.runs)} seeds"
            )
        elif not _is_open(entry):
            slower[entry.name] = f"{entry.shown} does not get there"
    return f", where {listed(list(slower.values()))}" if slower else ""


def _caveats(found: Verdict) -> str:
    """Say why differences are not claimed, and what is open about the recommended algorithm."""
    chosen, said = found.chosen, []
    assert chosen is not None
    why: dict[str, list[Entry]] = {}
    for entry in found.unknown:
        if entry.failed and not entry.reached and _is_open(entry):
            search = f"its search {_unfinished(entry)}"
            said.append(f"it is not known whether {entry.shown} gets there, because {search}")
        else:
            why.setdefault(obstacle(entry, chosen), []).append(entry)
    for reason, entries in why.items():
        said.append(f"no difference to {_names(entries)} is claimed, because {reason}")
    compared = (*found.alike, *found.unsure, *found.unknown)
    if compared and not why and len(chosen.runs) < LEAST_SEEDS:
        said.append(f"{obstacle(compared[0], chosen)} to claim a difference")
    own = f"the search of {chosen.shown} {_unfinished(chosen)}"
    if _is_open(chosen) and own not in why:
        said.append(own)
    return "".join(f"; {each}" for each in said)


def _is_open(entry: Entry) -> bool:
    """Return whether the search may have missed better settings."""
    return not entry.complete or bool(entry.at_edge)


def _unfinished(entry: Entry) -> str:
    """Return what is open about a search that was cut short, or ended at its edge."""
    said = []
    if not entry.complete:
        said.append("is not complete" + (f" ({entry.not_run[0]})" if entry.not_run else ""))
    if entry.at_edge:
        said.append(f"has its best {listed(entry.at_edge)} at the edge")
    return listed(said)


def _none_reached(entries: Sequence[Entry], goal: Goal) -> str:
    wanted = f"{goal.name} {goal.target:g}"
    best = [e for e in entries if e.best is not None and not e.diverged]
    if not best and all(e.diverged for e in entries):
        return "All runs diverged; pass smaller step sizes, or check the scale of the data."
    if not best:
        return f"No run that did not diverge has a finite {goal.name}; look at `evaluate`."
    unreported = [e for e in best if not e.complete and not e.runs]
    if len(unreported) == len(entries):
        top = max(unreported, key=lambda e: goal.score({goal.name: e.best}))
        return (
            f"No algorithm is recommended, because {top.not_run[-1]}; in its search "
            f"{describe(top)} came to {goal.name} {top.best:.4g}: resume it with more minutes or "
            "a larger budget."
        )
    sometimes = [e for e in best if e.reached]
    if sometimes:
        top = max(sometimes, key=lambda e: e.reached or 0)
        said = (
            f"No algorithm reached {wanted} with every seed; {describe(top)} did with "
            f"{top.reached} of {len(top.runs)}"
        )
    else:
        top = max(best, key=lambda e: goal.score({goal.name: e.best}))
        said = f"No algorithm reached {wanted}; {describe(top)} came closest with {top.best:.4g}"
    if _is_open(top):
        said += f", and its search {_unfinished(top)}"
    return f"{said}: allow more rounds (R) or an easier target."
