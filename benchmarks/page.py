"""Write docs/performance.md and its plots from the records under results/bench.

python benchmarks/page.py
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template
from typing import Any

from cluster_tables import cluster_tables
from figures import ALGORITHMS, PEERS, growth_figure, peers_figure
from goals import ALL_PEERS, fastest, verdicts
from matplotlib import rc_context

from trimtab.core.threads import KEEPS_CORES_BUSY, WORTH_A_THREAD
from trimtab.problems.paths import WORTH_A_GRAPH
from trimtab.problems.supervised.graphs import FEWEST, LARGEST, OPERATIONS
from trimtab_papers.bench import WORKLOADS
from trimtab_papers.figures import PLOTS

ROOT = Path(__file__).resolve().parents[1]
NAMES = {peer: name for peer, (name, _) in PEERS.items()}
SUMMARY = ("", "model and round", "path", "SCAFFOLD ms", "× bare", "plain loop", "best peer")
SCALE = (
    *("algorithm", "executor", "d", "N", "S", "rounds"),
    *("limit of states", "peak MB", "vectors", "MB on disk", "ms a round"),
)

# Of a row of numbers of clients, the first and the last are shown.
_BETWEEN, _ROUNDS = (10**4, 10**5), 15

PATHS = (
    (
        "kernel",
        "`batched`",
        "layers and losses that the compiled kernel knows",
        "anything hooked or frozen; machines without a C compiler",
    ),
    (
        "captured vmap",
        "`batched`",
        f"any module with d ≤ {LARGEST:,} and ≤ {OPERATIONS:,} operations in the products of a "
        f"gradient; S ≥ {WORTH_A_GRAPH}; mini-batches of one size at ≥ {FEWEST} clients",
        "branches that depend on data, dropout in training, hooks, autocast, operators that vmap "
        "only loops over, as EmbeddingBag's",
    ),
    ("fused", "`fused`", f"d ≥ {KEEPS_CORES_BUSY:,}: one client keeps all cores busy", ""),
    ("threads", "`threads`", f"d ≥ {WORTH_A_THREAD:,}, S > 1", ""),
    ("loop", "`loop`", "everything", ""),
)


def records(folder: Path = ROOT / "results" / "bench") -> dict[str, Any]:
    """Return the records by name; comparisons may not have been measured yet."""
    found = {
        name: json.loads((folder / f"{name}.json").read_text())
        for name in ("bench", "peers", "scale", "details", "comparisons", "cluster")
        if (folder / f"{name}.json").exists()
    }
    return {"comparisons": {"cases": []}} | found


def page(found: dict[str, Any]) -> str:
    """Return docs/performance.md."""
    rows, results = found["bench"]["rows"], found["peers"]["results"]
    profile = found["details"]["profile"]
    text = (ROOT / "benchmarks" / "performance.md.in").read_text("utf-8")
    return Template(text).substitute(
        machine=_machine(found["bench"]["machine"]),
        summary=_table(SUMMARY, _summary(rows, results)),
        paths=_table(["path", "executor", "takes", "does not take"], PATHS),
        fewest=str(FEWEST),
        goals=_table(["", "reached (goal)"], _goals(rows, results)),
        autocast=_autocast(rows),
        peers=_table(["", "trimtab", *(NAMES[peer] for peer in _asked(results))], _peers(results)),
        notes="\n".join((*_elsewhere(found), *_cannot(results), *_not_measured(results))),
        comparisons=_comparisons(found["comparisons"]["cases"]),
        gradients=f"{100 * profile['gradients'] / profile['whole round']:.0f} %",
        floor=_floor(found["details"].get("floor")),
        scale=_table(SCALE, _scale(found["scale"])),
        **cluster_tables(found.get("cluster", {}).get("cases", {})),
    )


def _elsewhere(found: dict[str, Any]) -> Iterable[str]:
    here, there = found["bench"]["machine"], found["peers"]["machine"]
    if any(here[fact] != there[fact] for fact in ("processor", "cores", "kernel")):
        yield f"- Measured on another machine than the above: {_machine(there)}."


def _machine(machine: dict[str, Any]) -> str:
    kernel = {0: "portable", 1: "AVX2", 2: "AVX-512"}.get(machine["kernel"], "none")
    versions = machine["versions"]
    return (
        f"{machine['processor']}, {machine['cores']} cores, kernel {kernel}, torch "
        f"{versions['torch']}, Python {versions['python']}"
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _summary(rows: list[dict[str, Any]], results: list[dict[str, Any]]) -> Iterable[list[str]]:
    measured = {row["workload"]: row for row in rows}
    for name, work in WORKLOADS.items():
        if name not in measured:
            yield [name, work.shows, *["not measured"] * 2, *["–"] * 3]
            continue
        ms = measured[name]["milliseconds"]
        best = fastest(results, name, "scaffold", ALL_PEERS)
        peer = "–" if best is None else f"{best['ratio']:.2g} × ({NAMES[best['peer']]})"
        yield [
            *(name, work.shows, measured[name]["executor"], f"{ms['scaffold']:.1f}"),
            f"{ms['scaffold'] / ms['bare']:.2f}",
            f"{ms['plain'] / ms['scaffold']:.1f} ×",
            peer,
        ]


def _goals(rows: list[dict[str, Any]], results: list[dict[str, Any]]) -> Iterable[list[str]]:
    """Return a line for each workload, with all of its goals."""
    found: dict[str, list[str]] = {}
    for v in verdicts(rows, results):
        reached = "" if v.measured is None else f" {v.measured}"
        word = "" if v.word == "met" else f", {v.word}"
        found.setdefault(v.workload, []).append(f"{v.ratio}{reached} ({v.goal}{word})")
    return ([name, "; ".join(reached)] for name, reached in found.items())


def _autocast(rows: list[dict[str, Any]]) -> str:
    ratios = [row["ratios"]["autocast / scaffold"] for row in rows if row["workload"] == "W3"]
    if not ratios:
        return ""
    (ratio,) = ratios
    if ratio < 1:
        return f"With `autocast=torch.bfloat16`, W3 is {1 / ratio:.1f} times faster."
    return (
        f"With `autocast=torch.bfloat16`, W3 is {ratio:.0f} times *slower* on this processor, "
        "which has no instructions for bfloat16; it pays where there are some."
    )


def _asked(results: list[dict[str, Any]]) -> list[str]:
    """Return the peers that were asked for anything."""
    return [peer for peer in PEERS if any(r["peer"] == peer for r in results)]


def _peers(results: list[dict[str, Any]]) -> Iterable[list[str]]:
    """Return a line for each workload: ours in milliseconds, the others in times ours."""
    found = {(r["workload"], r["algorithm"], r["peer"]): r for r in results}
    for work in WORKLOADS:
        rows = [
            [found.get((work, algorithm, peer), {}) for peer in _asked(results)]
            for algorithm in ALGORITHMS
        ]
        if not any(any(row) for row in rows):
            continue
        ours = [min((r["ours"] for r in row if "ours" in r), default=None) for row in rows]
        cells = [" / ".join(map(_times, each)) for each in zip(*rows, strict=True)]
        yield [work, " / ".join("–" if ms is None else _ms(ms) for ms in ours), *cells]


def _times(result: dict[str, Any]) -> str:
    return f"{result['ratio']:.2g}" if "ratio" in result else "–"


def _ms(milliseconds: float) -> str:
    """Return milliseconds with three digits, or all that stand before the point.

    >>> _ms(0.2431), _ms(1013.6)
    ('0.243', '1,014')
    """
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"


def _cannot(results: list[dict[str, Any]]) -> Iterable[str]:
    reasons: dict[tuple[str, str], list[str]] = {}
    for r in results:
        if "cannot" in r:
            work = f"{r['workload']} {ALGORITHMS[r['algorithm']]}"
            reasons.setdefault((r["peer"], r["cannot"]), []).append(work)
    every = {f"{r['workload']} {ALGORITHMS['scaffold']}" for r in results}
    for (peer, why), works in reasons.items():
        those = "SCAFFOLD" if set(works) == every else ", ".join(works)
        yield f"- {NAMES[peer]}, {those}: {why}"


def _not_measured(results: list[dict[str, Any]]) -> Iterable[str]:
    asked = [name for name in WORKLOADS if name not in ("any", "W3")]
    missing = [name for name in asked if name not in {r["workload"] for r in results}]
    if missing:
        yield f"- {', '.join(missing)}: not measured yet."
    silent = [name for peer, name in NAMES.items() if peer not in _asked(results)]
    if silent:
        yield f"- {', '.join(silent)}: not measured in this record."


def _comparisons(cases: list[dict[str, Any]]) -> str:
    if not cases:
        return "Not measured yet."
    head = ["", "CPU seconds", "goal", "", "rounds"]
    return _table(
        head,
        (
            [
                *(c["shows"], f"{c['cpu']:.1f}", f"≤ {c['goal']:g}"),
                *("met" if c["met"] else "**missed**", f"{c['rounds']:,}"),
            ]
            for c in cases
        ),
    )


def _floor(microseconds: dict[str, float] | None) -> str:
    if microseconds is None:
        return "not measured yet"
    return ", ".join(f"{us:.0f} us ({name})" for name, us in microseconds.items())


def _scale(record: dict[str, Any]) -> Iterable[list[str]]:
    for c in record["cases"]:
        if c["N"] in _BETWEEN and c["R"] == _ROUNDS:
            continue
        limit = "none" if c["memory"] is None else f"{c['memory'] / 1e6:.0f} MB"
        numbers = [f"{c[name]:,}" for name in ("d", "N", "S", "R")]
        measured = ("peak MB", "vectors", "MB on disk", "ms per round")
        sizes = [f"{c[name]:,.0f}" if name in c else "–" for name in measured]
        yield [c["algorithm"], c["executor"], *numbers, limit, *sizes]


def main() -> None:
    """Write the page and its plots."""
    found = records()
    (ROOT / "docs" / "performance.md").write_text(page(found), encoding="utf-8")
    with rc_context(PLOTS):
        for name, figure in (
            ("peers", peers_figure(found["peers"]["results"])),
            ("growth", growth_figure(found["details"]["growth"])),
        ):
            path = ROOT / "docs" / f"performance-{name}.svg"
            figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
