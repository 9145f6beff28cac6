"""How fast a round is in other frameworks: the same workloads, round by round beside ours.

Every peer has its own environment and its own process, which waits while the others run. Ratios
within one run are what counts; the minimum of the repetitions, since others use the machine.
"""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from protocol import Gone, Peer, Work, last_line
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from torch import nn

from trimtab._files import read_json, write_json
from trimtab.bench import ETA, WORKLOADS, machine

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE / ".envs"
OURS = "trimtab"
PEERS = ("pfl", "fedjax", "fluke", "fedlab", "flwr")
NAMES = ("W1", "W1x10", "W2", "W4", "W4x5")  # W3 is one step of one client: nothing is federated
ALGORITHMS = ("fedavg", "scaffold")
WARM_UP = 2
SMALL = Work(  # all clients, one batch each: nothing is left to chance, so losses must agree
    name="check",
    algorithm="fedavg",
    features=20,
    hidden=(),
    classes=3,
    N=6,
    S=6,
    n=30,
    b=30,
    epochs=4,
    eta=ETA,
)


# -- environments


def command(peer: str) -> list[str]:
    """Return the command that starts a peer; build its environment if there is none yet.

    peers/<peer>.txt names every package with its version, so pip resolves nothing: a peer gets
    what it needs, not what it asks for. Only torch, installed first, brings its own requirements.
    """
    python = sys.executable
    if peer != OURS:
        folder, wanted = ENVIRONMENTS / peer, HERE / "peers" / f"{peer}.txt"
        built, python = folder / "built.txt", str(folder / "bin" / "python")
        pins = wanted.read_text()
        if not built.exists() or built.read_text() != pins:
            pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            _run([sys.executable, "-m", "venv", "--clear", str(folder)])
            for torch in (line for line in pins.split() if line.startswith("torch==")):
                _run([*pip, torch])
            _run([*pip, "--no-deps", "--requirement", str(wanted)])
            built.write_text(pins)
    return [python, "-P", str(HERE / "peers" / f"{peer}.py")]  # -P: pfl.py must not hide pfl


def _run(program: list[str]) -> None:
    done = subprocess.run(program, capture_output=True, text=True)
    if done.returncode:
        raise Gone(f"Its environment cannot be built: {last_line(done.stderr)}")


# -- one workload


def measure(
    work: Work, starts: dict[str, list[str]], *, repeats: int, logs: Path, limit: float
) -> list[dict[str, Any]]:
    """Run rounds of all in turn, ours first, and return a result for each peer."""
    running = {name: Peer(start, logs / f"{name}.log", limit) for name, start in starts.items()}
    cannot: dict[str, str] = {}

    def each(do: Callable[[Peer], None]) -> None:
        for name, peer in list(running.items()):
            try:
                do(peer)
            except Gone as gone:
                cannot[name] = str(gone)
                running.pop(name).stop()

    try:
        each(lambda peer: peer.begin(work))
        for _ in range(WARM_UP + repeats):
            each(Peer.round)
        each(Peer.evaluate)
    finally:
        for peer in running.values():
            peer.stop()
    if OURS in cannot:
        raise ValueError(f"{OURS} cannot run {work.name}: {cannot[OURS]}")
    ours = running.pop(OURS)
    results: list[dict[str, Any]] = [{"peer": name, "cannot": why} for name, why in cannot.items()]
    for name, peer in running.items():
        mine, theirs = min(ours.ms[WARM_UP:]), min(peer.ms[WARM_UP:])
        times = {"ms": theirs, "ours": mine, "ratio": theirs / mine}
        losses = {"loss": peer.loss, "our loss": ours.loss}
        results.append({"peer": name, **times, **losses, "versions": peer.versions})
    return [{"workload": work.name, "algorithm": work.algorithm, **result} for result in results]


def workload(name: str, algorithm: str) -> Work:
    """Return a workload of `trimtab bench` as its peers are told it."""
    of = WORKLOADS[name]
    layers = [layer for layer in of.build().modules() if isinstance(layer, nn.Linear)]
    return Work(
        name=name,
        algorithm=algorithm,
        features=layers[0].in_features,
        hidden=tuple(layer.out_features for layer in layers[:-1]),
        classes=of.classes,
        N=of.N,
        S=of.S,
        n=of.n,
        b=of.b,
        epochs=of.epochs,
        eta=ETA,
    )


# -- the record


Key = tuple[str, str, str]


class Results:
    """The record: the machine, and a result for each workload, algorithm and peer."""

    def __init__(self, path: Path) -> None:
        self.path, self.machine = path, machine()
        self.found: dict[Key, dict[str, Any]] = {}
        if path.exists():
            record = read_json(path)
            for fact in ("processor", "cores"):
                if record["machine"][fact] != self.machine[fact]:
                    raise ValueError(f"{path} was measured on another machine; pass another --out.")
            self.add(record["results"])

    def add(self, results: list[dict[str, Any]]) -> None:
        """Take up results, in place of older ones."""
        for result in results:
            self.found[result["workload"], result["algorithm"], result["peer"]] = result

    def write(self) -> None:
        """Write all that is known."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        about = {"machine": self.machine, "warm-up rounds": WARM_UP, "time": "minimum"}
        write_json(self.path, about | {"results": list(self.found.values())})

    def table(self) -> Table:
        """Return milliseconds a round, and how many times ours that is."""
        peers = [peer for peer in PEERS if any(key[2] == peer for key in self.found)]
        table = Table("", OURS, *peers, box=SIMPLE, caption="ms a round (times ours)")
        for name, algorithm in dict.fromkeys(key[:2] for key in self.found):
            row = {peer: self.found.get((name, algorithm, peer), {}) for peer in peers}
            ours = [result["ours"] for result in row.values() if "ours" in result]
            cells = [_cell(result) for result in row.values()]
            table.add_row(f"{name} {algorithm}", f"{min(ours):.1f}" if ours else "", *cells)
        return table

    def sentences(self) -> list[str]:
        """Return what could not be measured, and why."""
        return [
            f"{peer}, {name} {algorithm}: {result['cannot']}"
            for (name, algorithm, peer), result in self.found.items()
            if "cannot" in result
        ]


def _cell(result: dict[str, Any]) -> str:
    if "ms" in result:
        return f"{result['ms']:.1f} ({result['ratio']:.1f})"
    return "cannot" if result else ""


def _losses(result: dict[str, Any]) -> str:
    if "cannot" in result:
        return str(result["cannot"])
    return f"loss {result['loss']:.7f}, ours {result['our loss']:.7f}"


# -- the command


class Names(click.ParamType[list[str]]):
    """Some of the known names, with commas between."""

    name = "names"

    def __init__(self, known: tuple[str, ...]) -> None:
        self.known = known

    def convert(self, value: Any, param: Any, ctx: Any) -> list[str]:
        """Read 'pfl,fluke'."""
        asked = [part.strip() for part in str(value).split(",")]
        for name in asked:
            if name not in self.known:
                self.fail(f"{name!r} is none of {', '.join(self.known)}.", param, ctx)
        return asked


@click.command(context_settings={"show_default": True})
@click.option("--peers", type=Names(PEERS), default=",".join(PEERS))
@click.option("--workloads", type=Names(NAMES), default=",".join(NAMES))
@click.option("--repeats", type=click.IntRange(min=1), default=5, help="Rounds that count.")
@click.option("--limit", type=float, default=300.0, help="Seconds to wait for an answer.")
@click.option("--out", type=click.Path(path_type=Path), default="results/bench/peers.json")
@click.option("--again", is_flag=True, help="Measure anew what the record holds already.")
@click.option("--check", is_flag=True, help="Compare only the losses of a small problem.")
def main(
    peers: list[str],
    workloads: list[str],
    repeats: int,
    limit: float,
    out: Path,
    again: bool,
    check: bool,
) -> None:
    """Measure a round of other frameworks and of ours, in alternation.

    The record is written after each workload; a rerun goes on with what is missing.
    """
    console, results = Console(), Results(out)
    ENVIRONMENTS.mkdir(exist_ok=True)
    starts, broken = {OURS: command(OURS)}, {}
    for peer in peers:
        console.print(f"{peer}: environment", style="dim")
        try:
            starts[peer] = command(peer)
        except Gone as gone:
            broken[peer] = str(gone)
    if check:
        for algorithm in ALGORITHMS:
            work = replace(SMALL, algorithm=algorithm)
            for result in measure(work, starts, repeats=3, logs=ENVIRONMENTS, limit=limit):
                console.print(f"{result['peer']} {algorithm}: {_losses(result)}")
        return
    for name in workloads:
        for algorithm in ALGORITHMS:
            asked = [p for p in peers if again or (name, algorithm, p) not in results.found]
            same = {"workload": name, "algorithm": algorithm}
            results.add([same | {"peer": p, "cannot": broken[p]} for p in asked if p in broken])
            some = {p: start for p, start in starts.items() if p == OURS or p in asked}
            if len(some) > 1:
                console.print(f"{name} {algorithm}: {', '.join(some)}", style="dim")
                work = workload(name, algorithm)
                results.add(measure(work, some, repeats=repeats, logs=ENVIRONMENTS, limit=limit))
            results.write()
    console.print(results.table())
    for sentence in results.sentences():
        console.print(sentence)


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        sys.exit(f"Error: {error}")
