"""An nn.Module seen as a function of one flat vector of its trainable parameters."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from trimtab.core import Vector


class FlatModule:
    """A copy of a module whose trainable parameters are a vector; frozen ones stay inside.

    >>> flat = FlatModule(nn.Linear(2, 1))
    >>> flat.d, flat(torch.zeros(3), torch.ones(5, 2)).shape
    (3, torch.Size([5, 1]))
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype | None = None) -> None:
        _refuse_running_statistics(module)
        self.module = deepcopy(module) if dtype is None else deepcopy(module).to(dtype)
        trainable = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        if not trainable:
            raise ValueError(f"{_name(module)} has no trainable parameters; unfreeze some of them.")
        if len({(p.dtype, p.device) for p in trainable.values()}) > 1:
            raise ValueError(
                f"{_name(module)} mixes dtypes or devices; move it with module.to(…) first."
            )
        self.names = list(trainable)
        self.shapes = [p.shape for p in trainable.values()]
        self.sizes = [p.numel() for p in trainable.values()]
        self.d = sum(self.sizes)
        first = next(iter(trainable.values()))
        self.dtype, self.device = first.dtype, first.device
        self.draws = any(_draws(m) for m in self.module.modules())  # random numbers in its forward
        self._as_given = [(m, m.training) for m in self.module.modules()]

    def vector(self, module: nn.Module | None = None) -> Vector:
        """Return the trainable parameters of the module, or of another build of it, as a vector."""
        parameters = dict((module or self.module).named_parameters())
        flat = torch.cat([parameters[name].detach().reshape(-1) for name in self.names])
        return flat.to(self.device, self.dtype)

    def parameters(self, x: Vector) -> dict[str, Tensor]:
        """Return views of x by the parameters' names."""
        parts = torch.split(x, self.sizes)
        return {n: p.view(s) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}

    def state_dict(self, x: Vector) -> dict[str, Tensor]:
        """Return the module's whole state_dict, with the parameters of x."""
        own = {name: t.detach().clone() for name, t in self.module.state_dict().items()}
        trained = {name: t.detach().clone() for name, t in self.parameters(x).items()}
        tied = {  # a parameter under a second name
            name: trained[first]
            for name, p in self.module.named_parameters(remove_duplicate=False)
            for first, q in self.module.named_parameters()
            if p is q and first in trained
        }
        return {**own, **tied}

    def mode(self, training: bool) -> None:
        """Put the submodules in the mode they were given in, or all in evaluation mode."""
        if training:
            for submodule, flag in self._as_given:
                submodule.training = flag
        else:
            self.module.eval()

    def __call__(self, x: Vector, X: Tensor) -> Tensor:
        """Return the module's output at x."""
        output: Tensor = functional_call(self.module, self.parameters(x), (X,))
        return output

    def changed_buffers(self, run: Callable[[], Any]) -> list[str]:
        """Return the names of the buffers that `run` changes."""
        before = {name: b.clone() for name, b in self.module.named_buffers()}
        run()
        changed = [n for n, b in self.module.named_buffers() if not torch.equal(before[n], b)]
        for name, buffer in self.module.named_buffers():
            buffer.copy_(before[name])
        return changed


def _refuse_running_statistics(module: nn.Module) -> None:
    for name, m in module.named_modules():
        if m.training and getattr(m, "running_mean", None) is not None:
            raise ValueError(
                running_statistics(f"layer '{name}' ({_name(m)})" if name else _name(m))
            )


def running_statistics(where: str) -> str:
    """Return the sentence that refuses a module whose buffers change while it trains."""
    return (
        f"{where} keeps running statistics, which have no gradient and cannot be averaged as "
        "parameters; use GroupNorm instead, or freeze it with .eval() before you pass the module."
    )


def _draws(m: nn.Module) -> bool:
    """Tell whether a submodule may draw random numbers: dropout, or a class we do not know."""
    if not type(m).__module__.startswith("torch.nn."):
        return True
    rate = getattr(m, "p", None) if isinstance(m, nn.modules.dropout._DropoutNd) else None
    return bool(rate or getattr(m, "dropout", 0) or isinstance(m, nn.RReLU))


def _name(module: nn.Module) -> str:
    return type(module).__name__
