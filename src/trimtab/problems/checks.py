"""Checks of what is read: do these data fit the module and the loss?"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trimtab.problems.clients import Data
from trimtab.problems.flat import FlatModule, running_statistics
from trimtab.streams import global_state, seeded

Loss = Callable[[Tensor, Tensor], Tensor]


def check_fit(who: str, data: Data, model: FlatModule, loss: Loss) -> None:
    """Refuse data that the module or the loss cannot take, and modules that are no functions.

    A trial on two samples also finds out whether the module draws random numbers.
    """
    few = Data(data.X[:2], data.y[:2])
    outputs: list[Tensor] = []

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
            f"the module cannot take the inputs of {who}, of shape {tuple(few.X.shape)} "
            f"and {few.X.dtype} ({_first_line(error)}); make the two fit."
        ) from None
    if changed:
        raise ValueError(running_statistics(f"buffer '{changed[0]}'"))
    _check_labels(who, loss, outputs[0], data.y)
    try:
        loss(outputs[0], few.y)
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        raise ValueError(
            f"the loss cannot take outputs of shape {tuple(outputs[0].shape)} with the targets "
            f"of {who}, of shape {tuple(few.y.shape)} and {few.y.dtype} "
            f"({_first_line(error)}); make the two fit."
        ) from None


def _check_labels(who: str, loss: Loss, output: Tensor, y: Tensor) -> None:
    if not _takes_labels(loss) or y.is_floating_point() or output.dim() < 2:
        return
    classes = output.shape[1]
    counted = y[y != getattr(loss, "ignore_index", -100)]
    if counted.numel() and (int(counted.min()) < 0 or int(counted.max()) >= classes):
        raise ValueError(
            f"{who} has labels from {int(counted.min())} to {int(counted.max())}, but the module "
            f"has {classes} outputs; labels run from 0 to {classes - 1}."
        )


def _takes_labels(loss: Loss) -> bool:
    return loss in (F.cross_entropy, F.nll_loss) or isinstance(
        loss, nn.CrossEntropyLoss | nn.NLLLoss
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
