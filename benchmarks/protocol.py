"""What the driver and a peer say to each other: one line each, on the peer's stdin and stdout.

driver            peer
a Work as JSON    {"ready": true, "versions": {...}} or {"cannot": "one sentence why"}
go                {"ms": 78.1} after one round
loss              {"loss": 3.2} of the model now, over all clients
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
from functools import cache
from importlib.metadata import version
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
    """N clients of n samples, S of them a round, mini-batches of b, so many epochs of SGD."""

    name: str
    algorithm: str  # fedavg or scaffold
    features: int
    hidden: tuple[int, ...]
    classes: int
    N: int
    S: int
    n: int
    b: int
    epochs: int
    eta: float

    @property
    def sizes(self) -> list[int]:
        """Width of each layer, the inputs first."""
        return [self.features, *self.hidden, self.classes]

    def start(self) -> list[Array]:
        """Return weights and biases as torch lays them out; zeros for logistic regression."""
        draw = np.random.default_rng(1)
        made: list[Array] = []
        for inside, width in zip(self.sizes, self.sizes[1:], strict=False):
            scale = inside**-0.5 if self.hidden else 0.0
            made.append(scale * draw.standard_normal((width, inside), dtype=np.float32))
            made.append(np.zeros(width, dtype=np.float32))
        return made

    def clients(self) -> list[tuple[Array, Array]]:
        """Return made-up data, four fifths of the inputs zero; a linear model can learn it."""
        return _clients(self)


@cache
def _clients(work: Work) -> list[tuple[Array, Array]]:
    draw = np.random.default_rng(0)
    truth = draw.standard_normal((work.features, work.classes), dtype=np.float32)
    made = []
    for _ in range(work.N):
        X = draw.random((work.n, work.features), dtype=np.float32)
        X *= draw.random(X.shape, dtype=np.float32) < 0.2
        made.append((X, (X @ truth).argmax(1)))
    return made


def cross_entropy(weights: list[Array], clients: list[tuple[Array, Array]]) -> float:
    """Return the mean cross-entropy of a network with these weights and biases, ReLU between."""
    total = 0.0
    for X, y in clients:
        out = X
        for k in range(0, len(weights), 2):
            out = (np.maximum(out, 0) if k else out) @ weights[k].T + weights[k + 1]
        out = out - out.max(1, keepdims=True)
        total += float(np.mean(np.log(np.exp(out).sum(1)) - out[np.arange(len(y)), y]))
    return total / len(clients)


class Turns:
    """The peer's side: `begin`, then `done` after each round; both return when the next may run."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever a peer prints must not get between the answers
        asked = json.loads(sys.stdin.readline())
        self.work = Work(**asked | {"hidden": tuple(asked["hidden"])})
        self.clients = self.work.clients()
        self._weights: Callable[[], list[Array]] = self.work.start
        self._started = 0.0

    def cannot(self, why: str) -> NoReturn:
        """Say in one sentence why this peer does not run this work, and end."""
        self._say(cannot=why)
        raise SystemExit

    def begin(self, weights: Callable[[], list[Array]], *packages: str) -> None:
        """Say that the peer is ready, and its versions; wait for the first round.

        weights returns the model's weights now, in the layout of `Work.start`.
        """
        self._weights = weights
        self._say(ready=True, versions={name: version(name) for name in packages})
        self._wait()

    def done(self) -> None:
        """Answer how long the round took; wait for the next."""
        self._say(ms=1000 * (perf_counter() - self._started))
        self._wait()

    def _say(self, **answer: Any) -> None:
        print(json.dumps(answer), file=self._answers, flush=True)

    def _wait(self) -> None:
        for line in iter(sys.stdin.readline, ""):
            match line.strip():
                case "go":
                    self._started = perf_counter()
                    return
                case "loss":
                    self._say(loss=cross_entropy(self._weights(), self.clients))
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
        self.loss = 0.0
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

    def evaluate(self) -> None:
        """Ask for the loss, which shows that the peer has learned."""
        self.loss = self._ask("loss")["loss"]

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

    layers: list[nn.Module] = []
    for inside, width in zip(work.sizes, work.sizes[1:], strict=False):
        layers += [nn.Linear(inside, width), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), work.start(), strict=True):
            parameter.copy_(torch.from_numpy(value))
    return model


def torch_weights(model: Any) -> list[Array]:
    """Return the parameters of a torch module as arrays."""
    return [p.detach().numpy() for p in model.parameters()]


def torch_clients(clients: list[tuple[Array, Array]]) -> list[tuple[Any, Any]]:
    """Return the clients' data as torch tensors, on the same memory."""
    import torch

    return [(torch.from_numpy(X), torch.from_numpy(y)) for X, y in clients]
