"""How fast a round is: ours, its bare calls, and a plain PyTorch loop, in alternation.

Workloads, the plain loop, and the measurement. It may import everything but cli and reproduce.
"""

from trimtab_papers.bench.bare import bare_round
from trimtab_papers.bench.measurement import Row, machine, measure, problem_of, simulated
from trimtab_papers.bench.record import BenchRecord, check_same_machine
from trimtab_papers.bench.workload import Workload
from trimtab_papers.bench.workloads import WORKLOADS

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
