"""Published numbers, each with its source. None: not reached, '1k+' in the paper."""

# Karimireddy et al. 2020, Table 3: rounds to 0.5 test accuracy, at similarity 0, 10 and 100 %.
TABLE3: dict[tuple[str, int], tuple[int | None, int | None, int | None]] = {
    ("sgd", 1): (317, 365, 416),
    ("scaffold", 1): (77, 62, 60),
    ("scaffold", 5): (152, 20, 10),
    ("scaffold", 10): (286, 16, 7),
    ("scaffold", 20): (266, 11, 4),
    ("fedavg", 1): (258, 74, 83),
    ("fedavg", 5): (428, 34, 10),
    ("fedavg", 10): (711, 25, 6),
    ("fedavg", 20): (None, 18, 4),
    ("fedprox", 1): (None, 979, 459),
    ("fedprox", 5): (None, 794, 351),
    ("fedprox", 10): (None, 894, 308),
    ("fedprox", 20): (None, 916, 351),
}

# Table 4: rounds to 0.45, 5 epochs, at similarity 0 and 10 %, by the clients sampled of 100.
TABLE4: dict[tuple[str, int], tuple[int | None, int | None]] = {
    ("scaffold", 20): (143, 9),
    ("scaffold", 5): (290, 13),
    ("scaffold", 1): (790, 28),
    ("fedavg", 20): (179, 12),
    ("fedavg", 5): (334, 17),
    ("fedavg", 1): (None, 35),
}

# Table 5: best test accuracy in 1,000 rounds, two-layer network, 5 epochs, similarity 0 and 10 %.
TABLE5: dict[str, tuple[float, float]] = {
    "sgd": (0.766, 0.764),
    "fedavg": (0.787, 0.828),
    "scaffold": (0.801, 0.842),
}
