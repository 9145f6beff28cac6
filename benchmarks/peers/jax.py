"""Plain JAX, no framework: a jitted round, `scan` over the K steps, clients by `vmap` or `map`.

Whichever of the two is faster here is measured. Mini-batches are drawn on the host, all clients at
once; short ones are filled up with rows of weight zero, since shapes must not change.
"""

from functools import partial
from math import ceil
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax_networks import LOSSES, Parameters, from_torch, inputs, network, to_torch
from protocol import Array, Turns

turns = Turns()
work = turns.work
if any(kind == "conv" for kind, *_ in work.layers):
    turns.cannot("XLA's convolutions inside a scan take minutes a round on a CPU.")
scaffold = work.algorithm == "scaffold"
full = work.S == work.N
data = [(inputs(X), inputs(y)) for X, y in turns.clients]
X, y = (jnp.asarray(np.concatenate(part)) for part in zip(*data, strict=True))
outputs, loss = network(work.layers), LOSSES[work.loss]
gradient = jax.grad(lambda p, rows, w: jnp.sum(w * loss(outputs(p, X[rows]), y[rows])))


def local(x: Parameters, c: Parameters, c_i: Parameters, rows: Any, w: Any) -> Any:
    """Take a client's K steps; return its move and its new control, which FedAvg does not have."""

    def step(y: Parameters, batch: Any) -> Any:
        g = gradient(y, *batch)
        if scaffold:
            g = [a - b + d for a, b, d in zip(g, c_i, c, strict=True)]
        return [a - work.eta * b for a, b in zip(y, g, strict=True)], None

    y_i, _ = lax.scan(step, x, (rows, w))
    moved = [a - b for a, b in zip(y_i, x, strict=True)]
    steps = work.K * work.eta
    return moved, [a - b - d / steps for a, b, d in zip(c_i, c, moved, strict=scaffold)]


def one_round(how: str, x: Parameters, c: Parameters, cs: Parameters, *drawn: Any) -> Any:
    """Return the new x, c and controls of all clients."""
    cohort, rows, w = drawn
    own = cs if full else [a[cohort] for a in cs]
    if how == "vmap":
        moved, new = jax.vmap(local, (None, None, 0, 0, 0))(x, c, own, rows, w)
    else:
        moved, new = lax.map(lambda each: local(x, c, *each), (own, rows, w))
    x = [a + d.mean(0) for a, d in zip(x, moved, strict=True)]
    c = [a + (n - o).sum(0) / work.N for a, n, o in zip(c, new, own, strict=True)]
    return x, c, new if full else [a.at[cohort].set(n) for a, n in zip(cs, new, strict=True)]


class Batches:
    """Fresh orders of each client's samples, cut into mini-batches."""

    def __init__(self) -> None:
        sizes = work.sizes
        steps = [ceil(n / b) for n, b in zip(work.n, sizes, strict=True)]
        self.passes = max(ceil(work.K / s) for s in steps)
        self.most = max(work.n)
        self.first = np.cumsum([0, *work.n[:-1]]).astype(np.int32)
        self.beyond = np.arange(self.most) >= np.array(work.n)[:, None]
        shape = (work.N, work.K, max(sizes))
        self.place, self.weight = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
        for i, (n, b, s) in enumerate(zip(work.n, sizes, steps, strict=True)):
            for k in range(work.K):
                start, end = k % s * b, min(n, (k % s + 1) * b)
                self.place[i, k, : end - start] = k // s * self.most + np.arange(start, end)
                self.weight[i, k, : end - start] = 1 / (end - start)
        self.draw = np.random.default_rng(0)

    def __call__(self) -> tuple[Array, Array, Array]:
        """Draw a cohort; return it, and the rows and weights of its K mini-batches."""
        cohort = np.arange(work.N)
        if not full:
            cohort = self.draw.permutation(work.N)[: work.S]
        keys = self.draw.random((work.S, self.passes, self.most), dtype=np.float32)
        keys += 2 * self.beyond[cohort, None]  # what a client does not have comes last
        orders = keys.argsort(-1).astype(np.int32).reshape(work.S, -1)
        places = self.place[cohort]
        rows = np.take_along_axis(orders, places.reshape(work.S, -1), 1).reshape(places.shape)
        return cohort, rows + self.first[cohort, None, None], self.weight[cohort]


ways = ("vmap", "map")
compiled = {how: jax.jit(partial(one_round, how), donate_argnums=2) for how in ways}


class State:
    """The server's x and c, and the controls of all clients."""

    def __init__(self, how: str) -> None:
        self.run, self.batches = compiled[how], Batches()
        self.x = from_torch(work.layers, work.start())
        controlled = self.x if scaffold else []
        self.c = [jnp.zeros_like(a) for a in controlled]
        self.cs = [jnp.zeros((work.N, *a.shape)) for a in controlled]

    def round(self) -> None:
        """Run one round."""
        self.x, self.c, self.cs = self.run(self.x, self.c, self.cs, *self.batches())
        jax.block_until_ready(self.x)


def seconds(how: str) -> float:
    """Return the time of a round after the one that compiles."""
    state = State(how)
    state.round()
    times = []
    for _ in range(2):
        started = perf_counter()
        state.round()
        times.append(perf_counter() - started)
    return min(times)


how = min(ways, key=seconds)
state = State(how)
turns.begin(lambda: to_torch(work.layers, state.x), "jax", "jaxlib", way=how)
while True:
    state.round()
    turns.done()
