"""The networks and losses of the workloads in plain JAX; parameters are a list of arrays.

Used by the peers jax and fedjax. Matrices are (inside, outside) and images have their channels
last, as JAX likes them; `from_torch` and `to_torch` change the layout.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Parameters = list[Any]
Layers = tuple[tuple[Any, ...], ...]
HEADS = 4
AS_THEY_ARE = {"transformer": 2, "lstm": 1}  # leading matrices that are looked up or added
COUNT = {"linear": 2, "conv": 2, "layer_norm": 2}  # parameters of a layer; others have none


def _each(layers: Layers, weights: Parameters) -> Iterator[tuple[str, Parameters]]:
    """Share the parameters out over the layers."""
    if layers[0][0] in AS_THEY_ARE:
        yield layers[0][0], weights
        return
    start = 0
    for kind, *_ in layers:
        end = start + COUNT.get(kind, 0)
        yield kind, weights[start:end]
        start = end


def _relaid(layers: Layers, weights: Parameters, image: tuple[int, ...]) -> Parameters:
    made: Parameters = []
    for kind, own in _each(layers, weights):
        for k, w in enumerate(own):
            if w.ndim == 4:
                w = w.transpose(image)
            elif w.ndim == 2 and k >= AS_THEY_ARE.get(kind, 0):
                w = w.T
            made.append(w)
    return made


def from_torch(layers: Layers, weights: Parameters) -> Parameters:
    """Return torch's parameters in the layout of this file."""
    return [jnp.array(w) for w in _relaid(layers, weights, (2, 3, 1, 0))]


def to_torch(layers: Layers, weights: Parameters) -> Parameters:
    """Return parameters of this file in torch's layout."""
    return _relaid(layers, [np.asarray(w) for w in weights], (3, 2, 0, 1))


def inputs(X: Any) -> Any:
    """Return samples as the networks take them: images with channels last, indices in 32 bits."""
    X = X.transpose(0, 2, 3, 1) if X.ndim == 4 else X
    return X.astype(np.int32) if X.dtype == np.int64 else X


# -- networks


def network(layers: Layers) -> Callable[[Parameters, Any], Any]:
    """Return the function of parameters and samples that gives the outputs."""

    def outputs(weights: Parameters, X: Any) -> Any:
        for kind, own in _each(layers, weights):
            X = _APPLY[kind](own, X)
        return X

    return outputs


def _linear(p: Parameters, X: Any) -> Any:
    return X @ p[0] + p[1]


def _conv(p: Parameters, X: Any) -> Any:
    names = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(X, p[0], (1, 1), "VALID", dimension_numbers=names) + p[1]


def _pool(_: Parameters, X: Any) -> Any:
    return lax.reduce_window(X, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def _flatten(_: Parameters, X: Any) -> Any:
    return X.transpose(0, 3, 1, 2).reshape(X.shape[0], -1)  # torch's order, channels first


def _layer_norm(p: Parameters, X: Any) -> Any:
    centred = X - X.mean(-1, keepdims=True)
    return centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * p[0] + p[1]


def _transformer(p: Parameters, X: Any) -> Any:
    position, embedding, *rest = p
    hidden = embedding[X] + position
    B, T, d = hidden.shape
    mask = jnp.triu(jnp.full((T, T), -jnp.inf), 1)

    def heads(z: Any) -> Any:
        return z.reshape(B, T, HEADS, d // HEADS).transpose(0, 2, 1, 3)

    for k in range(0, len(rest) - 2, 12):
        in_w, in_b, out_w, out_b, w1, b1, w2, b2, *norms = rest[k : k + 12]
        three = _linear([in_w, in_b], _layer_norm(norms[:2], hidden))
        q, key, v = (heads(z) for z in jnp.split(three, 3, -1))
        scores = q @ key.swapaxes(-1, -2) / (d // HEADS) ** 0.5 + mask
        mixed = (jax.nn.softmax(scores, -1) @ v).transpose(0, 2, 1, 3).reshape(B, T, d)
        hidden = hidden + _linear([out_w, out_b], mixed)
        inner = jax.nn.relu(_linear([w1, b1], _layer_norm(norms[2:], hidden)))
        hidden = hidden + _linear([w2, b2], inner)
    return _linear(rest[-2:], hidden)


def _lstm(p: Parameters, X: Any) -> Any:
    embedding, *rest = p
    hidden = embedding[X].swapaxes(0, 1)
    for k in range(0, len(rest) - 2, 4):
        w_in, w_hidden, b_in, b_hidden = rest[k : k + 4]
        gates = hidden @ w_in + b_in + b_hidden
        zeros = jnp.zeros((gates.shape[1], w_hidden.shape[0]))

        def step(carry: Any, now: Any, w: Any = w_hidden) -> Any:
            h, cell = carry
            i, f, g, o = jnp.split(now + h @ w, 4, -1)
            cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(cell)
            return (h, cell), h

        _, hidden = lax.scan(step, (zeros, zeros), gates)
    return _linear(rest[-2:], hidden.swapaxes(0, 1))


_APPLY: dict[str, Callable[[Parameters, Any], Any]] = {
    "linear": _linear,
    "conv": _conv,
    "pool": _pool,
    "flatten": _flatten,
    "layer_norm": _layer_norm,
    "relu": lambda _, X: jax.nn.relu(X),
    "tanh": lambda _, X: jnp.tanh(X),
    "gelu": lambda _, X: jax.nn.gelu(X, approximate=False),
    "silu": lambda _, X: jax.nn.silu(X),
    "transformer": _transformer,
    "lstm": _lstm,
}


# -- losses, one number for each sample


def cross_entropy(out: Any, y: Any) -> Any:
    """Return the mean over a sample's places, if it has several."""
    each = -jnp.take_along_axis(jax.nn.log_softmax(out), y[..., None], -1)
    return each.reshape(len(y), -1).mean(1)


def mse_loss(out: Any, y: Any) -> Any:
    """Return squared errors."""
    return ((out - y) ** 2).mean(1)


def binary_cross_entropy_with_logits(out: Any, y: Any) -> Any:
    """Return the loss of logits against 0 or 1."""
    return (jax.nn.softplus(out) - out * y).mean(1)


LOSSES = {f.__name__: f for f in (cross_entropy, mse_loss, binary_cross_entropy_with_logits)}
