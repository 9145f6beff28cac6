"""How many local steps are worth taking: rounds against K, for SCAFFOLD's options I and II.

Karimireddy et al., 2020, section 6 (Theorem IV; slides "Why take more than 1 step?"): on quadratics
rounds fall as 1/K until K is about L/delta, then stay at about delta/mu. Two clients whose Hessians
are H + D and H - D, D = min(H, delta), with eigenvalues of H from mu to L - delta: convex, delta
apart, smoothness L = 1. A round is a linear map of (x, c_1, c_2) in each eigendirection, so the
rate of every step size is known exactly; the best step of each K is then run.
"""

from trimtab_papers.reproduction import Reproduction
from trimtab_papers.scaffold2020.local_steps.cells import cells
from trimtab_papers.scaffold2020.local_steps.figure import figure
from trimtab_papers.scaffold2020.local_steps.sentences import SENTENCES
from trimtab_papers.scaffold2020.local_steps.table import table

LOCAL_STEPS = Reproduction(
    name="local-steps",
    shows="rounds fall with K until K is about L/delta (option II: at most sqrt(L/mu)), then stay",
    source="Karimireddy et al. 2020, section 6 and Theorem IV",
    minutes=2.5,
    cells=cells,
    sentences=SENTENCES,
    table=table,
    figure=figure,
    discussion="The paper states a bound and shows no experiment. The law is option I's; option "
    "II's controls are means over the round's local path and lag behind: while L/delta >= "
    "sqrt(L/mu) it stays at sqrt(L/mu) rounds per e-fold, from K of about half of that (a finding "
    "of ours, not of the paper). Where clients differ more it is not so: at delta/mu = 300 of 1000 "
    "option II needs fewer rounds than sqrt(L/mu), and fewer than option I, and gains from K far "
    "beyond L/delta. So the rule "
    "min(L/delta, sqrt(L/mu)) is too small for option II there. Points are missing where a run "
    "would be long; the lines are exact.",
)
