"""What is optimised: quadratics and linear systems in closed form, any nn.Module on clients' data.

`problem` says what a problem must have, `capabilities` what it may have besides; `names`,
`catalogue` and `loading` find problems by name. Imports compute, core, errors, _files and
_importing. Names are found on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab.problems.catalogue import digits_problem
    from trimtab.problems.garnet import GarnetTD
    from trimtab.problems.linear_system import LinearSystem
    from trimtab.problems.problem import Problem
    from trimtab.problems.quadratic import Quadratic
    from trimtab.problems.supervised.hugging_face import Fields
    from trimtab.problems.supervised.losses import OnBatch
    from trimtab.problems.supervised.problem import Supervised
    from trimtab.problems.supervised.tables import Columns

_HOMES = {
    "Columns": "supervised.tables",
    "Fields": "supervised.hugging_face",
    "GarnetTD": "garnet",
    "LinearSystem": "linear_system",
    "OnBatch": "supervised.losses",
    "Problem": "problem",
    "Quadratic": "quadratic",
    "Supervised": "supervised.problem",
    "digits_problem": "catalogue",
}

__all__ = [
    "Columns",
    "Fields",
    "GarnetTD",
    "LinearSystem",
    "OnBatch",
    "Problem",
    "Quadratic",
    "Supervised",
    "digits_problem",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'trimtab.problems' has no attribute {name!r}")
    return getattr(import_module(f"trimtab.problems.{_HOMES[name]}"), name)
