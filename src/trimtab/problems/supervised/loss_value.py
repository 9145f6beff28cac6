"""The loss of a few samples, if it is one number and the targets fit it; else a sentence."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from trimtab.problems.supervised.data import Data
from trimtab.problems.supervised.flat import (
    FlatModule,
    Tree,
    describe,
    first_line,
    leaves,
    map_rows,
    map_tree,
    version,
)
from trimtab.problems.supervised.losses import Loss, OnBatch, ignored_label, recognise

SAME = 1e-4  # numbers are the same if they differ by <= 1e-4 x their size


def check_targets(who: str, loss: Loss, output: Any, few: Tree, data: Data) -> None:
    """Refuse targets that a loss which is known would compare with something else."""
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


def loss_value(who: str, loss: Loss, output: Any, y: Tree) -> Tensor:
    """Return the loss of a few samples, if it is one number and takes these shapes."""
    shapes = f"outputs of shape {_whole(output)}, targets of {who} of shape {_whole(y)}"
    before = [version(leaf) for leaf in leaves(y)]
    try:
        known = recognise(loss) is not None  # The shapes of such a loss were checked before.
        value, messages = (loss(output, y), []) if known else _heard(lambda: loss(output, y))
    except (RuntimeError, IndexError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise ValueError(
            f"the loss cannot take {shapes} and {dtypes(y)} ({first_line(error)}); make the two "
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


def loss_of_batch(who: str, loss: OnBatch, model: FlatModule, few: Data) -> Tensor:
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


def changes_targets(who: str) -> str:
    """Return the sentence that refuses a loss or a metric that writes into the targets."""
    return (
        f"{who} changes the targets in place, that is, the data themselves; write y = y - 1 "
        "instead of y -= 1."
    )


def changes_batch(who: str) -> str:
    """Return the sentence that refuses a loss or metric that writes into its batch."""
    return (
        f"{who} changes its batch in place, that is, the data themselves; write x = x / 255 "
        "instead of x /= 255."
    )


def dtypes(tree: Tree) -> str:
    """Say which dtypes there are."""
    return " and ".join(dict.fromkeys(str(leaf.dtype) for leaf in leaves(tree))) or "nothing"


def detached(part: Any) -> Any:
    """Return a tensor without its graph, and anything else as it is."""
    return part.detach() if isinstance(part, Tensor) else part


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
        return t.detach().clone().reshape(n) if one else detached(t)

    shapes = {leaf.shape for tree in (output, y) for leaf in leaves(tree) if leaf.numel() == n}
    if n < 2 or len(shapes) < 2 or recognise(loss) is not None:
        return False

    def alone(j: int) -> float:
        """Return the loss of one sample."""
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
