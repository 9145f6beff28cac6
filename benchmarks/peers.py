"""How fast a round is in other frameworks: the same workloads, round by round beside ours.

Every peer has its own environment and its own process, which waits while the others run. Ratios
within one run are what counts; the minimum of the repetitions, since others use the machine.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
import torch
from protocol import (
    Array,
    Gone,
    Peer,
    Work,
    last_line,
    torch_clients,
    torch_loss,
    torch_model,
    torch_weights,
    write_weights,
)
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from torch import nn

from trimtab._files import read_json, write_json
from trimtab_papers.bench import WORKLOADS, Workload, check_same_machine, machine
from trimtab_papers.bench.modules import CharLSTM, Transformer

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE / ".envs"
OURS = "trimtab"
COMPILED = "compiled"  # ours too, with steps by torch.compile
CLASSIFIERS = ("W1", "W1x10", "W2", "W4", "W4x5")
OTHERS = ("W5", "W6", "W7", "W8", "W9", "W10a", "W10b", "W10c")
WITHOUT_DROPOUT = (*CLASSIFIERS, *OTHERS)  # W3 is one step of one client: nothing is federated
NAMES = (*WITHOUT_DROPOUT, "W11")
ASKED = {  # which workloads a peer is asked for; "cannot" is for what it could not do
    COMPILED: tuple(name for name in OTHERS if WORKLOADS[name].compiled),
    "jax": WITHOUT_DROPOUT,
    "pfl": NAMES,
    "fedjax": WITHOUT_DROPOUT,
    "fluke": CLASSIFIERS,
    "fedlab": CLASSIFIERS,
    "flwr": CLASSIFIERS,
}
PEERS = tuple(ASKED)
ALGORITHMS = ("fedavg", "scaffold")
WARM_UP = 2
CHECKED_ROUNDS = 3
SAME = 1e-3  # float32 moves of two frameworks differ by less than this part of the move


# -- environments


def command(peer: str) -> list[str]:
    """Return the command that starts a peer; build its environment if there is none yet.

    peers/<peer>.txt names every package with its version, so pip resolves nothing: a peer gets
    what it needs, not what it asks for. Only torch, installed first, brings its own requirements.
    """
    python = sys.executable
    if peer == COMPILED:
        return [*command(OURS), "--compile"]
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
    work: Work,
    starts: dict[str, list[str]],
    *,
    repeats: int,
    logs: Path,
    limit: float,
    warm_up: int = WARM_UP,
) -> list[dict[str, Any]]:
    """Run rounds of all in turn, ours first, and return a result for each peer.

    A result has the loss of its model over all clients, and how far it ended from ours, as a part
    of our move: far, if mini-batches or clients are drawn; near, where nothing is left to chance.
    """
    running = {name: Peer(start, logs / f"{name}.log", limit) for name, start in starts.items()}
    cannot: dict[str, str] = {}

    def each(do: Callable[[Peer], None]) -> None:
        for name, peer in list(running.items()):
            try:
                do(peer)
            except Gone as gone:
                cannot[name] = str(gone)
                running.pop(name).stop()

    models: dict[str, list[Array]] = {}
    try:
        each(lambda peer: peer.begin(work))
        for _ in range(warm_up + repeats):
            each(Peer.round)
        for name, peer in running.items():
            models[name] = peer.weights()
    finally:
        for peer in running.values():
            peer.stop()
    if OURS in cannot:
        raise ValueError(f"{OURS} cannot run {work.name}: {cannot[OURS]}")
    ours = running.pop(OURS)
    results: list[dict[str, Any]] = [{"peer": name, "cannot": why} for name, why in cannot.items()]
    losses = {name: loss(work, model) for name, model in models.items()}
    for name, peer in running.items():
        mine, theirs = min(ours.ms[warm_up:]), min(peer.ms[warm_up:])
        times = {"ms": theirs, "ours": mine, "ratio": theirs / mine}
        found = {"loss": losses[name], "our loss": losses[OURS]}
        found["apart"] = apart(work, models[name], models[OURS])
        results.append({"peer": name, **times, **found, "versions": peer.versions})
    return [{"workload": work.name, "algorithm": work.algorithm, **result} for result in results]


def loss(work: Work, weights: list[Array]) -> float:
    """Return the mean loss over all clients of a model."""
    model, of = torch_model(work).eval(), torch_loss(work)
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), weights, strict=True):
            parameter.copy_(torch.tensor(value))
        losses = [float(of(model(X), y)) for X, y in torch_clients(work.clients())]
    return sum(losses) / len(losses)


def apart(work: Work, theirs: list[Array], ours: list[Array]) -> float:
    """Return the distance of two models as a part of the way that ours went from the start."""
    start, a, b = (np.concatenate([w.ravel() for w in m]) for m in (work.start(), theirs, ours))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b - start))


# -- the workload as peers receive it


def told(of: Workload, algorithm: str, folder: Path) -> Work:
    """Return a workload of `trimtab bench`; put its data and its start into the folder."""
    module, clients = of.module(), of.clients()
    for name, parts in zip("Xy", zip(*clients, strict=True), strict=True):
        np.save(folder / f"{name}.npy", torch.cat(parts).numpy())
    write_weights(folder / "start.npz", torch_weights(module))
    return Work(
        name=of.name,
        algorithm=algorithm,
        layers=tuple(described(module)),
        loss=getattr(of.loss, "__name__", ""),
        N=of.N,
        S=of.S,
        n=tuple(len(X) for X, _ in clients),
        b=of.b,
        K=of.K,
        eta=of.eta,
        folder=str(folder),
    )


def described(module: nn.Module) -> Iterator[tuple[Any, ...]]:
    """Go through the layers of a module: kind and sizes of each."""
    match module:
        case nn.Sequential():
            for layer in module:
                yield from described(layer)
        case nn.Linear():
            yield "linear", module.in_features, module.out_features
        case nn.Conv2d():
            yield "conv", module.in_channels, module.out_channels, module.kernel_size[0]
        case nn.LayerNorm():
            yield "layer_norm", module.normalized_shape[0]
        case nn.MaxPool2d():
            yield "pool", module.kernel_size
        case nn.Dropout():
            yield "dropout", module.p
        case Transformer():
            yield "transformer", module.symbols, module.width, module.depth, module.length
        case CharLSTM():
            inside, width = module.lstm.input_size, module.lstm.hidden_size
            yield "lstm", module.embedding.num_embeddings, inside, width
        case nn.ReLU() | nn.Tanh() | nn.GELU() | nn.SiLU() | nn.Flatten():
            yield (type(module).__name__.lower(),)
        case _:
            raise ValueError(f"{type(module).__name__} cannot be described to peers; add it here.")


def without_chance(of: Workload) -> Workload:
    """Return the workload with all clients, full batches and dropout of nothing."""
    return replace(of.without_dropout(), N=6, S=6, n=30, b=30, K=4)


# -- the record


Key = tuple[str, str, str]


class Results:
    """The record: the machine, and a result for each workload, algorithm and peer."""

    def __init__(self, path: Path) -> None:
        self.path, self.machine = path, machine()
        self.found: dict[Key, dict[str, Any]] = {}
        if path.exists():
            record = read_json(path)
            check_same_machine(path, record["machine"], self.machine)
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
        return f"{result['ms']:.1f} ({result['ratio']:.2g})"
    return "cannot" if result else ""


def _agreement(result: dict[str, Any]) -> str:
    """Say how near a peer ended to ours, where nothing was left to chance."""
    if "cannot" in result:
        return str(result["cannot"])
    verdict = "the same" if result["apart"] < SAME else "NOT THE SAME"
    losses = f"loss {result['loss']:.7f}, ours {result['our loss']:.7f}"
    return f"{verdict}, apart by {result['apart']:.1e} of the move; {losses}"


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
@click.option("--again", is_flag=True, help="Measure again what the record holds already.")
@click.option("--check", is_flag=True, help="Compare only the models after rounds without chance.")
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
    console = Console()
    ENVIRONMENTS.mkdir(exist_ok=True)
    starts, broken = {OURS: command(OURS)}, {}
    for peer in peers:
        console.print(f"{peer}: environment", style="dim")
        try:
            starts[peer] = command(peer)
        except Gone as gone:
            broken[peer] = str(gone)
    if check:
        _compare_models(console, starts, workloads, limit)
        return
    results = Results(out)
    for name in workloads:
        for algorithm in ALGORITHMS:
            could = [p for p in peers if name in ASKED[p]]
            asked = [p for p in could if again or (name, algorithm, p) not in results.found]
            same = {"workload": name, "algorithm": algorithm}
            results.add([same | {"peer": p, "cannot": broken[p]} for p in asked if p in broken])
            some = {p: start for p, start in starts.items() if p == OURS or p in asked}
            if len(some) > 1:
                console.print(f"{name} {algorithm}: {', '.join(some)}", style="dim")
                with TemporaryDirectory(dir=ENVIRONMENTS) as folder:
                    work = told(WORKLOADS[name], algorithm, Path(folder))
                    found = measure(work, some, repeats=repeats, logs=ENVIRONMENTS, limit=limit)
                results.add(found)
            results.write()
    console.print(results.table())
    for sentence in results.sentences():
        console.print(sentence)


def _compare_models(
    console: Console, starts: dict[str, list[str]], workloads: list[str], limit: float
) -> None:
    for name in workloads:
        some = {p: start for p, start in starts.items() if p == OURS or name in ASKED[p]}
        for algorithm in ALGORITHMS:
            with TemporaryDirectory(dir=ENVIRONMENTS) as folder:
                work = told(without_chance(WORKLOADS[name]), algorithm, Path(folder))
                rounds = {"repeats": CHECKED_ROUNDS, "warm_up": 0}
                found = measure(work, some, **rounds, logs=ENVIRONMENTS, limit=limit)
            for result in found:
                console.print(f"{name} {algorithm}, {result['peer']}: {_agreement(result)}")


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        sys.exit(f"Error: {error}")
