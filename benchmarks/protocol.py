"""What the driver and a peer say to each other: one line each, on the peer's stdin and stdout.

driver            peer
a Work as JSON    {"ready": true, "versions": {...}} or {"cannot": "one sentence why"}
go                {"ms": 78.1} after one round
weights FILE      {"written": true}: the model now, as an .npz file in the layout of `Work.start`
stop              ends

Imported in every environment, so it needs NumPy only.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_file_location
from math import ceil
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from time import perf_counter
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Work:
    """N clients of n samples, S of them a round, K steps of SGD on mini-batches of b.

    layers: kind and sizes of each, such as ("linear", 784, 47). n: one number for each client.
    b: a size, or a part of n. folder: where the driver has put the start and the data.
    """

    name: str
    algorithm: str  # fedavg or scaffold
    layers: tuple[tuple[Any, ...], ...]
    loss: str  # cross_entropy, binary_cross_entropy_with_logits or mse_loss, a mean over all
    N: int
    S: int
    n: tuple[int, ...]
    b: int | float
    K: int
    eta: float
    folder: str

    @classmethod
    def from_json(cls, line: str) -> "Work":
        """Read what the driver said."""
        asked = json.loads(line)
        layers = tuple(tuple(layer) for layer in asked["layers"])
        return cls(**asked | {"layers": layers, "n": tuple(asked["n"])})

    @property
    def sizes(self) -> list[int]:
        """Return the size of a mini-batch at each client."""
        if isinstance(self.b, int):
            return [min(self.b, n) for n in self.n]
        return [max(1, ceil(self.b * n - 1e-9)) for n in self.n]

    @property
    def epochs(self) -> int | None:
        """Return K as whole epochs of one batch size; None if it is none."""
        steps = {ceil(n / b) for n, b in zip(self.n, self.sizes, strict=True)}
        if len(steps) > 1 or len(set(self.sizes)) > 1 or self.K % min(steps):
            return None
        return self.K // min(steps)

    @property
    def classes(self) -> int:
        """Return the outputs of the last layer."""
        return int(self.layers[-1][-1])

    def start(self) -> list[Array]:
        """Return the parameters to start from, in torch's order and layout."""
        return read_weights(Path(self.folder) / "start.npz")

    def clients(self) -> list[tuple[Array, Array]]:
        """Return the data of each client."""
        return _clients(self.folder, self.n)


@lru_cache(maxsize=1)
def _clients(folder: str, n: tuple[int, ...]) -> list[tuple[Array, Array]]:
    X, y = (np.load(Path(folder) / f"{name}.npy") for name in "Xy")
    ends = np.cumsum(n)[:-1]
    return list(zip(np.split(X, ends), np.split(y, ends), strict=True))


def write_weights(path: str | Path, weights: list[Array]) -> None:
    """Write parameters in their order."""
    np.savez(path, *weights)


def read_weights(path: str | Path) -> list[Array]:
    """Read parameters in their order."""
    with np.load(path) as file:
        return [file[f"arr_{k}"] for k in range(len(file.files))]


class Turns:
    """The peer's side: `begin`, then `done` after each round; both return when the next may run."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever a peer prints must not get between the answers
        self.work = Work.from_json(sys.stdin.readline())
        self.clients = self.work.clients()
        self._weights: Callable[[], list[Array]] = self.work.start
        self._started = 0.0

    def cannot(self, why: str) -> NoReturn:
        """Say in one sentence why this peer does not run this work, and end."""
        self._say(cannot=why)
        raise SystemExit

    def begin(self, weights: Callable[[], list[Array]], *packages: str, **facts: str) -> None:
        """Say that the peer is ready, and its versions; wait for the first round.

        weights returns the model's weights now, in the layout of `Work.start`. facts: what else
        is to be known of how it runs.
        """
        self._weights = weights
        self._say(ready=True, versions={name: version(name) for name in packages} | facts)
        self._wait()

    def done(self) -> None:
        """Answer how long the round took; wait for the next."""
        self._say(ms=1000 * (perf_counter() - self._started))
        self._wait()

    def _say(self, **answer: Any) -> None:
        print(json.dumps(answer), file=self._answers, flush=True)

    def _wait(self) -> None:
        for line in iter(sys.stdin.readline, ""):
            match line.split():
                case ["go"]:
                    self._started = perf_counter()
                    return
                case ["weights", path]:
                    write_weights(path, self._weights())
                    self._say(written=True)
                case _:
                    break
        raise SystemExit


class Gone(Exception):
    """A peer cannot, died or hangs; the message is one sentence that says so."""


class Peer:
    """The driver's side: a process that runs one round when it is asked to."""

    def __init__(self, start: list[str], log: Path, limit: float) -> None:
        self.log, self.limit = log, limit
        self.ms: list[float] = []
        self.versions: dict[str, str] = {}
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                start,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
                start_new_session=True,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._input, self._output = self.process.stdin, self.process.stdout
        self._answers: SimpleQueue[str] = SimpleQueue()
        Thread(target=self._listen, daemon=True).start()

    def begin(self, work: Work) -> None:
        """Tell the peer its workload."""
        answer = self._ask(json.dumps(asdict(work)))
        if "cannot" in answer:
            raise Gone(answer["cannot"])
        self.versions = answer.get("versions", {})

    def round(self) -> None:
        """Run one round."""
        self.ms.append(self._ask("go")["ms"])

    def weights(self) -> list[Array]:
        """Ask for the model, which shows that the peer has learned, and what."""
        path = self.log.with_suffix(".npz")
        self._ask(f"weights {path}")
        return read_weights(path)

    def stop(self) -> None:
        """Let the process end; or end it, with all it started."""
        with suppress(subprocess.TimeoutExpired, OSError):
            self._say("stop")
            self.process.wait(timeout=20)
        self._kill()
        for pipe in (self._input, self._output):
            with suppress(OSError):
                pipe.close()

    def _ask(self, line: str) -> dict[str, Any]:
        try:
            self._say(line)
            answer = self._answers.get(timeout=self.limit)
        except BrokenPipeError:
            answer = ""
        except Empty:
            self._kill()
            raise Gone(f"It did not answer within {self.limit:g} seconds.") from None
        if not answer:
            said = self.log.read_text(errors="replace")
            raise Gone(f"It ended with code {self.process.wait()}: {last_line(said)}")
        understood: dict[str, Any] = json.loads(answer)
        return understood

    def _kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _say(self, line: str) -> None:
        print(line, file=self._input, flush=True)

    def _listen(self) -> None:
        for line in self._output:
            self._answers.put(line)
        self._answers.put("")


def last_line(text: str) -> str:
    """Return the last line of what a program said, as the end of a sentence."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if lines else "it said nothing").rstrip(".") + "."


# -- for peers with torch


def torch_model(work: Work) -> Any:
    """Return the work's model as a torch module that starts where all peers start."""
    import torch
    from torch import nn

    modules = _modules()
    kinds = {
        "linear": nn.Linear,
        "conv": nn.Conv2d,
        "layer_norm": nn.LayerNorm,
        "relu": nn.ReLU,
        "tanh": nn.Tanh,
        "gelu": nn.GELU,
        "silu": nn.SiLU,
        "pool": nn.MaxPool2d,
        "dropout": nn.Dropout,
        "flatten": nn.Flatten,
        "transformer": modules.Transformer,
        "lstm": modules.CharLSTM,
    }
    layers = [kinds[kind](*sizes) for kind, *sizes in work.layers]
    model = layers[0] if len(layers) == 1 else nn.Sequential(*layers)
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), work.start(), strict=True):
            parameter.copy_(torch.from_numpy(value))
    return model


def _modules() -> Any:
    """Load the networks of `trimtab bench`, a file that needs torch alone, not the package."""
    path = Path(__file__).parents[1] / "papers" / "src" / "trimtab_papers" / "bench" / "modules.py"
    spec = spec_from_file_location("modules", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def torch_loss(work: Work) -> Any:
    """Return the loss of outputs and targets."""
    from torch.nn import functional as F

    return getattr(F, work.loss)


def torch_weights(model: Any) -> list[Array]:
    """Return the parameters of a torch module as arrays."""
    return [p.detach().numpy() for p in model.parameters()]


def torch_clients(clients: list[tuple[Array, Array]]) -> list[tuple[Any, Any]]:
    """Return the clients' data as torch tensors, on the same memory."""
    import torch

    return [(torch.from_numpy(X), torch.from_numpy(y)) for X, y in clients]
