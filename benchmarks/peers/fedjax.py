"""FedJAX: its federated_averaging with the default (jit) backend and a uniform client sampler."""

import fedjax
import jax
from fedjax.algorithms import fed_avg
from fedjax.core.client_samplers import UniformGetClientSampler
from jax_networks import LOSSES, from_torch, inputs, network, to_torch
from protocol import Turns

turns = Turns()
work = turns.work
if work.algorithm == "scaffold":
    turns.cannot("FedJAX has no SCAFFOLD.")
if not isinstance(work.b, int):
    turns.cannot("It has one batch size for all clients.")

outputs, loss = network(work.layers), LOSSES[work.loss]
model = fedjax.Model(
    init=lambda _: from_torch(work.layers, work.start()),
    apply_for_train=lambda params, batch, _: outputs(params, batch["x"]),
    apply_for_eval=lambda params, batch: outputs(params, batch["x"]),
    train_loss=lambda batch, out: loss(out, batch["y"]),
    eval_metrics={},
)
algorithm = fed_avg.federated_averaging(
    fedjax.model_grad(model),
    client_optimizer=fedjax.optimizers.sgd(work.eta),
    server_optimizer=fedjax.optimizers.sgd(1.0),
    client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(
        work.b, num_epochs=None, num_steps=work.K
    ),
)
data = fedjax.InMemoryFederatedData(
    {b"%d" % i: {"x": inputs(X), "y": inputs(y)} for i, (X, y) in enumerate(turns.clients)}
)
sampler = UniformGetClientSampler(data, work.S, seed=0)
state = algorithm.init(model.init(None))

turns.begin(lambda: to_torch(work.layers, state.params), "fedjax", "jax", "jaxlib")
while True:
    state, _ = algorithm.apply(state, sampler.sample())
    jax.block_until_ready(state.params)
    turns.done()
