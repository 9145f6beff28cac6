"""A loss, or a metric, of the module and a batch: for whatever is no function of its outputs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class OnBatch:
    """A function of (module, batch), for `Supervised(loss=…)` and for its metrics.

    batch is what the clients' samples make up: (X, y) where they are pairs; a dict of tensors
    where they are dicts; whatever `collate` returns. As a loss it returns the mean over samples, a
    tensor; it may call the module as often and as it likes.

    >>> import torch
    >>> from trimtab import Supervised
    >>> rows = {"a": torch.ones(4, 2), "b": torch.zeros(4, 1)}
    >>> loss = OnBatch(lambda module, batch: (module(batch["a"]) - batch["b"]).square().mean())
    >>> sorted(Supervised(nn.Linear(2, 1), loss, [rows]).evaluate(torch.zeros(3)).items())
    [('loss', 0.0)]
    """

    function: Callable[[nn.Module, Any], Any]

    def __post_init__(self) -> None:
        if not callable(self.function) or isinstance(self.function, type):
            raise ValueError(
                f"OnBatch({self.function!r}) has no function; pass one of (module, batch)."
            )

    def __call__(self, module: nn.Module, batch: Any) -> Any:
        """Return the function's value."""
        return self.function(module, batch)
