"""Trials of what is read: do these data fit the module and the loss, and is the loss a mean?"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trimtab.core.streams import global_state, seeded
from trimtab.problems.supervised.flat import (
    FlatModule,
    changes_inputs,
    first_line,
    running_statistics,
    version,
)
from trimtab.problems.supervised.losses import Loss, ignored_label, recognise
from trimtab.problems.supervised.samples import Data

_INDICES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_SAME = 1e-4  # outputs are the same if they differ by <= 1e-4 x their size


def check_fit(who: str, data: Data, model: FlatModule, loss: Loss) -> None:
    """Refuse data that the module or the loss cannot take, and modules that are no functions.

    A trial on a few samples also finds out whether the module draws random numbers.
    """
    few = _few(data)
    outputs: list[Any] = []

    def trial() -> None:
        device = model.device
        with torch.no_grad(), seeded(0, device):
            before = global_state(device)
            model.mode(training=True)
            outputs.append(model(model.start, few.X))
            pairs = zip(before, global_state(device), strict=True)
            model.draws |= not all(torch.equal(old, new) for old, new in pairs)

    try:
        changed = model.changed_buffers(trial)
    except (RuntimeError, IndexError, TypeError) as error:
        raise ValueError(
            f"the module cannot take the inputs of {who}, of shape {tuple(few.X.shape)}, "
            f"{few.X.dtype}{_range(data.X)} ({first_line(error)}); make the two fit."
        ) from error
    if changed:
        raise ValueError(running_statistics(f"buffer '{changed[0]}'"))
    _check_targets(who, loss, outputs[0], few.y, data.y)
    _value(who, loss, outputs[0], few.y)


def check_mean(who: str, data: Data, model: FlatModule, loss: Loss) -> None:
    """Refuse, once for each problem, a loss that is no mean, has no gradient or changes data."""
    few, before = _few(data), _few(data)
    results: list[tuple[Tensor, Tensor]] = []

    def trial() -> None:
        for training in (False, True):
            model.mode(training)
            with torch.enable_grad(), seeded(0, model.device):
                output = model(model.start, few.X)
                results.append((output, _value(who, loss, output, few.y)))

    changed = model.changed_buffers(trial)
    if changed:
        raise ValueError(running_statistics(f"buffer '{changed[0]}'"))
    if not torch.equal(few.X, before.X):
        raise ValueError(changes_inputs("the module"))
    if not torch.equal(few.y, before.y):
        raise ValueError(changes_targets("the loss"))
    output, value = results[-1]
    if not output.requires_grad:
        raise ValueError(
            "the module's outputs do not depend on its trainable parameters; look for detach() or "
            "no_grad() in its forward."
        )
    if not value.requires_grad:
        raise ValueError(
            "the loss has no gradient; return it as it was computed, without detach() or no_grad()."
        )
    if not _leaves(value) <= {id(p) for p in model.trainable}:
        raise ValueError(
            "the loss depends on trainable tensors that are not among the module's parameters and "
            "would stay as they are; put them there or call requires_grad_(False), and assign a "
            "forward as types.MethodType(f, module), which goes with a copy."
        )
    try:
        model.gradient(value)
    except RuntimeError as error:
        raise ValueError(
            f"the loss of {who} has no gradient ({first_line(error)}); make outputs and targets "
            f"of one kind, here {output.dtype} and {few.y.dtype}."
        ) from error
    if recognise(loss) is None and _is_sum(loss, output.detach(), few.y, float(value.detach())):
        raise ValueError(
            "the loss of a batch that holds every sample twice is twice as large, so it is a sum; "
            "pass the mean over samples."
        )


def _leaves(value: Tensor) -> set[int]:
    """Return the identities of the trainable tensors that a value was computed from."""
    waiting: list[Any] = [] if value.grad_fn is None else [value.grad_fn]
    seen, trainable = set(waiting), set[int]()
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable"):
            trainable.add(id(node.variable))
        new = {inner for inner, _ in node.next_functions if inner is not None} - seen
        seen |= new
        waiting += new
    return trainable


def _is_sum(loss: Loss, output: Tensor, y: Tensor, once: float) -> bool:
    """Tell whether a batch that holds every sample twice or thrice has that multiple of a loss."""
    try:
        values = [float(loss(torch.cat([output] * t), torch.cat([y] * t))) for t in (2, 3)]
    except (RuntimeError, IndexError, TypeError, ValueError):
        return False  # This loss takes batches of one size only.
    near = [abs(value - t * once) <= _SAME * abs(once) for t, value in enumerate(values, start=2)]
    return once != 0 and all(near)


def changes_targets(who: str) -> str:
    """Return the sentence that refuses a loss or a metric that writes into the targets."""
    return (
        f"{who} changes the targets in place, that is, the data themselves; write y = y - 1 "
        "instead of y -= 1."
    )


@torch.no_grad()
def rowwise(model: FlatModule, X: Tensor) -> bool:
    """Tell whether the module treats each sample by itself, so that its inputs may be cut up."""
    half = len(X) // 2
    for training in (False,) if model.draws else (False, True):
        model.mode(training)
        try:
            whole = model(model.start, X)
            parts = torch.cat([model(model.start, part) for part in (X[:half], X[half:])])
        except (RuntimeError, ValueError, IndexError):
            return False
        if whole.shape != parts.shape or (whole - parts).norm() > _SAME * whole.norm():
            return False
    return True


def _few(data: Data) -> Data:
    """Return copies of the first two samples and, of indices, those with the extreme ones."""
    if data.X.dtype not in _INDICES or not data.X.numel():
        return Data(data.X[:2].clone(), data.y[:2].clone(), data.who)
    each = data.X[0].numel()
    extreme = [int(data.X.argmin()) // each, int(data.X.argmax()) // each]
    rows = [*range(min(2, len(data))), *extreme]
    return Data(data.X[rows], data.y[rows], data.who)


def _range(X: Tensor) -> str:
    if X.dtype not in _INDICES:
        return ""
    return f", numbers from {int(X.min())} to {int(X.max())}"


def _value(who: str, loss: Loss, output: Any, y: Tensor) -> Tensor:
    """Return the loss of a few samples, if it is one number and takes these shapes."""
    shapes = f"outputs of shape {tuple(output.shape)}, targets of {who} of shape {tuple(y.shape)}"
    before = version(y)
    try:
        known = recognise(loss) is not None  # The shapes of such a loss were checked before.
        value, messages = (loss(output, y), []) if known else _heard(lambda: loss(output, y))
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        raise ValueError(
            f"the loss cannot take {shapes} and {y.dtype} ({first_line(error)}); make the two fit."
        ) from error
    if version(y) != before:
        raise ValueError(changes_targets("the loss"))
    if any("target size" in text for text in messages) or _broadcasts(loss, output, y, value):
        raise ValueError(
            f"the loss compares {shapes}, which PyTorch broadcasts; give both the same shape, "
            "e.g. with y.view_as(output)."
        )
    if not isinstance(value, Tensor):
        raise ValueError(
            f"the loss returns a {type(value).__name__}, which has no gradient; return a tensor, "
            "without item() or float()."
        )
    if value.numel() != 1:
        raise ValueError(
            f"the loss returns a tensor of shape {tuple(value.shape)}; return one number, the mean "
            "over samples."
        )
    return value


def _broadcasts(loss: Loss, output: Tensor, y: Tensor, value: Any) -> bool:
    """Tell whether (n, 1) and (n,), made equal in shape, have another loss."""
    flat = output.shape != y.shape and output.numel() == y.numel() == len(y) > 1
    if not flat or recognise(loss) is not None:
        return False
    try:
        other = float(loss(output.detach(), y.clone().view_as(output)))
        return abs(other - float(value.detach())) > _SAME * abs(other)
    except (RuntimeError, IndexError, TypeError, ValueError):
        return False  # This loss wants the shapes as they are.


def _heard(run: Callable[[], Any]) -> tuple[Any, list[str]]:
    """Return what a function returns and the warnings it gives; pass those on."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = run()
    messages = [str(w.message) for w in caught]
    for w in caught:
        if "target size" not in str(w.message):
            warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
    return value, messages


def _check_targets(who: str, loss: Loss, output: Any, few: Tensor, targets: Tensor) -> None:
    if not isinstance(output, Tensor):
        raise ValueError(
            f"the module returns a {type(output).__name__}; wrap it in one whose forward returns "
            "a single tensor."
        )
    known = recognise(loss)
    if known is None:
        return
    if known.elementwise and output.shape != few.shape:
        raise ValueError(
            f"{known.name} would compare outputs of shape {_shape(output)} with targets of {who} "
            f"of shape {_shape(few)}; give both the same shape, e.g. with y.view(-1, 1) or "
            "y.flatten()."
        )
    if known.takes_labels and not targets.is_floating_point() and output.dim() >= 2:
        _check_labels(who, loss, output, targets)


def _check_labels(who: str, loss: Loss, output: Tensor, y: Tensor) -> None:
    classes = output.shape[1]
    if y.dim() == 2 and output.dim() == 2:
        what = "y.flatten()" if y.shape[1] == 1 else "y.argmax(1), or y.float() for probabilities"
        raise ValueError(f"{who} has labels of shape {_shape(y)}; pass {what}.")
    counted = y[y != ignored_label(loss)]
    if counted.numel() and (int(counted.min()) < 0 or int(counted.max()) >= classes):
        raise ValueError(
            f"{who} has labels from {int(counted.min())} to {int(counted.max())}, but the module "
            f"has {classes} outputs; labels run from 0 to {classes - 1}."
        )


def _shape(t: Tensor) -> str:
    return f"({', '.join(['n', *map(str, t.shape[1:])])}{',' if t.dim() == 1 else ''})"
