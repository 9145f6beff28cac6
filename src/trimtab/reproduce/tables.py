"""Tables 3, 4 and 5 of SCAFFOLD: rounds and accuracy on EMNIST.

Karimireddy et al., 2020, section 7. The paper leaves open how pixels were scaled, which step sizes
were tried, and whether reaching 0.5 means touching it or staying there; see `docs/reproduction.md`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf
from statistics import fmean, pstdev
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from trimtab.report.plots import COLOURS, STYLE
from trimtab.reproduce.emnist import NAMES, Setting, cell, seeded
from trimtab.reproduce.published import TABLE3, TABLE4, TABLE5
from trimtab.reproduce.reproduction import Cell, Claim, Record, Records, Reproduction

SIMILARITIES = (0, 10, 100)
READINGS = {"first at 0.5": ("0.5", 0), "stays at 0.5": ("0.5", 1), "first at 0.6": ("0.6", 0)}
READINGS |= {"stays at 0.6": ("0.6", 1)}

# -- reading records


def _chosen(records: Records, eta: float | None = None, **wanted: Any) -> list[Record]:
    """Return the records with these settings, one for each seed; pixels and start as usual."""
    usual = {"pixels": "unit", "random_start": False, "eta": eta} | wanted
    return [r for r in records.values() if all(r["setting"][k] == v for k, v in usual.items())]


def _rounds(records: Records, target: str, criterion: int, **wanted: Any) -> float | None:
    """Return the mean of the rounds over the seeds; infinite if not met, None if not computed."""
    found = [r["rounds"][target][criterion] for r in _chosen(records, **wanted)]
    if not found:
        return None
    return inf if any(r is None for r in found) else fmean(found)


Need = Callable[..., float]


def _judged(records: Records, sentence: str, judge: Callable[[Need], bool], text: str) -> Claim:
    """Return a claim by the paper's reading (first round at 0.5), with the others' verdicts."""
    verdicts: dict[str, bool | None] = {}
    for name, (target, criterion) in READINGS.items():

        def need(target: str = target, criterion: int = criterion, **wanted: Any) -> float:
            rounds = _rounds(records, target, criterion, **wanted)
            if rounds is None:
                raise _MissingError
            return rounds

        try:
            verdicts[name] = judge(need)
        except _MissingError:
            verdicts[name] = None
    others = ", ".join(
        f"{name}: {'yes' if v else 'no'}" for name, v in verdicts.items() if v is not None
    )
    return Claim(sentence, verdicts["first at 0.5"], f"{text}; {others}" if others else "")


class _MissingError(Exception):
    pass


# -- Table 3


def _settings3(quick: bool) -> list[Setting]:
    small, epochs, similarities = Setting("", 1, 0), [1, 5, 10, 20], list(SIMILARITIES)
    if quick:
        small = replace(small, S=4, N=20, target=0.4, until=0.45, limit=120, every=12)
        epochs, similarities = [1, 5], [0, 100]
    made = [replace(small, algorithm="sgd", similarity=s) for s in similarities]
    for name in ("scaffold", "fedavg", "fedprox"):
        for e in epochs:
            limit = small.limit if e <= 5 else 300
            made += [
                replace(small, algorithm=name, epochs=e, similarity=s, limit=limit)
                for s in similarities
            ]
    return made


def _cells3(quick: bool, seeds: int) -> list[Cell]:
    return [cell(s) for s in seeded(_settings3(quick), seeds)]


def _unknowns3(records: Records) -> list[Cell]:
    """Return what the paper leaves open: other pixels, another start, one step size for all."""
    few = [
        Setting(name, 5, similarity) for name in ("scaffold", "fedavg") for similarity in (0, 10)
    ]
    unknown = [replace(s, pixels="standardised") for s in few]
    unknown += [replace(s, random_start=True) for s in few]
    return [cell(s) for s in [*unknown, *_common(records)]]


def _common(records: Records) -> list[Setting]:
    """Return the second reading: the three best common step sizes of each algorithm, everywhere.

    A candidate's score in a cell is its rounds to the target, or the limit; unknown is the limit.
    """
    wanted = _settings3(quick=False)
    settings: list[Setting] = []
    for name in ("sgd", "scaffold", "fedavg", "fedprox"):
        here = [s for s in wanted if s.algorithm == name]
        raced = [records[s.name] for s in here if s.name in records]
        if len(raced) < len(here):
            continue
        scores: dict[float, list[float]] = {}
        for record in raced:
            for c in record["candidates"]:
                need = (c["first"] or record["limit"]) / record["limit"]
                scores.setdefault(round(c["eta"], 6), []).append(need)
        total = {eta: sum(n) + len(raced) - len(n) for eta, n in scores.items()}
        best = sorted(total, key=lambda eta: total[eta])[:3]
        settings += [replace(s, eta=eta, until=0.5) for eta in best for s in here]
    return settings


def _claims3(records: Records) -> list[Claim]:
    quick = any(r["setting"]["N"] != 100 for r in records.values())
    cells = _settings3(quick)
    epochs = sorted({s.epochs for s in cells})
    similarities = sorted({s.similarity for s in cells})
    mixed = [s for s in similarities if s > 0]

    def slower(need: Need) -> bool:
        pairs = [
            [need(algorithm=name, epochs=e, similarity=s) for name in ("fedavg", "fedprox")]
            for e in epochs
            for s in similarities
        ]
        return all(fedavg < fedprox or fedavg == inf for fedavg, fedprox in pairs)

    def below_sgd(need: Need) -> bool:
        return all(
            need(algorithm="scaffold", epochs=e, similarity=s)
            <= need(algorithm="sgd", epochs=1, similarity=s)
            for e in epochs
            for s in similarities
        )

    def at_zero(name: str, need: Need) -> list[Any]:
        return [need(algorithm=name, epochs=e, similarity=0) for e in epochs]

    def beats(need: Need) -> bool:
        pairs = zip(at_zero("scaffold", need), at_zero("fedavg", need), strict=True)
        return all(ours < theirs for ours, theirs in pairs)

    def drifts(need: Need) -> bool:
        fedavg, scaffold = at_zero("fedavg", need), at_zero("scaffold", need)
        loses = fedavg[-1] > fedavg[0]
        return bool(loses and scaffold[-1] <= 1.1 * max(scaffold[:-1]))

    def gain(need: Need) -> bool:
        return all(
            need(algorithm=name, epochs=a, similarity=s)
            >= need(algorithm=name, epochs=b, similarity=s)
            for name in ("scaffold", "fedavg")
            for s in mixed
            for a, b in pairwise(epochs)
        )

    def steady(need: Need) -> bool:
        found = [need(algorithm="sgd", epochs=1, similarity=s) for s in similarities]
        return max(found) <= 1.313 * min(found)  # 416 to 317

    def numbers(*names: str, only: Sequence[float] = ()) -> str:
        parts = []
        for name in names:
            for s in only or similarities:
                rounds = [
                    _rounds(records, "0.5", 0, algorithm=name, epochs=e, similarity=s)
                    for e in ([1] if name == "sgd" else epochs)
                ]
                shown = ", ".join("?" if r is None else f"{r:g}" for r in rounds)
                parts.append(f"{NAMES[name]} at {s:g} %: {shown}")
        return "; ".join(parts)

    judge = _judged
    return [
        judge(
            records,
            "SCAFFOLD never needs more rounds than SGD.",
            below_sgd,
            numbers("sgd", "scaffold"),
        ),
        judge(
            records,
            "SCAFFOLD beats FedAvg at 0 % similarity for every number of epochs.",
            beats,
            numbers("scaffold", "fedavg", only=(0,)),
        ),
        judge(
            records,
            "FedAvg at 0 % loses as epochs grow, while SCAFFOLD flattens.",
            drifts,
            numbers("scaffold", "fedavg", only=(0,)),
        ),
        judge(
            records,
            "Both gain monotonically from epochs where clients are similar.",
            gain,
            numbers("scaffold", "fedavg", only=mixed),
        ),
        judge(
            records,
            "SGD does not depend on the similarity (within 31 %, the published spread).",
            steady,
            numbers("sgd"),
        ),
        judge(
            records,
            "FedProx (mu = 1) is slower than FedAvg everywhere.",
            slower,
            numbers("fedavg", "fedprox"),
        ),
    ]


def _table3(records: Records) -> str:
    similarities = sorted({r["setting"]["similarity"] for r in records.values()})
    head = ["", "epochs"]
    for s in similarities:
        head += [f"{s:g} %", "published", "times SGD", "published", "at 0.6", "eta"]
    lines = [head, ["---"] * len(head)]
    keys = dict.fromkeys(
        (r["setting"]["algorithm"], r["setting"]["epochs"])
        for r in sorted(records.values(), key=lambda r: _order(r["setting"]))
        if r["setting"]["eta"] is None
    )
    for name, epochs in keys:
        row = [NAMES[name], str(epochs)]
        for s in similarities:
            row += _entry3(records, name, epochs, s)
        lines.append(row)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _order(setting: dict[str, Any]) -> tuple[int, int]:
    return list(NAMES).index(setting["algorithm"]), setting["epochs"]


def _entry3(records: Records, name: str, epochs: int, s: float) -> list[str]:
    here = _chosen(records, algorithm=name, epochs=epochs, similarity=s)
    if not here:
        return [""] * 6
    sgd = _rounds(records, "0.5", 0, algorithm="sgd", epochs=1, similarity=s)
    ours = _rounds(records, "0.5", 0, algorithm=name, epochs=epochs, similarity=s)
    at = SIMILARITIES.index(int(s)) if s in SIMILARITIES else None
    published = TABLE3[name, epochs][at] if at is not None and (name, epochs) in TABLE3 else None
    theirs = TABLE3["sgd", 1][at] if at is not None else None
    faster = f"{sgd / ours:.1f}" if sgd and ours and sgd < inf and ours < inf else ""
    faster_there = f"{theirs / published:.1f}" if theirs and published else ""
    etas = ", ".join(dict.fromkeys(f"{r['eta']:.2g}" for r in here))
    return [
        _both(here, "0.5"),
        ("1k+" if published is None else str(published)) if at is not None else "",
        faster,
        faster_there,
        _both(here, "0.6"),
        etas,
    ]


def _both(here: Sequence[Record], target: str) -> str:
    """Return first and staying rounds, the mean over seeds with its spread."""
    texts = []
    for criterion in (0, 1):
        found = [r["rounds"][target][criterion] for r in here]
        if any(r is None for r in found):
            texts.append(f"{here[0]['limit']}+")
        elif len(found) > 1:
            texts.append(f"{fmean(found):.0f} ± {pstdev(found):.0f}")
        else:
            texts.append(str(found[0]))
    return " / ".join(texts)


def _figure3(records: Records) -> Figure:
    """Return bars of the rounds to 0.5, a panel for each similarity, ours beside the paper's."""
    similarities = sorted({r["setting"]["similarity"] for r in records.values()})
    with rc_context(STYLE):
        figure = Figure(figsize=(10, 3.8), layout="constrained")
        panels: Any = figure.subplots(1, len(similarities), squeeze=False)[0]
        for axes, s in zip(panels, similarities, strict=True):
            keys = [
                k for k in TABLE3 if _chosen(records, algorithm=k[0], epochs=k[1], similarity=s)
            ]
            for j, (name, epochs) in enumerate(keys):
                ours = _rounds(records, "0.5", 0, algorithm=name, epochs=epochs, similarity=s)
                height = 1000.0 if ours is None or ours == inf else ours
                axes.bar(j - 0.2, height, 0.4, color=COLOURS[name], alpha=0.5 if ours == inf else 1)
                if s in SIMILARITIES:
                    there = TABLE3[name, epochs][SIMILARITIES.index(int(s))] or 1000
                    axes.bar(j + 0.2, there, 0.4, color="none", edgecolor=COLOURS[name])
            axes.set_yscale("log")
            axes.set_xticks(range(len(keys)), [f"{NAMES[n]} {e}" for n, e in keys], rotation=90)
            axes.tick_params(axis="x", labelsize=8)
            axes.grid(axis="x", visible=False)
            axes.set_title(f"similarity {s:g} %", fontsize=10)
        panels[0].set_ylabel("rounds to 0.5 (filled: ours)")
    return figure


TABLE_3 = Reproduction(
    name="table3",
    shows="rounds to 0.5 on EMNIST: algorithms, epochs and similarities",
    source="Karimireddy et al. 2020, Table 3",
    minutes=120,
    cells=_cells3,
    claims=_claims3,
    table=_table3,
    figure=_figure3,
    more=_unknowns3,
)


# -- Table 4


def _cells4(quick: bool, seeds: int) -> list[Cell]:
    base = Setting("", 5, 0, target=0.45, until=0.45)
    sampled: tuple[int, ...] = (20, 5, 1)
    if quick:
        base = replace(base, N=20, S=4, target=0.35, until=0.35, limit=120, every=12)
        sampled = (8, 2)
    similarities = (0,) if quick else (0, 10)
    made = [
        replace(base, algorithm=name, S=S, similarity=s)
        for name in ("scaffold", "fedavg")
        for S in sampled
        for s in similarities
    ]
    return [cell(s) for s in seeded(made, seeds)]


def _sampling(records: Records, name: str, s: float) -> dict[int, float]:
    """Return rounds by the number of sampled clients, most first."""
    found: dict[int, float] = {}
    for r in _chosen(records, algorithm=name, similarity=s):
        target = r["setting"]["target"]
        need = next((j for j, a in enumerate(r["accuracy"], 1) if a >= target), inf)
        found[r["setting"]["S"]] = max(found.get(r["setting"]["S"], 0), need)
    return dict(sorted(found.items(), reverse=True))


def _claims4(records: Records) -> list[Claim]:
    sentences = (
        "The slow-down from sampling fewer clients is sub-linear.",
        "SCAFFOLD is faster than FedAvg at every rate of sampling.",
    )
    similarities = sorted({r["setting"]["similarity"] for r in records.values()})
    both = {
        (name, s): _sampling(records, name, s)
        for name in ("scaffold", "fedavg")
        for s in similarities
    }
    complete = both and all(len(found) >= 2 for found in both.values())
    if not complete:
        return [Claim(sentence, None) for sentence in sentences]
    slow = {
        key: (found[min(found)] / found[max(found)], max(found) / min(found))
        for key, found in both.items()
    }
    sublinear = all(
        slower < fewer for (slower, fewer) in (slow[key] for key in slow) if slower < inf
    ) and all(slow["scaffold", s][0] < inf for s in similarities)
    faster = all(
        a <= b
        for s in similarities
        for a, b in zip(both["scaffold", s].values(), both["fedavg", s].values(), strict=True)
    )
    text = "; ".join(
        f"{NAMES[name]} at {s:g} %: " + ", ".join(f"S = {S}: {r:g}" for S, r in found.items())
        for (name, s), found in both.items()
    )
    return [Claim(s, v, text) for s, v in zip(sentences, (sublinear, faster), strict=True)]


def _table4(records: Records) -> str:
    lines = [
        "| | clients | similarity | rounds (first / stays) | published | eta |",
        "|---|" + "---|" * 5,
    ]
    for r in records.values():
        s = r["setting"]
        there: Any = TABLE4.get((s["algorithm"], s["S"]))
        published = "" if there is None or s["similarity"] > 10 else there[s["similarity"] > 0]
        published = "1k+" if published is None else published
        lines.append(
            f"| {NAMES[s['algorithm']]} | {s['S']} of {s['N']} | {s['similarity']:g} % "
            f"| {_both([r], '0.45')} | {published} | {r['eta']:.2g} |"
        )
    return "\n".join(lines)


def _figure4(records: Records) -> Figure:
    with rc_context(STYLE):
        figure = Figure(figsize=(6, 3.6), layout="constrained")
        axes = figure.subplots()
        for s, line in zip(
            sorted({r["setting"]["similarity"] for r in records.values()}),
            ("-", "--"),
            strict=False,
        ):
            for name in ("scaffold", "fedavg"):
                found = {S: r for S, r in _sampling(records, name, s).items() if r < inf}
                label = f"{NAMES[name]}, {s:g} %"
                x, y = list(found), list(found.values())
                axes.plot(x, y, marker="o", linestyle=line, color=COLOURS[name], label=label)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("clients sampled")
        axes.set_ylabel("rounds to the target")
        axes.legend()
    return figure


TABLE_4 = Reproduction(
    name="table4",
    shows="rounds to 0.45 on EMNIST with 20, 5 and 1 of 100 clients a round",
    source="Karimireddy et al. 2020, Table 4",
    minutes=30,
    cells=_cells4,
    claims=_claims4,
    table=_table4,
    figure=_figure4,
)


# -- Table 5


def _cells5(quick: bool, seeds: int) -> list[Cell]:
    base = Setting("", 5, 0, network=True, target=0.75, until=1.0)
    if quick:
        base = replace(base, N=20, S=4, target=0.4, limit=20, every=24)
    made = [
        replace(base, algorithm=name, similarity=s, epochs=1 if name == "sgd" else 5)
        for name in ("sgd", "fedavg", "scaffold")
        for s in (0, 10)
    ]
    return [cell(s) for s in seeded(made, seeds)]


def _best(records: Records, name: str, s: float) -> float | None:
    found = [r["best"] for r in _chosen(records, algorithm=name, similarity=s)]
    return fmean(found) if found else None


def _claims5(records: Records) -> list[Claim]:
    sentence = "On the network SCAFFOLD is more accurate than FedAvg, and FedAvg than SGD."
    rows = {s: [_best(records, n, s) for n in ("scaffold", "fedavg", "sgd")] for s in (0, 10)}
    known = {s: [v for v in row if v is not None] for s, row in rows.items()}
    if any(len(row) < 3 for row in known.values()):
        return [Claim(sentence, None)]
    held = all(row[0] > row[1] > row[2] for row in known.values())
    text = "; ".join(f"{s} %: " + ", ".join(f"{v:.3f}" for v in row) for s, row in known.items())
    return [Claim(sentence, held, f"SCAFFOLD, FedAvg, SGD at {text}")]


def _table5(records: Records) -> str:
    lines = ["| | 0 % | published | 10 % | published |", "|---|---|---|---|---|"]
    for name, there in TABLE5.items():
        ours = [_best(records, name, s) for s in (0, 10)]
        shown = ["" if value is None else f"{value:.3f}" for value in ours]
        lines.append(f"| {NAMES[name]} | {shown[0]} | {there[0]} | {shown[1]} | {there[1]} |")
    return "\n".join(lines)


def _figure5(records: Records) -> Figure:
    with rc_context(STYLE):
        figure = Figure(figsize=(9, 3.4), layout="constrained")
        panels: Any = figure.subplots(1, 2, sharey=True)
        for axes, s in zip(panels, (0, 10), strict=True):
            for name in TABLE5:
                for r in _chosen(records, algorithm=name, similarity=s)[:1]:
                    axes.plot(r["accuracy"], color=COLOURS[name], label=NAMES[name], linewidth=1.2)
            axes.set_title(f"similarity {s} %", fontsize=10)
            axes.set_xlabel("rounds")
        panels[0].set_ylabel("test accuracy")
        panels[0].legend(loc="lower right")
    return figure


TABLE_5 = Reproduction(
    name="table5",
    shows="best accuracy of a two-layer network on EMNIST",
    source="Karimireddy et al. 2020, Table 5",
    minutes=60,
    cells=_cells5,
    claims=_claims5,
    table=_table5,
    figure=_figure5,
)
