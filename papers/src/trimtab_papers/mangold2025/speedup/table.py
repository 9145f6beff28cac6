"""The trace of the covariance beside the predicted one, for each N."""

from trimtab_papers.mangold2025.speedup.cells import ALGORITHMS, PROBLEMS, by_size
from trimtab_papers.numbers import spread
from trimtab_papers.records import Records


def table(records: Records) -> str:
    """Return a row for each problem and N."""
    rows = [
        "| problem | N | predicted trace | FedAvg | SCAFFOLD | E\\|x - x*\\|²: FedAvg | SCAFFOLD |",
        "|---|---|---|---|---|---|---|",
    ]
    for problem in PROBLEMS:
        for N, seeds in by_size(records, problem).items():
            laws = {name: [seed.laws[name] for seed in seeds] for name in ALGORITHMS}
            traces = [spread([law.trace for law in laws[name]]) for name in ALGORITHMS]
            errors = [spread([law.mean_square_error for law in laws[name]]) for name in ALGORITHMS]
            numbers = " | ".join([f"{seeds[0].predicted_trace:.3g}", *traces, *errors])
            rows.append(f"| {problem} | {N} | {numbers} |")
    return "\n".join(rows)
