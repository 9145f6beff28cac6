"""The callback of Lightning and the mixin of Hugging Face take the steps of a loop; adapters."""

import logging
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset

from tests.torch.test_controls import difference, far, flat, normal, sgd
from trimtab import torch as own
from trimtab.torch import Controls, ServerControls
from trimtab.torch.controls import zeros

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


def by_hand(model, clip, rows=2):
    """Take the steps of one epoch: gradients accumulated over two mini-batches of so many rows."""
    controls, c = begun(model)
    optimizer = sgd(model.parameters())
    controls.begin(c, optimizer)
    for k in range(0, 16, 2 * rows):
        optimizer.zero_grad()
        for j in range(k, k + 2 * rows, rows):
            (model(X[j : j + rows], Y[j : j + rows])["loss"] / 2).backward()
        controls.correct()
        if clip:
            clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return controls.end()


def assert_same(model, found, expected, like, most=1e-12):
    start = dict.fromkeys(found[0], 0)
    assert far(difference(model, start), difference(like, start)) < most
    assert found[1] == expected[1]
    assert far(found[0], expected[0]) < most


def pair():
    first, second = Net(), Net()
    second.load_state_dict(first.state_dict())
    return first, second


# -- Lightning

as_lightning_is = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers", "ignore:`isinstance.treespec, LeafSpec.`:FutureWarning"
)


def fit(net, controls, c, *, rows=slice(None), optimizers=sgd, automatic=True, **options):
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
    trainer.fit(Lit(), DataLoader(TensorDataset(X[rows], Y[rows]), 2))


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
    with refused("controls is None"):
        fit(net, None, None)
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


def trained(net, controls, c, clip, folder):
    rows = [{"X": x, "labels": y} for x, y in zip(X, Y, strict=True)]
    steps = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    trainer(net, rows, folder, controls=controls, c=c, max_grad_norm=clip, **steps).train()


@CLIPS
def test_the_trainer_of_hugging_face_takes_the_steps_of_a_loop(clip, tmp_path):
    net, like = pair()
    controls, c = begun(net)
    trained(net, controls, c, clip, tmp_path)
    assert_same(net, controls.end(), by_hand(like, clip), like)


def test_what_the_mixin_cannot_correct_is_refused(tmp_path, refused):
    net = Net()
    with refused("controls is a Net"):
        trainer(net, [], tmp_path, controls=net)
    with refused("is no Trainer"):
        own.ControlledTrainer(controls=Controls(net))
    with refused("scaled gradients", "bf16=True"):
        trainer(net, [], tmp_path, controls=Controls(net), fp16=True)


def test_a_trainer_that_clips_by_another_method_is_refused(tmp_path, refused):
    """The method that the mixin extends is private: another version may not have it."""
    net = Net()
    mine = trainer(net, [{"X": X[0], "labels": Y[0]}], tmp_path, controls=Controls(net))
    mine._clip_grad_norm = lambda *_: None
    with refused("without _clip_grad_norm"):
        mine.train()


# -- adapters


def adapted():
    """Return a tiny GPT-2 from its configuration, without dropout, with LoRA adapters."""
    transformers = pytest.importorskip("transformers", reason="pip install 'trimtab[lora]'")
    peft = pytest.importorskip("peft", reason="pip install 'trimtab[lora]'")
    torch.manual_seed(0)
    gpt2 = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=11,
            n_positions=8,
            n_embd=8,
            n_layer=1,
            n_head=2,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
            initializer_range=0.3,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    lora = peft.LoraConfig(
        r=2, lora_alpha=4, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True
    )
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        return peft.get_peft_model(gpt2, lora).double()  # peft calls transformers by an old name


def adapters(model):
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def text(i):
    """Return sentences of client i, which has favourite letters."""
    draw = torch.Generator().manual_seed(i)
    letters = torch.rand(11, generator=draw) ** 4
    return torch.multinomial(letters.expand(6, 11), 8, replacement=True, generator=draw)


def penalised(model, ids):
    """Return the loss of a text in float64, and a penalty that makes the optimum attractive."""
    scores = model(input_ids=ids[:, :-1]).logits
    loss = F.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten())
    return loss + 0.4 * sum(p.square().sum() for p in adapters(model).values())


@pytest.mark.parametrize("controlled", [True, False])
def test_adapters_reach_a_stationary_point_with_controls_alone(controlled):
    """|gradient| in (A, B) of a tiny GPT-2, by full gradients of three clients."""
    model = adapted()
    server, controls = ServerControls(model, N=3), [Controls(model) for _ in range(3)]
    frozen = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
    for _ in range(90):
        for i in range(3):
            x, c, accepted = server.send(i)
            model.load_state_dict(x, strict=False)
            step = sgd(adapters(model).values(), lr=0.08, momentum=0.3)
            controls[i].begin(c if controlled else None, step, accepted=accepted)
            for _ in range(4):
                step.zero_grad()
                penalised(model, text(i)).backward()
                controls[i].correct()
                step.step()
            dc, _ = controls[i].end()
            if not controlled:
                controls[i].c_i, dc = zeros(model), zeros(model)
                controls[i]._pending = controls[i].tag, zeros(model)
            dx = difference(model, x)
            for message in (x, c, dx, dc):
                assert message.keys() == adapters(model).keys()
                assert all("lora_" in name for name in message)
            server.receive(i, dx, dc, controls[i].tag)
        server.step()
    model.load_state_dict(server.x, strict=False)
    model.zero_grad()
    for i in range(3):
        (penalised(model, text(i)) / 3).backward()
    found = flat({name: p.grad for name, p in adapters(model).items()}).norm()
    assert found < 1e-6 if controlled else found > 1e-3
    assert flat(server.x).norm() > 0.1
    assert all(torch.equal(p, frozen[n]) for n, p in model.named_parameters() if n in frozen)


@pytest.mark.filterwarnings("ignore:.*loss_type:UserWarning")
def test_the_mixin_trains_adapters(tmp_path):
    found = []
    for by_trainer in (True, False):
        model = adapted()
        controls, c = begun(model)
        rows = [{"input_ids": row, "labels": row} for row in text(0)]
        if by_trainer:
            settings = {"controls": controls, "c": c, "per_device_train_batch_size": 2}
            trainer(model, rows, tmp_path, max_grad_norm=0.5, **settings).train()
        else:
            step = sgd(adapters(model).values())
            controls.begin(c, step)
            for k in range(0, 6, 2):
                step.zero_grad()
                ids = text(0)[k : k + 2]
                # The Trainer divides by the number of labels, the first of each text included.
                model(input_ids=ids, labels=ids, num_items_in_batch=ids.numel()).loss.backward()
                controls.correct()
                clip_grad_norm_(adapters(model).values(), 0.5)
                step.step()
        found.append((model, controls.end()))
    assert_same(found[0][0], found[0][1], found[1][1], found[1][0], most=1e-5)  # a loss in float32
