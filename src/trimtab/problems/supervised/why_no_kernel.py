"""Why the compiled kernel does not run a module, told by the code that decides it."""

from torch import nn

from trimtab.compute import kernel
from trimtab.problems.supervised.closed_form import closed_form
from trimtab.problems.supervised.losses import Loss
from trimtab.problems.supervised.mean_loss import MeanLoss
from trimtab.problems.supervised.untouched import hooked


def why_no_kernel(mean_loss: MeanLoss) -> str:
    """Return a reason, and what to change."""
    model, loss = mean_loss.model, mean_loss.loss
    if mean_loss.autocast:
        return f"autocast={mean_loss.autocast} is on"
    if model.device.type != "cpu" or not kernel.works(model.dtype):
        where = f"{model.dtype} on {model.device.type}".replace("torch.", "")
        return f"it does not run {where} here; trimtab is built with it where there is a C compiler"
    if closed_form(nn.Linear(2, 2), loss) is None:
        return f"{_shown(loss)}, as it is passed, is not among its losses"
    return _of_module(model.module, loss)


def _of_module(module: nn.Module, loss: Loss) -> str:
    """Return which layer it does not take: one that it takes nowhere among plain layers."""
    if type(module) is not nn.Sequential:
        return f"{_shown(module)} is no nn.Sequential of layers that it knows"
    for name, layer in module.named_children():
        places = ([layer], [layer, nn.Linear(2, 2)], [nn.Linear(2, 2), layer, nn.Linear(2, 2)])
        if all(closed_form(nn.Sequential(*place), loss) is None for place in places):
            touched = hooked(layer) or any(not p.requires_grad for p in layer.parameters())
            what = "frozen, hooked or changed" if touched else "not among its layers"
            return f"layer '{name}', {_shown(layer)}, is {what}"
    return "its layers do not follow each other as it needs, or the data are not of its kind"


def _shown(thing: object) -> str:
    kind = type(thing)
    if isinstance(thing, nn.Module):
        own = kind.__module__.startswith("torch.nn.")
        return f"nn.{kind.__name__}" if own else kind.__name__
    return str(getattr(thing, "__name__", kind.__name__))
