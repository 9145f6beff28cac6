"""Sentences of the sources without a reproduction: those that tests hold, and the unjudged."""

from typing import NamedTuple

from trimtab_papers.verdicts import not_judged

_BOUND = (
    "an upper bound whose constants the paper hides; runs can only fail to contradict it. What "
    "follows from its terms is judged in theorem2, local-steps and tables 3 and 4"
)
_LITERATURE = "it compares with other papers' proofs, not with what a run does"

UNJUDGED = (
    not_judged(
        "The rates of FedAvg in Theorem I, for strongly convex, convex and non-convex functions.",
        "Karimireddy et al. 2020, section 3.1",
        _BOUND,
    ),
    not_judged(
        "These rates are tighter than those known before, and nearly optimal.",
        "Karimireddy et al. 2020, sections 1 and 3",
        _LITERATURE,
    ),
    not_judged(
        "The first result to quantify the usefulness of local steps in distributed optimisation.",
        "Karimireddy et al. 2020, abstract",
        _LITERATURE,
    ),
    not_judged(
        "Option I can be more stable than II depending on the application; II usually suffices.",
        "Karimireddy et al. 2020, section 4",
        "it says neither when nor how much; local-steps shows where the two options part",
    ),
    not_judged(
        "Tuning FedProx's regularisation may improve it.",
        "Karimireddy et al. 2020, sections 7.1 and 7.3",
        "the paper keeps it at 1 to be fair, and so do we",
    ),
    not_judged(
        "FedAvg degrades with heterogeneous clients (a figure of Zhao et al.).",
        "Karimireddy, slides, When does FedAvg fail?",
        "another paper's figure, without its setting; table3 has our own at three similarities",
    ),
    not_judged(
        "If you use FedAvg, use separate server and client step sizes.",
        "Karimireddy, slides, summary of SCAFFOLD",
        "advice; all experiments of the paper keep the step at the server at 1",
    ),
    not_judged(
        "The lower bounds of the table of Mime's rates.",
        "Karimireddy, slides, Convergence rates",
        "a statement about every algorithm, which runs of a few cannot judge",
    ),
    not_judged(
        "SCAFFOLD on CIFAR-10 with ResNet-18, a server and several clients, until the target.",
        "report, section 4.2",
        "it describes a procedure and reports no number; examples/cifar10_federation follows it",
    ),
)


class Identity(NamedTuple):
    """A sentence that is exact, so that a test holds it and no record can."""

    text: str
    where: str
    test: str


_RELATIONS, _BIAS = "tests/algorithms/test_relations.py", "tests/algorithms/test_bias.py"
_CONVERGENCE = "tests/algorithms/test_convergence.py"

IDENTITIES = (
    Identity(
        "If c_i is always 0, SCAFFOLD becomes FedAvg.",
        "Karimireddy et al. 2020, section 4",
        f"{_RELATIONS}::test_scaffold_whose_controls_stay_zero_is_fedavg",
    ),
    Identity(
        "With full batches, K = 1 and S = 1, SCAFFOLD with option I is SAGA.",
        "Karimireddy et al. 2020, section 5",
        f"{_RELATIONS}::test_scaffold_with_one_client_and_one_step_is_saga",
    ),
    Identity(
        "For identical functions SCAFFOLD, and even FedAvg, improve linearly with local steps.",
        "Karimireddy et al. 2020, section 6",
        f"{_RELATIONS}::test_with_equal_hessians_a_round_is_K_steps_of_gradient_descent",
    ),
    Identity(
        "SCAFFOLD converges at a linear rate with client sampling.",
        "Karimireddy et al. 2020, section 5",
        f"{_CONVERGENCE}::test_scaffold_converges_linearly_with_sampling",
    ),
    Identity(
        "FedAvg does not converge to the optimum.",
        "Karimireddy, slides, Client updates: FedAvg",
        f"{_CONVERGENCE}::test_fedavg_with_the_same_steps_stays_away",
    ),
    Identity(
        "FedAvg's heterogeneity bias vanishes when Hessians or gradients at x* are equal.",
        "Mangold, slides, Heterogeneity bias",
        f"{_BIAS}::test_fedavg_has_no_bias_with",
    ),
)
