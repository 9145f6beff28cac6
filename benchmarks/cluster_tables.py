"""The record of benchmarks/cluster.py as tables of docs/performance.md."""

from collections.abc import Iterable, Sequence
from typing import Any

NOT_YET = "Not measured yet."
ONE, TWO = "1 actor", "2 actors"


def cluster_tables(cases: dict[str, Any]) -> dict[str, str]:
    """Return the tables by the names of their places."""
    works = {name: cases[name] for name in ("W1", "W2", "W4") if name in cases}
    sizes = {name: cases[name] for name in _SIZES if name in cases}
    flower, first = (cases.get(name) for name in ("Flower", "W1"))
    return {
        "cluster_workloads": _table(_WORKS, _works(works)) if works else NOT_YET,
        "cluster_goals": _table(_GOALS, _goals(first)) if first else NOT_YET,
        "cluster_scale": _table(_SCALE, _scale(sizes)) if sizes else NOT_YET,
        "cluster_flower": _table(_FLOWER, _flower(flower)) if flower else NOT_YET,
    }


_WORKS = ("", "executor", "one process", "tree", ONE, TWO, "equal bits")
_GOALS = ("W1, 5 epochs", "goal", "measured", "", "load of the machine")
_SCALE = ("", "peak MB of each actor", "states MB in memory, on disk", "ms a round")
_FLOWER = ("", "Flower on Ray", "ours, two actors", "ours, one process", "Flower / two actors")
_SIZES = ("100,000 clients", "1,000,000 clients")


def _works(cases: dict[str, Any]) -> Iterable[Sequence[str]]:
    for name, case in cases.items():
        times = (_shown(case["milliseconds"][each]) for each in _WORKS[2:6])
        same = "yes" if case["equal bits"] else "**no**"
        yield f"{name}: {case['shows']}", case["executor"], *times, same


def _goals(case: dict[str, Any]) -> Iterable[Sequence[str]]:
    least = {name: times["least"] for name, times in case["milliseconds"].items()}
    load = case["machine"]["load"]
    for what, value, goal, met in (
        (
            "2 actors / one process",
            least[TWO] / least["one process"],
            "≤ 1.15",
            lambda v: v <= 1.15,
        ),
        ("1 actor / 2 actors", least[ONE] / least[TWO], "≥ 1.7", lambda v: v >= 1.7),
    ):
        busy = "unknown" if load is None else f"{load:.1f}"
        yield what, goal, f"{value:.2f}", "met" if met(value) else "**missed**", busy


def _scale(cases: dict[str, Any]) -> Iterable[Sequence[str]]:
    for name, case in cases.items():
        last = case["rows"][-1]
        yield (
            name,
            ", ".join(f"{peak:,.0f}" for peak in last["peak MB of each actor"]),
            f"{last['states MB in memory']:,.0f}, {last['states MB on disk']:,.0f}",
            f"{last['ms a round']:,.0f}",
        )


def _flower(case: dict[str, Any]) -> Iterable[Sequence[str]]:
    found = {(r["workload"], r["algorithm"], r["peer"]): r for r in case["rows"]}
    for name, algorithm in dict.fromkeys(key[:2] for key in found):
        theirs, ours = (found[name, algorithm, peer] for peer in ("flwr", "trimtab-ray"))
        ms = [each.get("ms") for each in (theirs, ours)] + [ours.get("ours", theirs.get("ours"))]
        ratio = f"{ms[0] / ms[1]:.1f}" if ms[0] and ms[1] else ""
        yield f"{name}, {algorithm}", *(f"{t:.1f}" if t else "cannot" for t in ms), ratio


def _shown(times: dict[str, float]) -> str:
    return f"{times['least']:.1f} ({times['median']:.1f})"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
