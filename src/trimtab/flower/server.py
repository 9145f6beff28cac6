"""The server's side: FedAvg of Flower, c = sum p_i c_i, and which c_i of each client is in it."""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from math import fsum, isfinite
from numbers import Integral
from pathlib import Path
from secrets import token_hex
from time import time_ns
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from trimtab.commit import Accepted
from trimtab.commit.durable import write_durably
from trimtab.errors import BadArgument
from trimtab.flower.client import DC, HEAD, C
from trimtab.torch.controls import Named, check_names, finite, wrong
from trimtab.torch.server import positive

log = logging.getLogger("flwr.trimtab")  # shown where Flower shows its own lines


@dataclass(frozen=True)
class _Reply:
    message: Message
    dc: Named
    accepted: Accepted
    size: float


class Scaffold(FedAvg):
    """SCAFFOLD: FedAvg whose clients correct their gradients, with the mod `Control`.

    Make a new one for each `start()`. A reply that does not fit the request is left out, and the
    log says so; in the first round, or if no other reply is left, it ends the run.

    clients: the number of all clients, those that are not asked in a round included.
    weights: the weight of each client by its name, in place of the number of examples that it
        reports. Default: those numbers; unless they are equal, all clients must answer in the first
        round.
    checkpoint: a file in which x, c and what was accepted are saved after each round. If it exists,
        `start` continues there, up to `num_rounds` in all. Default: none.

    All other arguments are FedAvg's.
    """

    def __init__(
        self,
        *,
        clients: int,
        weights: Mapping[Any, float] | None = None,
        checkpoint: str | Path | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if not isinstance(clients, int | Integral) or clients < 1:
            raise wrong("clients", clients, "the number of all clients")
        given: dict[str, float] | None = None
        if weights is not None:
            values = positive(weights.values()) if isinstance(weights, Mapping) else None
            if values is None:
                raise wrong("weights", weights, "a dict of positive numbers by names of clients")
            given = dict(zip(map(str, weights), values, strict=True))
        if given is not None and len(given) != clients:
            raise BadArgument(
                "weights",
                f"{{weights}} has {len(given)} entries for {clients} clients; pass one each.",
            )
        is_path = isinstance(checkpoint, str | Path | None)
        if not is_path or (checkpoint is not None and Path(checkpoint).is_dir()):
            raise wrong("checkpoint", checkpoint, "the path of a file")
        self.clients, self.weights = int(clients), given
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.c: Named = {}
        self.accepted: dict[str, Accepted] = {}
        self.sizes = dict(given or {})  # of the clients that have answered
        self.experiment, self.rounds = token_hex(8), 0
        self._arrays: ArrayRecord | None = None
        self._first: int | None = None  # how many rounds there were before start()
        self._tag = ""
        if self.checkpoint is not None and self.checkpoint.exists():
            self._load(self.checkpoint)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the rounds, as FedAvg does; after a checkpoint, those that are missing."""
        if self._first is not None:
            raise ValueError("start() was called twice; make a new Scaffold for each start().")
        first = self._first = self.rounds
        arrays = initial_arrays if self._arrays is None else self._arrays
        if _shapes(arrays) != _shapes(initial_arrays):
            raise BadArgument(
                "checkpoint",
                "{_path} is of another model than initial_arrays; pass another {checkpoint}.",
                _path=self.checkpoint,
            )
        if first:
            log.info("%s: continuing after round %d", self.checkpoint, first)

        def evaluate(server_round: int, x: ArrayRecord) -> MetricRecord | None:
            return evaluate_fn(first + server_round, x) if evaluate_fn else None

        result = super().start(
            *(grid, arrays, max(0, num_rounds - first), timeout),
            *(train_config, evaluate_config, evaluate_fn and evaluate),
        )
        result.arrays = result.arrays or arrays
        for records in (
            result.train_metrics_clientapp,
            result.evaluate_metrics_clientapp,
            result.evaluate_metrics_serverapp,
        ):
            shifted = {first + server_round: one for server_round, one in records.items()}
            records.clear()
            records.update(shifted)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send x, c, and what was accepted from each client."""
        if self._first is None:
            raise ValueError(
                "another strategy has wrapped Scaffold, and would change x without c; call "
                "Scaffold.start(), without Flower's wrappers for differential privacy."
            )
        self._tag = token_hex(8)
        head = ConfigRecord(
            {
                "experiment": self.experiment,
                "tag": self._tag,
                "clock": time_ns(),
                "accepted": json.dumps({name: astuple(one) for name, one in self.accepted.items()}),
            }
        )
        # Before the first round has ended the record of c is empty, but there: `Control` says why.
        more: dict[str, Any] = {C: ArrayRecord(self.c), HEAD: head}
        messages = super().configure_train(self._first + server_round, arrays, config, grid)
        return [
            Message(
                RecordDict({**message.content, **more}),
                dst_node_id=message.metadata.dst_node_id,
                message_type=message.metadata.message_type,
            )
            for message in messages
        ]

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configure an evaluation, as FedAvg does."""
        return super().configure_evaluate((self._first or 0) + server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Change x and c by the replies, and save both."""
        # In the order of the nodes, so that the bits do not depend on which one was faster.
        messages = sorted(replies, key=lambda message: message.metadata.src_node_id)
        counted: dict[str, _Reply] = {}
        refused: list[ValueError] = []
        for message in messages:
            if message.has_error():
                continue
            try:
                name, reply = self._read(message, counted)
                counted[name] = reply
            except ValueError as error:
                refused.append(error)
                log.warning("%s", error)
        if refused and not (self.c and counted):
            raise refused[0]
        p = self._weigh({name: reply.size for name, reply in counted.items()})
        errors = [message for message in messages if message.has_error()]
        for reply in counted.values():
            del reply.message.content[DC], reply.message.content[HEAD]  # FedAvg would average them
            for record in reply.message.content.metric_records.values():
                record[self.weighted_by_key] = reply.size
        kept = [reply.message for reply in counted.values()]
        arrays, metrics = super().aggregate_train(server_round, [*kept, *errors])
        if arrays is None:
            return arrays, metrics
        c = self.c or {n: torch.zeros_like(v) for n, v in next(iter(counted.values())).dc.items()}
        for name, reply in counted.items():
            # Not divided by their share: c is the sum over all clients.
            c = {n: value + p[name] * reply.dc[n] for n, value in c.items()}
        self.c, self._arrays = c, arrays
        self.accepted |= {name: reply.accepted for name, reply in counted.items()}
        self.sizes |= {name: reply.size for name, reply in counted.items()}
        self.rounds = (self._first or 0) + server_round
        if self.checkpoint is not None:
            self._save(self.checkpoint)
        return arrays, metrics

    def _read(self, message: Message, counted: dict[str, _Reply]) -> tuple[str, _Reply]:
        """Return the name of the client and its reply; raise ValueError if it does not fit."""
        node, content = message.metadata.src_node_id, message.content
        if HEAD not in content or DC not in content:
            raise ValueError(
                f"the reply of node {node} has no control variate; pass "
                "mods=[trimtab.flower.Control(folder)] to its ClientApp."
            )
        head = {key: str(value) for key, value in content.config_records[HEAD].items()}
        name = head["name"]
        if name in counted:
            raise ValueError(
                f"node {node} has answered as client {name!r}, as another node has; start each "
                "SuperNode with a name of its own in node-config."
            )
        if name not in self.sizes and len(self.sizes | counted) >= self.clients:
            raise ValueError(
                f"node {node} has answered as client {name!r}, but {self.clients} others are "
                "known; pass clients= and weights= for all of them."
            )
        before = self.accepted.get(name, Accepted())
        if (head["tag"], head["base"]) != (self._tag, before.tag):
            raise ValueError(
                f"client {name!r} has answered another request; its reply is left out."
            )
        dc = content.array_records[DC].to_torch_state_dict()
        like = self.c or next((reply.dc for reply in counted.values()), dc)
        check_names(f"dc of client {name!r}", dc, like)
        arrays = [r.to_torch_state_dict() for key, r in content.array_records.items() if key != DC]
        if not all(map(finite, (dc, *arrays))):
            raise ValueError(
                f"the reply of client {name!r} is not finite; try a smaller step size."
            )
        size = self.weights[name] if self.weights is not None else self._size(name, content)
        return name, _Reply(message, dc, Accepted(self._tag, head["digest"]), size)

    def _size(self, name: str, content: RecordDict) -> float:
        """Return the number of examples that a client reports."""
        metrics = next(iter(content.metric_records.values()), MetricRecord())
        size = metrics.get(self.weighted_by_key)
        if isinstance(size, list) or size is None or not (isfinite(size) and size > 0):
            raise ValueError(
                f"client {name!r} reports {size} as {self.weighted_by_key!r}; let its training "
                "function return the number of its examples in a MetricRecord."
            )
        return size

    def _weigh(self, sizes: dict[str, float]) -> dict[str, float]:
        """Return p_i of the clients that have replied; raise ValueError if it is not known."""
        known = self.sizes | sizes
        for name, size in sizes.items():
            if self.sizes.get(name, size) != size:
                raise ValueError(
                    f"client {name!r} reports {size} examples after {self.sizes[name]}, but c "
                    "needs weights that stay; pass weights= with one for each client."
                )
        if len(known) == self.clients and (not self.c or len(self.sizes) == self.clients):
            total = fsum(known.values())
        elif len(set(known.values())) <= 1:
            total = self.clients * next(iter(known.values()), 1.0)
        else:
            raise ValueError(
                f"the clients report unequal numbers of examples, and the weights p_i in c need "
                f"those of all {self.clients} clients from the start; pass weights=, or let all "
                "clients answer in the first round."
            )
        return {name: size / total for name, size in sizes.items()}

    def _save(self, path: Path) -> None:
        assert self._arrays is not None
        head = {
            "experiment": self.experiment,
            "rounds": self.rounds,
            "clients": self.clients,
            "weights": self.weights,
            "sizes": self.sizes,
            "accepted": {name: astuple(one) for name, one in self.accepted.items()},
            "order": [list(self._arrays), list(self.c)],  # safetensors sorts by name
        }
        x = {f"x/{name}": v for name, v in self._arrays.to_torch_state_dict().items()}
        c = {f"c/{name}": v for name, v in self.c.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, [save(x | c, {HEAD: json.dumps(head)})], "server:checkpoint")

    def _load(self, path: Path) -> None:
        try:
            with safe_open(path, framework="pt") as content:
                head = json.loads(content.metadata()[HEAD])
                arrays = {name: content.get_tensor(name).clone() for name in content.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
            raise BadArgument(
                "checkpoint",
                "{_path} is damaged ({_why}); restore it, or pass another {checkpoint}.",
                _path=path,
                _why=str(error).rstrip("."),
            ) from None
        for key, own in (("clients", self.clients), ("weights", self.weights)):
            if head[key] != own:
                raise BadArgument(
                    key,
                    "{_path} was saved with {_key}={_saved}; pass the same {_key}, or another "
                    "{checkpoint}.",
                    **{"_path": path, "_key": key, "_saved": head[key]},
                )
        self.experiment, self.rounds, self.sizes = head["experiment"], head["rounds"], head["sizes"]
        self.accepted = {name: Accepted(*one) for name, one in head["accepted"].items()}
        x, c = head["order"]
        self.c = {name: arrays[f"c/{name}"] for name in c}
        self._arrays = ArrayRecord({name: arrays[f"x/{name}"] for name in x})


def _shapes(arrays: ArrayRecord) -> dict[str, tuple[int, ...]]:
    return {name: tuple(array.shape) for name, array in arrays.items()}
