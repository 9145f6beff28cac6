"""Small programs as users write them: whatever they do with vectors, executors do the loop's."""

import copy
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from trimtab import Quadratic, simulate
from trimtab.algorithms.fedopt import Server, Upload
from trimtab.core import leaves, map_leaves, nbytes
from trimtab.testing import _trials as lab

STARTS = ["y = x", "y = x.clone()", "y = 1.0 * x", "y = x + 0.0", "y = x - 0.1 * m"]
LINES = """
v = v + 0.1 * (m - x)
v = 0.1 * torch.sign(v)
v = map_leaves(lambda t: t.clamp(-1, 1), (v, m))[0]
v = 0.1 * sum(leaves((v, (m, x))))
v = v + 0.001 * nbytes((v, m))
w = v - m; v = v + 0.5 * w
v += 0.1 * m
v -= 0.1 * (m - x)
v *= 0.5; v /= 2
v.mul_(0.5).add_(m, alpha=0.1)
v[0] = 0.25
v[v > 0.5] = 0.5
v[:2].zero_()
w = x - v; v.add_(0.1); v = v + 0.1 * w
w = 2 * v; v[:1].fill_(0.3); v = v + 0.1 * w
t = v.clone(); w = m - t; t.mul_(2); v = v + 0.1 * w + 0.1 * t
old = v; v -= 0.1 * m; v = v + 0.1 * old
w = v.detach(); w.mul_(0.5)
w = v.view(-1); v.add_(0.1); v = v + 0.1 * w
w = v.add_(0.1); v.add_(0.1); v = v + 0.1 * w
w = 1.0 * v; u = w; w += m; v = v + 0.1 * u
acc = torch.zeros_like(x); acc += v; v = 0.5 * acc
torch.neg(v, out=v)
v = torch.relu_(v)
v = torch.nn.functional.relu(v, inplace=True)
v.data.mul_(0.5)
v = torch.from_numpy(np.sign(v.numpy())) * 0.1
v = torch.as_tensor(np.asarray(v)) * 0.5
w = copy.copy(v); w.mul_(0.5)
w = copy.deepcopy(v); w.mul_(0.5)
v = np.float32(0.5) * v
v = v * np.float64(0.5)
v = torch.tensor(0.5, dtype=v.dtype) * v - v / torch.tensor(3)
v = v + torch.arange(4) / 100 + 3 * torch.ones(4, dtype=torch.long)
v = v / (1 + v.norm())
v = v if v[0] > 0 else 0.5 * v
v = v if float(v.sum()) > 0 else -0.5 * v
v = sum([v, m]) / 2
v = torch.stack([v, m]).mean(0)
v = v + len(v) * 0.01 + v.shape[0] * 0.01
v = v * (v > 0)
v = v * ((v > -1) & (v < 1)) + 0.1 * ~(v > 0)
v = torch.where(v > 0, v, 0.1 * v)
v = 0.1 * v**2 + 0.1 / (1 + v * v)
v = torch.maximum(v, m) - torch.lerp(v, m, 0.1)
v = 0.01 * (v @ v) * v
v = v.new_zeros(len(v)) + v
v = torch.cat([v[:2], v[2:]])
v = 1 - v
v = -v + 2 * v - +v + abs(v)
v = True * v // 1 + v % 1
v = torch.tensor([float(t) for t in v], dtype=v.dtype)
v = torch.nan_to_num(v / 0.0, nan=0.0, posinf=0.1, neginf=-0.1)
v = v - TABLE[0] + (TABLE + v).mean(0)
m = 0.9 * m + v
m = m.clone(); m.lerp_(v, 0.1)
y = y + 0.0 * v
y = y.clone(); y -= 0.01 * v
v = v + 0.1 * prox(x, y)
""".strip().splitlines()
ENDS = [
    "return Upload(y - x), m",
    "return map_leaves(lambda t: 0.01 * torch.sign(t), Upload(y - x)), m",
    "d = y - x; return Upload(d), d",
    "d = y - x; s = m - d; d.mul_(0.5); return Upload(d), s",
    "return Upload(-(x - y)), m.clone().mul_(0.5)",
]
TABLE = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4)


def prox(x: Any, y: Any) -> torch.Tensor:
    """Return the gradient of |x - y|^2/2 + sum(y), by autograd."""
    with torch.enable_grad():
        z = y.clone().requires_grad_()
        loss = ((x - z) ** 2).sum() / 2 + (2 * z - z).sum()
        (gradient,) = torch.autograd.grad(loss, z)
    return gradient


NAMES = {f.__name__: f for f in (copy, torch, leaves, map_leaves, nbytes, prox, Upload)}
NAMES |= {"np": np, "TABLE": TABLE}


@dataclass(frozen=True)
class Written:
    """An algorithm whose clients run the lines of `source`."""

    source: str

    def init_server(self, x):
        return Server(x, torch.zeros_like(x))

    def init_client(self, x):
        return torch.zeros_like(x)

    def local(self, g, m, x):
        names = dict(NAMES)
        exec(f"def program(g, m, x):\n{self.source}", names)
        return names["program"](g, m, x)

    def round(self, server, clients):
        x, s = server
        (dx,) = clients.run(self.local, x).mean()
        s = 0.5 * s + dx
        dx.mul_(0.5)
        s[dx > 1] = 0.5
        return Server(x + dx + 0.1 * s, s)


def written(number: int) -> Written:
    """Return the program of this number; the first ones try every line alone."""
    draw = Random(number)
    alone = number < len(LINES)
    lines = [LINES[number]] if alone else draw.choices(LINES, k=draw.choice([2, 3, 4]))
    start, end = draw.choice(STARTS), draw.choice(ENDS)
    body = [start, "for k in range(2):", "    v = g(y, k)"]
    body += [f"    {line}" for line in (*lines, "y = y - 0.1 * v")]
    return Written("\n".join(f"    {line}" for line in (*body, *end.split("; "))))


def after(algorithm: Written, executor: str, kind: type[Quadratic] = Quadratic) -> Any:
    sim = simulate(algorithm, lab.quadratic(kind), S=4, lost=0.2, x=lab.start(), executor=executor)
    return lab.all_states(lab.advance(sim, 3))


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_every_executor_does_what_the_loop_does(first):
    for number in range(first, first + 20):
        algorithm = written(number)
        expected = after(algorithm, "loop")
        for executor, kind in (
            ("fused", Quadratic),
            ("threads", Quadratic),
            ("batched", Quadratic),
            ("batched", lab.TracedQuadratic),
        ):
            found = after(algorithm, executor, kind)
            where = f"{executor} with {kind.__name__}:\n{algorithm.source}"
            torch.testing.assert_close(
                found, expected, rtol=1e-8, atol=1e-8, equal_nan=True, msg=where
            )
