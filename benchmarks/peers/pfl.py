"""pfl (Apple): SimulatedBackend in one process, user states in memory, no evaluation.

pfl takes a user's mini-batches in the same order in every epoch and every round.
"""

from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from protocol import Turns, torch_clients, torch_loss, torch_model, torch_weights

turns = Turns()
work = turns.work
if work.epochs is None:
    turns.cannot("Its SCAFFOLD takes whole epochs of one batch size.")


class Classifier(torch.nn.Module):
    """The model, with the two methods that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch_model(work)

    def loss(self, X: Any, y: Any, eval: bool = False) -> Any:
        """Return the loss to train on."""
        return torch_loss(work)(self.layers(X), y)

    def metrics(self, X: Any, y: Any, eval: bool = False) -> dict[str, Any]:
        """Return nothing; we do not evaluate."""
        return {}


class Pause(TrainingProcessCallback):
    """Take turns after each round."""

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        """Answer and wait."""
        turns.done()
        return False, Metrics()


users = [
    PyTorchTensorDataset(data, user_id=str(i))
    for i, data in enumerate(torch_clients(turns.clients))
]
data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(range(work.N))))
module = Classifier()
model = PyTorchModel(
    module, torch.optim.SGD, central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0)
)
forever = 10**9
common: dict[str, Any] = {
    "central_num_iterations": forever,
    "evaluation_frequency": forever,
    "train_cohort_size": work.S,
    "val_cohort_size": 0,
}
algorithm: Any
if work.algorithm == "scaffold":
    algorithm = SCAFFOLD()
    params = SCAFFOLDParams(
        **common,
        population=work.N,
        use_gradient_as_control_variate=False,
        user_state_storage=InMemoryUserStateStorage(),
    )
else:
    algorithm, params = FederatedAveraging(), NNAlgorithmParams(**common)

turns.begin(lambda: torch_weights(module), "pfl", "torch")
algorithm.run(
    params,
    SimulatedBackend(data, data),
    model,
    NNTrainHyperParams(
        local_num_epochs=work.epochs, local_learning_rate=work.eta, local_batch_size=work.b
    ),
    callbacks=[Pause()],
)
