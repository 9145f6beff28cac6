"""What a round should cost beside those of others; `trimtab bench` holds the goals beside its own.

A goal is data: what the machine at hand cannot show is reported as missed, or as not measured.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from figures import ALGORITHMS, PEERS

from trimtab_papers.bench import WORKLOADS
from trimtab_papers.bench.measurement import met

FRAMEWORKS = ("pfl", "fedjax", "fluke", "fedlab", "flwr")
JAX = ("jax",)
ALL_PEERS = (*JAX, *FRAMEWORKS)
COMPILED = ("compiled",)
NEAR = 0.1  # A ratio this near its goal is shown with its quartiles.


@dataclass(frozen=True)
class PeerGoal:
    """Our time over that of the fastest of some peers, at most so much."""

    workload: str
    most: float
    against: tuple[str, ...]
    compiled: bool = False  # If true, our step is compiled by torch.compile, an option.
    algorithms: tuple[str, ...] = tuple(ALGORITHMS)

    @property
    def ratio(self) -> str:
        """What is divided by what, in words."""
        ours = "ours compiled" if self.compiled else "ours"
        whom = {JAX: "JAX", FRAMEWORKS: "the best framework"}.get(self.against, "the best peer")
        return f"{ours} / {whom}"


PEER_GOALS = (
    PeerGoal("W1", 0.4, FRAMEWORKS),
    PeerGoal("W1", 0.6, JAX),
    PeerGoal("W2", 0.55, FRAMEWORKS),
    PeerGoal("W4", 0.3, FRAMEWORKS),
    PeerGoal("W5", 0.95, ALL_PEERS),
    PeerGoal("W6", 0.85, ALL_PEERS),
    PeerGoal("W7", 0.75, ALL_PEERS),
    PeerGoal("W8", 1.7, JAX),
    PeerGoal("W9", 1.25, JAX),
    PeerGoal("W10a", 1.45, JAX),
    PeerGoal("W10b", 0.5, ALL_PEERS),
    PeerGoal("W10c", 2.7, JAX),
    PeerGoal("W10c", 2.0, JAX, compiled=True),
    PeerGoal("W11", 1.0, FRAMEWORKS, algorithms=("fedavg",)),
    PeerGoal("W11", 1 / 1.05, FRAMEWORKS, algorithms=("scaffold",)),
)


@dataclass(frozen=True)
class Verdict:
    """A goal, and what was measured; None if nothing was."""

    workload: str
    ratio: str
    goal: str
    measured: str | None
    met: bool

    @property
    def word(self) -> str:
        """Say how it stands."""
        return "not measured" if self.measured is None else "met" if self.met else "**missed**"


def verdicts(rows: list[dict[str, Any]], results: list[dict[str, Any]]) -> Iterator[Verdict]:
    """Judge a record of `trimtab bench` and one of its peers, workload by workload."""
    measured = {row["workload"]: row for row in rows}
    for name, work in WORKLOADS.items():
        for ratio, goal in work.goals.items():
            yield _own(name, ratio, goal, measured.get(name, {}))
        for wanted in PEER_GOALS:
            if wanted.workload == name:
                yield _beside_peers(wanted, results)


def _own(workload: str, ratio: str, goal: float, row: dict[str, Any]) -> Verdict:
    shown = f"{'≥' if ratio.startswith('plain') else '≤'} {goal:.3g}"
    above, below = ratio.split(" / ")
    times = row.get("milliseconds", {})
    if above not in times or below not in times:
        return Verdict(workload, ratio, shown, None, met=False)
    value = times[above] / times[below]
    measured, spread = f"{value:.2f}", row.get("spread", {}).get(ratio)
    if spread is not None and abs(value / goal - 1) < NEAR:
        measured += " [{:.2f}, {:.2f}]".format(*spread)
    return Verdict(workload, ratio, shown, measured, met(ratio, value, goal))


def _beside_peers(wanted: PeerGoal, results: list[dict[str, Any]]) -> Verdict:
    found = {}
    for algorithm in wanted.algorithms:
        title = ALGORITHMS[algorithm]
        best = fastest(results, wanted.workload, algorithm, wanted.against)
        ours: dict[str, Any] | None = {"ratio": 1.0}
        if wanted.compiled:
            ours = fastest(results, wanted.workload, algorithm, COMPILED)
        if best is not None and ours is not None:
            value = ours["ratio"] / best["ratio"]
            found[f"{title} {value:.2f} ({PEERS[best['peer']][0]})"] = value
    return Verdict(
        wanted.workload,
        wanted.ratio,
        f"≤ {wanted.most:.3g}",
        ", ".join(found) or None,
        all(value <= wanted.most for value in found.values()),
    )


def fastest(
    results: list[dict[str, Any]], workload: str, algorithm: str, peers: tuple[str, ...]
) -> dict[str, Any] | None:
    """Return the result of the peer that is fastest beside us; None if none was measured."""
    here = [
        r
        for r in results
        if (r["workload"], r["algorithm"]) == (workload, algorithm)
        and r["peer"] in peers
        and "ratio" in r
    ]
    return min(here, key=lambda r: float(r["ratio"]), default=None)
