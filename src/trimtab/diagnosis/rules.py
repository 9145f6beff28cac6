"""The thresholds of a diagnosis, and the algorithms that it compares, in one place."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trimtab.algorithms import Momentum
from trimtab.algorithms.registry import NAMES, build, kind
from trimtab.core import Algorithm


@dataclass(frozen=True)
class Rules:
    """Thresholds, each with the inequality in which it is used and the reason for its value.

    "The gap" is f - f*, with the smallest f that is known in the place of f*. Advice is measured by
    `python benchmarks/advice.py` (results/account), intervals by benchmarks/diagnosis_coverage.py
    and time by benchmarks/diagnosis_time.py (both in results/diagnosis).
    """

    # -- who is measured

    clients: int = 1024
    """<= clients clients are measured, drawn at random, since each costs a Hessian of its own."""
    samples: int = 16
    """>= samples samples of a client are measured, so that each of its folds has four."""
    folds: int = 4
    """Thinned data are measured in this many folds. The intervals of L and delta rest on the
    scatter between folds; of two, Student's factor alone would be 6.5."""
    passes: int = 1500
    """Data are thinned until the time allows >= passes gradients of all that is measured, which is
    about what a diagnosis of a small network takes."""
    stored: int = 100_000_000
    """Gradients of clients, or vectors of Lanczos, hold <= stored numbers: 0.8 GB in float64."""
    at_once: int = 20_000_000
    """What is computed at once, or remembered of a search, holds <= at_once numbers: 0.16 GB."""
    step: int = 16
    """<= step clients, samples or products are computed between two looks at the clock, so that a
    diagnosis ends within a gradient of all data or two of its time."""

    probed: int = 256
    """Data are compared on <= probed clients, with <= probed samples each: what clients share by
    chance is then below a tenth of a standard deviation."""
    labels: int = 1000
    """Whole numbers are labels if there are <= labels of them, as of the classes of ImageNet."""

    # -- the optimum

    optimum: float = 1e-3
    """A point counts as an optimum if |grad f| is <= optimum x the start's; a search that lowered f
    by less than that share of the way in `patience` gradients ends."""
    patience: int = 50
    """A search ends if |grad f| did not halve in patience gradients; L-BFGS needs fewer for a digit
    wherever f is convex."""
    near_optimum: float = 0.01
    """Numbers are those of the optimum if <= near_optimum of the way to it is left; else their
    intervals would say nothing."""
    vanished: float = 0.1
    """f has no minimum nearby if |Hess| at the best point is < vanished x that at the start, as for
    separable data."""
    flat: float = 1e-6
    """An eigenvalue counts as zero if it is <= flat x L in size, and a gradient if it is <= flat x
    the start's: rounding in float32, with a margin."""

    # -- Hessians and noise

    small: int = 300
    """The Hessians of all clients are formed if d <= small, where eigenvalues take 10 ms a
    client."""
    dense: int = 2000
    """The mean Hessian is formed if d <= dense, where its eigenvalues take ten seconds."""
    directions: int = 56
    """Beyond that, Hessians are known in <= directions common directions, which cost a product with
    the Hessian of every client each."""
    followed: int = 6
    """<= followed of the steepest and most different clients are followed until they settle."""
    residual: float = 0.02
    """A Ritz value counts as an eigenvalue if its residual is <= residual x the norm, which is less
    than another seed would change."""
    unlikely: float = 1.2
    """A client is not followed if unlikely x its estimated norm is < the largest norm seen."""
    noise_error: float = 0.05
    """Mini-batches are drawn until the standard error of sigma^2 is <= noise_error x sigma^2."""
    noise_pairs: int = 100
    """>= noise_pairs pairs of mini-batches are drawn of all clients together, and <= twice as many
    of each: with fewer, drawing ends where the standard error is too small by chance, and few
    clients in few dimensions would need thousands."""

    # -- the model

    whole_model: int = 64
    """The model has all directions if d <= whole_model, so that it is exact for quadratics; each
    direction costs a product with the Hessian of every client."""
    model_directions: tuple[int, int, int] = (16, 6, 10)
    """Beyond that, the model has <= so many directions of the start's error, of FedAvg's drift and
    of the clients' gradients, which together cost half of what the whole model may cost."""

    # -- what is tried

    eps: float = 0.01
    """The wanted gap is eps x the gap at the start, unless another was asked for."""
    local_steps: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
    """The numbers of local steps that run on the model. In 42 cases of results/account the best K
    was 8 or more in 38 and 128 or more in 14; with 64 as the largest, one more case was missed."""
    rounds: int = 100
    """An algorithm runs for <= rounds rounds, on the model and on the problem; a case of
    results/account counts as unreachable beyond."""
    near: float = 1.15
    """A K or a step size is good enough on the model if it needs <= near x the fewest rounds. The
    smallest such is expected, since it costs less and is stable for longer."""
    change: float = 3.0
    """The order of the model is trusted if curvature changes by a factor <= change on the way; else
    every algorithm is in question."""
    compared: int = 3
    """<= compared algorithms run on the problem, since each is a search of its own."""
    behind: float = 2.0
    """An algorithm or K that needs > behind x the fewest rounds is not in question, and is not
    followed any further; the rules of `compare` call a factor of 1.2 a difference."""
    least: int = 8
    """An algorithm counts as tried after >= least rounds, the first look of `compare`'s search."""
    seeds: int = 3
    """The settings found run with this many seeds that had no part in the search."""
    search: float = 0.75
    """The search of an algorithm takes <= search x its time, and the seeds the rest; where there
    is time enough, the seeds took a tenth of the rounds of ten searches."""

    # -- time

    short: int = 300
    """The time is short if it allows < short gradients of all data. Then all of it goes to runs on
    the problem, and no further gradient is timed if it takes more than 1/short of it."""
    first_facts: float = 10.0
    """The first facts are reported after <= first_facts seconds, when people begin to wonder."""
    until: tuple[float, float, float, float] = (0.22, 0.4, 0.57, 0.93)
    """The optimum, noise and Hessians, rounds on the model, and runs on the problem are due after
    these shares of the time; the rest is for the bias."""

    # -- what is reported

    outlier: float = 2.0
    """A client is an outlier if it is > outlier x as far off as the median client, and data differ
    if they do by > outlier x what equal clients would show by chance."""
    trifle: float = 0.1
    """What is <= trifle counts as nothing: a difference of data in shares, standard deviations or
    octaves, the share of the way to the least f that a run came, and a part of the wanted gap."""
    close: float = 0.2
    """Hessians are called similar if delta/L < close, and gradients to disagree little if zeta is
    < close x |grad f| at the start; from 1 x on, they disagree strongly."""


RULES = Rules()

# -- the algorithms; no other module of this folder has their names

SGD, FEDAVG, SCAFFOLD, MIMELITE = "sgd", "fedavg", "scaffold", "mimelite"
USUAL = (SCAFFOLD, FEDAVG, SGD)
CROSS_DEVICE = (MIMELITE, FEDAVG, SGD)
"""Clients that come once keep no state."""
BETA = 0.9  # of the base optimiser of those that have one


def given_of(name: str) -> Mapping[str, Any]:
    """Return the hyper-parameters that are neither searched nor left at their defaults."""
    has_base = any(parameter.name == "base" for parameter in kind(name).parameters)
    return {"base": Momentum(BETA)} if has_base else {}


def make(name: str, K: int, eta: float) -> Algorithm:
    """Return an algorithm with K local steps of size eta.

    >>> make("fedavg", 5, 0.1)
    FedAvg(eta_l=0.1, K=5, eta_g=1.0)
    """
    chosen = kind(name)
    words: dict[str, Any] = {chosen.step: eta} | dict(given_of(name))
    words |= {"K": K} if chosen.has_K else {}
    algorithm: Algorithm = build(chosen, **words)
    return algorithm


def has_K(name: str) -> bool:
    """Return whether the number of local steps is a choice."""
    return kind(name).has_K


def named(name: str) -> str:
    """Return an algorithm's class name for its lower-case one, with what follows it.

    >>> named("scaffold on quadratics")
    'Scaffold on quadratics'
    """
    first, _, rest = name.partition(" ")
    shown = kind(first).shown if first in NAMES else first
    return f"{shown} {rest}".strip()
