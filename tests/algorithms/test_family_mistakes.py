"""The mistakes one would most easily make in the rest of the family, each rejected by a check.

The right algorithm passes the check that rejects its mutant. Mistakes that were seen in other
systems are in test_known_mistakes.py.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from trimtab import FedDyn, ScaffoldM
from trimtab.algorithms import feddyn
from trimtab.testing import (
    ContractError,
    control_is_the_mean_gradient,
    controls_average_to_c,
    reaches_the_weighted_optimum,
)

# -- SCAFFOLD-M


class FromTheDisplacement(ScaffoldM):
    """c_i as line 12 of SCAFFOLD has it, though there is momentum in the displacement."""

    def local(self, g, c_i, x, c, m):
        (dx, _), _ = super().local(g, c_i, x, c, m)
        c_i_new = c_i - c - dx / (self.K * self.eta_l)
        return (dx, c_i_new - c_i), c_i_new


# -- FedDyn


class WithoutShare(FedDyn):
    def round(self, server, clients):
        x, h = server
        (dx,) = clients.run(self.local, x).mean()
        h_new = h - self.alpha * dx
        return feddyn.Server(x + dx - h_new / self.alpha, h_new)


class AddsH(FedDyn):
    def round(self, server, clients):
        x, h = super().round(server, clients)
        return feddyn.Server(x + 2 * h / self.alpha, h)


# -- the table


class Mistake(NamedTuple):
    what: str
    wrong: type[Any]
    right: Any
    check: Callable[[Any], None]


MISTAKES = (
    Mistake(
        "ScaffoldM: c_i from the displacement",
        FromTheDisplacement,
        ScaffoldM(eta_l=0.1, K=5, a=0.5),
        control_is_the_mean_gradient,
    ),
    Mistake(
        "FedDyn: the share is forgotten in h",
        WithoutShare,
        FedDyn(eta_l=0.1, K=5, alpha=1.0),
        controls_average_to_c,
    ),
    Mistake(
        "FedDyn: h is added to x",
        AddsH,
        FedDyn(eta_l=0.1, K=5, alpha=1.0),
        reaches_the_weighted_optimum,
    ),
)
every_mistake = pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.what)


@every_mistake
def test_mistake_is_rejected(mistake: Mistake) -> None:
    settings = {name: getattr(mistake.right, name) for name in mistake.right.__dataclass_fields__}
    with pytest.raises(ContractError):
        mistake.check(mistake.wrong(**settings))


@every_mistake
def test_right_one_is_accepted(mistake: Mistake) -> None:
    mistake.check(replace(mistake.right))
