"""Any nn.Module on the data of clients: reading and checking data, losses, gradients, evaluation.

`problem` holds Supervised, which connects the other modules. Imports compute, core, _importing,
and of problems the modules that do not know Supervised.
"""

from trimtab.problems.supervised.problem import Supervised

__all__ = ["Supervised"]
