"""Whether PyTorch's own classes do here what their names say: nothing hooked, nothing replaced.

Asked at every round, so it takes a microsecond a module and looks only where Python looks too.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as _module

_OWNERS: tuple[tuple[Any, str], ...] = (
    *((nn.Module, name) for name in ("__call__", "_call_impl", "_wrapped_call_impl")),
    *((layer, "forward") for layer in (nn.Linear, nn.Flatten, nn.Sequential)),
    *((layer, "forward") for layer in (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.GELU)),
    *((F, name) for name in ("linear", "relu", "silu", "gelu")),
    *((torch, name) for name in ("tanh", "sigmoid")),
)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_ORIGINALS = tuple((owner, name, getattr(owner, name)) for owner, name in _OWNERS)


def nothing_global() -> bool:
    """Tell whether no hook is set on all modules and none of PyTorch's own functions is replaced.

    >>> nothing_global()
    True
    """
    hooks = (
        _module._global_forward_hooks
        or _module._global_forward_pre_hooks
        or _module._global_backward_hooks
        or _module._global_backward_pre_hooks
    )
    if hooks:
        return False
    for owner, name, original in _ORIGINALS:  # noqa: SIM110 (a loop takes half the time of all())
        if getattr(owner, name) is not original:
            return False
    return True


def untouched(module: nn.Module, forward: Callable[..., Any]) -> bool:
    """Tell whether a module has no hooks, and `forward` of its class and of no instance.

    >>> layer = nn.Linear(2, 1)
    >>> untouched(layer, nn.Linear.forward)
    True
    >>> layer.forward = lambda X: X
    >>> untouched(layer, nn.Linear.forward)
    False
    """
    own = vars(module)
    cls: Any = type(module)
    hooks = (
        own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or own["_backward_hooks"]
        or own["_backward_pre_hooks"]
    )
    return not hooks and cls.forward is forward and own.keys().isdisjoint(_attributes(cls))


def hooked(module: nn.Module) -> str:
    """Return where in a module a hook is set, on a layer or a parameter; empty if nowhere.

    >>> net = nn.Sequential(nn.Linear(2, 1))
    >>> handle = net[0].register_forward_hook(print)
    >>> hooked(net)
    "layer '0'"
    """
    if not nothing_global():
        return "all modules"
    for name, layer in module.named_modules():
        own = vars(layer)
        if any(own[hooks] for hooks in _HOOKS):
            return f"layer '{name}'"
        for inner, parameter in layer._parameters.items():
            if parameter is not None and parameter._backward_hooks:
                return f"parameter '{f'{name}.{inner}' if name else inner}'"
    return ""


def ordinary(parameter: Tensor) -> bool:
    """Tell whether a parameter is trained and is no subclass, and no hook changes its gradient."""
    return (
        type(parameter) is nn.Parameter
        and parameter.requires_grad
        and not parameter._backward_hooks
    )


@cache
def _attributes(cls: Any) -> frozenset[str]:
    return frozenset(dir(cls))
