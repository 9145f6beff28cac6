"""Checks on two samples: whether data, module and loss fit together, and a sentence if not."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trimtab.core.streams import global_state, seeded
from trimtab.problems.supervised.buffers import running_statistics
from trimtab.problems.supervised.data import WHOLE_NUMBERS, Data
from trimtab.problems.supervised.flat import (
    FlatModule,
    Tree,
    changes_inputs,
    describe,
    first_line,
    leaves,
    map_rows,
    map_tree,
    parts,
    version,
)
from trimtab.problems.supervised.losses import Loss, OnBatch, ignored_label, loss_kind
from trimtab.problems.supervised.reading import is_sparse

# Largest relative difference of two ways to compute the same numbers, in float32 as well: above its
# rounding, 6e-8 per operation, and below the effect of a sum in place of a mean.
SAME = 1e-4
# Two calls of the same operations differ less: by the order of sums, at most some roundings.
_ROUNDINGS = 100


def check_on_two_samples(owner: str, data: Data, model: FlatModule, loss: Loss) -> Any:
    """Return the module's output; raise ValueError if module, loss and data do not fit."""
    with torch.no_grad():
        # Once in training mode: later data repeat only the checks that depend on the data.
        return _run(owner, data, _few(data, model), model, loss, [True])[0][0]


def check_first(owner: str, data: Data, model: FlatModule, loss: Loss) -> Any:
    """Check the first data of a problem: also whether the loss is a mean with a gradient.

    Raise ValueError if module, loss or collate give another result when they are called again, or
    change the data. Return the module's output.
    """
    # Two copies: the first is passed to the module, the second shows whether that changed it.
    few, before = _few(data, model), _few(data, model)
    if not _equal(few.batch, before.batch):
        raise ValueError(
            "collate returns another batch when it is called again with the same samples, so that "
            "a mini-batch would differ from call to call; draw random numbers by torch in the "
            "module, or in a loss of module and batch, OnBatch(f)."
        )
    with torch.enable_grad():
        results = _run(owner, data, few, model, loss, [True, True, False])
    if not _equal(few.X, before.X):
        raise ValueError(changes_inputs("the module"))
    if not _equal(few.y, before.y):
        raise ValueError(changes_targets("the loss"))
    _check_pure(model, *results[:2])
    _check_gradient(owner, few, model, *results[1])
    if loss_kind(loss) is None:
        with seeded(0, model.device):
            is_sum = _is_sum(loss, model, few, *results[2])
        if is_sum:
            raise ValueError(
                "the loss of a batch that holds every sample twice is twice as large, so it is a "
                "sum; pass the mean over samples."
            )
    return results[0][0]


def _run(
    owner: str, data: Data, few: Data, model: FlatModule, loss: Loss, modes: Sequence[bool]
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
                results.append(_outputs_and_loss(owner, data, few, model, loss, not results))
                pairs = zip(before, global_state(device), strict=True)
                model.draws |= not all(torch.equal(old, new) for old, new in pairs)

    changed = model.changed_buffers(run)
    if changed:
        raise ValueError(running_statistics(f"buffer '{changed[0]}'"))
    return results


def _outputs_and_loss(
    owner: str, data: Data, few: Data, model: FlatModule, loss: Loss, first: bool
) -> tuple[Tree, Tensor]:
    if isinstance(loss, OnBatch):
        return None, _loss_of_batch(owner, loss, model, few)
    try:
        output = model(model.start, few.X)
    except (RuntimeError, IndexError, TypeError) as error:
        raise ValueError(
            f"the module cannot take the inputs of {owner}, {_kind(few.X)}{_range(data)} "
            f"({first_line(error)}); make the two fit."
        ) from error
    if first:
        _check_targets(owner, loss, output, few.y, data)
    return output, _loss_value(owner, loss, output, few.y)


def _check_pure(model: FlatModule, first: tuple[Tree, Tensor], second: tuple[Tree, Tensor]) -> None:
    """Raise ValueError if the same inputs and seed gave two results."""
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
    """Return whether two results are equal up to rounding, in tensors and in plain numbers."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.dtype == other.dtype and torch.equal(one, other):
            return True
        if one.shape != other.shape or one.dtype != other.dtype or not one.is_floating_point():
            return False
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


def _check_gradient(owner: str, few: Data, model: FlatModule, output: Tree, value: Tensor) -> None:
    if output is not None and not any(leaf.requires_grad for leaf in leaves(output)):
        raise ValueError(
            "the module's outputs do not depend on its trainable parameters; remove detach() or "
            "no_grad() from its forward."
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
            f"the loss of {owner} has no gradient ({first_line(error)}); make outputs and targets "
            f"of one kind, here {_dtypes(output)} and {_dtypes(few.y)}."
        ) from error
    for name, gradient in zip(model.names, gradients, strict=True):
        if is_sparse(gradient):
            raise ValueError(
                f"parameter '{name}' of {type(model.module).__name__} has a sparse gradient, which "
                "cannot be a part of a vector; pass sparse=False to its embedding."
            )


def _leaves(value: Tensor) -> set[int]:
    """Return the identities of the trainable tensors that a value was computed from."""
    # A walk over the graph of autograd, in which leaves have the attribute `variable`.
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
    """Return whether the loss is t times as large if a batch holds every sample t times."""
    values, once = [], float(value)
    try:
        # Two factors: a loss that is not a sum may double by chance, but not triple as well.
        for t in (2, 3):
            if isinstance(loss, OnBatch):
                model.mode(training=False)
                batch = _repeated(few.batch, t)
                values.append(float(loss(model.at(model.start), batch)))
            else:
                outputs = _repeated(map_tree(_detached, output), t)
                values.append(float(loss(outputs, _repeated(few.y, t))))
    except (RuntimeError, IndexError, TypeError, ValueError):
        return False  # This loss takes batches of one size only.
    near = [abs(value - t * once) <= SAME * abs(once) for t, value in enumerate(values, start=2)]
    return once != 0 and all(near)


def _repeated(tree: Tree, t: int) -> Tree:
    return map_rows(lambda part: torch.cat([part] * t), tree)


def _few(data: Data, model: FlatModule) -> Data:
    if model.norms and len(data) == 1:
        # BatchNorm may refuse it, but evaluation takes any number of samples.
        return data.take(torch.tensor([0, 0], device=data.device))
    # With the extreme indices too: one that is out of range for an embedding must fail here.
    if data.samples is not None:
        return data.cut(0, 2).copy()
    chosen = list(range(min(2, len(data))))
    for X in leaves(data.X):
        if X.dtype in WHOLE_NUMBERS and X.numel():
            each = X[0].numel()
            chosen += [int(X.argmin()) // each, int(X.argmax()) // each]
    if len(chosen) <= 2:
        return data.cut(0, 2).copy()
    return data.take(torch.tensor(chosen, device=data.device))


def _range(data: Data) -> str:
    X = None if data.samples is not None else data.X
    if not isinstance(X, Tensor) or X.dtype not in WHOLE_NUMBERS:
        return ""
    return f", numbers from {int(X.min())} to {int(X.max())}"


def _kind(X: Tree) -> str:
    if isinstance(X, Tensor):
        return f"of shape {tuple(X.shape)}, {X.dtype}"
    return f"{describe(X)} a sample"


def _equal(tree: Tree, other: Tree) -> bool:
    ours, others = leaves(tree), leaves(other)
    return len(ours) == len(others) and all(map(torch.equal, ours, others))


def _check_targets(owner: str, loss: Loss, output: Any, few: Tree, data: Data) -> None:
    """Raise ValueError if a loss of PyTorch would compare targets of another kind or shape."""
    known = loss_kind(loss)
    if known is None:
        return
    if not isinstance(output, Tensor):
        raise ValueError(
            f"the module returns a {type(output).__name__}, but {known.name} takes a single "
            f"tensor; pass your own loss, such as lambda output, y: {known.name}"
            f"(output[{_first(output)!r}], y)."
        )
    if not isinstance(few, Tensor):
        raise ValueError(
            f"{owner} has targets {describe(few)}, but {known.name} takes a single tensor; pass "
            "your own loss, which takes them apart."
        )
    if known.elementwise and output.shape != few.shape:
        raise ValueError(
            f"{known.name} would compare outputs of shape {_shape(output)} with targets of {owner} "
            f"of shape {_shape(few)}; give both the same shape, e.g. with y.view(-1, 1) or "
            "y.flatten()."
        )
    if known.takes_labels and not few.is_floating_point() and output.dim() >= 2:
        _check_labels(owner, loss, output, data.y)


def _loss_value(owner: str, loss: Loss, output: Any, y: Tree) -> Tensor:
    shapes = f"outputs of shape {_whole(output)}, targets of {owner} of shape {_whole(y)}"
    # PyTorch counts writes to a tensor, which costs less than a copy.
    before = [version(leaf) for leaf in leaves(y)]
    try:
        known = loss_kind(loss) is not None  # The shapes of such a loss were checked before.
        value, messages = (
            (loss(output, y), []) if known else _captured_warnings(lambda: loss(output, y))
        )
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


def _loss_of_batch(owner: str, loss: OnBatch, model: FlatModule, few: Data) -> Tensor:
    before = [version(leaf) for leaf in leaves(few.batch)]
    try:
        value, messages = _captured_warnings(lambda: loss(model.at(model.start), few.batch))
    except (RuntimeError, IndexError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise ValueError(
            f"the loss fails on a batch of {owner}, {describe(few.batch)} a sample "
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


def changes_targets(owner: str) -> str:
    """Return the message for a loss or a metric that writes into the targets."""
    return (
        f"{owner} changes the targets in place, that is, the data themselves; write y = y - 1 "
        "instead of y -= 1."
    )


def changes_batch(owner: str) -> str:
    """Return the message for a loss or a metric that writes into its batch."""
    return (
        f"{owner} changes its batch in place, that is, the data themselves; write x = x / 255 "
        "instead of x /= 255."
    )


def _dtypes(tree: Tree) -> str:
    return " and ".join(dict.fromkeys(str(leaf.dtype) for leaf in leaves(tree))) or "nothing"


def _detached(part: Any) -> Any:
    return part.detach() if isinstance(part, Tensor) else part


def _one_number(value: Any) -> Tensor:
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
    """Return the shape of a tensor as text; of a tree, the shapes of one sample."""
    return str(tuple(tree.shape)) if isinstance(tree, Tensor) else f"{describe(tree)} a sample"


def _broadcasts(loss: Loss, output: Tree, y: Tree, value: Any) -> bool:
    """Return whether outputs (n, 1) meet targets (n,), so that PyTorch compares all pairs.

    Then the loss is not the mean of the losses of single samples, and would be if both were (n,).
    """
    n = len(leaves(y)[0]) if leaves(y) else 0

    def flat(t: Any) -> Any:
        one = isinstance(t, Tensor) and t.numel() == n and t.dim() and len(t) == n
        return t.detach().clone().reshape(n) if one else _detached(t)

    shapes = {leaf.shape for tree in (output, y) for leaf in leaves(tree) if leaf.numel() == n}
    if n < 2 or len(shapes) < 2 or loss_kind(loss) is not None:
        return False

    def alone(j: int) -> float:
        both = (map_rows(lambda t: t.detach()[j : j + 1].clone(), tree) for tree in (output, y))
        return float(loss(*both))

    try:
        with warnings.catch_warnings(action="ignore"):  # These shapes are not the user's.
            other = float(loss(map_tree(flat, output), map_tree(flat, y)))
            mean = sum(alone(j) for j in range(n)) / n
        found = float(value.detach())
    except (RuntimeError, IndexError, TypeError, ValueError, AttributeError):
        return False  # This loss wants the shapes as they are.
    near = SAME * abs(mean)
    return abs(other - mean) <= near < abs(found - mean)


def _captured_warnings(run: Callable[[], Any]) -> tuple[Any, list[str]]:
    # Warnings are issued again, except for the one that an error of trimtab replaces.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = run()
    messages = [str(w.message) for w in caught]
    for w in caught:
        if "target size" not in str(w.message):
            warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
    return value, messages


def _first(output: Any) -> Any:
    return next(iter(output), 0) if isinstance(output, Mapping) else 0


def _check_labels(owner: str, loss: Loss, output: Tensor, y: Tensor) -> None:
    classes = output.shape[1]
    if y.dim() == 2 and output.dim() == 2:
        what = "y.flatten()" if y.shape[1] == 1 else "y.argmax(1), or y.float() for probabilities"
        raise ValueError(f"{owner} has labels of shape {_shape(y)}; pass {what}.")
    counted = y[y != ignored_label(loss)]
    if counted.numel() and (int(counted.min()) < 0 or int(counted.max()) >= classes):
        raise ValueError(
            f"{owner} has labels from {int(counted.min())} to {int(counted.max())}, but the module "
            f"has {classes} outputs; labels run from 0 to {classes - 1}."
        )


def _shape(t: Tensor) -> str:
    return f"({', '.join(['n', *map(str, t.shape[1:])])}{',' if t.dim() == 1 else ''})"
