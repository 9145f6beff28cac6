"""The ServerApp: it runs the rounds and prints the accuracy on all data."""

from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp

import trimtab.flower
from digits.task import accuracy, make_model

app = ServerApp()


@app.main()
def main(grid, context):
    model, config = make_model(), context.run_config
    strategy = trimtab.flower.Scaffold(
        clients=config["clients"],
        fraction_train=config["fraction-train"],
        fraction_evaluate=0.0,
        min_available_nodes=config["clients"],
    )
    arrays = ArrayRecord(model.state_dict())
    result = strategy.start(grid, arrays, num_rounds=config["rounds"])
    model.load_state_dict(result.arrays.to_torch_state_dict())
    print(f"accuracy {accuracy(model):.2f}")
