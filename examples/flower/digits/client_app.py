"""The ClientApp: it trains the model of a message on this client's data."""

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import trimtab.flower
from digits.task import load_data, make_model, train

app = ClientApp(mods=[trimtab.flower.Control("state/")])


@app.train()
def train_model(msg, context):
    model, config, node = make_model(), context.run_config, context.node_config
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    X, y = load_data(node["partition-id"], node["num-partitions"])
    loss = train(model, X, y, config["steps"], config["lr"])
    metrics = MetricRecord({"loss": loss, "num-examples": len(y)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=msg)
