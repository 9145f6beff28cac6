"""What is optimised: quadratics with closed forms, and any nn.Module on clients' data.

`problem` says what a problem must have, `capabilities` what it may have besides, `catalogue` and
`loading` find problems by name. Imports compute, core, errors, _files and _importing.
"""

from trimtab.problems.catalogue import digits_problem
from trimtab.problems.problem import Problem
from trimtab.problems.quadratic import Quadratic
from trimtab.problems.supervised.problem import Supervised

__all__ = ["Problem", "Quadratic", "Supervised", "digits_problem"]
