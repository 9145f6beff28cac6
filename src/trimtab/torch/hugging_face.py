"""SCAFFOLD under the Trainer of transformers, or of TRL: a mixin.

Needs `pip install 'trimtab[lora]'`.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from trimtab.torch.controls import Controls, check_controls


class ControlledTrainer:
    """Begin a round when `train` starts, and correct every step before the Trainer clips.

    After `train`, call `controls.end()`. Name it before the Trainer:
    `class Mine(ControlledTrainer, Trainer): pass`.

    controls: of the model that the Trainer trains, with its adapters.
    c: the server's c; None in the first round.
    accepted: as for `Controls.begin`; default None.

    All other arguments are the Trainer's.
    """

    def __init__(
        self,
        *args: Any,
        controls: Controls,
        c: Mapping[str, Tensor] | None = None,
        accepted: str | None = None,
        **options: Any,
    ) -> None:
        from transformers import Trainer, TrainerCallback

        check_controls(controls)
        if not isinstance(self, Trainer):
            raise ValueError(
                f"{type(self).__name__} is no Trainer; make a class of both, as in "
                "`class Mine(ControlledTrainer, Trainer): pass`."
            )
        super().__init__(*args, **options)
        trainer: Any = self
        sharded = trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
        if sharded or trainer.args.fp16:
            raise ValueError(
                f"ControlledTrainer cannot correct {'sharded' if sharded else 'scaled'} gradients; "
                "train without DeepSpeed, FSDP and fp16, for example with bf16=True."
            )
        self.controls, self.corrected = controls, False

        class Begin(TrainerCallback):  # type: ignore[misc]  # transformers is not typed for mypy.
            def on_train_begin(self, args: Any, *_: Any, **__: Any) -> None:
                # The Trainer measures the norm, by scaling with 1, even if it does not clip.
                if args.world_size > 1 or not args.max_grad_norm > 0:
                    controls.check = False
                controls.begin(c, trainer.optimizer, accepted=accepted)

            def on_pre_optimizer_step(self, args: Any, *_: Any, **__: Any) -> None:
                if args.max_grad_norm > 0 and not trainer.corrected:
                    raise ValueError(
                        "this version of transformers clips gradients without _clip_grad_norm; "
                        "pass max_grad_norm=0, or install the version that trimtab pins."
                    )
                if not trainer.corrected:
                    controls.correct()
                trainer.corrected = False

        trainer.add_callback(Begin())

    def _clip_grad_norm(self, *args: Any, **options: Any) -> Any:
        # The only place before clipping; the Trainer does not come here if it does not clip.
        self.controls.correct()
        self.corrected = True
        return super()._clip_grad_norm(*args, **options)  # type: ignore[misc]
