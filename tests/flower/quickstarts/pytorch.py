"""A ClientApp with a convolutional network in PyTorch, trained by SGD with momentum."""

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

app = ClientApp()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.pool = nn.MaxPool2d(2)
        self.out = nn.Linear(27, 4)

    def forward(self, images):
        return self.out(self.pool(F.relu(self.conv(images))).flatten(1))


def make_model():
    torch.manual_seed(0)
    return Net().double()


def tensors(i):
    """Return the images and labels of client i."""
    draw = torch.Generator().manual_seed(i)
    images = torch.randn(20, 1, 8, 8, generator=draw, dtype=torch.float64) + i / 3
    return images, images.sum((1, 2, 3)).argsort().argsort() * 4 // 20


def load_data(i):
    images, labels = tensors(i)
    rows = [{"image": x, "label": y} for x, y in zip(images, labels, strict=True)]
    return DataLoader(rows, batch_size=20, shuffle=True)


def train_fn(net, loader, epochs, lr):
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    total = 0.0
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            loss = criterion(net(batch["image"]), batch["label"])
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(loader))


@app.train()
def train(msg, context):
    model = make_model()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    loader = load_data(context.node_config["partition-id"])
    loss = train_fn(model, loader, epochs=3, lr=0.05)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)
