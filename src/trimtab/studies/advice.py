"""What to use, in one sentence that says no more than the numbers do."""

from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.algorithms.registry import NAMES, kind
from trimtab.studies.entry import Entry, describe, eased, listed, rounds_in_words
from trimtab.studies.goal import UNIT_TITLES, Goal
from trimtab.studies.statistics import Interval, ratio

AS_GOOD = 1.1  # with one seed, a cost of <= 1.1 x the least is no difference
ALIKE = 1.05  # bytes or work of <= 1.05 x the least do not decide between equals
FRAGILE = (
    "but this step is fragile: from a start moved by a millionth the run takes another course, as "
    "it may on another processor, so a smaller step is safer"
)


@dataclass(frozen=True)
class Verdict:
    """Which algorithms are best for a goal, as far as seeds and rows can tell."""

    goal: Goal  # the easier one, where nobody reached the target itself
    chosen: Entry | None = None  # None: nobody got there
    alike: tuple[Entry, ...] = ()  # no difference to it was found
    unsure: tuple[Entry, ...] = ()  # a difference that is gone for a target the rows cannot tell

    @property
    def labels(self) -> list[str]:
        """The labels of all of them; that of the chosen one first."""
        chosen = [] if self.chosen is None else [self.chosen]
        return [entry.label for entry in (*chosen, *self.alike, *self.unsure)]


def verdict(entries: Sequence[Entry], goal: Goal) -> Verdict:
    """Tell which algorithm to use, and to which others no difference was found."""
    entries = [entry for entry in entries if not entry.baseline]
    there = [e for e in entries if e.rounds is not None and not e.diverged]
    if not there:
        nearly = [eased(e, goal) for e in entries]
        return verdict(nearly, goal.easier()) if goal.slack else Verdict(goal)

    def gone(a: Entry, b: Entry) -> bool:
        """Tell whether b costs no more than a for a target that the rows cannot tell."""
        return goal.slack > 0 and not _is_worse(eased(b, goal), eased(a, goal), goal.easier())

    best = min(there, key=lambda entry: _cost(entry, goal))
    others = [e for e in entries if e is not best and not e.diverged]
    alike = [best, *(e for e in others if not _is_worse(e, best, goal))]
    unsure = [e for e in others if _is_worse(e, best, goal) and gone(best, e)]
    fit = [e for e in unsure if e.rounds is not None and all(gone(a, e) for a in alike)]
    chosen = _cheapest([*alike, *fit])
    if any(e is chosen for e in unsure):  # At the target itself the others are better.
        alike, unsure = [], [*alike, *unsure]
    same, doubtful = (tuple(e for e in part if e is not chosen) for part in (alike, unsure))
    return Verdict(goal, chosen, same, doubtful)


def advise(entries: list[Entry], goal: Goal) -> str:
    """Say which algorithm to use, for which target, how sure that is and what it costs."""
    entries = [entry for entry in entries if not entry.baseline]
    found = verdict(entries, goal)
    chosen, alike, reached = found.chosen, found.alike, found.goal
    if chosen is None:
        return _nobody_is_there(entries, goal)
    needs = f"it reaches {goal.name} {reached.target:g} in {_needs(chosen, reached)}"
    if reached is goal:
        said = f"Use {describe(chosen)}: {needs}"
    else:
        said = (
            f"No algorithm reached {goal.name} {goal.target:g} with every seed; for "
            f"{reached.target:g}, which the validation rows cannot tell from it, use "
            f"{describe(chosen)}: {needs}"
        )
    if alike:
        said += f"; no difference found to {_names(alike)}{_why(chosen, alike)}"
    if found.unsure:
        easier = f"{goal.easier().target:g}, which the validation rows cannot tell from it"
        none = "nor" if alike else "no difference found"
        said += f"; {none} to {_names(found.unsure)} at {easier}"
    others = entries if reached is goal else [eased(e, goal) for e in entries]
    said += _against(chosen, [e for e in others if e.label not in found.labels], reached)
    said += f"; {FRAGILE}" if chosen.fragile else ""
    return said + _doubt(entries, chosen)


def _names(entries: Sequence[Entry]) -> str:
    return listed([entry.shown for entry in entries])


def _needs(entry: Entry, goal: Goal) -> str:
    """Return what an algorithm needs: rounds, with their interval and what else they cost."""
    assert entry.rounds is not None
    facts = []
    if entry.interval is not None:
        low, high = entry.interval
        facts.append(f"90 % interval {low:.2g} to {high:.2g}, {len(entry.runs)} seeds")
    if entry.exchanges and entry.exchanges != entry.rounds:
        facts.append(f"{entry.exchanges} exchanges")
    if goal.unit not in ("rounds", "exchanges"):
        facts.append(f"{_cost(entry, goal):,.0f} {UNIT_TITLES[goal.unit]}")
    return rounds_in_words(entry.rounds) + (f" ({'; '.join(facts)})" if facts else "")


def _against(chosen: Entry, others: list[Entry], goal: Goal) -> str:
    """Compare with what is well known: by rounds, and by what else is preferred."""
    slower: dict[str, str] = {}
    for entry in sorted(others, key=lambda e: e.rounds or 10**9):
        well_known = entry.name in NAMES and kind(entry.name).well_known
        if not well_known or entry.name in slower or entry.name == chosen.name:
            continue
        if entry.rounds is not None:
            cost = f" ({_cost(entry, goal):,.0f} {UNIT_TITLES[goal.unit]})" * (
                goal.unit != "rounds"
            )
            slower[entry.name] = f"{entry.shown} needs {entry.rounds}{cost}"
        elif entry.reached and len(entry.runs) > 1:
            slower[entry.name] = (
                f"{entry.shown} gets there with {entry.reached} of {len(entry.runs)} seeds"
            )
        else:
            slower[entry.name] = f"{entry.shown} does not get there"
    return f", where {listed(list(slower.values()))}" if slower else ""


def _doubt(entries: list[Entry], chosen: Entry) -> str:
    """Say what was not looked at."""
    if len(entries) > 1 and len(chosen.runs) <= 1:
        return "; one seed, so that chance is not measured."
    return "."


def _nobody_is_there(entries: list[Entry], goal: Goal) -> str:
    wanted = f"{goal.name} {goal.target:g}"
    best = [e for e in entries if e.best is not None and not e.diverged]
    if not best and all(e.diverged for e in entries):
        return "All runs diverged; pass smaller step sizes, or check the scale of the data."
    if not best:
        return f"No run that did not diverge has a finite {goal.name}; look at `evaluate`."
    sometimes = [e for e in best if e.reached]
    if sometimes:
        most = max(sometimes, key=lambda e: e.reached or 0)
        return (
            f"No algorithm reached {wanted} with every seed; {describe(most)} did with "
            f"{most.reached} of {len(most.runs)}: allow more rounds (R) or an easier target."
        )
    top = max(best, key=lambda e: goal.score({goal.name: e.best}))
    return (
        f"No algorithm reached {wanted}; {describe(top)} came closest with {top.best:.4g}: "
        "allow more rounds (R) or an easier target."
    )


# -- who is better than whom


def difference(a: Entry, b: Entry, goal: Goal) -> Interval | None:
    """Return the interval of b's cost over a's, in pairs by seed; None if it cannot be told."""
    pairs = [
        (getattr(mine.cost, goal.unit), getattr(theirs.cost, goal.unit))
        for mine, theirs in zip(a.runs, b.runs, strict=False)
        if mine.cost is not None and theirs.cost is not None and mine.seed == theirs.seed
    ]
    return ratio([x for x, _ in pairs], [y for _, y in pairs]) if len(pairs) > 1 else None


def _is_worse(entry: Entry, best: Entry, goal: Goal) -> bool:
    """Tell whether an algorithm surely costs more than the best, or does not get there."""
    if best.rounds is None or entry.rounds is None:
        return True
    found = difference(best, entry, goal)
    if found is not None:
        return found.low > 1
    return _cost(entry, goal) > AS_GOOD * _cost(best, goal)


def _cost(entry: Entry, goal: Goal) -> float:
    value = getattr(entry, goal.unit)
    return float(entry.rounds or 0) if value is None else float(value)


def _cheapest(entries: list[Entry]) -> Entry:
    """Return the one that sends the fewest bytes; on a tie with the least work; without a state."""
    for name in ("bytes", "work"):
        values = [getattr(e, name) or 0 for e in entries]
        entries = [e for e, v in zip(entries, values, strict=True) if v <= ALIKE * min(values)]
    return min(entries, key=lambda e: _keeps_state(e))


def _why(chosen: Entry, others: Sequence[Entry]) -> str:
    """Say why one of several equals is preferred."""
    for name, words in (("bytes", "it sends the fewest bytes"), ("work", "it computes the least")):
        mine, theirs = getattr(chosen, name), [getattr(e, name) for e in others]
        if mine and all(t is not None and t > ALIKE * mine for t in theirs):
            return f", and {words}"
    if not _keeps_state(chosen) and all(map(_keeps_state, others)):
        return ", and it keeps no state"
    return ""


def _keeps_state(entry: Entry) -> bool:
    name = entry.name.partition("#")[0]
    return name not in NAMES or kind(name).stateful
