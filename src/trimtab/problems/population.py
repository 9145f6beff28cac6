"""Who the clients of a problem are: how many, how much data of which labels each has, its weight.

A record keeps it, so that a page can show how the clients differ when the data are long gone.
"""

from dataclasses import asdict, dataclass
from typing import Any

from trimtab._files import plain
from trimtab.problems.problem import Problem

MOST = 2000  # <= 2000 clients are described one by one
CELLS = 50_000  # clients times labels, <= 50,000 counts are kept


@dataclass(frozen=True)
class Population:
    """The clients, as far as the problem tells; what it does not tell is empty or None."""

    N: int
    d: int
    weights: tuple[float, ...] = ()
    weighing: str | None = None  # where the weights come from: uniform, samples or own
    sizes: tuple[int, ...] = ()  # training samples of each client
    batches: tuple[int, ...] = ()  # samples of a mini-batch of each client
    labels: tuple[tuple[int, ...], ...] | None = None  # how many of each, by client

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        fields: dict[str, Any] = plain(asdict(self))
        return fields

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Population":
        """Read what `to_json` wrote."""
        labels = content["labels"]
        tuples = {name: tuple(content[name]) for name in ("weights", "sizes", "batches")}
        counts = None if labels is None else tuple(tuple(row) for row in labels)
        return cls(**content | tuples | {"labels": counts})


def population_of(problem: Problem) -> Population:
    """Describe the clients of a problem; of very many, only how many they are.

    >>> from trimtab import Quadratic
    >>> population_of(Quadratic(A=[1.0, 2.0], b=[0.0, 1.0]))
    Population(N=2, d=1, weights=(0.5, 0.5), weighing=None, sizes=(), batches=(), labels=None)
    """
    if problem.N > MOST:
        return Population(problem.N, problem.d, weighing=problem.weighing)
    count = problem.samples
    samples = [] if count is None else [count(i) for i in range(problem.N)]
    return Population(
        N=problem.N,
        d=problem.d,
        weights=tuple(float(p) for p in problem.weights),
        weighing=problem.weighing,
        sizes=tuple(n for n, _ in samples),
        batches=tuple(b for _, b in samples),
        labels=_labels(problem.label_counts()),
    )


def _labels(counts: list[list[int]] | None) -> tuple[tuple[int, ...], ...] | None:
    """Return the counts as rows of one length; None where there are none, or too many."""
    classes = max((len(row) for row in counts or ()), default=0)
    if counts is None or not classes or classes * len(counts) > CELLS:
        return None
    return tuple((*row, *(0,) * (classes - len(row))) for row in counts)
