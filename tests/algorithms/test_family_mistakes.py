"""The mistakes one would most easily make in the rest of the family, each rejected by a check.

The right algorithm passes the check that rejects its mutant. Mistakes that were seen in other
systems are in test_known_mistakes.py.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from trimtab import ScaffoldM
from trimtab.testing import ContractError, control_is_the_mean_gradient

# -- SCAFFOLD-M


class FromTheDisplacement(ScaffoldM):
    """c_i as line 12 of SCAFFOLD has it, though there is momentum in the displacement."""

    def local(self, g, c_i, x, c, m):
        (dx, _), _ = super().local(g, c_i, x, c, m)
        c_i_new = c_i - c - dx / (self.K * self.eta_l)
        return (dx, c_i_new - c_i), c_i_new


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
