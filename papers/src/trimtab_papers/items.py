"""The papers' tables and figures, each by one command: `trimtab reproduce NAME`.

One file an item: cells that are computed, sentences that are judged by their records, a table and
a figure. It may import everything but cli and bench, and the plotting library only where it draws.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trimtab_papers.bias import BIAS
from trimtab_papers.concrete import CONCRETE
from trimtab_papers.contraction import CONTRACTION
from trimtab_papers.dane import DANE
from trimtab_papers.emnist400 import CLIENTS, EMNIST400
from trimtab_papers.engine import Cell, Reproduction, reproduce, summary
from trimtab_papers.figure3 import FIGURE3
from trimtab_papers.local_steps import LOCAL_STEPS
from trimtab_papers.lsa import LSA
from trimtab_papers.mime import MIME
from trimtab_papers.mvr import MVR
from trimtab_papers.nonconvex import NONCONVEX
from trimtab_papers.speedup import SPEEDUP
from trimtab_papers.table3 import TABLE_3
from trimtab_papers.table4 import TABLE_4
from trimtab_papers.table5 import TABLE_5
from trimtab_papers.theorem2 import THEOREM2
from trimtab_papers.unequal import UNEQUAL
from trimtab_papers.verdicts import Claim, read

_ALL = (
    *(FIGURE3, THEOREM2, TABLE_3, TABLE_4, TABLE_5, CONCRETE, EMNIST400, CLIENTS, MIME, MVR),
    *(BIAS, SPEEDUP, LSA, CONTRACTION, LOCAL_STEPS, DANE, NONCONVEX, UNEQUAL),
)
REPRODUCTIONS = {reproduction.name: reproduction for reproduction in _ALL}


def listing(folder: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    return [summary(REPRODUCTIONS[name], folder) for name in names]


__all__ = ["REPRODUCTIONS", "Cell", "Claim", "Reproduction", "listing", "read", "reproduce"]
