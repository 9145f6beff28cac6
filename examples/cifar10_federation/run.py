"""ResNet-20 on CIFAR-10: a server and several clients, each a process with keys and TLS.

The training images are cut into disjoint shards, one for each client, with labels in unequal parts
(Dirichlet, alpha = 0.5). The rounds of each algorithm go on until the target accuracy is met, its
minutes are used up, or R is reached.

    python run.py --algorithms scaffold,fedavg --target 0.5 --minutes 180 --out here

leaves here/scaffold.json, here/fedavg.json and a plot of both. What was stopped or killed goes on
when the same command is given again; with --record it only writes down what is there by now.
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.ticker import MaxNLocator
from safetensors.torch import load_file, save_file

from trimtab._files import write_json
from trimtab._processes import Child, tail
from trimtab._version import environment
from trimtab.algorithms.registry import kind
from trimtab.federation.processes.ports import free_port
from trimtab.federation.protocol.statistics import saved
from trimtab.federation.setup.site import unpack
from trimtab.federation.setup.status import progress
from trimtab.federation.storage.ledger import read_standing
from trimtab.problems.data.images import cifar10
from trimtab.problems.partition import dirichlet
from trimtab.problems.supervised.problem import Supervised

HERE = Path(__file__).parent
ALPHA = 0.5
LIMITS = ("R", "target", "minutes")  # These may change when a run goes on.
MEANING = {
    "seconds": "of committed rounds; not of starting, of repeated rounds and of the last measuring",
    "accuracy": "of x after r rounds, on the test images of all clients together; each normalises "
    "by its own statistics, but the last x by those of all clients",
    "all_tests": "the last x, by the statistics of all clients, on all test images of CIFAR-10",
}


def main(words=None):
    options = arguments(words)
    check_settings(options)
    if not options.record:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        prepare(options)
        for algorithm in options.algorithms:
            while reason(options, algorithm) is None:
                serve(options, algorithm)
                record(options)
    record(options)


def arguments(words):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithms", type=lambda names: names.split(","), default=["scaffold"])
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--samples", type=int, help="training images of each client; else all")
    parser.add_argument("--tests", type=int, help="test images of each client; else all")
    parser.add_argument("-R", type=int, default=1000, help="most rounds")
    parser.add_argument("--target", type=float, help="accuracy at which to stop")
    parser.add_argument("--minutes", type=float, default=60, help="of each algorithm's rounds")
    parser.add_argument("--eta-l", type=float, default=0.05)
    parser.add_argument("--K", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--data", type=Path, help="folder of data files")
    parser.add_argument("--record", action="store_true", help="run nothing")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args(words)


def settings(options):
    """Return what the record says of the options."""
    silent = ("algorithms", "data", "out", "record")
    return {k: v for k, v in vars(options).items() if k not in silent} | {"alpha": ALPHA}


def names_of(options):
    return [f"client{i}" for i in range(1, options.sites + 1)]


def check_settings(options):
    """Note the settings of a new folder; refuse others than an old one has, but for the limits."""
    fixed = {k: v for k, v in settings(options).items() if k not in LIMITS}
    noted = options.out / "settings.json"
    if not noted.exists():
        options.out.mkdir(parents=True, exist_ok=True)
        write_json(noted, fixed)
    elif json.loads(noted.read_text()) != fixed:
        sys.exit(f"{options.out} was begun with other settings; pass those of {noted}.")


def prepare(options):
    """Cut the data, and make a federation for each algorithm; each of them as a whole or not."""
    for name in ("data", *options.algorithms):
        if not (options.out / name).exists():
            new = options.out / f"{name}.new"
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            cut(options, new) if name == "data" else found(options, new)
            new.rename(options.out / name)


def cut(options, folder):
    """Write each client's shard; no image is in two of them."""
    (X, y), (X_test, y_test), _ = cifar10(options.data, "standardised")
    shards = dirichlet(y, options.sites, alpha=ALPHA)
    tests = torch.arange(len(y_test)).chunk(options.sites)
    assert len(torch.cat(list(shards)).unique()) == len(y)
    for name, rows, test in zip(names_of(options), shards, tests, strict=True):
        draw = torch.Generator().manual_seed(0)
        rows = rows[torch.randperm(len(rows), generator=draw)][: options.samples]
        test = test[: options.tests]
        shard = {"X": X[rows], "y": y[rows], "X_test": X_test[test], "y_test": y_test[test]}
        save_file(shard, folder / f"{name}.safetensors")


def found(options, folder):
    """Make the operator's folder and those of the clients."""
    operator, names = folder / "operator", names_of(options)
    init = ["init", operator, "--sites", ",".join(names), "--problem", HERE / "problem.py"]
    init += ["--batch", str(options.batch), "--port", str(free_port())]
    subprocess.run(
        [sys.executable, "-m", "trimtab", "federate", *init], check=True, stdout=subprocess.DEVNULL
    )
    for name in names:
        unpack(operator / "sites" / f"{name}.tar.gz", folder)


def serve(options, algorithm):
    """Run the server and the clients until the rounds are over or their minutes used up.

    They are children that end with this process, even if it is killed. If nothing is left to do
    but to measure the last x and to audit the controls, they do that.
    """
    folder, names = options.out / algorithm, names_of(options)
    rounds = rounds_of(folder)
    over = out_of_time(options, rounds)
    R, target = len(rounds) if over else options.R, options.target
    words = ["resume"] if progress(folder / "operator" / "state") else ["server"]
    words += [folder / "operator", "-R", R, *(["--target", target] if target else []), "--json"]
    if words[0] == "server":
        words += ["--algorithm", algorithm, "--eta-l", options.eta_l, "--K", options.K]
        words += ["--round-timeout", 7200]
    server = child(folder, "server", words, piped=True)
    shards = [options.out / "data" / f"{name}.safetensors" for name in names]
    clients = [
        child(folder, name, ["site", folder / name, "--data", shard])
        for name, shard in zip(names, shards, strict=True)
    ]
    try:
        for each in (server, *clients):
            each.start()
        while server.alive and (over or not out_of_time(options, rounds_of(folder))):
            time.sleep(0.5)
            for client in clients:
                client.supervise()
        if not server.alive:
            outcome = server.stdout.read()
            if server.process.wait():
                sys.exit(f"the server ended: {tail(server.output)}; see {server.output}.")
            all_tests = {"all_tests": on_all_tests(options, folder)}
            write_json(folder / "outcome.json", json.loads(outcome) | all_tests)
    finally:
        for client in clients:
            client.terminate()
        for each in (*clients, server):  # A client takes its leave while the server is there.
            each.stop(timeout=60)


def child(folder, name, words, piped=False):
    """Return a process of `trimtab federate`; one thread each, as they outnumber the cores."""
    return Child(
        name,
        "trimtab.cli:main",
        ["federate", *map(str, words)],
        environment={"OMP_NUM_THREADS": "1"},
        output=folder / f"{name}.log",
        piped=piped,
    )


def rounds_of(folder):
    """Return the journal's lines of rounds."""
    begun = progress(folder / "operator" / "state")
    return begun.rounds if begun else []


def out_of_time(options, rounds):
    """Return whether the committed rounds took their minutes; pauses between runs do not count."""
    return sum(line["seconds"] for line in rounds) >= 60 * options.minutes


def outcome_of(folder, rounds):
    """Return what the server printed at the end of these rounds; nothing if it is not there yet."""
    path = folder / "outcome.json"
    outcome = json.loads(path.read_text()) if path.exists() else {}
    return outcome if outcome.get("rounds") == len(rounds) else {}


def reason(options, algorithm):
    """Return why the rounds of an algorithm have ended; None if they have not."""
    rounds = rounds_of(options.out / algorithm)
    outcome = outcome_of(options.out / algorithm, rounds)
    if outcome.get("reached"):
        return f"the target accuracy {options.target} was met"
    if outcome and out_of_time(options, rounds):
        return f"the {options.minutes:g} minutes were used up"
    return f"R={options.R} was reached" if outcome and len(rounds) >= options.R else None


def on_all_tests(options, folder):
    """Measure the last x on every test image of CIFAR-10, where the clients have some of them."""
    sys.path.insert(0, str(HERE))
    from problem import model

    module, loss = model()
    _, test, _ = cifar10(options.data, "standardised")
    problem, state = Supervised(module, loss, [test], test), folder / "operator" / "state"
    standing = read_standing(state)
    with saved(state, problem, standing.r):  # The clients' statistics, not those of the tests.
        return problem.evaluate(standing.server.x)


def record(options):
    """Write what is there of each algorithm, ended or not, and draw it."""
    figure, axes = plt.subplots(1, 2, figsize=(7, 2.6), layout="constrained")
    for algorithm in options.algorithms:
        curve, style = write_record(options, algorithm), kind(algorithm)
        for axis, name in zip(axes, ("accuracy", "loss"), strict=True):
            r, numbers = [point["r"] for point in curve], [point[name] for point in curve]
            axis.plot(r, numbers, ".-", label=style.title, color=style.colour)
            axis.set(xlabel="round", ylabel=name)
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if options.target:
        axes[0].axhline(options.target, color="grey", linewidth=0.8, linestyle=":")
    axes[0].legend(frameon=False)
    for suffix in ("svg", "png"):
        figure.savefig(options.out / f"curves.{suffix}", dpi=150)
    plt.close(figure)


def write_record(options, algorithm):
    """Write the record of an algorithm, say how far it came, and return its curve.

    A point has accuracy and loss of x after r rounds, over the test images of all clients, and what
    the r-th round took. The clients measure x when they receive it: in the round after.
    """
    folder = options.out / algorithm
    rounds = rounds_of(folder)
    outcome = outcome_of(folder, rounds)
    measured = [line["metrics"] for line in rounds] + ([outcome["metrics"]] if outcome else [])
    facts = ("r", "seconds", "bytes_up", "bytes_down", "drift")
    took = [{"r": 0}] + [{name: line[name] for name in facts} for line in rounds]
    curve = [point | metrics for point, metrics in zip(took, measured, strict=False)]
    best = max(curve, key=lambda point: point["accuracy"], default={})
    about = {"algorithm": algorithm, "settings": settings(options), "versions": environment()}
    about |= {"ended": reason(options, algorithm) or "not yet", "rounds": len(rounds)}
    about |= {"seconds": round(sum(line["seconds"] for line in rounds))}
    about |= {"best": {name: best.get(name) for name in ("r", "accuracy")}}
    about |= {"data": sizes(options), "audit": outcome.get("audit")}
    about |= {"all_tests": outcome.get("all_tests"), "meaning": MEANING, "curve": curve}
    (options.out / f"{algorithm}.json").write_text(json.dumps(about, indent=1) + "\n")
    print(
        f"{algorithm}: {len(rounds)} rounds, {about['seconds'] / 60:.1f} minutes, best accuracy "
        f"{best.get('accuracy')} after round {best.get('r')}; ended: {about['ended']}."
    )
    return curve


def sizes(options):
    """Return how many images of each class a client trains on, and how many it tests on."""
    shards = {n: load_file(options.out / "data" / f"{n}.safetensors") for n in names_of(options)}
    return {
        name: {"classes": shard["y"].bincount(minlength=10).tolist(), "tests": len(shard["y_test"])}
        for name, shard in shards.items()
    }


if __name__ == "__main__":
    main()
