"""Table 5 of SCAFFOLD: the best accuracy of a network (Karimireddy et al., 2020, section 7).

The race is for 0.75, as racing for the best accuracy would let every step size run for 1,000
rounds; since a smaller step may end higher, the one below the winner's runs to the end too.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from trimtab.reproduce.drawing import new_figure
from trimtab.reproduce.names import TITLES, colour, takes_local_steps
from trimtab.reproduce.published import TABLE5
from trimtab.reproduce.raced_cells import FACTOR, cell, seeded_cells
from trimtab.reproduce.raced_record import RacedRecord, Setting, read_raced
from trimtab.reproduce.reproduction import (
    Cell,
    MissingRecordError,
    Records,
    Reproduction,
    Verdict,
    sentence,
)
from trimtab.reproduce.rounds_to_target import fragile_note, lines, step_sizes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIMILARITIES = (0, 10)


def cells(quick: bool, seeds: int) -> list[Cell]:
    """Return the three algorithms at both similarities, 1,000 rounds each."""
    usual = Setting("", 5, 0, network=True, target=0.75, until=1.0)
    if quick:
        usual = replace(usual, N=20, S=4, target=0.4, limit=20, every=24)
    settings = [
        replace(usual, algorithm=name, similarity=s, epochs=5 if takes_local_steps(name) else 1)
        for name in TABLE5
        for s in SIMILARITIES
    ]
    return seeded_cells(settings, seeds)


def more(records: Records) -> list[Cell]:
    """Return for each cell the step size below the one that was first at the target."""
    raced = [record for record in read_raced(records) if record.setting.eta is None]
    return [cell(replace(record.setting, eta=record.eta / FACTOR)) for record in raced]


def ends(raced: Sequence[RacedRecord], name: str, s: float) -> list[RacedRecord]:
    """Return for each seed the record with the best accuracy."""
    by_seed: dict[int, list[RacedRecord]] = {}
    for record in raced:
        if record.setting.algorithm == name and record.setting.similarity == s:
            by_seed.setdefault(record.setting.seed, []).append(record)
    return [max(by_seed[seed], key=lambda record: record.best or 0.0) for seed in sorted(by_seed)]


def best(raced: Sequence[RacedRecord], name: str, s: float) -> float | None:
    """Return the best accuracy, the mean over the seeds."""
    accuracies = [record.best or 0.0 for record in ends(raced, name, s)]
    return fmean(accuracies) if accuracies else None


@sentence(
    "On the network SCAFFOLD is more accurate than FedAvg, and FedAvg than SGD.",
    "section 7.2, Table 5",
)
def scaffold_is_most_accurate(records: Records) -> Verdict:
    """Look at the order at both similarities."""
    raced, rows = read_raced(records), {}
    for s in SIMILARITIES:
        row = [best(raced, name, s) for name in ("scaffold", "fedavg", "sgd")]
        rows[s] = [accuracy for accuracy in row if accuracy is not None]
        if len(rows[s]) < len(row):
            raise MissingRecordError
    held = all(row[0] > row[1] > row[2] for row in rows.values())
    told = "; ".join(f"{s} %: " + ", ".join(f"{v:.3f}" for v in row) for s, row in rows.items())
    return Verdict(held, f"SCAFFOLD, FedAvg, SGD at {told}")


def table(records: Records) -> str:
    """Return the accuracies beside the published ones."""
    raced = read_raced(records)
    rows = [["best accuracy", "0 %", "published", "10 %", "published", "step sizes"]]
    for name, published in TABLE5.items():
        row, etas = [TITLES[name]], []
        for s in SIMILARITIES:
            ours = best(raced, name, s)
            row += ["" if ours is None else f"{ours:.3f}", f"{published[s]:.3f}"]
            etas.append(step_sizes(ends(raced, name, s)))
        rows.append([*row, ", ".join(filter(None, etas))])
    return f"{lines(rows)}\n\n{fragile_note(raced)}"


def figure(records: Records) -> "Figure":
    """Return accuracy against rounds, with the published best as a line."""
    raced = read_raced(records)
    with new_figure(9, 3.4) as made:
        panels: Any = made.subplots(1, 2, sharey=True)
        for axes, s in zip(panels, SIMILARITIES, strict=True):
            for name, published in TABLE5.items():
                for record in ends(raced, name, s)[:1]:
                    look = {"color": colour(name), "label": TITLES[name], "linewidth": 1.2}
                    axes.plot(record.accuracy, **look)
                axes.axhline(published[s], color=colour(name), linestyle=":", linewidth=1)
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
    sentences=(scaffold_is_most_accurate,),
    table=table,
    figure=figure,
    discussion=_DISCUSSION,
    more=more,
)
