"""What is searched for an algorithm, its step size, K, eta_g and momentum, and by which rules."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2
from typing import Any

from trimtab.algorithms.registry import Kind, build, kind
from trimtab.core import Algorithm, Epochs
from trimtab.core.hyper import settings_of
from trimtab.studies.baselines import BASELINES
from trimtab.studies.holdout import HeldOutProblem
from trimtab.studies.prior import Prior

LocalSteps = int | Epochs | Sequence[int] | None
"""K as the user gives it: one number, several, or epochs; None: it is searched."""

LADDER = (1, 4, 16, 64)
"""The K that are tried first; the search then walks to K/2 and 2K of the best."""

ETA_G = (1.0, 2.0, 4.0)
BETA = (0.0, 0.9)
OCTAVE = 8
"""Step sizes are 2^(j/8) for whole j, so that j + 8 doubles the step."""


@dataclass(frozen=True)
class SearchRules:
    """The rules of the search; each value was chosen on ten problems and held on ten others."""

    first: int = 8
    """Rounds before the step sizes of one family are compared. They double from there."""

    scale: int = -24
    """The first step size is 2^(scale / 8) = 1/8, and moves by factors of 4."""

    furthest: int = 14
    """A bracket moves by at most 14 of its factors, since all steps may be equally good."""

    nearly: float = 1.5
    """A candidate runs to 1.5 times the fewest rounds: other seeds may turn the order."""

    far: int = 3
    """Where the rounds double, steps 3 factors from the best run too. With more rounds a distant
    step may be better, though those between are worse: brackets followed a small step that was
    best because it had not yet overfitted, and held no target that large steps hold."""

    as_good: float = 1.05
    """Steps within 5 % are equally good, and the middle one is taken. Taking the largest led
    brackets to step sizes of 1,024 for metrics that do not see the scale of x, such as auc."""

    refined: tuple[tuple[int, int], ...] = ((4, 4), (2, 2), (2, 1))
    """How many of the best families are refined, and by which j: factors of 1.41, 1.19 and 1.09."""

    finalists: int = 16
    finalists_of_a_family: int = 4
    """The steps of one family resemble each other, so that few of them leave room for others."""

    worthwhile: float = 1.05
    """Beyond the largest K that every search tries, K doubles only while that saves 5 % or more."""

    pilot_share: float = 0.2
    search_share: float = 0.6
    finals_share: float = 0.8
    """The shares of the budget that may be spent by the end of these stages."""


@dataclass(frozen=True, order=True)
class Family:
    """All that is searched but the step size; K is None if it is given or does not exist."""

    K: int | None = None
    eta_g: float = 1.0
    beta: float = 0.0

    def __str__(self) -> str:
        parts = [] if self.K is None else [f"K = {self.K}"]
        parts += [] if self.eta_g == 1 else [f"eta_g = {self.eta_g:g}"]
        parts += [] if self.beta == 0 else [f"beta = {self.beta:g}"]
        return " with ".join(parts) or "the step size"


@dataclass(frozen=True, order=True)
class Point:
    """One candidate: a family and a step size."""

    family: Family
    j: int

    @property
    def eta(self) -> float:
        """The step size.

        >>> Point(Family(), -24).eta
        0.125
        """
        return float(2.0 ** (self.j / OCTAVE))


@dataclass(frozen=True)
class Space:
    """The search space of one algorithm, and how to build the algorithm at a point of it.

    Ks: the K to start with; (None,) if K is given or does not exist.
    variants: the pairs of eta_g and beta, those without them first.
    fixed: the algorithm itself, if nothing is searched.
    prior: the expected step size by K; the brackets of these K begin there.
    expected: the point to confirm: its K, K/2 and 2K are searched, and nothing else.
    """

    kind: Kind
    given: Mapping[str, Any]
    Ks: tuple[int | None, ...] = (None,)
    variants: tuple[tuple[float, float], ...] = ((1.0, 0.0),)
    fixed: Algorithm | None = None
    prior: Mapping[int, float] | None = None
    expected: Point | None = None

    @property
    def families(self) -> list[Family]:
        """The families to start with."""
        return [Family(K, *self.variants[0]) for K in self.Ks]

    def build(self, point: Point) -> Algorithm:
        """Return the algorithm at a point."""
        if self.fixed is not None:
            return self.fixed
        family = point.family
        words = {self.kind.step: point.eta} | dict(self.given)
        words |= {} if family.K is None else {"K": family.K}
        words |= {"eta_g": family.eta_g} if self._searches("eta_g") else {}
        words |= {"base": "momentum", "beta": family.beta} if self._searches("base") else {}
        made: Algorithm = build(self.kind, **words)
        return made

    def stem(self, point: Point) -> str:
        """Return the name of the point's folder."""
        family = point.family
        if self.fixed is not None:
            return "run"
        parts = [] if family.K is None else [f"K={family.K}"]
        parts += [f"eta_g={family.eta_g:g}"] if self._searches("eta_g") else []
        parts += [f"beta={family.beta:g}"] if self._searches("base") else []
        return "-".join([*parts, f"step={point.eta:.4g}"])

    def has_one_local_step(self, family: Family) -> bool:
        """Return whether clients make one local step, so that eta_g only rescales the step size."""
        return (family.K or self.given.get("K")) == 1

    def starts(self, best: Point, family: Family) -> list[int]:
        """Return the step sizes from which a family's bracket begins, given the best of another.

        They lie between an equal eta_l and an equal K eta_l, and are divided by what multiplies
        them: eta_g and 1 / (1 - beta).
        """
        old = best.family
        factor = old.eta_g / family.eta_g * (1 - family.beta) / (1 - old.beta)
        j = best.j + OCTAVE * round(log2(factor))
        by_K = OCTAVE * round(log2((old.K or 1) / (family.K or 1)))
        expected = (self.prior or {}).get(family.K or 0)
        found = set(range(min(j, j + by_K), max(j, j + by_K) + 1, OCTAVE))
        if expected is not None:
            found.add(j + OCTAVE * round(log2(expected) - j / OCTAVE))
        return sorted(found)

    def neighbours(self, family: Family) -> list[Family]:
        """Return the families next to one: K/2 and 2K, the next eta_g, the other beta."""
        near = [] if family.K is None else [family.K // 2, family.K * 2]
        found = [replace(family, K=K) for K in near if K]
        for eta_g, beta in self.variants:
            one_step_away = eta_g / family.eta_g in (0.5, 2.0) and beta == family.beta
            if one_step_away or (eta_g == family.eta_g and beta != family.beta):
                found.append(Family(family.K, eta_g, beta))
        return [f for f in found if f.eta_g == 1 or not self.has_one_local_step(f)]

    def _searches(self, name: str) -> bool:
        has = any(parameter.name == name for parameter in self.kind.parameters)
        return has and name not in self.given


def space_of(
    chosen: Kind, K: int | Epochs | None, given: Mapping[str, Any], prior: Prior | None = None
) -> Space:
    """Return what is searched for an algorithm; what is given is not."""
    names = {parameter.name for parameter in chosen.parameters}
    taken = {word: v for word, v in given.items() if v is not None and word in names}
    etas_g = ETA_G if "eta_g" in names and "eta_g" not in taken else ETA_G[:1]
    betas = BETA if "base" in names and "base" not in taken else BETA[:1]
    variants = tuple((eta_g, beta) for beta in betas for eta_g in etas_g)
    if not chosen.has_K or K is not None:
        return Space(chosen, taken | ({"K": K} if chosen.has_K else {}), variants=variants)
    expected = {} if prior is None else prior.steps(chosen.name)
    advised = () if prior is None or prior.algorithm != chosen.name else (prior.K,)
    Ks = tuple(sorted({*LADDER, *(K for K in advised if K is not None)}))
    return Space(chosen, taken, Ks, variants, prior=expected)


def confirming_space(
    chosen: Kind, K: int | None, eta: float, given: Mapping[str, Any] | None = None
) -> Space:
    """Return what is searched to confirm an expected K and step size: K, K/2 and 2K."""
    names = {parameter.name for parameter in chosen.parameters}
    taken = {word: v for word, v in (given or {}).items() if word in names}
    home = Family(K if chosen.has_K else None)
    space = Space(chosen, taken, expected=Point(home, round(OCTAVE * log2(eta))))
    families = sorted([home, *space.neighbours(home)])
    return replace(space, Ks=tuple(family.K for family in families))


@dataclass(frozen=True)
class EntrySpec:
    """One entry of a comparison: an algorithm, its search space, and the K that was given."""

    kind: Kind
    name: str
    space: Space
    K: int | Epochs | None = None
    measured: HeldOutProblem | None = None  # of a baseline

    @property
    def label(self) -> str:
        """The name of the entry: the algorithm, and its K if that is given."""
        if isinstance(self.K, Epochs):
            return f"{self.name}-{self.K.count:g}epochs"
        return self.name if self.K is None else f"{self.name}-K{self.K}"


def entry_specs(
    algorithms: Sequence[Any],
    K: LocalSteps,
    given: Mapping[str, Any],
    prior: Prior | None = None,
) -> list[EntrySpec]:
    """Return an entry for each algorithm, and for each K that is given."""
    Ks: list[Any] = list(K) if isinstance(K, Sequence) else [K]
    specs: list[EntrySpec] = []
    for algorithm in algorithms:
        chosen = kind(algorithm)
        if not isinstance(algorithm, str | type):
            same = sum(spec.kind.name == chosen.name for spec in specs)
            name = f"{chosen.name}#{same + 1}" if same else chosen.name
            own = settings_of(algorithm).get("K")
            specs.append(EntrySpec(chosen, name, Space(chosen, {}, fixed=algorithm), own))
        elif not chosen.step:
            space = Space(chosen, {}, fixed=build(chosen))
            specs.append(EntrySpec(chosen, chosen.name, space))
        else:
            for each in Ks if chosen.has_K else [None]:
                space = space_of(chosen, each, given, prior)
                # Bad hyper-parameters are refused before a folder is made.
                space.build(Point(space.families[0], 0))
                specs.append(EntrySpec(chosen, chosen.name, space, each))
    labels = [spec.label for spec in specs]
    return [spec for i, spec in enumerate(specs) if spec.label not in labels[:i]]


def baseline_specs(measured: HeldOutProblem, K: LocalSteps) -> Iterator[EntrySpec]:
    """Return an entry for each baseline that the problem has."""
    steps = K[0] if isinstance(K, Sequence) else K
    fedavg = kind("fedavg")
    for name, made in BASELINES.items():
        own = made(measured)
        if own is not None:
            space = space_of(fedavg, steps, {"eta_g": 1.0})
            yield EntrySpec(fedavg, name, space, steps, own)
