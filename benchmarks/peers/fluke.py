"""fluke: FedAVG and SCAFFOLD in memory, its FastDataLoader with shuffling, no evaluation."""

import without_torchvision  # noqa: F401
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.algorithms.scaffold import SCAFFOLD
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.utils import FederationObserver
from protocol import Turns, torch_clients, torch_model, torch_weights

turns = Turns()
work = turns.work


class Pause(FederationObserver):
    """Take turns after each round."""

    def end_round(self, round: int) -> None:
        """Answer and wait."""
        turns.done()


loaders = [
    FastDataLoader(*data, num_labels=work.classes, batch_size=work.b, shuffle=True)
    for data in torch_clients(turns.clients)
]
env = FlukeENV()
env.set_seed(0)
env.set_device("cpu")
env.set_inmemory(True)
env.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
kind = SCAFFOLD if work.algorithm == "scaffold" else FedAVG
algorithm = kind(
    n_clients=work.N,
    data_splitter=DataSplitter(
        DummyDataContainer(loaders, [None] * work.N, None, work.classes), distribution="iid"
    ),
    hyper_params=DDict(
        model=torch_model(work),
        client=DDict(
            batch_size=work.b,
            local_epochs=work.epochs,
            loss="CrossEntropyLoss",
            optimizer=DDict(name="SGD", lr=work.eta),
            scheduler=DDict(name="StepLR", step_size=1, gamma=1),
        ),
        server=DDict(weighted=True),
    ),
)
algorithm.set_callbacks(Pause())

turns.begin(lambda: torch_weights(algorithm.server.model), "fluke-fl", "torch")
algorithm.run(n_rounds=10**9, eligible_perc=work.S / work.N, finalize=False)
