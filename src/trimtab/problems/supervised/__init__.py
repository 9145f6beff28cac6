"""Any nn.Module on the data of clients: samples, the mean loss and its gradient, closed forms.

`problem` holds Supervised, which puts the other modules together. Imports compute, core,
_importing, and of problems the modules that know no Supervised.
"""

from trimtab.problems.supervised.problem import Supervised

__all__ = ["Supervised"]
