"""Rounds without noise, the bias with transitions, and the mean square error against N."""

from typing import TYPE_CHECKING, Any

from trimtab_papers.drawing import label_of, new_figure
from trimtab_papers.mangold2025.lsa.cells import (
    ALGORITHMS,
    SAMPLINGS,
    Stationary,
    by_size,
)
from trimtab_papers.names import colour
from trimtab_papers.records import Records, of_kind

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DOTTED: dict[str, Any] = {"color": "#777777", "linewidth": 1.3, "linestyle": ":"}


def figure(records: Records) -> "Figure":
    """Return three panels; every seed is a line or a point."""
    with new_figure(11, 3.6) as made:
        panels: Any = made.subplots(1, 3)
        _rounds(panels[0], records)
        _bias(panels[1], records)
        _size(panels[2], records)
    return made


def _rounds(axes: Any, records: Records) -> None:
    for number, record in enumerate(of_kind(records, "exact").values()):
        for name in ALGORITHMS:
            curve = record["curves"][name]
            look = {"color": colour(name), "linewidth": 1.4}
            label = label_of(ALGORITHMS[name], number == 0)
            axes.plot(curve["rounds"], curve["values"], **look, label=label)
        axes.set_yscale("log")
        axes.legend(fontsize=9)
    axes.set_xlabel("rounds")
    axes.set_ylabel("|θ - θ*|")
    axes.set_title("mean equations, K = 10", fontsize=10)


def _bias(axes: Any, records: Records) -> None:
    found = {kind: of_kind(records, kind) for kind in SAMPLINGS}
    ones = [
        (list(SAMPLINGS).index(kind), one)
        for kind, of_seed in found.items()
        for one in of_seed.values()
    ]
    for number, (place, record) in enumerate(ones):
        one, aside = Stationary.from_json(record), 0.05 * (record["settings"]["seed"] - 1)
        for j, name in enumerate(ALGORITHMS):
            law, label = one.laws[name], label_of(ALGORITHMS[name], number == 0)
            look: dict[str, Any] = {"fmt": "o", "markersize": 4, "color": colour(name)}
            at = place + 0.25 * (j - 0.5) + aside
            axes.errorbar(at, law.bias, yerr=2 * law.error, **look, label=label)
        limit = label_of("FedLSA's limit", number == 0)
        axes.plot([place - 0.35, place + 0.35], [one.predicted_bias] * 2, **_DOTTED, label=limit)
        axes.legend(fontsize=9)
    axes.set_xticks(range(len(SAMPLINGS)), SAMPLINGS.values())
    axes.set_ylim(0, 1.4 * axes.get_ylim()[1])
    axes.set_ylabel("|E θ - θ*|")
    axes.set_title("bias, K = 10, ± 2 standard errors", fontsize=10)


def _size(axes: Any, records: Records) -> None:
    seeds = sorted({record["settings"]["seed"] for record in records.values()})
    known = [of_N for seed in seeds if (of_N := by_size(records, seed))]
    for number, of_N in enumerate(known):
        for name, title in ALGORITHMS.items():
            values = [one.laws[name].mean_square_error for one in of_N.values()]
            look = {"marker": "o", "markersize": 4, "linewidth": 1, "color": colour(name)}
            axes.plot(list(of_N), values, **look, label=label_of(title, number == 0))
        predicted = [one.predicted_trace["scaffold"] for one in of_N.values()]
        label = label_of("predicted variance", number == 0)
        axes.plot(list(of_N), predicted, **_DOTTED, label=label)
    if known:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.legend(fontsize=9)
    axes.set_xlabel("clients N")
    axes.set_ylabel("E|θ - θ*|²")
    axes.set_title("i.i.d. transitions, K = 50", fontsize=10)
