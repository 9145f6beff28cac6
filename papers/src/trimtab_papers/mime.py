"""Mime's Figure 3: a base optimiser at the server alone, in FedAvg, in MimeLite and in Mime.

Karimireddy's slides: SGD with momentum and Adam on EMNIST, 62 classes; the sources give neither the
number of clients nor the model nor the local steps. Ours: logistic regression, 1,000 clients of 100
images, half of them i.i.d. and half sorted by label (the files do not name the writers), 20 clients
a round, two epochs in batches of a fifth (K = 10), 200 rounds. FedAvg has the base optimiser at its
server (FedOpt), with the best of two step sizes there.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from trimtab_papers.engine import (
    TITLES,
    Cell,
    Reproduction,
    colour,
    takes_local_steps,
    takes_server_step,
)
from trimtab_papers.figures import drawn
from trimtab_papers.raced import RacedRecord, Setting, cell, near_first_seed, read_raced
from trimtab_papers.rounds_to_target import lines, map_seeds, select
from trimtab_papers.verdicts import (
    Judge,
    MissingRecordError,
    Records,
    Sentences,
    Verdict,
    over_seeds,
    spread,
)

ALGORITHMS = ("serveronly", "fedopt", "mimelite", "mime")
WITHOUT_BASE = ("fedopt", "mime")  # These run without a base too, to show what momentum adds.
BASE_TITLES = {"momentum": "SGD with momentum", "adam": "Adam", "none": "SGD"}
SERVER_STEPS: dict[str, tuple[float, ...]] = {
    "momentum": (0.3, 1.0),
    "adam": (0.01, 0.03),
    "none": (1.0,),
}
MUCH = 0.05  # momentum adds much if it adds >= 0.05
LAST = 30  # the mean accuracy of the rounds r > R - 30 counts
PAPER = Sentences("slides, caption of Figure 3")


def cells(quick: bool, seeds: int) -> list[Cell]:
    """Return all algorithms with both bases, and FedAvg and Mime with none.

    The quick version leaves Adam out, and tries the smaller step at the server alone.
    """
    usual = Setting("", 2, 50, N=1000, classes=62, target=None, until=1.0, limit=200)
    bases = SERVER_STEPS
    if quick:
        usual = replace(usual, N=100, S=10, every=10, limit=32)
        bases = {base: steps[:1] for base, steps in bases.items() if base != "adam"}
    settings = []
    for base, server_steps in bases.items():
        for name in ALGORITHMS if base != "none" else WITHOUT_BASE:
            for eta_g in server_steps if takes_server_step(name) else (1.0,):
                setting = replace(usual, algorithm=name, base=base, eta_g=eta_g)
                settings.append(setting if takes_local_steps(name) else replace(setting, epochs=1))
    return [cell(setting) for setting in settings]


def accuracy(raced: Sequence[RacedRecord], name: str, base: str) -> float | None:
    """Return the accuracy at the end, the mean over the seeds, with the best step at the server."""
    by_step: dict[float, list[float]] = {}
    for record in select(raced, algorithm=name, base=base):
        by_step.setdefault(record.setting.eta_g, []).append(record.late(LAST))
    return max(map(fmean, by_step.values())) if by_step else None


# -- what the caption says


Accuracies = dict[tuple[str, str], float]
"""Accuracy at the end by (algorithm, base), of the bases that Mime ran with, and of none."""


def _accuracies(raced: Sequence[RacedRecord]) -> Accuracies:
    bases = [base for base in ("momentum", "adam") if accuracy(raced, "mime", base) is not None]
    ran = {(n, base): accuracy(raced, n, base) for base in [*bases, "none"] for n in ALGORITHMS}
    required = {(name, base) for name in ALGORITHMS for base in bases}
    required |= {(name, "none") for name in WITHOUT_BASE}
    known = {key: value for key, value in ran.items() if value is not None}
    if not bases or not required <= set(known):
        raise MissingRecordError
    return known


def _bases(known: Accuracies) -> list[str]:
    return [base for base in dict.fromkeys(base for _, base in known) if base != "none"]


def _by_accuracies(holds: Callable[[Accuracies], bool]) -> Judge:
    """Judge each seed by itself; the numbers are all accuracies."""

    def judge(records: Records) -> Verdict:
        raced = read_raced(records)
        seeds = list(map_seeds(raced, _accuracies).values())
        if not seeds:
            raise MissingRecordError
        numbers = []
        for base in [*_bases(seeds[0]), "none"]:
            names = [name for name, other in seeds[0] if other == base]
            of_name = {n: [seed[n, base] for seed in seeds if (n, base) in seed] for n in names}
            each = ", ".join(f"{TITLES[n]} {spread(some, '.3f')}" for n, some in of_name.items())
            numbers.append(f"{BASE_TITLES[base]}: {each}")
        held = map_seeds(raced, lambda seed: holds(_accuracies(seed)))
        return over_seeds(held, "; ".join(numbers))

    return judge


@PAPER.says("Mime and MimeLite perform alike (within one point of accuracy).")
@_by_accuracies
def mime_and_mimelite_are_alike(known: Accuracies) -> bool:
    return all(abs(known["mime", b] - known["mimelite", b]) <= 0.01 for b in _bases(known))


@PAPER.says("Mime and MimeLite are the best, with momentum and with Adam.")
@_by_accuracies
def mime_and_mimelite_are_best(known: Accuracies) -> bool:
    """Compare the worse of the two with the better of the others."""
    return all(
        min(known["mime", b], known["mimelite", b])
        >= max(known["serveronly", b], known["fedopt", b])
        for b in _bases(known)
    )


@PAPER.says("FedAvg is even worse than the server alone, with momentum or with Adam.")
@_by_accuracies
def fedavg_is_worse_than_the_server_alone(known: Accuracies) -> bool:
    return any(known["fedopt", b] < known["serveronly", b] for b in _bases(known))


def _momentum_adds(known: Accuracies, name: str) -> float:
    if "momentum" not in _bases(known):
        raise MissingRecordError
    return known[name, "momentum"] - known[name, "none"]


def _gains(raced: Sequence[RacedRecord]) -> tuple[float, float]:
    """Return what momentum adds to the accuracy of Mime and of FedAvg."""
    known = _accuracies(raced)
    return _momentum_adds(known, "mime"), _momentum_adds(known, "fedopt")


def _by_gains(holds: Callable[[float, float], bool]) -> Judge:
    def judge(records: Records) -> Verdict:
        gains = map_seeds(read_raced(records), _gains)
        if not gains:
            raise MissingRecordError
        mime, fedavg = (spread(some, "+.3f") for some in zip(*gains.values(), strict=True))
        held = {seed: holds(*of_seed) for seed, of_seed in gains.items()}
        return over_seeds(held, f"momentum adds {mime} to Mime, {fedavg} to FedAvg")

    return judge


@PAPER.says("Mime gains more from momentum than FedAvg does.")
@_by_gains
def mime_gains_more_from_momentum(mime: float, fedavg: float) -> bool:
    return mime > fedavg


@PAPER.says("Mime gains much from momentum: a large increase in performance.")
@_by_gains
def mime_gains_much(mime: float, fedavg: float) -> bool:
    """Require five points of accuracy, since the figure gives no number."""
    return mime >= MUCH


@PAPER.says("Client drift harms FedAvg, though momentum helps.", "slides, FedAvg with momentum")
@_by_accuracies
def drift_harms_fedavg_though_momentum_helps(known: Accuracies) -> bool:
    """Judge both halves: FedAvg ends below Mime, which corrects drift, and momentum adds to it."""
    gain = _momentum_adds(known, "fedopt")
    return gain > 0 and all(known["fedopt", b] < known["mime", b] for b in ("none", "momentum"))


PAPER.not_judged(
    "On CIFAR-100 too Mime and MimeLite are alike and the best.",
    "slides, lower row of Figure 3",
    "the images are not among the data here, and none of the sources names the model or the cut; "
    "a loader is there for those who have them",
)


# -- table and figure


def table(records: Records) -> str:
    """Return the accuracy at the end by algorithm and base; the figure shows no numbers."""
    raced = read_raced(records)
    rows = [["mean accuracy of the last rounds", *BASE_TITLES.values()]]
    steps = [["step sizes", *BASE_TITLES.values()]]
    for name in ALGORITHMS:
        row = [accuracy(raced, name, base) for base in BASE_TITLES]
        rows.append([TITLES[name], *("" if value is None else f"{value:.3f}" for value in row)])
        steps.append([TITLES[name], *(_steps(raced, name, base) for base in BASE_TITLES)])
    return f"{lines(rows)}\n\n{lines(steps)}"


def _best(raced: Sequence[RacedRecord], name: str, base: str) -> RacedRecord | None:
    """Return the record of the first seed with the best step at the server."""
    return max(
        select(raced, algorithm=name, base=base, seed=0),
        key=lambda record: record.late(LAST),
        default=None,
    )


def _steps(raced: Sequence[RacedRecord], name: str, base: str) -> str:
    record = _best(raced, name, base)
    if record is None:
        return ""
    at_server = f", {record.setting.eta_g:g} at the server"
    return f"{record.eta:.2g}{at_server if takes_server_step(name) else ''}"


@drawn(10.5, 3.5)
def figure(fig: Any, records: Records) -> None:
    """Return a panel for each base, and what momentum adds to FedAvg and Mime."""
    raced = read_raced(records)
    panels = fig.subplots(1, 3, sharey=True)
    for axes, base in zip(panels, ("momentum", "adam"), strict=False):
        for name in ALGORITHMS:
            _curve(axes, _best(raced, name, base), TITLES[name], "-")
        axes.set_title(BASE_TITLES[base], fontsize=10)
    for name in WITHOUT_BASE:
        for base, line in (("momentum", "-"), ("none", ":")):
            label = f"{TITLES[name]}, {BASE_TITLES[base]}"
            _curve(panels[2], _best(raced, name, base), label, line)
    panels[2].set_title("What momentum adds", fontsize=10)
    for axes in panels:
        axes.set_xlabel("rounds")
        if axes.lines:
            axes.legend(loc="lower right", fontsize=8)
    panels[0].set_ylabel("test accuracy")


def _curve(axes: Any, record: RacedRecord | None, label: str, line: str) -> None:
    if record is not None:
        look = {"color": colour(record.setting.algorithm), "linestyle": line, "linewidth": 1.3}
        axes.plot(record.accuracy, label=label, **look)


_DISCUSSION = """\
The figure's data cannot be had here: clients of EMNIST 62 are its writers, whom the files do not
name, and the sources give neither model nor steps. So clients are cut by label, and the model is
convex. Mime and MimeLite do what the server alone does; FedAvg, with step sizes tuned at the
clients and at the server, is ahead of all three. Our best explanation: on logistic regression
FedAvg gains from local steps that are too large for a gradient method (its local models fit their
clients and are averaged), while Mime's steps stay close to those of the server's optimiser, which
is its point; and what limits a gradient method here is the noise of 20 clients of 1,000, half of
whose images are sorted by label, which local steps along the cohort's gradient do not reduce.
Further seeds try the step sizes that won with the first and their two neighbours."""


MIME = Reproduction(
    name="mime",
    shows="SGD with momentum and Adam on EMNIST 62: server only, FedAvg, MimeLite, Mime",
    source="Karimireddy, slides, Figure 3 of Mime",
    minutes=30,
    cells=cells,
    sentences=PAPER,
    table=table,
    figure=figure,
    repeats=near_first_seed,
    discussion=_DISCUSSION,
)
