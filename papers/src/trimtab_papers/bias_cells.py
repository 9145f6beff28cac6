"""The cells of bias: fixed points with full batches, and means of many chains with mini-batches."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from torch.nn.functional import cosine_similarity

from trimtab.algorithms import FedAvg, RichardsonRomberg, Scaffold
from trimtab.core import Algorithm, Vector
from trimtab.core.task import Progress
from trimtab.simulation import Round, simulate
from trimtab_papers import many_runs
from trimtab_papers.engine import Cell, Computing
from trimtab_papers.many_runs import Chains, Logistic
from trimtab_papers.verdicts import Curve, Record, Records, rounded, thinned

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
        row = asdict(self)
        return row | {"Richardson-Romberg": row.pop("richardson_romberg")}

    @classmethod
    def from_json(cls, row: dict[str, float]) -> "FixedPoint":
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
        row = {"one": self.single.to_json(), "mean": self.mean.to_json(), "bias": self.bias}
        formula = {"predicted": self.predicted, "gap": self.gap}
        return row if self.predicted is None else row | formula

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> "Chain":
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
