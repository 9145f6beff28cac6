"""FedAvg's bias and its cure: SCAFFOLD, and Richardson-Romberg extrapolation.

Mangold et al., 2025 (slides "Numerical Illustration: FedAvg", (a) H = 10, (b) H = 100). Logistic
regression with l2 > 0, four clients, all of them in every round. Full batches: fixed points against
the first-order formula, as the step falls. Mini-batches drawn i.i.d. with replacement: the mean of
many chains against the formula with its second, stochastic term.
"""

from trimtab_papers.mangold2025.bias.cells import cells
from trimtab_papers.mangold2025.bias.figure import figure
from trimtab_papers.mangold2025.bias.sentences import SENTENCES
from trimtab_papers.mangold2025.bias.table import table
from trimtab_papers.reproduction import Reproduction

BIAS = Reproduction(
    name="bias",
    shows="FedAvg stops where the bias formula says; SCAFFOLD and Richardson-Romberg go on",
    source="Mangold et al. 2025, slides 'Numerical Illustration: FedAvg'",
    minutes=1,
    cells=cells,
    sentences=SENTENCES,
    table=table,
    figure=figure,
    discussion="The slides name neither data nor step; ours are synthetic, with four clients whose "
    "truths and feature scales differ. Their steps are small enough for a formula of first order; "
    "what remains of the gap at H = 100 is second order, and halves with gamma above. With "
    "mini-batches SCAFFOLD's remaining bias (the dashed line below) is smaller than what the mean "
    "of the chains can resolve.",
)
