"""Any nn.Module on the data of clients: samples, the mean loss and its gradient, closed forms.

Imports compute and core.
"""

from trimtab.problems.supervised.problem import Supervised

__all__ = ["Supervised"]
