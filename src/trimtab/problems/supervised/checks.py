"""Trials of what is read: do these data fit the module and the loss, and is the loss a mean?"""

import warnings
from collections.abc import Callable, Mapping
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
from trimtab.problems.supervised.on_batch import OnBatch
from trimtab.problems.supervised.reading import Loose
from trimtab.problems.supervised.samples import Data
from trimtab.problems.supervised.trees import Tree, describe, join, leaves, map_tree

_INDICES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_SAME = 1e-4  # outputs are the same if they differ by <= 1e-4 x their size


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
                outputs.append(_on_batch(who, loss_of_all, model, few))
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
        _check_targets(who, loss, outputs[0], few.y, data)
        _value(who, loss, outputs[0], few.y)


def check_mean(who: str, data: Data, model: FlatModule, loss: Loss) -> None:
    """Refuse, once for each problem, a loss that is no mean, has no gradient or changes data."""
    few, before = _few(data), _few(data)
    results: list[tuple[Any, Tensor]] = []

    def trial() -> None:
        for training in (False, True):
            model.mode(training)
            with torch.enable_grad(), seeded(0, model.device):
                if isinstance(loss, OnBatch):
                    results.append((None, _on_batch(who, loss, model, few)))
                else:
                    output = model(model.start, few.X)
                    results.append((output, _value(who, loss, output, few.y)))

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
            f"of one kind, here {_dtypes(output)} and {_dtypes(few.y)}."
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
                batch = join([few.batch] * t)
                values.append(float(loss(model.at(model.start), batch)))
            else:
                outputs = join([map_tree(_detached, output)] * t)
                values.append(float(loss(outputs, join([few.y] * t))))
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
            if one.shape != other.shape or (one - other).norm() > _SAME * one.norm():
                return False
    return True


def _on_batch(who: str, loss: OnBatch, model: FlatModule, few: Data) -> Tensor:
    """Return the loss of module and batch on a few samples, if it is one number."""
    before = [version(leaf) for leaf in leaves(few.batch)]
    try:
        value, messages = _heard(lambda: loss(model.at(model.start), few.batch))
    except (RuntimeError, IndexError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise ValueError(
            f"the loss fails on a batch of {who}, {describe(few.batch)} a sample "
            f"({type(error).__name__}: {first_line(error)}); make the two fit."
        ) from error
    if [version(leaf) for leaf in leaves(few.batch)] != before:
        raise ValueError(changes_batch("the loss"))
    if any("target size" in text for text in messages):
        raise ValueError(
            "the loss compares outputs and targets of different shapes, which PyTorch broadcasts; "
            "give both the same shape, e.g. with y.view_as(output)."
        )
    return _one_number(value)


def changes_batch(who: str) -> str:
    """Return the sentence that refuses a loss or metric that writes into its batch."""
    return (
        f"{who} changes its batch in place, that is, the data themselves; write x = x / 255 "
        "instead of x /= 255."
    )


def _few(data: Data) -> Data:
    """Return copies of the first two samples and, of indices, those with the extreme ones."""
    if isinstance(data, Loose):
        return data.cut(0, 2).copy()
    rows = list(range(min(2, len(data))))
    for X in leaves(data.X):
        if X.dtype in _INDICES and X.numel():
            each = X[0].numel()
            rows += [int(X.argmin()) // each, int(X.argmax()) // each]
    if len(rows) <= 2:
        return data.cut(0, 2).copy()
    return data.take(torch.tensor(rows, device=data.device))


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


def _detached(part: Any) -> Any:
    return part.detach() if isinstance(part, Tensor) else part


def _dtypes(tree: Tree) -> str:
    return " and ".join(dict.fromkeys(str(leaf.dtype) for leaf in leaves(tree))) or "nothing"


def _equal(tree: Tree, other: Tree) -> bool:
    return all(torch.equal(*both) for both in zip(leaves(tree), leaves(other), strict=True))


def _value(who: str, loss: Loss, output: Any, y: Tree) -> Tensor:
    """Return the loss of a few samples, if it is one number and takes these shapes."""
    shapes = f"outputs of shape {_whole(output)}, targets of {who} of shape {_whole(y)}"
    before = [version(leaf) for leaf in leaves(y)]
    try:
        known = recognise(loss) is not None  # The shapes of such a loss were checked before.
        value, messages = (loss(output, y), []) if known else _heard(lambda: loss(output, y))
    except (RuntimeError, IndexError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise ValueError(
            f"the loss cannot take {shapes} and {_dtypes(y)} ({first_line(error)}); make the two "
            "fit."
        ) from error
    if [version(leaf) for leaf in leaves(y)] != before:
        raise ValueError(changes_targets("the loss"))
    if any("target size" in text for text in messages) or _broadcasts(loss, output, y, value):
        raise ValueError(
            f"the loss compares {shapes}, which PyTorch broadcasts; give both the same shape, "
            "e.g. with y.view_as(output)."
        )
    return _one_number(value)


def _one_number(value: Any) -> Tensor:
    """Return what a loss returned, if it is one number in a tensor."""
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


def _whole(tree: Tree) -> str:
    """Say what shapes a tensor or a tree of them has; of a tree, those of one sample."""
    return str(tuple(tree.shape)) if isinstance(tree, Tensor) else f"{describe(tree)} a sample"


def _broadcasts(loss: Loss, output: Tree, y: Tree, value: Any) -> bool:
    """Tell whether (n, 1) meets (n,): the loss is not the mean over samples, and would be if flat.

    Of one sample alone nothing is broadcast.
    """
    n = len(leaves(y)[0]) if leaves(y) else 0

    def flat(t: Any) -> Any:
        """Return numbers, one a sample, as a vector, and all else as it is."""
        one = isinstance(t, Tensor) and t.numel() == n and t.dim() and len(t) == n
        return t.detach().clone().reshape(n) if one else _detached(t)

    shapes = {leaf.shape for tree in (output, y) for leaf in leaves(tree) if leaf.numel() == n}
    if n < 2 or len(shapes) < 2 or recognise(loss) is not None:
        return False

    def alone(j: int) -> float:
        """Return the loss of one sample."""
        both = (map_tree(lambda t: t.detach()[j : j + 1].clone(), tree) for tree in (output, y))
        return float(loss(*both))

    try:
        with warnings.catch_warnings(action="ignore"):  # These shapes are not the user's.
            other = float(loss(map_tree(flat, output), map_tree(flat, y)))
            mean = sum(alone(j) for j in range(n)) / n
        found = float(value.detach())
    except (RuntimeError, IndexError, TypeError, ValueError, AttributeError):
        return False  # This loss wants the shapes as they are.
    near = _SAME * abs(mean)
    return abs(other - mean) <= near < abs(found - mean)


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


def _check_targets(who: str, loss: Loss, output: Any, few: Tree, data: Data) -> None:
    known = recognise(loss)
    if known is None:
        return
    if not isinstance(output, Tensor):
        raise ValueError(
            f"the module returns a {type(output).__name__}, but {known.name} takes a single "
            f"tensor; pass a loss of your own, such as lambda output, y: {known.name}"
            f"(output[{_first(output)!r}], y)."
        )
    if not isinstance(few, Tensor):
        raise ValueError(
            f"{who} has targets {describe(few)}, but {known.name} takes a single tensor; pass a "
            "loss of your own, which takes them apart."
        )
    if known.elementwise and output.shape != few.shape:
        raise ValueError(
            f"{known.name} would compare outputs of shape {_shape(output)} with targets of {who} "
            f"of shape {_shape(few)}; give both the same shape, e.g. with y.view(-1, 1) or "
            "y.flatten()."
        )
    if known.takes_labels and not few.is_floating_point() and output.dim() >= 2:
        _check_labels(who, loss, output, data.y)


def _first(output: Any) -> Any:
    """Return where the outputs may be in what a module returns."""
    return next(iter(output), 0) if isinstance(output, Mapping) else 0


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
