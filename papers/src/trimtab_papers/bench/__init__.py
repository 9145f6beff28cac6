"""How fast a round is: ours, its bare calls, and a plain PyTorch loop, in alternation.

Workloads, the plain loop, and the measurement. It may import everything but cli and reproduce.
"""

from trimtab_papers.bench.measurement import (
    BenchRecord,
    Row,
    bare_round,
    check_same_machine,
    machine,
    measure,
    problem_of,
    simulated,
)
from trimtab_papers.bench.workloads import WORKLOADS, Workload

__all__ = [
    "WORKLOADS",
    "BenchRecord",
    "Row",
    "Workload",
    "bare_round",
    "check_same_machine",
    "machine",
    "measure",
    "problem_of",
    "simulated",
]
