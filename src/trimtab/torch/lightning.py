"""SCAFFOLD under Lightning's Trainer: a callback. Needs `pip install 'trimtab[lightning]'`."""

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer

from trimtab.torch.controls import Controls, check_controls


class LightningControls(Callback):  # type: ignore[misc]  # Lightning is not installed for mypy.
    """Begin a round when `fit` starts, and correct every step before Lightning clips.

    After `fit`, call `controls.end()`.

    controls: of the LightningModule, or of the part of it that is trained.
    c: the server's c; None in the first round.
    accepted: as for `Controls.begin`; default None.
    """

    def __init__(
        self,
        controls: Controls,
        c: Mapping[str, Tensor] | None = None,
        *,
        accepted: str | None = None,
    ) -> None:
        check_controls(controls)
        self.controls, self.c, self.accepted = controls, c, accepted

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a round with the optimiser that Lightning has made."""
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        fused: Any = scaler and any(o.defaults.get("fused") for o in trainer.optimizers)
        if len(trainer.optimizers) != 1 or fused:
            raise ValueError(
                f"LightningControls got {'a fused optimizer' if fused else 'several optimizers'}; "
                "let configure_optimizers return a single one, not fused with precision 16-mixed."
            )
        if trainer.world_size > 1:
            self.controls.check = False
        self.controls.begin(self.c, trainer.optimizers[0], accepted=self.accepted)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Correct: Lightning has unscaled the gradients here and has not clipped them yet."""
        self.controls.correct()
