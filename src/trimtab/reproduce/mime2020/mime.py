"""Mime's Figure 3: a base optimiser at the server alone, in FedAvg, in MimeLite and in Mime.

Karimireddy's slides: SGD with momentum and Adam on EMNIST, 62 classes; the sources give neither the
number of clients nor the model nor the local steps. Ours: logistic regression, 1,000 clients of 100
images, half of them i.i.d. and half sorted by label (the files do not tell the writers), 20 clients
a round, two epochs in batches of a fifth (K = 10), 200 rounds. FedAvg has the base optimiser at its
server (FedOpt), with the best of two step sizes there.
"""

from dataclasses import replace
from statistics import fmean
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from trimtab.report.plots import COLOURS, STYLE
from trimtab.reproduce.raced_cells import NAMES, Setting, cell, seeded
from trimtab.reproduce.reproduction import Cell, Claim, Record, Records, Reproduction
from trimtab.reproduce.rounds_to_target import chosen, lines, setting

ALGORITHMS = ("serveronly", "fedopt", "mimelite", "mime")
BASES = {"momentum": "SGD with momentum", "adam": "Adam", "none": "SGD"}
GLOBAL = {"momentum": (0.3, 1.0), "adam": (0.01, 0.03), "none": (1.0,)}
LAST = 30  # rounds whose mean accuracy counts


def cells(quick: bool, seeds: int) -> list[Cell]:
    """Return all algorithms with both bases, and FedAvg and Mime with none."""
    usual = Setting("", 2, 50, N=1000, classes=62, target=None, until=1.0, limit=200)
    if quick:
        usual = replace(usual, N=100, S=10, every=10, limit=32)
    made = []
    for base, global_steps in GLOBAL.items():
        for name in ALGORITHMS if base != "none" else ("fedopt", "mime"):
            for eta_g in global_steps if name == "fedopt" else (1.0,):
                here = replace(usual, algorithm=name, base=base, eta_g=eta_g)
                made.append(replace(here, epochs=1) if name == "serveronly" else here)
    if quick:
        made = [s for s in made if s.base != "adam" and s.eta_g in (0.3, 1.0)]
        made = [s for s in made if (s.algorithm, s.eta_g, s.base) != ("fedopt", 1.0, "momentum")]
    return [cell(s) for s in seeded(made, seeds)]


def late(record: Record) -> float:
    """Return the mean accuracy of the last rounds."""
    return fmean(record["accuracy"][-LAST:])


def accuracy(records: Records, name: str, base: str) -> float | None:
    """Return the accuracy at the end, the mean over the seeds, with the best step at the server."""
    by_step: dict[float, list[float]] = {}
    for r in chosen(records, algorithm=name, base=base):
        by_step.setdefault(setting(r)["eta_g"], []).append(late(r))
    return max(map(fmean, by_step.values())) if by_step else None


SENTENCES = (
    "Mime and MimeLite perform alike (within one point of accuracy).",
    "Mime and MimeLite are the best, with momentum and with Adam.",
    "FedAvg is even worse than the server alone, with momentum or with Adam.",
    "Mime gains more from momentum than FedAvg does.",
)


def claims(records: Records) -> list[Claim]:
    """Judge the caption of the figure."""
    bases = [b for b in ("momentum", "adam") if accuracy(records, "mime", b) is not None]
    found = {(n, b): accuracy(records, n, b) for b in [*bases, "none"] for n in ALGORITHMS}
    known = {k: v for k, v in found.items() if v is not None}
    text = "; ".join(
        f"{BASES[b]}: " + ", ".join(f"{NAMES[n]} {known[n, b]:.3f}" for n, c in known if c == b)
        for b in [*bases, "none"]
    )
    complete = bases and all((n, b) in known for n in ALGORITHMS for b in bases)
    if not complete or ("fedopt", "none") not in known or ("mime", "none") not in known:
        return [Claim(sentence, None) for sentence in SENTENCES]
    alike = all(abs(known["mime", b] - known["mimelite", b]) <= 0.01 for b in bases)
    best = all(
        min(known["mime", b], known["mimelite", b])
        >= max(known["serveronly", b], known["fedopt", b])
        for b in bases
    )
    worse = any(known["fedopt", b] < known["serveronly", b] for b in bases)
    gain = {n: known[n, "momentum"] - known[n, "none"] for n in ("mime", "fedopt")}
    gains = f"momentum adds {gain['mime']:+.3f} to Mime, {gain['fedopt']:+.3f} to FedAvg"
    return [
        Claim(SENTENCES[0], alike, text),
        Claim(SENTENCES[1], best, text),
        Claim(SENTENCES[2], worse, text),
        Claim(SENTENCES[3], gain["mime"] > gain["fedopt"], gains),
    ]


def table(records: Records) -> str:
    """Return the accuracy at the end by algorithm and base; the figure shows no numbers."""
    rows = [["mean accuracy of the last rounds", *(BASES[b] for b in BASES)]]
    for name in ALGORITHMS:
        found = [accuracy(records, name, base) for base in BASES]
        rows.append([NAMES[name], *("" if v is None else f"{v:.3f}" for v in found)])
    steps = [["step sizes", *(BASES[b] for b in BASES)]]
    for name in ALGORITHMS:
        steps.append([NAMES[name], *(_steps(records, name, base) for base in BASES)])
    return f"{lines(rows)}\n\n{lines(steps)}"


def _best(records: Records, name: str, base: str) -> Record | None:
    here = [r for r in chosen(records, algorithm=name, base=base) if setting(r)["seed"] == 0]
    return max(here, key=late) if here else None


def _steps(records: Records, name: str, base: str) -> str:
    r = _best(records, name, base)
    if r is None:
        return ""
    at_server = f", {setting(r)['eta_g']:g} at the server" if name == "fedopt" else ""
    return f"{r['eta']:.2g}{at_server}"


def figure(records: Records) -> Figure:
    """Return a panel for each base, and what momentum adds to FedAvg and Mime."""
    with rc_context(STYLE):
        made = Figure(figsize=(10.5, 3.5), layout="constrained")
        panels: Any = made.subplots(1, 3, sharey=True)
        for axes, base in zip(panels, ("momentum", "adam"), strict=False):
            for name in ALGORITHMS:
                _curve(axes, records, name, base, NAMES[name], "-")
            axes.set_title(BASES[base], fontsize=10)
        for name in ("fedopt", "mime"):
            for base, line in (("momentum", "-"), ("none", ":")):
                text = f"{NAMES[name]}, {BASES[base]}"
                _curve(panels[2], records, name, base, text, line)
        panels[2].set_title("What momentum adds", fontsize=10)
        for axes in panels:
            axes.set_xlabel("rounds")
            if axes.lines:
                axes.legend(loc="lower right", fontsize=8)
        panels[0].set_ylabel("test accuracy")
    return made


def _curve(axes: Any, records: Records, name: str, base: str, label: str, line: str) -> None:
    r = _best(records, name, base)
    if r is not None:
        colour = COLOURS.get(name, "#555555")
        axes.plot(r["accuracy"], color=colour, linestyle=line, label=label, linewidth=1.3)


_DISCUSSION = """\
The figure's data cannot be had here: clients of EMNIST 62 are its writers, whom the files do not
name, and the sources give neither model nor steps. So clients are cut by label, and the model is
convex. Mime and MimeLite do what the server alone does; FedAvg, with step sizes tuned at the
clients and at the server, is ahead of all three. Our best explanation: on logistic regression
FedAvg gains from local steps that are too large for a gradient method (its local models fit their
clients and are averaged), while Mime's steps stay close to those of the server's optimiser, which
is its point; and what limits a gradient method here is the noise of 20 clients of 1,000, half of
whose images are sorted by label, which local steps along the cohort's gradient do not reduce."""


MIME = Reproduction(
    name="mime",
    shows="SGD with momentum and Adam on EMNIST 62: server only, FedAvg, MimeLite, Mime",
    source="Karimireddy, slides, Figure 3 of Mime",
    minutes=30,
    cells=cells,
    claims=claims,
    table=table,
    figure=figure,
    discussion=_DISCUSSION,
)
