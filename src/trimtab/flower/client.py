"""The client's side: a mod that keeps c_i, and what a training function calls."""

import json
import re
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from trimtab.commit import Accepted, Mismatch, Stale, States, settle
from trimtab.torch import Controls
from trimtab.torch.controls import Named, wrong

C, DC, HEAD = "trimtab.c", "trimtab.dc", "trimtab"  # records of a message


@dataclass
class _Round:
    """What the mod hands to the training function, and gets back."""

    c: Named | None
    c_i: Named | None
    accepted: str
    tag: str
    controls: Controls | None = None


# Neither a global nor a closure: Ray's cloudpickle gives each pickled closure globals of its own.
_round: ContextVar[_Round | None] = ContextVar("trimtab.flower", default=None)


class Control:
    """A mod that keeps this client's c_i in files: `ClientApp(mods=[Control("state/")])`.

    A client that does not have the c_i on which the server counts answers with an error, and trains
    nothing. Messages of other strategies pass unchanged.

    folder: where the states are, one folder per experiment and client; relative to the working
        directory of the SuperNode, or of the simulation.
    name: the entry of the node's configuration that names this client; default "partition-id". The
        name must stay the same when the SuperNode starts again, and no other client may have it.
    keep: how many older states are kept, for a server that continues from an old copy of its
        checkpoint; default 0.
    """

    def __init__(self, folder: str | Path, *, name: str = "partition-id", keep: int = 0) -> None:
        if not isinstance(folder, str | Path):
            raise wrong("folder", folder, "the path of a folder")
        if not isinstance(name, str):
            raise wrong("name", name, "the name of an entry of the node's configuration")
        if not isinstance(keep, int) or keep < 0:
            raise wrong("keep", keep, "a whole number that is zero or positive")
        self.folder, self.name, self.keep = Path(folder), name, keep

    def __call__(
        self, msg: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        """Handle a message, as Flower calls it."""
        # The records stay in the message, so that mods for a single ArrayRecord refuse it: they
        # would clip x, or add noise to it, and let dc pass as it is.
        if not msg.has_content() or C not in msg.content:
            return call_next(msg, context)
        request = msg.content.config_records[HEAD]
        name, tag, clock = self._name_of(context), str(request["tag"]), int(str(request["clock"]))
        accepted = Accepted(*json.loads(str(request["accepted"])).get(name, ()))
        experiment = _checked("the experiment", str(request["experiment"]))
        states = States(self.folder / experiment / name, keep=self.keep)
        try:
            states.check_newer(clock)
            c_i = settle(states, accepted)
        except Mismatch:
            return _refuse(
                msg,
                f"mismatch: client {name!r} does not have the control variate with tag "
                f"{accepted.tag!r} on which the server counts; restore "
                f"{states.folder.absolute()}, or start again with another checkpoint and c = 0.",
            )
        except Stale as error:
            return _refuse(
                msg,
                f"stale: the request to client {name!r} is older than its newest control variate, "
                f"of clock {error.seen}; set the server's clock if this does not end by itself.",
            )
        c = msg.content.array_records[C].to_torch_state_dict() or None
        now = _Round(c, c_i, accepted.tag, tag)
        token = _round.set(now)
        try:
            reply = call_next(msg, context)
        finally:
            _round.reset(token)
        if reply.has_error():
            return reply
        if now.controls is None:
            raise ValueError(
                "the training function did not call trimtab.flower.controls(model, optimizer); "
                "call it once per message, after the optimizer is made."
            )
        dc, _ = now.controls.end()
        new = now.controls.state_dict()["pending"]["c_i"]
        digest = states.put(tag, new, base=accepted.tag, clock=clock, what="client:pending")
        states.trim(tag)
        reply.content[DC] = ArrayRecord(dc)
        reply.content[HEAD] = ConfigRecord(
            {"name": name, "tag": tag, "base": accepted.tag, "digest": digest}
        )
        return reply

    def _name_of(self, context: Context) -> str:
        if self.name not in context.node_config:
            raise ValueError(
                f"the configuration of this node has no {self.name!r}, which names the client; "
                "start its SuperNode with such a node-config, or pass Control(folder, name=...)."
            )
        return _checked(repr(self.name), str(context.node_config[self.name]))


def arguments(model: nn.Module) -> dict[str, Any]:
    """Return this round's `controls`, `c` and `accepted`, as trainers take them.

    For `LightningControls(**arguments(model))` and `ControlledTrainer(..., **arguments(model))` of
    `trimtab.torch`, which begin the round themselves.

    model: the model that is trained; the parameters of the message are loaded.
    """
    now = _round.get()
    if now is None:
        raise ValueError(
            "controls() was called outside a training message of trimtab.flower.Scaffold; use that "
            "strategy, and ClientApp(mods=[trimtab.flower.Control(folder)])."
        )
    if now.controls is not None:
        raise ValueError(
            "controls() was called twice for one message; make one optimizer, and train one model."
        )
    now.controls = Controls(model)
    if now.c_i is not None:
        saved = {"tag": now.accepted, "c_i": now.c_i, "pending": None}
        now.controls.load_state_dict(saved)
    return {"controls": now.controls, "c": now.c, "accepted": f"{now.accepted}/{now.tag}"}


def controls(
    model: nn.Module, optimizer: Optimizer, *, scaler: GradScaler | None = None
) -> Controls:
    """Begin a round; call `correct()` of what this returns after each backward pass.

    model: the model that is trained; the parameters of the message are loaded.
    optimizer: the optimiser that the training function steps.
    scaler: as for `Controls.begin`; default None.
    """
    given = arguments(model)
    own: Controls = given["controls"]
    own.begin(given["c"], optimizer, scaler=scaler, accepted=given["accepted"])
    return own


def _checked(what: str, name: str) -> str:
    """Return a name that may be the name of a folder."""
    if not re.fullmatch(r"[\w-][\w.-]{0,99}", name):
        raise ValueError(
            f"{what} is {name!r}; use up to 100 letters, digits, hyphens, dots and underscores."
        )
    return name


def _refuse(msg: Message, why: str) -> Message:
    return Message(Error(0, why), reply_to=msg)  # 0: no code of Flower's own
