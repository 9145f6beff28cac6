"""Table 3 of the SCAFFOLD paper in small: rounds to 0.9 on digits, by similarity and epochs.

Ten clients with scikit-learn's digits: 0, 10 or 100 % of them dealt at random, the rest sorted by
label. Five clients take part in a round, and each cell has the best of three step sizes. As in the
paper, FedAvg loses what local steps gain where clients differ, and SCAFFOLD does not. `trimtab
reproduce table3` is the whole table, on EMNIST. Takes about 15 s and prints

    rounds to 0.9    0 %   10 %  100 %
    SGD                 33     33     13
    FedAvg, 1 ep.       37     14      4
    FedAvg, 5 ep.       36      6      1
    SCAFFOLD, 1 ep.     16     14      4
    SCAFFOLD, 5 ep.     14      6      1
"""

from trimtab import Epochs, FedAvg, Scaffold, Sgd, load_problem, simulate

ROWS = {
    "SGD": lambda step: Sgd(eta=10 * step),
    "FedAvg, 1 ep.": lambda step: FedAvg(eta_l=step, K=Epochs(1)),
    "FedAvg, 5 ep.": lambda step: FedAvg(eta_l=step, K=Epochs(5)),
    "SCAFFOLD, 1 ep.": lambda step: Scaffold(eta_l=step, K=Epochs(1)),
    "SCAFFOLD, 5 ep.": lambda step: Scaffold(eta_l=step, K=Epochs(5)),
}


def rounds(algorithm, problem, limit: int) -> int:
    """Return the first round with nine test digits in ten right, or the limit."""
    for round in simulate(algorithm, problem, S=5):
        if round.r == limit or problem.evaluate(round.x)["accuracy"] >= 0.9:
            return round.r


def main(limit: int = 60) -> None:
    problems = [load_problem("digits", partition=f"similarity:{s}") for s in (0, 10, 100)]
    print("rounds to 0.9    0 %   10 %  100 %")
    for name, made in ROWS.items():
        cells = [min(rounds(made(s), p, limit) for s in (0.1, 0.3, 1.0)) for p in problems]
        print(f"{name:15}" + "".join(f"{cell:7}" for cell in cells))


if __name__ == "__main__":
    main()
