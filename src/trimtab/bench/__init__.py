"""How fast a round is: ours, its bare matrix products, and a plain PyTorch loop, in alternation.

Workloads, the plain loop, and the measurement. It may import everything but cli and reproduce.
"""

from trimtab.bench.measurement import Row, bare_products, machine, measure, simulated
from trimtab.bench.workloads import ETA, WORKLOADS, Workload

__all__ = [
    "ETA",
    "WORKLOADS",
    "Row",
    "Workload",
    "bare_products",
    "machine",
    "measure",
    "simulated",
]
