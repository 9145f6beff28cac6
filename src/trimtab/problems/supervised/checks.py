"""Trials of what is read: do these data fit the module and the loss, and is the loss a mean?"""

from typing import Any

import torch
from torch import Tensor

from trimtab.core.streams import global_state, seeded
from trimtab.problems.supervised.flat import (
    FlatModule,
    changes_inputs,
    first_line,
    running_statistics,
)
from trimtab.problems.supervised.loss_value import (
    SAME,
    changes_targets,
    check_targets,
    detached,
    dtypes,
    loss_of_batch,
    loss_value,
)
from trimtab.problems.supervised.losses import Loss, recognise
from trimtab.problems.supervised.on_batch import OnBatch
from trimtab.problems.supervised.reading import Loose
from trimtab.problems.supervised.samples import Data
from trimtab.problems.supervised.trees import Tree, describe, join, leaves, map_rows, map_tree

_INDICES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_fit(who: str, data: Data, model: FlatModule, loss: Loss) -> None:
    """Refuse data that the module or the loss cannot take, and modules that are no functions.

    A trial on a few samples also finds out whether the module draws random numbers.
    """
    few = _few(data)
    outputs: list[Any] = []
    loss_of_all = loss if isinstance(loss, OnBatch) else None

    def trial() -> None:
        device = model.device
        with torch.no_grad(), seeded(0, device):
            before = global_state(device)
            model.mode(training=True)
            if loss_of_all is not None:
                outputs.append(loss_of_batch(who, loss_of_all, model, few))
            else:
                outputs.append(model(model.start, few.X))
            pairs = zip(before, global_state(device), strict=True)
            model.draws |= not all(torch.equal(old, new) for old, new in pairs)

    try:
        changed = model.changed_buffers(trial)
    except (RuntimeError, IndexError, TypeError) as error:
        raise ValueError(
            f"the module cannot take the inputs of {who}, {_kind(few.X)}{_range(data)} "
            f"({first_line(error)}); make the two fit."
        ) from error
    if changed:
        raise ValueError(running_statistics(f"buffer '{changed[0]}'"))
    if loss_of_all is None:
        check_targets(who, loss, outputs[0], few.y, data)
        loss_value(who, loss, outputs[0], few.y)


def check_mean(who: str, data: Data, model: FlatModule, loss: Loss) -> None:
    """Refuse, once for each problem, a loss that is no mean, has no gradient or changes data."""
    few, before = _few(data), _few(data)
    results: list[tuple[Any, Tensor]] = []

    def trial() -> None:
        for training in (False, True):
            model.mode(training)
            with torch.enable_grad(), seeded(0, model.device):
                if isinstance(loss, OnBatch):
                    results.append((None, loss_of_batch(who, loss, model, few)))
                else:
                    output = model(model.start, few.X)
                    results.append((output, loss_value(who, loss, output, few.y)))

    changed = model.changed_buffers(trial)
    if changed:
        raise ValueError(running_statistics(f"buffer '{changed[0]}'"))
    if not _equal(few.X, before.X):
        raise ValueError(changes_inputs("the module"))
    if not _equal(few.y, before.y):
        raise ValueError(changes_targets("the loss"))
    output, value = results[-1]
    if output is not None and not any(leaf.requires_grad for leaf in leaves(output)):
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
            f"of one kind, here {dtypes(output)} and {dtypes(few.y)}."
        ) from error
    if recognise(loss) is None and _is_sum(loss, model, few, *results[0]):
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


@torch.no_grad()
def _is_sum(loss: Loss, model: FlatModule, few: Data, output: Tree, value: Tensor) -> bool:
    """Tell whether a batch that holds every sample twice or thrice has that multiple of a loss."""
    values, once = [], float(value)
    try:
        for t in (2, 3):
            if isinstance(loss, OnBatch):
                model.mode(training=False)
                batch = _repeated(few.batch, t)
                values.append(float(loss(model.at(model.start), batch)))
            else:
                outputs = _repeated(map_tree(detached, output), t)
                values.append(float(loss(outputs, _repeated(few.y, t))))
    except (RuntimeError, IndexError, TypeError, ValueError):
        return False  # This loss takes batches of one size only.
    near = [abs(value - t * once) <= SAME * abs(once) for t, value in enumerate(values, start=2)]
    return once != 0 and all(near)


def _repeated(tree: Tree, t: int) -> Tree:
    return map_rows(lambda part: torch.cat([part] * t), tree)


@torch.no_grad()
def rowwise(model: FlatModule, data: Data) -> bool:
    """Tell whether the module treats each sample by itself, so that its inputs may be cut up."""
    half = len(data) // 2
    for training in (False,) if model.draws else (False, True):
        model.mode(training)
        try:
            whole = model(model.start, data.X)
            halves = (data.cut(0, half), data.cut(half, len(data)))
            parts = join([model(model.start, part.X) for part in halves])
        except (RuntimeError, ValueError, IndexError, TypeError):
            return False
        for one, other in zip(leaves(whole), leaves(parts), strict=True):
            if one.shape != other.shape or (one - other).norm() > SAME * one.norm():
                return False
    return True


def _few(data: Data) -> Data:
    """Return copies of the first two samples and, of indices, those with the extreme ones."""
    if isinstance(data, Loose):
        return data.cut(0, 2).copy()
    chosen = list(range(min(2, len(data))))
    for X in leaves(data.X):
        if X.dtype in _INDICES and X.numel():
            each = X[0].numel()
            chosen += [int(X.argmin()) // each, int(X.argmax()) // each]
    if len(chosen) <= 2:
        return data.cut(0, 2).copy()
    return data.take(torch.tensor(chosen, device=data.device))


def _range(data: Data) -> str:
    X = None if isinstance(data, Loose) else data.X
    if not isinstance(X, Tensor) or X.dtype not in _INDICES:
        return ""
    return f", numbers from {int(X.min())} to {int(X.max())}"


def _kind(X: Tree) -> str:
    """Say what inputs are."""
    if isinstance(X, Tensor):
        return f"of shape {tuple(X.shape)}, {X.dtype}"
    return f"{describe(X)} a sample"


def _equal(tree: Tree, other: Tree) -> bool:
    return all(torch.equal(*both) for both in zip(leaves(tree), leaves(other), strict=True))
