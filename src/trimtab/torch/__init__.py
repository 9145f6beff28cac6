"""SCAFFOLD in a training loop of one's own: PyTorch, Lightning, or the Trainer of Hugging Face.

Imports torch, `trimtab.commit` and `trimtab.errors` only; Lightning when `LightningControls` is
first used, and transformers when a `ControlledTrainer` is made.
"""

from typing import TYPE_CHECKING, Any

from trimtab.torch.controls import Controls
from trimtab.torch.hugging_face import ControlledTrainer
from trimtab.torch.server import ServerControls

if TYPE_CHECKING:
    from trimtab.torch.lightning import LightningControls

__all__ = ["ControlledTrainer", "Controls", "LightningControls", "ServerControls"]


def __getattr__(name: str) -> Any:
    if name != "LightningControls":
        raise AttributeError(f"module 'trimtab.torch' has no attribute {name!r}")
    from trimtab.torch.lightning import LightningControls

    return LightningControls
