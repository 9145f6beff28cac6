"""Rounds by N/S, and by K for each L/delta, over the seeds."""

from trimtab_papers.numbers import spread
from trimtab_papers.records import Records, of_kind
from trimtab_papers.rounds_to_target import lines
from trimtab_papers.scaffold2020.nonconvex.cells import EPS, Kind
from trimtab_papers.scaffold2020.nonconvex.sentences import rounds_by_ratio, sweeps


def table(records: Records) -> str:
    """Return a table for each theorem; the paper has no numbers."""
    return f"{_third(records)}\n\n{_fourth(records)}"


def _third(records: Records) -> str:
    kinds: dict[Kind, str] = {
        "network": "network, squared gradient norm",
        "convex": "linear model, f - f*",
    }
    known = {kind: list(map(rounds_by_ratio, of_kind(records, kind).values())) for kind in kinds}
    rows = [["N/S", *(f"rounds: {title} to {EPS[-1]:g} of its start" for title in kinds.values())]]
    for ratio in sorted({ratio for some in known.values() for one in some for ratio in one}):
        seeds = [[one[ratio] for one in some if ratio in one] for some in known.values()]
        rows.append([str(ratio), *(spread(rounds) if rounds else "" for rounds in seeds)])
    return lines(rows)


def _fourth(records: Records) -> str:
    rows = [["L/delta", "rounds: K = 1", "K large", "best K"]]
    some = [sweep for record in of_kind(records, "weak").values() for sweep in sweeps(record)]
    for similar in sorted({sweep.similar for sweep in some}):
        seeds = [sweep for sweep in some if sweep.similar == similar]
        rows.append([str(similar), spread([sweep.rounds[1] for sweep in seeds])])
        rows[-1] += [spread([x.plateau for x in seeds]), spread([x.best_K for x in seeds])]
    return lines(rows)
