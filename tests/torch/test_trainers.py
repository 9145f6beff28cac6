"""The callback of Lightning and the mixin of Hugging Face take the steps of a loop; adapters."""

import logging

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset

from tests.torch.test_controls import difference, far, normal, sgd
from trimtab import torch as own
from trimtab.torch import Controls

X, Y = normal(16, 3, seed=1), normal(16, 2, seed=2)
CLIPS = pytest.mark.parametrize("clip", [0.5, 0.0])


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("lightning.pytorch", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)


class Net(nn.Module):
    """A linear map whose loss is computed inside, as transformers expects it."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(3, 2).double()

    def forward(self, X, labels):
        return {"loss": F.mse_loss(self.map(X), labels)}


def begun(model):
    """Return the controls of a client in its second round, and another c."""
    controls = Controls(model)
    controls.c_i = {name: normal(*v.shape, seed=3) for name, v in controls.c_i.items()}
    return controls, {name: normal(*v.shape, seed=4) for name, v in controls.c_i.items()}


def by_hand(model, clip, pieces=2):
    """Take the steps of one epoch: mini-batches of 2, gradients accumulated over two of them."""
    controls, c = begun(model)
    optimizer = sgd(model.parameters())
    controls.begin(c, optimizer)
    for k in range(0, 16, 2 * pieces):
        optimizer.zero_grad()
        for j in range(k, k + 2 * pieces, 2):
            (model(X[j : j + 2], Y[j : j + 2])["loss"] / pieces).backward()
        controls.correct()
        if clip:
            clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return controls.end()


def assert_same(model, found, expected, like):
    assert (
        far(
            difference(model, dict.fromkeys(found[0], 0)),
            difference(like, dict.fromkeys(found[0], 0)),
        )
        < 1e-12
    )
    assert found[1] == expected[1]
    assert far(found[0], expected[0]) < 1e-12


def pair():
    first, second = Net(), Net()
    second.load_state_dict(first.state_dict())
    return first, second


# -- Lightning

as_lightning_is = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers", "ignore:`isinstance.treespec, LeafSpec.`:FutureWarning"
)


def fit(net, controls, c, *, optimizers=sgd, automatic=True, **options):
    lightning = pytest.importorskip("lightning", reason="pip install 'trimtab[lightning]'")

    class Lit(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.automatic_optimization = net, automatic

        def training_step(self, batch, _):
            return self.net(*batch)["loss"]

        def configure_optimizers(self):
            return optimizers(self.parameters())

    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[own.LightningControls(controls, c)],
        **options,
    )
    trainer.fit(Lit(), DataLoader(TensorDataset(X, Y), 2))


@CLIPS
@as_lightning_is
def test_lightning_takes_the_steps_of_a_loop(clip):
    net, like = pair()
    controls, c = begun(net)
    fit(net, controls, c, gradient_clip_val=clip, accumulate_grad_batches=2)
    assert_same(net, controls.end(), by_hand(like, clip), like)


@as_lightning_is
def test_lightning_unscales_before_the_callback():
    pytest.importorskip("lightning", reason="pip install 'trimtab[lightning]'")
    from lightning.pytorch.plugins import MixedPrecision

    class Double(MixedPrecision):
        """Without autocast, so that the loop by hand is the same arithmetic."""

        def autocast_context_manager(self):
            return torch.autocast("cpu", enabled=False)

    net, like = pair()
    controls, c = begun(net)
    plugin = Double("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=64.0))
    fit(net, controls, c, gradient_clip_val=0.5, accumulate_grad_batches=2, plugins=[plugin])
    assert_same(net, controls.end(), by_hand(like, 0.5), like)


@as_lightning_is
def test_lightning_with_other_optimisers_is_refused(refused):
    pytest.importorskip("lightning", reason="pip install 'trimtab[lightning]'")
    from lightning.pytorch.plugins import MixedPrecision

    net = Net()
    two = lambda p: [sgd(rows) for rows in ([p[0]], [p[1]])]  # noqa: E731
    with refused("several"):
        fit(net, Controls(net), None, optimizers=lambda p: two(list(p)), automatic=False)
    scaled = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    with refused("fused"):
        fit(net, Controls(net), None, optimizers=lambda p: sgd(p, fused=True), plugins=[scaled])


# -- Hugging Face


def trainer(model, rows, tmp_path, *, kind=None, sequential=True, **settings):
    """Return a Trainer over rows in their order, in float64 and without a log."""
    transformers = pytest.importorskip("transformers", reason="pip install 'trimtab[lora]'")
    given = {key: settings.pop(key) for key in ("controls", "c", "accepted") if key in settings}

    class Mine(*((own.ControlledTrainer,) if given else ()), transformers.Trainer):
        def _get_train_sampler(self, *_, **__):
            return SequentialSampler(self.train_dataset)

    arguments = transformers.TrainingArguments(
        str(tmp_path),
        num_train_epochs=1,
        lr_scheduler_type="constant",
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        **settings,
    )
    optimizers = (sgd([p for p in model.parameters() if p.requires_grad], lr=0.1), None)
    return Mine(model, arguments, train_dataset=rows, optimizers=optimizers, **given)


@CLIPS
def test_the_trainer_of_hugging_face_takes_the_steps_of_a_loop(clip, tmp_path):
    net, like = pair()
    controls, c = begun(net)
    rows = [{"X": x, "labels": y} for x, y in zip(X, Y, strict=True)]
    trainer(
        net,
        rows,
        tmp_path,
        controls=controls,
        c=c,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_grad_norm=clip,
    ).train()
    assert_same(net, controls.end(), by_hand(like, clip), like)
