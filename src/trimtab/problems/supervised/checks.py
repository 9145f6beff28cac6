"""Trials of what is read: do these data fit the module and the loss, and is the loss a mean?"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trimtab.core.streams import global_state, seeded
from trimtab.problems.supervised.data import Data
from trimtab.problems.supervised.flat import (
    FlatModule,
    Tree,
    changes_inputs,
    describe,
    first_line,
    join,
    leaves,
    map_rows,
    map_tree,
    parts,
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
from trimtab.problems.supervised.losses import Loss, OnBatch, recognise
from trimtab.problems.supervised.reading import is_sparse

_INDICES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_ROUNDINGS = 100  # outputs of two calls are the same if they differ by <= 100 roundings


def check_fit(who: str, data: Data, model: FlatModule, loss: Loss) -> None:
    """Refuse data that the module or the loss cannot take, and buffers that training changes."""
    with torch.no_grad():
        _run(who, data, _few(data), model, loss, [True])


def check_first(who: str, data: Data, model: FlatModule, loss: Loss) -> None:
    """Do the same, once for each problem with more care.

    Refuse a module or loss that is no function of what it is given, and a loss that is no mean,
    has no gradient or changes data.
    """
    few, before = _few(data), _few(data)
    if not _equal(few.batch, before.batch):
        raise ValueError(
            "collate returns another batch when it is called again with the same samples, so that "
            "a mini-batch would differ from call to call; draw random numbers by torch in the "
            "module, or in a loss of module and batch, OnBatch(f)."
        )
    with torch.enable_grad():
        results = _run(who, data, few, model, loss, [True, True, False])
    if not _equal(few.X, before.X):
        raise ValueError(changes_inputs("the module"))
    if not _equal(few.y, before.y):
        raise ValueError(changes_targets("the loss"))
    _check_pure(model, *results[:2])
    _check_gradient(who, few, model, *results[1])
    if recognise(loss) is not None:
        return
    with seeded(0, model.device):
        is_sum = _is_sum(loss, model, few, *results[2])
    if is_sum:
        raise ValueError(
            "the loss of a batch that holds every sample twice is twice as large, so it is a sum; "
            "pass the mean over samples."
        )


def _run(
    who: str, data: Data, few: Data, model: FlatModule, loss: Loss, modes: Sequence[bool]
) -> list[tuple[Tree, Tensor]]:
    """Return outputs and losses of a few samples, with the same random numbers in each mode.

    This also finds out whether the module or the loss draws random numbers.
    """
    results: list[tuple[Tree, Tensor]] = []
    device = model.device

    def run() -> None:
        for training in modes:
            model.mode(training)
            with seeded(0, device):
                before = global_state(device)
                results.append(_outputs_and_loss(who, data, few, model, loss))
                pairs = zip(before, global_state(device), strict=True)
                model.draws |= not all(torch.equal(old, new) for old, new in pairs)

    changed = model.changed_buffers(run)
    if changed:
        raise ValueError(running_statistics(f"buffer '{changed[0]}'"))
    return results


def _outputs_and_loss(
    who: str, data: Data, few: Data, model: FlatModule, loss: Loss
) -> tuple[Tree, Tensor]:
    if isinstance(loss, OnBatch):
        return None, loss_of_batch(who, loss, model, few)
    try:
        output = model(model.start, few.X)
    except (RuntimeError, IndexError, TypeError) as error:
        raise ValueError(
            f"the module cannot take the inputs of {who}, {_kind(few.X)}{_range(data)} "
            f"({first_line(error)}); make the two fit."
        ) from error
    check_targets(who, loss, output, few.y, data)
    return output, loss_value(who, loss, output, few.y)


def _check_pure(model: FlatModule, first: tuple[Tree, Tensor], second: tuple[Tree, Tensor]) -> None:
    """Refuse a module or a loss that gives another result for the same inputs and seed."""
    if not _same(first[0], second[0]):
        raise ValueError(
            f"{type(model.module).__name__} returns other outputs when it is called again with "
            "the same inputs; let its forward depend on them, parameters and buffers alone, and "
            "draw random numbers by torch's global generator, as torch.randn does."
        )
    if not _same(first[1], second[1]):
        raise ValueError(
            "the loss has another value when it is computed again for the same batch; let it, and "
            "the module, depend on the batch, parameters and buffers alone, and draw random "
            "numbers by torch's global generator, as torch.randn does."
        )


def _same(one: Any, other: Any) -> bool:
    """Return whether two results are equal up to rounding, numbers beside tensors as well."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        if not one.is_floating_point():
            return torch.equal(one, other)
        one, other = one.detach(), other.detach()
        # Two calls may add up in another order, on a GPU or in another place in memory.
        near = _ROUNDINGS * torch.finfo(one.dtype).eps
        size = float(one[one.isfinite()].abs().max()) if bool(one.isfinite().any()) else 0.0
        return torch.allclose(one, other, rtol=near, atol=near * size, equal_nan=True)
    if isinstance(one, int | float | str):
        return type(one) is type(other) and (one == other or one != one)
    inside, others = parts(one), parts(other)
    both = zip(inside, others, strict=False)
    return len(inside) == len(others) and all(_same(a, b) for (_, a), (_, b) in both)


def _check_gradient(who: str, few: Data, model: FlatModule, output: Tree, value: Tensor) -> None:
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
        gradients = torch.autograd.grad(value, model.trainable, materialize_grads=True)
    except RuntimeError as error:
        raise ValueError(
            f"the loss of {who} has no gradient ({first_line(error)}); make outputs and targets "
            f"of one kind, here {dtypes(output)} and {dtypes(few.y)}."
        ) from error
    for name, gradient in zip(model.names, gradients, strict=True):
        if is_sparse(gradient):
            raise ValueError(
                f"parameter '{name}' of {type(model.module).__name__} has a sparse gradient, which "
                "is no part of a vector; pass sparse=False to its embedding."
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
            joined = join([model(model.start, part.X) for part in halves])
        except (RuntimeError, ValueError, IndexError, TypeError):
            return False
        for one, other in zip(leaves(whole), leaves(joined), strict=True):
            if one.shape != other.shape or (one - other).norm() > SAME * one.norm():
                return False
    return True


def _few(data: Data) -> Data:
    """Return copies of the first two samples and, of indices, those with the extreme ones."""
    if data.samples is not None:
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
    X = None if data.samples is not None else data.X
    if not isinstance(X, Tensor) or X.dtype not in _INDICES:
        return ""
    return f", numbers from {int(X.min())} to {int(X.max())}"


def _kind(X: Tree) -> str:
    """Say what inputs are."""
    if isinstance(X, Tensor):
        return f"of shape {tuple(X.shape)}, {X.dtype}"
    return f"{describe(X)} a sample"


def _equal(tree: Tree, other: Tree) -> bool:
    ours, others = leaves(tree), leaves(other)
    return len(ours) == len(others) and all(map(torch.equal, ours, others))
