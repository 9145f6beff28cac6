"""The control variate c_i of one client, for any loop, first-order optimiser and clipping.

The order of a step: backward, unscale, correct, clip, `optimizer.step()`. c_i is the mean of the
raw gradients of the steps that happened: neither clipping nor momentum nor the step size enters it.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import LBFGS, Optimizer

from trimtab.commit import START
from trimtab.errors import BadArgument

Named = dict[str, Tensor]  # by the names of `model.named_parameters()`, trainable ones only


def wrong(argument: str, given: object, what: str) -> BadArgument:
    """Return the error for an argument of a wrong kind, or out of its range."""
    shown, more = repr(given).partition("\n")[::2]
    shown = f"a {type(given).__name__}" if more else shown
    sentence = f"{{{argument}}} is {{_given}}; pass {{_what}}."
    return BadArgument(argument, sentence, _given=shown, _what=what)


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are trained: tied ones once, frozen ones and buffers never."""
    if not isinstance(model, nn.Module):
        raise wrong("model", model, "a torch.nn.Module")
    found = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not found:
        raise BadArgument(
            "model",
            "{model} has no parameter with requires_grad=True; pass the model that is trained, "
            "with its adapters.",
        )
    return found


def zeros(model: nn.Module) -> Named:
    """Return zeros like the trainable parameters, at least in float32 since they hold sums."""
    return {
        name: torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)).detach()
        for name, p in trainable(model).items()
    }


def check_names(what: str, given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless two sets of parameters have the same names and shapes."""
    if not isinstance(given, Mapping) or not all(isinstance(v, Tensor) for v in given.values()):
        raise ValueError(
            f"{what} is not a dict of tensors; pass one by the names of the trainable parameters."
        )
    for name in sorted(given.keys() ^ own.keys()):
        raise ValueError(
            f"{what} has {'another' if name in given else 'no'} parameter {name!r}; train the same "
            "parameters at the server, at all clients and in all rounds."
        )
    for name, value in given.items():
        if value.shape != own[name].shape:
            raise ValueError(
                f"{what} has shape {tuple(value.shape)} for parameter {name!r} instead of "
                f"{tuple(own[name].shape)}; pass tensors of the same model."
            )


def check_state(kind: str, state: Any, keys: Set[str]) -> None:
    """Raise ValueError unless a state has the entries that `state_dict` of a class returns."""
    if not isinstance(state, Mapping) or not keys <= state.keys():
        raise ValueError(
            f"the state is not one of {kind}; pass what {kind}.state_dict() has returned."
        )


def check_controls(controls: Any) -> None:
    """Raise ValueError unless a trainer got the controls of a client."""
    if not isinstance(controls, Controls):
        raise wrong("controls", controls, "Controls(model)")


def finite(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether all numbers are finite."""
    return all(bool(torch.isfinite(value).all()) for value in tensors.values())


@dataclass
class _Round:
    """What a round needs until `end()`."""

    tag: str
    parameters: dict[str, nn.Parameter]
    optimizer: Optimizer
    scaler: GradScaler | None
    shift: Named  # c - c_i
    total: Named  # the sum of the raw gradients of the steps that happened
    K: int = 0
    staged: Named | None = None  # raw gradients that were corrected, until the optimiser's step
    fresh: bool = False  # whether a backward pass has run since the last correct()
    written: dict[str, tuple[int, int]] = field(default_factory=dict)  # by that backward pass
    handles: list[Any] = field(default_factory=list)


class Controls:
    """The control variate c_i of one client; it starts at 0.

    model: the client's model. `controls.model` may be set to another one between rounds.
    check: whether correct() refuses gradients that were changed after the backward pass; default
        True. Pass False with DistributedDataParallel, or if the loop itself divides gradients.

    >>> import torch
    >>> model = torch.nn.Linear(3, 1)
    >>> controls = Controls(model)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> controls.begin(None, optimizer)
    >>> for _ in range(5):
    ...     optimizer.zero_grad()
    ...     model(torch.ones(2, 3)).square().mean().backward()
    ...     controls.correct()
    ...     optimizer.step()
    >>> dc, K = controls.end()
    >>> controls.commit()
    >>> list(dc), K
    (['weight', 'bias'], 5)
    """

    def __init__(self, model: nn.Module, *, check: bool = True) -> None:
        self.model, self.check = model, check
        self.c_i = zeros(model)
        self._accepted = START
        self._pending: tuple[str, Named] | None = None
        self._round: _Round | None = None

    @property
    def tag(self) -> str:
        """The tag of the newest c_i; after `end()` send it with the reply."""
        return self._pending[0] if self._pending else self._accepted

    def begin(
        self,
        c: Mapping[str, Tensor] | None,
        optimizer: Optimizer,
        *,
        scaler: GradScaler | None = None,
        accepted: str | None = None,
    ) -> None:
        """Start a round; one that was not ended is dropped.

        c: the server's c by names of parameters; None, in the first round, for 0.
        optimizer: the optimiser that the loop steps in this round.
        scaler: the loop's GradScaler, if the loop does not call unscale_() before correct().
        accepted: what `ServerControls.send` returned, or the tag of the c_i that the server has.
            By it the c_i of the last round is adopted or dropped; by default `commit()` does that.
        """
        self._close()
        while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
            optimizer = inner  # Accelerate and Lightning wrap the optimiser that has the hooks.
        parameters = trainable(self.model)
        _check_optimizer(optimizer, parameters)
        if not isinstance(scaler, GradScaler | None):
            raise wrong("scaler", scaler, "a torch.amp.GradScaler")
        check_names("the model", parameters, self.c_i)
        check_names("c", self.c_i if c is None else c, self.c_i)
        tag = self._settle(accepted)
        self.c_i = {name: value.to(parameters[name].device) for name, value in self.c_i.items()}
        shift = {name: (0 if c is None else c[name].to(v)) - v for name, v in self.c_i.items()}
        total = {name: torch.zeros_like(value) for name, value in self.c_i.items()}
        now = self._round = _Round(tag, parameters, optimizer, scaler, shift, total)
        # Not a hook before the step: it would run before the closure, which may call correct().
        now.handles.append(optimizer.register_step_post_hook(lambda *_: _stepped(now)))
        for name, p in parameters.items():
            handle = p.register_post_accumulate_grad_hook(_note(now, name))  # type: ignore[no-untyped-call]
            now.handles.append(handle)

    @torch.no_grad()
    def correct(self) -> None:
        """Add c - c_i to the gradients: once per step, after backward and before clipping."""
        now = self._running("correct()")
        if not now.fresh:
            raise ValueError(
                "correct() was called without a backward pass since its last call; call it once "
                "per step, between backward() and clipping."
            )
        # The gradients of a step that GradScaler skipped are staged too, but not finite.
        if now.staged is not None and finite(now.staged):
            raise ValueError(
                "correct() was called twice for one step of the optimizer; with gradient "
                "accumulation call it after the last backward() only."
            )
        if self.check:
            _check_unchanged(now)
        if now.scaler is not None:
            now.scaler.unscale_(now.optimizer)
        now.staged = {}
        for name, p in now.parameters.items():
            if p.grad is None:  # The optimiser would skip it, and its momentum would not move it.
                p.grad = torch.zeros_like(p)
            now.staged[name] = p.grad.to(now.shift[name].dtype, copy=True)
            p.grad.copy_(now.staged[name] + now.shift[name])
        now.fresh = False
        now.written.clear()

    def end(self) -> tuple[Named, int]:
        """End the round; return c_i_new - c_i and the number of steps K.

        c_i changes at `commit()`, or at the next `begin()` by what the server has accepted. Send
        the difference as it is: c = sum p_i c_i holds for what both sides have added.
        """
        now = self._running("end()")
        if not now.K:
            raise ValueError(
                "the round has no step of its optimizer; pass begin() the optimizer that the loop "
                "steps."
            )
        dc = {name: total / now.K - self.c_i[name] for name, total in now.total.items()}
        if not finite(dc):
            raise ValueError(
                "the gradients of this round are not all finite; send no reply, and try a smaller "
                "step size, or pass scaler= if the loop has a GradScaler."
            )
        self._close()
        self._pending = now.tag, {name: self.c_i[name] + dc[name] for name in dc}
        return dc, now.K

    def commit(self) -> None:
        """Adopt the c_i of the last round; only if the server has received the reply."""
        if self._pending is None:
            raise ValueError("commit() finds no finished round; call it once, after end().")
        (self._accepted, self.c_i), self._pending = self._pending, None

    def state_dict(self) -> dict[str, Any]:
        """Return c_i and the one that is pending; save it before the reply leaves."""
        pending = self._pending and {"tag": self._pending[0], "c_i": dict(self._pending[1])}
        return {"tag": self._accepted, "c_i": dict(self.c_i), "pending": pending}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; a round that was not ended is dropped."""
        check_state("Controls", state, {"tag", "c_i", "pending"})
        pending = state["pending"]
        for saved in (state, pending) if pending else (state,):
            check_names("the state", saved["c_i"], self.c_i)
        self._close()
        self._accepted, self.c_i = state["tag"], dict(state["c_i"])
        self._pending = (pending["tag"], dict(pending["c_i"])) if pending else None

    def _settle(self, accepted: str | None) -> str:
        """Adopt or drop the pending c_i; return the tag of the round that begins."""
        if accepted is None and self._pending is not None:
            raise ValueError(
                "begin() finds a c_i that was neither adopted nor dropped; call commit() when the "
                "server has received a reply, or pass accepted= if replies can be lost."
            )
        if not isinstance(accepted, str | None):
            raise wrong("accepted", accepted, "the string that send() returned")
        known, _, tag = (self._accepted if accepted is None else accepted).partition("/")
        if self._pending is not None and known == self._pending[0]:
            self.commit()
        elif known != self._accepted:
            raise BadArgument(
                "accepted",
                "the server has accepted the c_i with tag {known!r}, which this client does not "
                "have; load the state_dict() that was saved with it, or start the server and all "
                "clients again from c = 0.",
                known=known,
            )
        self._pending = None
        return tag or token_hex(8)

    def _running(self, what: str) -> _Round:
        if self._round is None:
            raise ValueError(f"{what} was called outside a round; call begin(c, optimizer) first.")
        return self._round

    def _close(self) -> None:
        for handle in self._round.handles if self._round is not None else ():
            handle.remove()
        self._round = None


def _note(now: _Round, name: str) -> Callable[[Tensor], None]:
    """Return a hook that notes when a backward pass has written the gradient of a parameter."""

    def wrote(p: Tensor) -> None:
        assert p.grad is not None
        if p.grad.is_sparse:
            raise ValueError(
                f"the gradient of parameter {name!r} is sparse; use a layer with sparse=False."
            )
        now.fresh = True
        now.written[name] = p.grad._version, p.grad.data_ptr()

    return wrote


def _stepped(now: _Round) -> None:
    # GradScaler calls fused optimisers for skipped steps too; they look at this attribute.
    if bool(getattr(now.optimizer, "found_inf", False)):
        return
    if now.staged is None:
        raise ValueError(
            "the optimizer took a step without correct(); call it between backward() and the step."
        )
    if now.fresh:
        raise ValueError(
            "a backward pass ran between correct() and the optimizer's step; call correct() after "
            "the last backward() of a step."
        )
    for name, gradient in now.staged.items():
        now.total[name] += gradient
    now.K, now.staged = now.K + 1, None


def _check_unchanged(now: _Round) -> None:
    for name, written in now.written.items():
        grad = now.parameters[name].grad
        if grad is not None and written != (grad._version, grad.data_ptr()):
            raise ValueError(
                f"the gradient of parameter {name!r} was changed between backward() and correct(); "
                "clip after correct(), or make Controls(model, check=False) if the loop has "
                "DistributedDataParallel or divides gradients."
            )


def _check_optimizer(optimizer: Optimizer, parameters: dict[str, nn.Parameter]) -> None:
    if not isinstance(optimizer, Optimizer):
        raise wrong("optimizer", optimizer, "an optimizer of torch.optim")
    if isinstance(optimizer, LBFGS):
        raise BadArgument(
            "optimizer",
            "{optimizer} is LBFGS, which evaluates several gradients in a step; pass SGD, AdamW or "
            "another one with a single gradient.",
        )
    names = {id(p): name for name, p in parameters.items()}
    stepped = {id(p) for g in optimizer.param_groups for p in g["params"] if p.requires_grad}
    if stepped - names.keys():
        raise BadArgument(
            "optimizer",
            "{optimizer} trains a parameter that controls.model does not have; set controls.model "
            "to the model that the loop trains.",
        )
    for left in names.keys() - stepped:
        raise BadArgument(
            "optimizer",
            "{optimizer} does not train parameter {name!r}; freeze it with requires_grad_(False) "
            "before Controls(model), or pass it to the optimizer.",
            name=names[left],
        )
