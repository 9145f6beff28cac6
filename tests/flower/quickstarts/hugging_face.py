"""A ClientApp with a classifier of transformers in a loop of its own, trained by AdamW."""

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.optim import AdamW
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

app = ClientApp()


def make_model():
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(
        vocab_size=20, intermediate_size=16, max_position_embeddings=8, num_labels=2, **size
    )
    return BertForSequenceClassification(config)


def load_data(i):
    draw = torch.Generator().manual_seed(i)
    words = torch.randint(20, (24, 8), generator=draw)
    rows = [
        {"input_ids": row, "attention_mask": torch.ones_like(row), "labels": (row[0] > 9).long()}
        for row in words
    ]
    return DataLoader(rows, batch_size=8, shuffle=True)


def train_fn(net, loader, epochs):
    optimizer = AdamW(net.parameters(), lr=1e-3)
    net.train()
    for _ in range(epochs):
        for batch in loader:
            loss = net(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


@app.train()
def train(msg, context):
    model = make_model()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict(), strict=True)
    loader = load_data(context.node_config["partition-id"])
    train_fn(model, loader, epochs=1)
    metrics = MetricRecord({"num-examples": len(loader)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)
