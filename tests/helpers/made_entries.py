"""Made-up entries of a comparison: rounds to the target by seed, and what they cost."""

from dataclasses import replace

from trimtab.algorithms.registry import NAMES, kind
from trimtab.problems.metrics import ACCURACY
from trimtab.studies.entry import Entry, SeedRun, aggregate_seeds
from trimtab.studies.goal import Cost, Goal

GOAL = Goal(ACCURACY, 0.9)


def made_entry(
    name, rounds, *, nearly=None, goal=GOAL, exchanges=1, size=100, work=10, settings=None, **facts
):
    """Return an algorithm with these rounds to the target, None where a seed does not reach it.

    nearly: the rounds to the easier target; by default the same.
    size, work: bytes and sample gradients of a round.
    settings: hyper-parameters beside K = 5 and eta_l = 0.1.
    facts: other fields of the entry.
    """

    def cost(r):
        return None if r is None else Cost(r, exchanges * r, size * r, work * r, 0.1)

    pairs = zip(rounds, nearly or rounds, strict=True)
    runs = [SeedRun(s, cost(r), 0.9, 1, {}, nearly=cost(n)) for s, (r, n) in enumerate(pairs)]
    known = kind(name.partition("#")[0]) if name.partition("#")[0] in NAMES else None
    made = Entry(
        name,
        name,
        {"K": 5, "eta_l": 0.1} | (settings or {}),
        shown=known.shown if known else name,
        stateful=known.stateful if known else False,
        step="eta_l",
        best=0.8,
    )
    return replace(aggregate_seeds(made, runs, goal), **facts)
