"""A ClientApp with an autoencoder under Lightning's Trainer, trained by Adam."""

import lightning.pytorch as pl
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

app = ClientApp()


class AutoEncoder(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 16))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)

    def loss(self, batch):
        x = batch["image"].flatten(1)
        return F.mse_loss(self.decoder(self.encoder(x)), x)

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))


def make_model():
    torch.manual_seed(0)
    return AutoEncoder()


def load_data(i):
    draw = torch.Generator().manual_seed(i)
    rows = [{"image": torch.randn(4, 4, generator=draw) + i} for _ in range(24)]
    return DataLoader(rows[:16], batch_size=4, shuffle=True), DataLoader(rows[16:], batch_size=4)


@app.train()
def train(msg, context):
    model = make_model()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    loader, validation = load_data(context.node_config["partition-id"])
    trainer = pl.Trainer(max_epochs=2, enable_progress_bar=False)
    trainer.fit(model, loader, validation)
    loss = float(trainer.callback_metrics["train_loss"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)
