"""FedLab: StandalonePipeline with its serial trainers and a shuffling DataLoader per client."""

import without_torchvision  # noqa: F401
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.algorithm.scaffold import (
    ScaffoldSerialClientTrainer,
    ScaffoldServerHandler,
)
from fedlab.contrib.dataset.basic_dataset import FedDataset
from fedlab.core.standalone import StandalonePipeline
from protocol import Turns, torch_clients, torch_model, torch_weights
from torch.utils.data import DataLoader, TensorDataset

turns = Turns()
work = turns.work


class Data(FedDataset):
    """The clients' data."""

    def __init__(self) -> None:
        self.sets = [TensorDataset(*data) for data in torch_clients(turns.clients)]

    def get_dataloader(self, client: int, batch_size: int) -> DataLoader:
        """Return a client's loader, as the datasets of FedLab do."""
        return DataLoader(self.sets[client], batch_size=batch_size, shuffle=True)


class Pipeline(StandalonePipeline):
    """FedLab's loop over rounds; it calls `evaluate` after each."""

    def evaluate(self) -> None:
        """Take turns."""
        turns.done()


scaffold = work.algorithm == "scaffold"
Handler = ScaffoldServerHandler if scaffold else SyncServerHandler
Trainer = ScaffoldSerialClientTrainer if scaffold else SGDSerialClientTrainer
handler = Handler(torch_model(work), global_round=10**9, sample_ratio=work.S / work.N)
trainer = Trainer(torch_model(work), work.N)
trainer.setup_dataset(Data())
trainer.setup_optim(work.epochs, work.b, work.eta)
if scaffold:
    handler.setup_optim(lr=1.0)
pipeline = Pipeline(handler, trainer)
assert handler.num_clients_per_round == work.S

turns.begin(lambda: torch_weights(handler.model), "fedlab", "torch")
pipeline.main()
