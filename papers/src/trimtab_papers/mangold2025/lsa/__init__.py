"""Federated TD: FedLSA stays at its bias, SCAFFLSA (SCAFFOLD II) does not; both speed up with N.

Mangold et al., NeurIPS 2024, named by the slides under federated reinforcement learning. TD(0) with
linear features on a random Garnet MDP for each client: linear systems that are not symmetric.
"""

from trimtab_papers.mangold2025.lsa.cells import cells
from trimtab_papers.mangold2025.lsa.figure import figure
from trimtab_papers.mangold2025.lsa.sentences import SENTENCES
from trimtab_papers.mangold2025.lsa.table import table
from trimtab_papers.reproduction import Reproduction

LSA = Reproduction(
    name="lsa",
    shows="federated TD: FedLSA stays at its bias, SCAFFLSA does not; its variance falls as 1/N",
    source="Mangold et al. 2025, slides 'Federated Reinforcement Learning' and 'Scaffold'",
    minutes=6,
    cells=cells,
    sentences=SENTENCES,
    table=table,
    figure=figure,
    discussion="The slides show no experiment on TD; MDPs, features and steps are ours (30 states, "
    "4 features, discount 0.9, gamma = 0.5), and a seed draws the MDPs as well as the transitions. "
    "The slides' sentences on FedAvg and Scaffold are about functions, and are judged here where "
    "there is none. A trajectory starts anew in each round from the stationary distribution; what "
    "its memory adds to the mean of both algorithms is of the order of the step and is no "
    "heterogeneity, so no control removes it.",
)
