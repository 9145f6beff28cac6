"""Published numbers, each with its source; they are by similarity in per cent, and by algorithm."""

# Karimireddy et al. 2020, Table 3: rounds to 0.5 test accuracy, by (algorithm, epochs); None where
# the paper says '1k+'.
TABLE3: dict[tuple[str, int], dict[float, int | None]] = {
    ("sgd", 1): {0: 317, 10: 365, 100: 416},
    ("scaffold", 1): {0: 77, 10: 62, 100: 60},
    ("scaffold", 5): {0: 152, 10: 20, 100: 10},
    ("scaffold", 10): {0: 286, 10: 16, 100: 7},
    ("scaffold", 20): {0: 266, 10: 11, 100: 4},
    ("fedavg", 1): {0: 258, 10: 74, 100: 83},
    ("fedavg", 5): {0: 428, 10: 34, 100: 10},
    ("fedavg", 10): {0: 711, 10: 25, 100: 6},
    ("fedavg", 20): {0: None, 10: 18, 100: 4},
    ("fedprox", 1): {0: None, 10: 979, 100: 459},
    ("fedprox", 5): {0: None, 10: 794, 100: 351},
    ("fedprox", 10): {0: None, 10: 894, 100: 308},
    ("fedprox", 20): {0: None, 10: 916, 100: 351},
}

# Table 4: rounds to 0.45 with 5 epochs, by (algorithm, clients sampled of 100); None: '1k+'.
TABLE4: dict[tuple[str, int], dict[float, int | None]] = {
    ("scaffold", 20): {0: 143, 10: 9},
    ("scaffold", 5): {0: 290, 10: 13},
    ("scaffold", 1): {0: 790, 10: 28},
    ("fedavg", 20): {0: 179, 10: 12},
    ("fedavg", 5): {0: 334, 10: 17},
    ("fedavg", 1): {0: None, 10: 35},
}

# Table 5: best test accuracy of a two-layer network in 1,000 rounds with 5 epochs, by algorithm.
TABLE5: dict[str, dict[float, float]] = {
    "sgd": {0: 0.766, 10: 0.764},
    "fedavg": {0: 0.787, 10: 0.828},
    "scaffold": {0: 0.801, 10: 0.842},
}


def table3(algorithm: str, epochs: int, similarity: float) -> int | None:
    """Return the rounds of Table 3; None where the paper says 1k+, or nothing.

    >>> table3("scaffold", 5, 10), table3("fedavg", 20, 0), table3("scaffold", 2, 10)
    (20, None, None)
    """
    return TABLE3.get((algorithm, epochs), {}).get(similarity)
