"""SCAFFOLD against FedAvg: rounds and bytes until nine test digits in ten are right.

scikit-learn's digits, sorted by label over ten clients, so that each of them has seen one digit or
two; logistic regression; the same ten local steps of the same size for both. Takes about 3 s and
prints

    FedAvg    reaches accuracy 0.9 after 29 rounds and 1.5 MB
    Scaffold  reaches accuracy 0.9 after 9 rounds and 0.9 MB
"""

from trimtab import FedAvg, Scaffold, simulate
from trimtab.problems import digits_problem

if __name__ == "__main__":
    problem = digits_problem()
    for algorithm in (FedAvg(eta_l=0.3, K=10), Scaffold(eta_l=0.3, K=10)):
        sent = 0
        for round in simulate(algorithm, problem):
            sent += round.bytes_down + round.bytes_up
            if problem.evaluate(round.x)["accuracy"] >= 0.9:
                break
        name = type(algorithm).__name__
        print(f"{name:9} reaches accuracy 0.9 after {round.r} rounds and {sent / 1e6:.1f} MB")
