"""Which layers change their buffers in training: BatchNorm may, everything else is refused."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

_KNOWN = (_BatchNorm.forward, nn.SyncBatchNorm.forward)


def norms_of(module: nn.Module) -> dict[str, _BatchNorm]:
    """Return the layers whose statistics are estimated: BatchNorm that is not frozen by .eval().

    Raise ValueError for other layers that change their buffers in training.
    """
    found: dict[str, _BatchNorm] = {}
    for name, m in module.named_modules():
        where = f"layer '{name}' ({type(m).__name__})" if name else type(m).__name__
        if m.training and getattr(m, "running_mean", None) is not None:
            if not isinstance(m, _BatchNorm) or getattr(m.forward, "__func__", None) not in _KNOWN:
                raise ValueError(running_statistics(where))
            found[name] = m
        if m.training and _has_spectral_norm(m):
            raise ValueError(
                f"{where} has a spectral_norm, whose power iteration changes buffers in every "
                "forward pass, which have no gradient and cannot be averaged as parameters; freeze "
                "them with .eval() of that layer before you pass the module, or use weight_norm "
                "instead."
            )
    return found


def running_statistics(where: str) -> str:
    """Return the message for a module whose buffers change while it trains."""
    return (
        f"{where} keeps running statistics, which have no gradient and cannot be averaged as "
        "parameters; use nn.BatchNorm or GroupNorm instead, or freeze it with .eval() before you "
        "pass the module."
    )


def _has_spectral_norm(m: nn.Module) -> bool:
    """Return whether a layer has one of PyTorch's two implementations of spectral_norm."""
    parametrized = getattr(m, "parametrizations", None)
    new = isinstance(parametrized, nn.ModuleDict) and any(
        isinstance(each, _SpectralNorm) for each in parametrized.modules()
    )
    return new or any(isinstance(hook, SpectralNorm) for hook in m._forward_pre_hooks.values())
