"""Does the advice of `compare` depend on its seed? Five problems, two targets, five base seeds.

    python benchmarks/stability.py            # about an hour on two cores; goes on where it stopped

Each comparison has one minute. results/studies/stability.json has what was advised each time; the
page docs/studies.md tells how often it was the same.
"""

import json
from pathlib import Path

from studies.problems import PROBLEMS

from trimtab import compare
from trimtab._version import environment

OUT = Path("results/studies/stability.json")
ALGORITHMS = ["sgd", "fedavg", "scaffold", "mimelite", "mime"]
SHARES = (0.8, 0.95)  # of the way from the start to the best that a first comparison finds
SEEDS = range(0, 50, 10)  # far apart: a comparison also uses the five seeds after its own


def main():
    """Go on with the comparisons that are missing."""
    done = json.loads(OUT.read_text()) if OUT.exists() else {"versions": environment(), "cases": {}}
    for name, (make, metric) in PROBLEMS.items():
        problem = make()
        for share in SHARES:
            key = f"{name}-{share}"
            case = done["cases"].setdefault(key, {"runs": []})
            if "target" not in case:
                case["target"] = target(problem, metric, share)
                write(done)
            for seed in SEEDS[len(case["runs"]) :]:
                case["runs"].append(advised(problem, metric, case["target"], seed))
                write(done)
                print(key, seed, case["runs"][-1]["advice"], flush=True)
    print("the advice holds in {holds} of {cases}, and is the same in {same}.".format(**told(done)))


def told(done):
    """Return in how many cases the advice holds for all base seeds, and in how many it is the same.

    It holds if some algorithm is, with every seed, the one advised or one to which no difference
    was found: a reader who takes that one is never contradicted.
    """
    advised = [[run["advised"] for run in case["runs"]] for case in done["cases"].values()]
    same = [len({each[0] if each else None for each in case}) == 1 for case in advised]
    holds = [bool(set.intersection(*map(set, case))) for case in advised]
    return {"cases": len(advised), "same": sum(same), "holds": sum(holds)}


def target(problem, metric, share):
    """Return a target between the start and the best of a comparison without one."""
    found = compare(problem, ["scaffold"], metric=metric, K=5, R=100, minutes=0.5, seeds=1, seed=99)
    start = problem.evaluate(problem.x0())[found.metric]
    return float(f"{start + share * (found.entries[0].best - start):.4g}")


def advised(problem, metric, wanted, seed):
    """Return what a comparison advises, and what it found."""
    how = {"metric": metric, "target": wanted, "seed": seed, "minutes": 1.0, "R": 100}
    found = compare(problem, ALGORITHMS, **how)
    rows = {e.label: [e.rounds, e.interval, e.reached, e.test] for e in found.entries}
    about = {"budget": found.about.budget, "complete": found.about.complete}
    said = {"advice": found.advice, "advised": found.advised, "slack": found.goal.slack}
    return {"seed": seed, **said, "entries": rows} | about


def write(done):
    """Write what there is."""
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(done, indent=1) + "\n")


if __name__ == "__main__":
    main()
