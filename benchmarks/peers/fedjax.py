"""FedJAX: its federated_averaging with the default (jit) backend and a uniform client sampler."""

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg
from fedjax.core.client_samplers import UniformGetClientSampler
from protocol import Array, Turns

turns = Turns()
work = turns.work
if work.algorithm == "scaffold":
    turns.cannot("FedJAX has no SCAFFOLD.")

model = fedjax.create_model_from_haiku(
    hk.transform(lambda batch: hk.nets.MLP([*work.hidden, work.classes])(batch["x"])),
    sample_batch={"x": jnp.zeros((1, work.features)), "y": jnp.zeros(1, int)},
    train_loss=lambda batch, out: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], out),
)
algorithm = fed_avg.federated_averaging(
    fedjax.model_grad(model),
    client_optimizer=fedjax.optimizers.sgd(work.eta),
    server_optimizer=fedjax.optimizers.sgd(1.0),
    client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(work.b, num_epochs=work.epochs),
)
data = fedjax.InMemoryFederatedData(
    {b"%d" % i: {"x": X, "y": y.astype(np.int32)} for i, (X, y) in enumerate(turns.clients)}
)
sampler = UniformGetClientSampler(data, work.S, seed=0)
start = work.start()
layers = [f"mlp/~/linear_{k}" for k in range(len(start) // 2)]
state = algorithm.init(
    {
        name: {"w": jnp.array(start[2 * k].T), "b": jnp.array(start[2 * k + 1])}
        for k, name in enumerate(layers)
    }
)


def weights() -> list[Array]:
    """Return them in torch's layout."""
    made: list[Array] = []
    for name in layers:
        layer = state.params[name]
        made += [np.asarray(layer["w"]).T, np.asarray(layer["b"])]
    return made


turns.begin(weights, "fedjax", "jax", "jaxlib")
while True:
    state, _ = algorithm.apply(state, sampler.sample())
    jax.block_until_ready(state.params)
    turns.done()
