"""Table 5 of SCAFFOLD: the best accuracy of a network (Karimireddy et al., 2020, section 7).

The race is for 0.75, as racing for the best accuracy would let every step size run for 1,000
rounds; since a smaller step may end higher, the one below the winner's runs to the end too.
"""

from dataclasses import replace
from statistics import fmean
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from trimtab.report.plots import COLOURS, STYLE
from trimtab.reproduce.published import TABLE5
from trimtab.reproduce.raced_cells import FACTOR, NAMES, Setting, cell, seeded
from trimtab.reproduce.reproduction import Cell, Claim, Record, Records, Reproduction
from trimtab.reproduce.rounds_to_target import fragile_note, lines, setting, step_sizes

SIMILARITIES = (0, 10)


def cells(quick: bool, seeds: int) -> list[Cell]:
    """Return the three algorithms at both similarities, 1,000 rounds each."""
    base = Setting("", 5, 0, network=True, target=0.75, until=1.0)
    if quick:
        base = replace(base, N=20, S=4, target=0.4, limit=20, every=24)
    made = [
        replace(base, algorithm=name, similarity=s, epochs=1 if name == "sgd" else 5)
        for name in TABLE5
        for s in SIMILARITIES
    ]
    return [cell(s) for s in seeded(made, seeds)]


def more(records: Records) -> list[Cell]:
    """Return for each cell the step size below the one that was first at the target."""
    raced = [Setting(**r["setting"]) for r in records.values() if setting(r)["eta"] is None]
    return [cell(replace(s, eta=records[s.name]["eta"] / FACTOR)) for s in raced]


def ends(records: Records, name: str, s: float) -> list[Record]:
    """Return for each seed the record with the best accuracy."""
    here = [r for r in records.values() if setting(r)["algorithm"] == name]
    here = [r for r in here if setting(r)["similarity"] == s]
    seeds = sorted({setting(r)["seed"] for r in here})
    return [
        max((r for r in here if setting(r)["seed"] == seed), key=lambda r: float(r["best"]))
        for seed in seeds
    ]


def best(records: Records, name: str, s: float) -> float | None:
    """Return the best accuracy, the mean over the seeds."""
    found = [r["best"] for r in ends(records, name, s)]
    return fmean(found) if found else None


SENTENCE = "On the network SCAFFOLD is more accurate than FedAvg, and FedAvg than SGD."


def claims(records: Records) -> list[Claim]:
    """Judge the order at both similarities."""
    rows = {s: [best(records, n, s) for n in ("scaffold", "fedavg", "sgd")] for s in SIMILARITIES}
    known = {s: [v for v in row if v is not None] for s, row in rows.items()}
    if any(len(row) < 3 for row in known.values()):
        return [Claim(SENTENCE, None)]
    held = all(row[0] > row[1] > row[2] for row in known.values())
    text = "; ".join(f"{s} %: " + ", ".join(f"{v:.3f}" for v in row) for s, row in known.items())
    return [Claim(SENTENCE, held, f"SCAFFOLD, FedAvg, SGD at {text}")]


def table(records: Records) -> str:
    """Return the accuracies beside the published ones."""
    rows = [["best accuracy", "0 %", "published", "10 %", "published", "step sizes"]]
    for name, there in TABLE5.items():
        row, etas = [NAMES[name]], []
        for s, published in zip(SIMILARITIES, there, strict=True):
            ours = best(records, name, s)
            row += ["" if ours is None else f"{ours:.3f}", f"{published:.3f}"]
            etas.append(step_sizes(ends(records, name, s)))
        rows.append([*row, ", ".join(filter(None, etas))])
    return f"{lines(rows)}\n\n{fragile_note(records)}"


def figure(records: Records) -> Figure:
    """Return accuracy against rounds, with the published best as a line."""
    with rc_context(STYLE):
        made = Figure(figsize=(9, 3.4), layout="constrained")
        panels: Any = made.subplots(1, 2, sharey=True)
        for axes, s in zip(panels, SIMILARITIES, strict=True):
            for name, there in TABLE5.items():
                for r in ends(records, name, s)[:1]:
                    axes.plot(r["accuracy"], color=COLOURS[name], label=NAMES[name], linewidth=1.2)
                published = there[SIMILARITIES.index(s)]
                axes.axhline(published, color=COLOURS[name], linestyle=":", linewidth=1)
            axes.set_title(f"similarity {s} % (dotted: published best)", fontsize=10)
            axes.set_xlabel("rounds")
        panels[0].set_ylabel("test accuracy")
        panels[0].legend(loc="lower right")
    return made


_DISCUSSION = """\
The published order does not come back. The largest gap is SGD's: with a step of 1.0 (at 1.8 it
learns nothing) it ends four to five points above the published accuracy, and first; the paper's
number looks like that of a smaller step. FedAvg and SCAFFOLD end half a point to three points below
theirs. `--quick`, 20 rounds on a small cut, does show the published order: SGD is behind at first.

Where clients have a tenth of their data in common, SCAFFOLD ends above FedAvg as in the paper and
level with SGD, and the race's winners of both get to 0.75 in little more than half of SGD's rounds;
FedAvg then stays at its bias. Where they have nothing in common, neither gains from local steps on
this network: both need more rounds to 0.75 than SGD. Our best explanation for SCAFFOLD: with 20 of
100 clients a round a control is several rounds old when it is used, and a network's gradients
change faster than those of logistic regression (table3), where the same controls save two thirds of
the rounds; so only a small step is stable.

Step sizes were raced to 0.75, since racing for the best accuracy would cost 1,000 rounds for each
candidate. The one below the winner's ran 1,000 rounds too, and the table has the better of both:
with a tenth in common it ends about one point higher for FedAvg and half a point for SCAFFOLD, and
in the other four cells lower, so the order is not one of tuning for speed."""

TABLE_5 = Reproduction(
    name="table5",
    shows="best accuracy of a two-layer network on EMNIST",
    source="Karimireddy et al. 2020, Table 5",
    minutes=180,
    cells=cells,
    claims=claims,
    table=table,
    figure=figure,
    discussion=_DISCUSSION,
    more=more,
)
