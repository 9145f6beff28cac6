"""ResNet-18 on CIFAR-10: a server and several clients, each a process with keys and TLS.

The training images are cut into disjoint shards, one for each client, with labels in unequal parts
(Dirichlet, alpha = 0.5); the rounds go on until the target accuracy is met or R is reached.

    python run.py --sites 3 --samples 200 --tests 100 -R 10 --K 3 --batch 32 --eta-l 0.01 --out here

leaves the federation in here/, the record in here/curve.json and its plot beside it.
`results/federation/cifar10.json` is such a record.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from safetensors.torch import save_file

from trimtab._version import environment
from trimtab.federation.processes.site import free_port
from trimtab.federation.storage.ledger import read_journal, read_standing
from trimtab.problems.data.cifar10 import cifar10
from trimtab.problems.partition import dirichlet

HERE = Path(__file__).parent
TRIMTAB = [sys.executable, "-m", "trimtab", "federate"]


def main():
    options = arguments()
    options.out.mkdir(parents=True)
    names = [f"client{i}" for i in range(1, options.sites + 1)]
    operator, port = options.out / "operator", str(free_port())
    init = ["init", operator, "--sites", ",".join(names), "--problem", HERE / "problem.py"]
    subprocess.run([*TRIMTAB, *init, "--batch", str(options.batch), "--port", port], check=True)
    cut(options, names)
    started, clients = time.time(), []
    try:
        for name in names:
            archive = operator / "sites" / f"{name}.tar.gz"
            subprocess.run(["tar", "xzf", archive, "-C", options.out], check=True)
            client = ["site", options.out / name, "--data", options.out / f"{name}.safetensors"]
            log = open(options.out / f"{name}.log", "w")  # noqa: SIM115
            clients.append(subprocess.Popen([*TRIMTAB, *client], stdout=log, stderr=log))
        rounds = ["server", operator, "--algorithm", options.algorithm, "-R", str(options.R)]
        rounds += ["--eta-l", str(options.eta_l), "--K", str(options.K), "--round-timeout", "7200"]
        rounds += ["--target", str(options.target)] if options.target else []
        done = subprocess.run([*TRIMTAB, *rounds, "--json"], check=True, stdout=subprocess.PIPE)
    finally:
        for client in clients:
            client.send_signal(signal.SIGTERM)
        for client in clients:
            client.wait()
    record(options, json.loads(done.stdout), time.time() - started)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--samples", type=int, help="training images of each client; else all")
    parser.add_argument("--tests", type=int, help="test images of each client; else all")
    parser.add_argument("-R", type=int, default=100)
    parser.add_argument("--target", type=float, help="accuracy at which to stop")
    parser.add_argument("--algorithm", default="scaffold")
    parser.add_argument("--eta-l", type=float, default=0.05)
    parser.add_argument("--K", type=int, default=10)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--data", type=Path, help="folder of data files")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def cut(options, names):
    """Write each client's shard; no image is in two of them."""
    (X, y), (X_test, y_test), _ = cifar10(options.data, "standardised")
    shards = dirichlet(y, len(names), alpha=0.5)
    tests = torch.arange(len(y_test)).chunk(len(names))
    assert len(torch.cat(list(shards)).unique()) == len(y)
    for name, rows, test in zip(names, shards, tests, strict=True):
        draw = torch.Generator().manual_seed(0)
        rows = rows[torch.randperm(len(rows), generator=draw)][: options.samples]
        test = test[: options.tests]
        shard = {"X": X[rows], "y": y[rows], "X_test": X_test[test], "y_test": y_test[test]}
        save_file(shard, options.out / f"{name}.safetensors")


def record(options, outcome, seconds):
    """Write the curve and draw it: accuracy and loss of x after each round."""
    folder = options.out / "operator" / "state"
    lines = [n for n in read_journal(folder, read_standing(folder)) if n["kind"] == "round"]
    curve = [line["metrics"] for line in lines[1:]] + [outcome["metrics"]]
    settings = {k: v for k, v in vars(options).items() if k not in ("data", "out")}
    about = {"settings": settings, "versions": environment(), "seconds": round(seconds)}
    rounds = [{k: n[k] for k in ("r", "seconds", "bytes_up", "bytes_down", "drift")} for n in lines]
    found = [told | metrics for told, metrics in zip(rounds, curve, strict=True)]
    about |= {"audit": outcome["audit"], "rounds": found}
    (options.out / "curve.json").write_text(json.dumps(about, indent=1) + "\n")
    figure, axes = plt.subplots(1, 2, figsize=(7, 2.6), layout="constrained")
    for axis, name in zip(axes, ("accuracy", "loss"), strict=True):
        axis.plot([n["r"] for n in found], [n[name] for n in found], marker="o", markersize=3)
        axis.set(xlabel="round", ylabel=name)
    figure.savefig(options.out / "curve.svg")
    print(f"{outcome['sentence']} {options.out / 'curve.json'}")


if __name__ == "__main__":
    main()
