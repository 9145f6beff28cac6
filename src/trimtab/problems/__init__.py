"""What is optimised: quadratics with closed forms, and any nn.Module on clients' data."""

from trimtab.problems.catalogue import digits_problem
from trimtab.problems.problem import Problem
from trimtab.problems.quadratic import Quadratic
from trimtab.problems.supervised.problem import Supervised

__all__ = ["Problem", "Quadratic", "Supervised", "digits_problem"]
