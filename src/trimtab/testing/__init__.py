"""The contract of an algorithm as executable checks, the same for users' and trimtab's own.

`check_algorithm` runs the checks in `CHECKS`, `check_control_sums` those in `CONTROL_SUM_CHECKS`,
and `check_controls` one more; each may also be called alone. They use small quadratics with L = 1,
six clients of unequal weights in R^4: pass an instance whose step size is stable for L = 1. A check
called alone, and `verdicts`, take a seed, which decides quadratics, cohorts, lost replies and
mini-batches.

Imports simulation, problems, algorithms and core; of trimtab, only the command line imports it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from trimtab.testing import _trials
from trimtab.testing._trials import ContractError, first_line
from trimtab.testing.contract import (
    CHECKS,
    accepts_chunks,
    can_be_rebuilt,
    has_states_of_tensors,
    ignores_the_order_of_clients,
    is_a_frozen_dataclass,
    is_pure,
    keeps_dtype,
    rests_at_the_optimum_of_equal_clients,
    rests_when_nobody_moves,
    runs_alike_in_every_executor,
    stays_finite,
    survives_a_restart,
    survives_lost_replies,
)
from trimtab.testing.controls import (
    CONTROL_CHECKS,
    CONTROL_SUM_CHECKS,
    control_is_the_mean_gradient,
    controls_average_to_c,
    correction_matters,
    includes_late_clients,
    keeps_what_it_sent,
    reaches_the_weighted_optimum,
)

__all__ = [
    "CHECKS",
    "CONTROL_CHECKS",
    "CONTROL_SUM_CHECKS",
    "ContractError",
    "Verdict",
    "accepts_chunks",
    "can_be_rebuilt",
    "check_algorithm",
    "check_control_sums",
    "check_controls",
    "control_is_the_mean_gradient",
    "controls_average_to_c",
    "correction_matters",
    "has_states_of_tensors",
    "ignores_the_order_of_clients",
    "includes_late_clients",
    "is_a_frozen_dataclass",
    "is_pure",
    "keeps_dtype",
    "keeps_what_it_sent",
    "reaches_the_weighted_optimum",
    "rests_at_the_optimum_of_equal_clients",
    "rests_when_nobody_moves",
    "runs_alike_in_every_executor",
    "stays_finite",
    "survives_a_restart",
    "survives_lost_replies",
    "verdicts",
]

# Fixed, so that the check functions never fail by chance in a user's test suite.
SEED = 0


def check_algorithm(algorithm: Any) -> None:
    """Raise ContractError unless the algorithm keeps the contract of `trimtab.core.Algorithm`.

    algorithm: an instance whose step size is stable for L = 1.

    >>> from trimtab import FedAvg
    >>> check_algorithm(FedAvg(eta_l=0.1, K=5))
    >>> check_algorithm(FedAvg)
    Traceback (most recent call last):
    trimtab.testing._trials.ContractError: FedAvg: this is the class; pass an instance.
    """
    for check in CHECKS:
        check(algorithm, SEED)


def check_control_sums(algorithm: Any) -> None:
    """Raise ContractError unless control variates add up: c = sum p_i c_i in every round.

    algorithm: an instance whose server's state has a field `c`, and whose client's state is c_i.

    >>> from trimtab import FedDyn
    >>> check_control_sums(FedDyn(eta_l=0.1, K=5, alpha=1.0))
    """
    for check in CONTROL_SUM_CHECKS:
        check(algorithm, SEED)


def check_controls(algorithm: Any) -> None:
    """Raise ContractError unless the controls of a SCAFFOLD-like algorithm are right.

    In addition to `check_control_sums`, c_i after a round must be the mean of the client's raw
    gradients, or its full gradient g(x) if `algorithm.option` is "I".

    algorithm: as for `check_control_sums`.

    >>> from trimtab import Scaffold
    >>> check_controls(Scaffold(eta_l=0.1, K=5))
    """
    for check in CONTROL_CHECKS:
        check(algorithm, SEED)


@dataclass(frozen=True)
class Verdict:
    """Whether an algorithm keeps one rule."""

    rule: str
    says: str  # the rule in a sentence
    broken: str = ""  # the error message; empty if the rule is kept


def verdicts(algorithm: Any, *, mean_gradient: bool = False, seed: int = SEED) -> Iterator[Verdict]:
    """Yield a verdict for each rule of the contract; the rules of controls too, if there is a `c`.

    An object that is not an algorithm at all breaks one of the first two rules, and the others are
    not tried.

    algorithm: the instance to check.
    mean_gradient: whether c_i must be the mean of the client's raw gradients, as in SCAFFOLD;
        default False.
    seed: decides problems, cohorts, lost replies and mini-batches; default 0.

    >>> from trimtab import FedAvg
    >>> [verdict.rule for verdict in verdicts(FedAvg(eta_l=0.1, K=5)) if verdict.broken]
    []
    """
    for number, check in enumerate(CHECKS):
        verdict = _verdict(check, algorithm, seed)
        yield verdict
        # The first two rules are about the class and its states; without them no round can run.
        if verdict.broken and number < 2:
            return
    server = algorithm.init_server(_trials.start())
    controls = CONTROL_CHECKS if mean_gradient else CONTROL_SUM_CHECKS
    for check in controls if mean_gradient or hasattr(server, "c") else ():
        yield _verdict(check, algorithm, seed)


def _verdict(check: Callable[[Any, int], None], algorithm: Any, seed: int) -> Verdict:
    says = (check.__doc__ or "").partition("\n")[0]
    try:
        check(algorithm, seed)
    except ContractError as error:
        return Verdict(check.__name__, says, str(error))
    except Exception as error:  # A user's algorithm may raise anything.
        what = f"{type(algorithm).__name__}: it fails ({type(error).__name__}: {first_line(error)})"
        return Verdict(check.__name__, says, f"{what}; fix it.")
    return Verdict(check.__name__, says)
