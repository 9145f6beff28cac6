"""Table 3 of SCAFFOLD: rounds to 0.5 on EMNIST by algorithm, epochs and similarity.

Karimireddy et al., 2020, section 7. The paper leaves open how pixels were scaled, which step sizes
were tried and whether for each cell or once, and whether reaching 0.5 means touching it or staying
there: each is a reading, and all are shown.
"""

from trimtab.reproduce.reproduction import Reproduction
from trimtab.reproduce.scaffold2020.table3.cells import cells, more
from trimtab.reproduce.scaffold2020.table3.figure import figure
from trimtab.reproduce.scaffold2020.table3.sentences import SENTENCES
from trimtab.reproduce.scaffold2020.table3.table import table

_DISCUSSION = """\
*a / b*: the first round at the target / the first round whose next ten average at or above it;
*n+*: not met in n rounds. The images are not the official Balanced split (see Data).

**Rounds.** Ours are fewer than published in every cell, by the factor in the last table: a grid in
factors of 1.8 that follows the winner, tuned in every cell, finds larger steps than the paper seems
to have tried. What the paper is about survives: the order of the algorithms, FedAvg's loss with
epochs where clients differ, and the gain from epochs where they are alike.

**Which reading.** One step size for an algorithm in all cells, the best of three, comes a little
nearer to the published rounds than tuning each cell, hardly to the speed-ups: the best
common step size is about as good as each cell's own, so the way of tuning is not what sets us
apart. Asking for 0.6, where drift costs most, brings both much nearer than any reading of 0.5.

**SGD.** The published 317, 365 and 416 hardly depend on the similarity. Ours do, tuned in each cell
or with one step size for all: a full gradient of 20 of 100 sorted clients is noisy, because the
cohort lacks some classes, and that noise slows SGD; where clients are alike there is none.

**Pixels and start.** Standardised pixels save about a quarter of the rounds at 0 %, a random start
changes little (5 epochs, above); neither brings us nearer to the published rounds.

**FedProx.** mu = 1 pulls every local path back to x with a force of the order of the curvature
itself, so it gives up what local steps gain; it needs more rounds than FedAvg wherever local steps
help at all."""


TABLE_3 = Reproduction(
    name="table3",
    shows="rounds to 0.5 on EMNIST: algorithms, epochs and similarities",
    source="Karimireddy et al. 2020, Table 3",
    minutes=120,
    cells=cells,
    sentences=SENTENCES,
    table=table,
    figure=figure,
    discussion=_DISCUSSION,
    more=more,
)
