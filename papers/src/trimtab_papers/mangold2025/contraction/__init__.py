"""Contraction: two chains with common noise approach each other as fast as the slides say.

Mangold et al., 2025 (slides "FedAvg (with stochastic gradients) converges!", "Scaffold also
converges!", "New Convergence Rate for Scaffold", "Linear Speed-Up!").
"""

from trimtab_papers.mangold2025.contraction.cells import cells
from trimtab_papers.mangold2025.contraction.figure import figure
from trimtab_papers.mangold2025.contraction.sentences import SENTENCES
from trimtab_papers.mangold2025.contraction.table import table
from trimtab_papers.reproduction import Reproduction

CONTRACTION = Reproduction(
    name="contraction",
    shows="FedAvg and SCAFFOLD contract by (1 - gamma mu)^H a round; gradients fall as 1/N",
    source="Mangold et al. 2025, slides '… converges!' and 'Linear Speed-Up!'",
    minutes=5,
    cells=cells,
    sentences=SENTENCES,
    table=table,
    figure=figure,
    discussion="The distance of chains with common noise bounds W2 from above, so a share below 1 "
    "proves the bound for these problems, starts and rounds. mu and L are those of the clients "
    "over all x (for the logistic regressions mu is their l2), gamma = 1/(H L). The slides print "
    "the contraction of SCAFFOLD for x; its controls are part of the state, and the norm in which "
    "it contracts counts them. Where clients are flat in different directions their mean contracts "
    "faster than the bound; with one flat axis for all, at its rate. The gradients are counted "
    "with H = 10 and the best of a few steps around the one whose variance is half the target, "
    "all of them below 1/(H L).",
)
