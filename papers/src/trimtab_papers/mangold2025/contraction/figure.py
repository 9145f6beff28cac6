"""The distances of coupled chains under their bounds, and the gradients by N."""

from typing import TYPE_CHECKING, Any

from trimtab_papers.drawing import label_of, new_figure
from trimtab_papers.mangold2025.contraction.cells import ALGORITHMS, PROBLEMS, coupled
from trimtab_papers.names import TITLES, colour
from trimtab_papers.records import Records, of_kind

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DASHED: dict[str, Any] = {"color": "#777777", "linewidth": 1.3, "linestyle": "--"}


def figure(records: Records) -> "Figure":
    """Return a panel for each problem and one for the gradients; every seed is a line."""
    with new_figure(10, 7) as made:
        *panels, last = made.subplots(2, 2).flatten()
        for axes, problem in zip(panels, PROBLEMS, strict=True):
            _distances(axes, records, problem)
        _gradients(last, records)
    return made


def _distances(axes: Any, records: Records, problem: str) -> None:
    for number, record in enumerate(of_kind(records, problem).values()):
        settings = record["settings"]
        for name, chains in coupled(record).items():
            rounds = chains.curve["rounds"]
            shares = [value / chains.curve["values"][0] for value in chains.curve["values"]]
            label = label_of(TITLES[name], number == 0)
            axes.plot(rounds, shares, color=colour(name), linewidth=1.4, label=label)
        bound = [settings["contraction"] ** t for t in rounds]
        axes.plot(rounds, bound, **_DASHED, label=label_of("(1 - γμ)^(Ht)", number == 0))
        axes.set_yscale("log")
        axes.legend(fontsize=9)
    axes.set_xlabel("rounds t")
    axes.set_ylabel("distance, as a share of the first")
    axes.set_title(PROBLEMS[problem], fontsize=10)


def _gradients(axes: Any, records: Records) -> None:
    for number, record in enumerate(of_kind(records, "gradients").values()):
        for name in ALGORITHMS:
            pairs = [(row["N"], row[name]["gradients"]) for row in record["rows"]]
            there = [(N, count) for N, count in pairs if count is not None]
            axes.plot(
                *zip(*there, strict=True),
                marker="o",
                markersize=4,
                linewidth=1,
                color=colour(name),
                label=label_of(TITLES[name], number == 0),
            )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.legend(fontsize=9)
    axes.set_xlabel("clients N")
    axes.set_ylabel("gradients per client")
    axes.set_title("until E|x - x*|² ≤ 0.0003", fontsize=10)
