"""FedAvg's bias and its cure: SCAFFOLD, and Richardson-Romberg extrapolation.

Mangold et al., 2025 (slides "Numerical Illustration: FedAvg", (a) H = 10, (b) H = 100). Logistic
regression with l2 > 0, four clients, all of them in every round. Full batches: fixed points against
the first-order formula, as the step falls. Mini-batches drawn i.i.d. with replacement: the mean of
many chains against the formula with its second, stochastic term.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

from torch.nn.functional import cosine_similarity

from trimtab.algorithms import FedAvg, RichardsonRomberg, Scaffold
from trimtab.core import Algorithm, Vector
from trimtab.core.task import Progress
from trimtab.simulation import Round, simulate
from trimtab_papers import many_runs
from trimtab_papers.engine import TITLES, Cell, Computing, Reproduction, colour
from trimtab_papers.figures import label_of, new_figure
from trimtab_papers.many_runs import Chains, Logistic
from trimtab_papers.verdicts import (
    Curve,
    Held,
    MissingRecordError,
    Record,
    Records,
    Verdict,
    over_seeds,
    rounded,
    sentence,
    slope,
    spread,
    thinned,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


ALGORITHMS = ("fedavg", "scaffold", "richardsonromberg")
N, HS = 4, (10, 100)
# Steps by H: those of the curves are small enough for a formula of first order, and those of the
# fixed points are each half of the last.
GAMMA = {10: 0.004, 100: 0.0008}
STEPS = {10: (0.002, 0.001, 0.0005), 100: (0.0002, 0.0001, 5e-5)}
REACH = 0.5  # eta_g gamma H = 0.5 on the way to a fixed point, which eta_g does not move
BATCH = 5


# -- what a record holds


@dataclass(frozen=True)
class FixedPoint:
    """Where FedAvg stops with full batches and one step, and what the formula says of it.

    gap is |bias - predicted|/|predicted| of the vectors, richardson_romberg the bias of that.
    """

    gamma: float
    bias: float
    predicted: float
    gap: float
    cosine: float
    richardson_romberg: float

    def to_json(self) -> dict[str, float]:
        """Return a row of a record."""
        row = asdict(self)
        return row | {"Richardson-Romberg": row.pop("richardson_romberg")}

    @classmethod
    def from_json(cls, row: dict[str, float]) -> "FixedPoint":
        """Read a row of a record."""
        words = {word: value for word, value in row.items() if word != "Richardson-Romberg"}
        return cls(**words, richardson_romberg=row["Richardson-Romberg"])


@dataclass(frozen=True)
class FullBatches:
    """Fixed points as the step falls, SCAFFOLD's distance from x*, and |x - x*| round by round."""

    steps: tuple[FixedPoint, ...]
    scaffold: float
    predicted: float
    curves: dict[str, Curve]

    def to_json(self) -> Record:
        """Return what the file holds, but for the settings."""
        return {
            "steps": [step.to_json() for step in self.steps],
            "scaffold": self.scaffold,
            "predicted": self.predicted,
            "curves": {name: curve.to_json() for name, curve in self.curves.items()},
        }

    @classmethod
    def from_json(cls, record: Record) -> "FullBatches":
        """Read a record."""
        steps = tuple(map(FixedPoint.from_json, record["steps"]))
        curves = {name: Curve(**curve) for name, curve in record["curves"].items()}
        return cls(steps, record["scaffold"], record["predicted"], curves)


@dataclass(frozen=True)
class Chain:
    """|x - x*| of a single chain and of the mean of many, and the bias of the mean.

    predicted and gap are those of the formula, None where it speaks of second order only.
    """

    single: Curve
    mean: Curve
    bias: float
    predicted: float | None
    gap: float | None

    def to_json(self) -> dict[str, Any]:
        """Return what the file holds of an algorithm."""
        row = {"one": self.single.to_json(), "mean": self.mean.to_json(), "bias": self.bias}
        formula = {"predicted": self.predicted, "gap": self.gap}
        return row if self.predicted is None else row | formula

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> "Chain":
        """Read what the file holds of an algorithm."""
        single, mean = Curve(**row["one"]), Curve(**row["mean"])
        return cls(single, mean, row["bias"], row.get("predicted"), row.get("gap"))


def full_batches(records: Records, H: int) -> FullBatches | None:
    """Return the record with full batches, if there is one."""
    record = records.get(f"H{H}-full")
    return None if record is None else FullBatches.from_json(record)


def mini_batches(records: Records, H: int) -> dict[int, dict[str, Chain]]:
    """Return the chains by seed, then by algorithm."""
    found = [r for name, r in records.items() if name.split("-seed")[0] == f"H{H}-iid"]
    found.sort(key=lambda record: int(record["settings"]["seed"]))
    return {
        record["settings"]["seed"]: {n: Chain.from_json(row) for n, row in record["runs"].items()}
        for record in found
    }


# -- how it is computed


def cells(quick: bool, seeds: int) -> list[Cell]:
    """Return two cells for each H: full batches, and mini-batches (one for each seed)."""

    def full(H: int) -> Cell:
        return Cell(f"H{H}-full", lambda data, scratch: _full_batches(H, quick))

    def sampled(H: int, seed: int) -> Cell:
        name = f"H{H}-iid" + (f"-seed{seed}" if seed else "")
        return Cell(name, lambda data, scratch: _mini_batches(H, seed, quick))

    return [full(H) for H in HS] + [sampled(H, seed) for seed in range(seeds) for H in HS]


@dataclass(frozen=True)
class _Run:
    """What is run, and how its round is read: the models by the names of their algorithms."""

    algorithm: Algorithm
    models: Callable[[Round], dict[str, Vector]]

    @property
    def title(self) -> str:
        return type(self.algorithm).__name__


def _runs(H: int) -> tuple[_Run, ...]:
    """Return what is run; the fine half of Richardson-Romberg is FedAvg, mini-batches and all."""
    scaffold = Scaffold(eta_l=GAMMA[H], K=H)
    both = RichardsonRomberg(FedAvg(eta_l=GAMMA[H], K=H))
    return (
        _Run(scaffold, lambda done: {"scaffold": done.x}),
        _Run(both, lambda done: {"fedavg": done.server.fine, "richardsonromberg": done.x}),
    )


def _rounds(H: int, quick: bool) -> int:
    """Return how long the curves are: several times 1/(gamma H mu)."""
    return {10: 220, 100: 90}[H] if quick else {10: 400, 100: 160}[H]


def _full_batches(H: int, quick: bool) -> Computing:
    """Find the fixed points as the step falls, and draw the curves."""
    model = Logistic(N)
    problem, x_star = Chains(model), many_runs.optimum(model)
    steps: list[FixedPoint] = []
    for gamma in STEPS[H][: 2 if quick else None]:
        yield Progress(f"fixed points at {gamma:g}")
        steps.append(_fixed_point(problem, x_star, gamma, H))
    curves: dict[str, list[float]] = {name: [float(x_star.norm())] for name in ALGORITHMS}
    for run in _runs(H):
        yield Progress(f"the curve of {run.title}")
        R = _rounds(H, quick) // (3 if quick else 1)
        for done in islice(simulate(run.algorithm, problem), R):
            for name, x in run.models(done).items():
                curves[name].append(float((x - x_star).norm()))
    scaffold = Scaffold(eta_l=GAMMA[H], K=H, eta_g=REACH / (GAMMA[H] * H))
    content = FullBatches(
        steps=tuple(steps),
        scaffold=float((_end(scaffold, problem, x_star + 0.1, 40) - x_star).norm()),
        predicted=float(many_runs.heterogeneity_bias(model, x_star, GAMMA[H], H).norm()),
        curves={name: thinned(errors) for name, errors in curves.items()},
    )
    return rounded({"settings": _settings(model, H, batch="all")} | content.to_json())


def _fixed_point(problem: Chains, x_star: Vector, gamma: float, H: int) -> FixedPoint:
    """Find where FedAvg and Richardson-Romberg stop; eta_g shortens the way and moves nothing."""
    fedavg = FedAvg(eta_l=gamma, K=H, eta_g=REACH / (gamma * H))
    romberg = RichardsonRomberg(FedAvg(eta_l=gamma, K=H, eta_g=REACH / (gamma * H) / 1.5))
    bias = _end(fedavg, problem, x_star, 20) - x_star
    predicted = many_runs.heterogeneity_bias(problem.model, x_star, gamma, H)
    return FixedPoint(
        gamma=gamma,
        bias=float(bias.norm()),
        predicted=float(predicted.norm()),
        gap=float((bias - predicted).norm() / predicted.norm()),
        cosine=float(cosine_similarity(bias, predicted, dim=0)),
        richardson_romberg=float((_end(romberg, problem, x_star, 20) - x_star).norm()),
    )


def _end(algorithm: Algorithm, problem: Chains, start: Vector, R: int) -> Vector:
    *_, last = islice(simulate(algorithm, problem, x=start), R)
    return last.x


def _mini_batches(H: int, seed: int, quick: bool) -> Computing:
    """Run many chains with i.i.d. mini-batches, and look at one of them and at their mean."""
    model, M = Logistic(N, batch=BATCH), 60 if quick else 400
    problem, x_star, R = Chains(model, M), many_runs.optimum(model), _rounds(H, quick)
    single: dict[str, list[float]] = {name: [float(x_star.norm())] for name in ALGORITHMS}
    mean = deepcopy(single)
    late = dict.fromkeys(ALGORITHMS, -x_star)  # It becomes the mean of the last quarter, less x*.
    for run in _runs(H):
        yield Progress(f"{M} chains of {run.title}")
        for done in islice(simulate(run.algorithm, problem, seed=seed), R):
            for name, x in run.models(done).items():
                rows = problem.rows(x)
                single[name].append(float((rows[0] - x_star).norm()))
                mean[name].append(float((rows.mean(0) - x_star).norm()))
                if done.r > R - R // 4:
                    late[name] = late[name] + rows.mean(0) / (R // 4)
    heterogeneity = many_runs.heterogeneity_bias(model, x_star, GAMMA[H], H)
    noise = many_runs.noise_bias(model, x_star, GAMMA[H])
    predicted = {"fedavg": heterogeneity + noise, "scaffold": noise}
    chains = {}
    for name in ALGORITHMS:
        formula = predicted.get(name)
        chains[name] = Chain(
            single=thinned(single[name]),
            mean=thinned(mean[name]),
            bias=float(late[name].norm()),
            predicted=None if formula is None else float(formula.norm()),
            gap=None if formula is None else float((late[name] - formula).norm() / formula.norm()),
        )
    settings = _settings(model, H, BATCH) | {"chains": M, "seed": seed}
    return rounded(
        {"settings": settings, "runs": {name: chain.to_json() for name, chain in chains.items()}}
    )


def _settings(model: Logistic, H: int, batch: int | str) -> dict[str, Any]:
    return {"N": N, "n": model.n, "d": model.d, "l2": model.l2, "H": H, "gamma": GAMMA[H]} | {
        "eta_g": 1,
        "batch": batch,
    }


# -- what the paper says


WHERE = "slides, Numerical Illustration: FedAvg"
FEW, MANY = HS

ChainsByH = dict[int, dict[str, Chain]]
"""The chains of one seed by H, then by algorithm."""


def _complete(records: Records) -> tuple[dict[int, FullBatches], dict[int, ChainsByH]]:
    """Return full batches by H, and mini-batches by seed, of the seeds that have every H."""
    full = {H: record for H in HS if (record := full_batches(records, H)) is not None}
    by_H = {H: mini_batches(records, H) for H in HS}
    seeds = [seed for seed in by_H[FEW] if all(seed in by_H[H] for H in HS)]
    if len(full) < len(HS) or not seeds:
        raise MissingRecordError
    return full, {seed: {H: by_H[H][seed] for H in HS} for seed in seeds}


def _by_H(told: Callable[[int], str]) -> str:
    return "; ".join(f"H = {H}: {told(H)}" for H in HS)


@sentence(
    "FedAvg's bias is gamma (H-1)/2 Hess^-1 mean_c (Hess_c - Hess) grad f_c to first order: the "
    "relative gap halves with gamma (1.8-2.2), cosine above 0.999.",
    WHERE,
)
def fedavg_has_the_bias_of_the_formula(records: Records) -> Verdict:
    """Compare bias and formula as the step is halved."""
    full, _ = _complete(records)
    ratios = {H: [a.gap / b.gap for a, b in pairwise(full[H].steps)] for H in HS}
    cosines = {H: min(step.cosine for step in full[H].steps) for H in HS}
    held = all(1.8 < ratio < 2.2 for H in HS for ratio in ratios[H])
    return Verdict(
        held and min(cosines.values()) > 0.999,
        _by_H(lambda H: ", ".join(f"{v:.2f}" for v in ratios[H]) + f", cosine {cosines[H]:.5f}"),
    )


@sentence("Richardson-Romberg's bias is of second order (1.8-2.2).", WHERE)
def richardson_romberg_is_of_second_order(records: Records) -> Verdict:
    """Fit the exponent p of |x - x*| ~ gamma^p."""
    full, _ = _complete(records)
    orders = {
        H: slope(
            [step.gamma for step in full[H].steps],
            [step.richardson_romberg for step in full[H].steps],
        )
        for H in HS
    }
    held = all(1.8 < order < 2.2 for order in orders.values())
    return Verdict(held, _by_H(lambda H: f"order {orders[H]:.2f}"))


@sentence("SCAFFOLD has no heterogeneity bias: with full batches it stops at x*.", WHERE)
def scaffold_stops_at_the_optimum(records: Records) -> Verdict:
    """Look how far from x* it stops."""
    full, _ = _complete(records)
    held = max(full[H].scaffold for H in HS) < 1e-6
    return Verdict(held, _by_H(lambda H: f"stops {full[H].scaffold:.1g} from x*"))


@sentence("When the number of local iterations increases, FedAvg's bias increases.", WHERE)
def bias_grows_with_local_steps(records: Records) -> Verdict:
    """Compare bias/gamma at the smallest steps."""
    full, _ = _complete(records)
    last = {H: full[H].steps[-1] for H in HS}
    pace = {H: last[H].bias / last[H].gamma for H in HS}
    return Verdict(
        pace[MANY] > 2 * pace[FEW],
        _by_H(lambda H: f"bias/gamma {pace[H]:.3g} at gamma = {last[H].gamma:g}"),
    )


@sentence(
    "With i.i.d. mini-batches the mean of FedAvg's stationary law is where the formula puts it "
    "(within 30 %).",
    WHERE,
)
def mean_of_fedavg_is_that_of_the_formula(records: Records) -> Verdict:
    """Compare bias and formula, seed by seed."""
    _, seeds = _complete(records)
    gaps = {s: {H: chains[H]["fedavg"].gap or 0.0 for H in HS} for s, chains in seeds.items()}
    held: Held = {seed: max(by_H.values()) < 0.3 for seed, by_H in gaps.items()}
    told = _by_H(lambda H: f"relative gap {spread([by_H[H] for by_H in gaps.values()])}")
    return over_seeds(held, told)


@sentence(
    "With i.i.d. mini-batches SCAFFOLD and Richardson-Romberg end nearer to x* than FedAvg.", WHERE
)
def both_cures_end_nearer(records: Records) -> Verdict:
    """Compare their biases, seed by seed."""
    _, seeds = _complete(records)
    held: Held = {
        seed: all(
            chains[H][name].bias < chains[H]["fedavg"].bias
            for H in HS
            for name in ("scaffold", "richardsonromberg")
        )
        for seed, chains in seeds.items()
    }

    def told(H: int) -> str:
        biases = {n: [chains[H][n].bias for chains in seeds.values()] for n in ALGORITHMS}
        return ", ".join(f"{TITLES[n]} {spread(some, '.2g')}" for n, some in biases.items())

    return over_seeds(held, _by_H(told))


SENTENCES = (
    fedavg_has_the_bias_of_the_formula,
    richardson_romberg_is_of_second_order,
    scaffold_stops_at_the_optimum,
    bias_grows_with_local_steps,
    mean_of_fedavg_is_that_of_the_formula,
    both_cures_end_nearer,
)


# -- how it is shown


def table(records: Records) -> str:
    """Return one table for full batches, and one for mini-batches."""
    between = (
        f"Mini-batches of {BATCH}: how far from x* the mean over chains and the last quarter of "
        "the rounds is."
    )
    return "\n".join([*_full_batch_rows(records), "", between, "", *_mini_batch_rows(records)])


def _full_batch_rows(records: Records) -> list[str]:
    rows = [
        "| H | gamma | FedAvg: bias | predicted | relative gap | cosine "
        "| Richardson-Romberg: bias |",
        "|---|---|---|---|---|---|---|",
    ]
    for H in HS:
        record = full_batches(records, H)
        for step in record.steps if record is not None else ():
            rows.append(
                f"| {H} | {step.gamma:g} | {step.bias:.4g} | {step.predicted:.4g} "
                f"| {step.gap:.3f} | {step.cosine:.5f} | {step.richardson_romberg:.2g} |"
            )
    return rows


def _mini_batch_rows(records: Records) -> list[str]:
    rows = [
        "| H | gamma | FedAvg | predicted | SCAFFOLD | predicted "
        "| Richardson-Romberg | predicted |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for H in HS:
        seeds = list(mini_batches(records, H).values())
        if seeds:
            bias = {name: spread([s[name].bias for s in seeds], ".2g") for name in ALGORITHMS}
            fedavg, scaffold = (seeds[0][name].predicted for name in ("fedavg", "scaffold"))
            rows.append(
                f"| {H} | {GAMMA[H]:g} | {bias['fedavg']} | {fedavg:.2g} "
                f"| {bias['scaffold']} | {scaffold:.2g} "
                f"| {bias['richardsonromberg']} | second order |"
            )
    return rows


_FAINT: dict[str, Any] = {"linewidth": 0.7, "alpha": 0.4}


def figure(records: Records) -> "Figure":
    """Return |x - x*| against rounds, and the predicted biases as dashed lines."""
    with new_figure(9.5, 6.4) as made:
        panels: Any = made.subplots(2, len(HS), sharey="row", squeeze=False)
        for column, H in enumerate(HS):
            above, below = panels[0][column], panels[1][column]
            full, seeds = full_batches(records, H), list(mini_batches(records, H).values())
            if full is not None:
                _draw_full(above, full)
            if seeds:
                _draw_chains(below, seeds[0])
            above.set_title(f"H = {H}, full batches", fontsize=10)
            below.set_title(f"H = {H}, i.i.d. mini-batches of {BATCH}", fontsize=10)
            below.set_xlabel("rounds")
        for row in panels:
            row[0].set_ylabel("|x - x*|")
            for axes in row:
                axes.set_yscale("log")
        _legends(panels[0][0], panels[1][1])
    return made


def _draw_full(axes: Any, full: FullBatches) -> None:
    for name, curve in full.curves.items():
        axes.plot(curve.rounds, curve.values, **_line(name), label=label_of(TITLES[name]))
    axes.axhline(full.predicted, **_dashes("fedavg"), label=label_of("predicted bias"))


def _draw_chains(axes: Any, chains: dict[str, Chain]) -> None:
    for name, chain in chains.items():
        one, mean, predicted = (
            {"label": label_of(f"{TITLES[name]}, {what}")}
            for what in ("one chain", "mean of the chains", "predicted bias")
        )
        axes.plot(chain.single.rounds, chain.single.values, **_line(name) | _FAINT, **one)
        axes.plot(chain.mean.rounds, chain.mean.values, **_line(name), **mean)
        if chain.predicted is not None:
            axes.axhline(chain.predicted, **_dashes(name), **predicted)


def _legends(above: Any, below: Any) -> None:
    for name in ALGORITHMS:
        above.plot([], [], **_line(name), label=TITLES[name])
    above.plot([], [], **_dashes("fedavg"), label="predicted bias")
    above.legend(loc="lower left", fontsize=9)
    above.set_ylim(bottom=1e-6)
    below.plot([], [], color="#777777", linewidth=1.6, label="mean of the chains")
    below.plot([], [], color="#777777", **_FAINT, label="one chain")
    below.plot([], [], color="#777777", linewidth=1.1, linestyle="--", label="predicted bias")
    below.legend(loc="upper right", fontsize=9)


def _line(name: str) -> dict[str, Any]:
    return {"color": colour(name), "linewidth": 1.6}


def _dashes(name: str) -> dict[str, Any]:
    return {"color": colour(name), "linewidth": 1.1, "linestyle": "--"}


BIAS = Reproduction(
    name="bias",
    shows="FedAvg stops where the bias formula says; SCAFFOLD and Richardson-Romberg go on",
    source="Mangold et al. 2025, slides 'Numerical Illustration: FedAvg'",
    minutes=1,
    cells=cells,
    sentences=SENTENCES,
    table=table,
    figure=figure,
    discussion="The slides name neither data nor step; ours are synthetic, with four clients whose "
    "truths and feature scales differ. Their steps are small enough for a formula of first order; "
    "what remains of the gap at H = 100 is second order, and halves with gamma above. With "
    "mini-batches SCAFFOLD's remaining bias (the dashed line below) is smaller than what the mean "
    "of the chains can resolve.",
)
