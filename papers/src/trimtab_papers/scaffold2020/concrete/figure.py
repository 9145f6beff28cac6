"""The demo as the slides plot it."""

from typing import TYPE_CHECKING, Any

from trimtab_papers.drawing import label_of, new_figure
from trimtab_papers.names import TITLES, colour
from trimtab_papers.records import Records
from trimtab_papers.scaffold2020.concrete.cells import (
    ALGORITHMS,
    CUTS,
    DECADES,
    TARGET,
    Tried,
    Tuned,
    of_cut,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure(records: Records) -> "Figure":
    """Return the slides' plot for each cut: all at SGD's rate, and FedAvg at its own as well."""
    cuts = [cut for cut in CUTS if f"{cut}-sgd" in records] or ["sorted"]
    with new_figure(3.6 * len(cuts) + 1.2, 3.8) as made:
        panels: Any = made.subplots(1, len(cuts), sharey=True, squeeze=False)[0]
        for axes, cut in zip(panels, cuts, strict=True):
            _panel(axes, cut, of_cut(records, cut))
        panels[0].set_ylabel("f(x) - f*")
        for name in ALGORITHMS:
            panels[-1].plot([], [], color=colour(name), linewidth=1.6, label=TITLES[name])
        for style, label in (("-", "SGD's rate (0.1)"), (":", "own best rate")):
            panels[-1].plot([], [], color="#777777", linestyle=style, linewidth=1.6, label=label)
        made.legend(loc="outside right center")
    return made


def _panel(axes: Any, cut: str, tuned: dict[str, Tuned]) -> None:
    eta = tuned["sgd"].best(DECADES).eta if "sgd" in tuned else 0.1
    for name, each in tuned.items():
        shared, own = each.at(eta), each.best()
        _draw(axes, shared, name, "-", f"{TITLES[name]}, SGD's rate")
        if own.eta != shared.eta:
            _draw(axes, own, name, ":", f"{TITLES[name]}, own best rate")
    axes.axhline(TARGET, color="#bbbbbb", linewidth=1, label=label_of("target"))
    axes.set_yscale("log")
    axes.set_ylim(1e-6, 3)
    axes.set_xlim(0, 100)
    axes.set_xlabel("rounds")
    axes.set_title(CUTS[cut], fontsize=10)


def _draw(axes: Any, tried: Tried, name: str, style: str, label: str) -> None:
    if tried.curve is not None:
        values = [max(value, 1e-17) for value in tried.curve.values]  # A log scale has no zero.
        look = {"color": colour(name), "linewidth": 1.6, "linestyle": style}
        axes.plot(tried.curve.rounds, values, **look, label=label_of(label))
