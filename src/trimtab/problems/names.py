"""The problems that come with trimtab, by name. No torch is needed to know them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Builtin:
    """A problem that has a name: what makes it in the catalogue, and the target it suggests."""

    make: str
    shows: str
    target: float | None = None


PROBLEMS = {
    "digits": Builtin(
        "digits_problem", "scikit-learn's digits, sorted by label over 10 clients", target=0.95
    ),
    "quadratic": Builtin("quadratic_problem", "10 quadratics in 20 dimensions, no noise"),
    "emnist": Builtin("emnist_problem", "EMNIST, sorted by label over 100 clients", target=0.5),
    "cifar10": Builtin("cifar10_problem", "CIFAR-10 with ResNet-18 over 10 clients"),
    "a9a": Builtin("a9a_problem", "census data a9a, sorted by label over 10 clients", target=0.84),
    "heart": Builtin("heart_problem", "heart disease in four hospitals", target=0.75),
    "concrete": Builtin(
        "concrete_problem", "strength of concrete, sorted over 10 clients", target=0.39
    ),
    "shakespeare": Builtin("shakespeare_problem", "the next character, over 50 speakers"),
    "garnet": Builtin(
        "garnet_problem", "TD learning, a random Garnet MDP for each of 10 clients", target=0.01
    ),
}
