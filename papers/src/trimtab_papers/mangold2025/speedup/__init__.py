"""Linear speed-up: the stationary variance of FedAvg and SCAFFOLD falls as 1/N, controls and all.

Mangold et al., 2025 (slide "Numerical Illustration: Speed-Up of Scaffold"). All clients in every
round, mini-batches drawn i.i.d.; thousands of chains side by side from x*, until their law is
stationary. Its covariance beside Sigma with Hess Sigma + Sigma Hess = (eta_g gamma/N) C.
"""

from trimtab_papers.mangold2025.speedup.cells import cells
from trimtab_papers.mangold2025.speedup.figure import figure
from trimtab_papers.mangold2025.speedup.sentences import SENTENCES
from trimtab_papers.mangold2025.speedup.table import table
from trimtab_papers.reproduction import Reproduction

SPEEDUP = Reproduction(
    name="speedup",
    shows="the stationary variance of SCAFFOLD and FedAvg falls as 1/N, as predicted",
    source="Mangold et al. 2025, slides 'Numerical Illustration: Speed-Up of Scaffold'",
    minutes=1.5,
    cells=cells,
    sentences=SENTENCES,
    table=table,
    figure=figure,
    discussion="The slides print (gamma/N) C; the A^-1 (the solution of a Lyapunov equation) that "
    "their own bias formula has belongs here too. The quadratics come in two kinds, N/2 clients of "
    "each, so that only N changes; the logistic regressions are N different clients.",
)
