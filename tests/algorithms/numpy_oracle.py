"""The algorithms of the papers a second time: plain NumPy, one client after the other, float64.

Written from the papers alone and sharing nothing with trimtab, so that agreement means something.
Where the papers offer two forms this takes the one an implementation is less likely to take:
SCAFFOLD's c is the weighted mean of all c_i (not the running update of line 17), and option II's
c_i is the mean of the raw gradients (not line 12).

Every algorithm is a generator: it yields what the server holds after each round somebody answered.
"""

from dataclasses import dataclass

import numpy as np
from numpy import sign, sqrt


@dataclass(frozen=True)
class Clients:
    """N quadratics 1/2 y' A_i y - b_i' y with weights p, and who answers in which round."""

    A: np.ndarray  # (N, d, d)
    b: np.ndarray  # (N, d)
    p: np.ndarray  # (N,), sums to 1
    noise: np.ndarray  # (R, N, K, d)
    cohorts: list[tuple[int, ...]]  # R of them

    def full(self, i, y):
        """Return client i's gradient on all its data."""
        return self.A[i] @ y - self.b[i]

    def batch(self, i, y, r, k):
        """Return client i's gradient on mini-batch k of round r."""
        return self.full(i, y) + self.noise[r, i, k]

    def mean(self, vectors):
        """Return the mean of {client: vector}, weighted by p over these clients."""
        total = sum(self.p[i] * vector for i, vector in vectors.items())
        return total / sum(self.p[i] for i in vectors)

    def rounds(self):
        """Go through the rounds in which somebody answered."""
        return ((r, cohort) for r, cohort in enumerate(self.cohorts) if cohort)


def run(algorithm, clients, x):
    """Return what the server holds after every round; if nobody answers, what it held before."""
    assert clients.cohorts[0], "somebody must answer in the first round"
    rounds, path = algorithm(clients, x), []
    for cohort in clients.cohorts:
        path.append(next(rounds) if cohort else path[-1])
    return np.array(path)


def sgd(clients, x, *, eta):
    for _, cohort in clients.rounds():
        x = x - eta * clients.mean({i: clients.full(i, x) for i in cohort})
        yield x


def fedavg(clients, x, *, eta_l, K, eta_g):
    for r, cohort in clients.rounds():
        y = {}
        for i in cohort:
            y[i] = x
            for k in range(K):
                y[i] = y[i] - eta_l * clients.batch(i, y[i], r, k)
        x = (1 - eta_g) * x + eta_g * clients.mean(y)
        yield x


def fedprox(clients, x, *, eta_l, K, mu, eta_g):
    for r, cohort in clients.rounds():
        y = {}
        for i in cohort:
            y[i] = x
            for k in range(K):
                pull = mu * (y[i] - x)  # the gradient of mu/2 |y - x|^2
                y[i] = y[i] - eta_l * (clients.batch(i, y[i], r, k) + pull)
        x = (1 - eta_g) * x + eta_g * clients.mean(y)
        yield x


def scaffold(clients, x, *, eta_l, K, eta_g, option):
    """Yield the rows x, c, c_1 ... c_N. The lean upload is exact: its oracle is option II.

    K is a number, or one for each client; eta_l is a number, or one for each round.
    """
    c_i, steps = np.zeros_like(clients.b), np.broadcast_to(K, len(clients.b))
    eta_l = np.broadcast_to(eta_l, len(clients.cohorts))
    for r, cohort in clients.rounds():
        c = clients.p @ c_i
        y, c_i_new = {}, c_i.copy()
        for i in cohort:
            y[i], raw = x, []
            for k in range(steps[i]):
                raw.append(clients.batch(i, y[i], r, k))
                y[i] = y[i] - eta_l[r] * (raw[-1] - c_i[i] + c)
            c_i_new[i] = clients.full(i, x) if option == "I" else np.mean(raw, axis=0)
        x = (1 - eta_g) * x + eta_g * clients.mean(y)
        c_i = c_i_new
        yield np.array([x, clients.p @ c_i, *c_i])


def richardson_romberg(clients, x, *, eta_l, K, eta_g):
    slow = fedavg(clients, x, eta_l=eta_l, K=K, eta_g=eta_g)
    fast = fedavg(clients, x, eta_l=2 * eta_l, K=K, eta_g=eta_g)
    for x_slow, x_fast in zip(slow, fast, strict=True):
        yield 2 * x_slow - x_fast


# -- base optimisers: gradient g, state (m, v) and point y -> direction U, state V


def momentum(g, m, v, *, beta, y):
    m = g + beta * m
    return m, (m, v)


def adam(g, m, v, *, beta1, beta2, eps, y):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    return m / (sqrt(v) + eps), (m, v)


def adamw(g, m, v, t=0, *, y, beta1, beta2, eps, weight_decay):
    """Return the step of torch.optim.AdamW as its documentation writes it."""
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    m_hat, v_hat = m / (1 - beta1 ** (t + 1)), v / (1 - beta2 ** (t + 1))
    return m_hat / (sqrt(v_hat) + eps) + weight_decay * y, (m, v, t + 1)


def clipped(g, *s, y, norm, base):
    length = sqrt((g**2).sum())
    return base(g if length <= norm else norm / length * g, *s, y=y)


def adagrad(g, m, v, *, eps, y):
    v = v + g**2
    return g / (sqrt(v) + eps), (m, v)


def yogi(g, m, v, *, beta1, beta2, eps, y):
    m = beta1 * m + (1 - beta1) * g
    v = v - (1 - beta2) * g**2 * sign(v - g**2)
    return m / (sqrt(v) + eps), (m, v)


def fedopt(clients, x, *, eta_l, K, base, eta_g):
    s = np.zeros_like(x), np.zeros_like(x)
    for r, cohort in clients.rounds():
        y = {}
        for i in cohort:
            y[i] = x
            for k in range(K):
                y[i] = y[i] - eta_l * clients.batch(i, y[i], r, k)
        direction, s = base(x - clients.mean(y), *s, y=x)
        x = x - eta_g * direction
        yield x


def server_only(clients, x, *, eta, base):
    s = np.zeros_like(x), np.zeros_like(x)
    for _, cohort in clients.rounds():
        direction, s = base(clients.mean({i: clients.full(i, x) for i in cohort}), *s, y=x)
        x = x - eta * direction
        yield x


def mimelite(clients, x, *, eta, K, base):
    s = np.zeros_like(x), np.zeros_like(x)
    for r, cohort in clients.rounds():
        y = {}
        for i in cohort:
            y[i] = x
            for k in range(K):
                direction, _ = base(clients.batch(i, y[i], r, k), *s, y=y[i])
                y[i] = y[i] - eta * direction
        _, s = base(clients.mean({i: clients.full(i, x) for i in cohort}), *s, y=x)
        x = clients.mean(y)
        yield x


def mime(clients, x, *, eta, K, base):
    s = np.zeros_like(x), np.zeros_like(x)
    for r, cohort in clients.rounds():
        c = clients.mean({i: clients.full(i, x) for i in cohort})
        y = {}
        for i in cohort:
            y[i] = x
            for k in range(K):
                change = clients.batch(i, y[i], r, k) - clients.batch(i, x, r, k)
                direction, _ = base(change + c, *s, y=y[i])
                y[i] = y[i] - eta * direction
        _, s = base(c, *s, y=x)
        x = clients.mean(y)
        yield x


def scaffold_m(clients, x, *, eta_l, K, a, eta_g):
    """Yield the rows x, c, c_1 ... c_N; the momentum is the mean of the steps of the last round."""
    c_i, m = np.zeros_like(clients.b), np.zeros_like(x)
    for r, cohort in clients.rounds():
        c = clients.p @ c_i
        y, mean_step, c_i_new = {}, {}, c_i.copy()
        for i in cohort:
            y[i], raw, steps = x, [], []
            for k in range(K):
                raw.append(clients.batch(i, y[i], r, k))
                steps.append(a * (raw[-1] - c_i[i] + c) + (1 - a) * m)
                y[i] = y[i] - eta_l * steps[-1]
            c_i_new[i], mean_step[i] = np.mean(raw, axis=0), np.mean(steps, axis=0)
        x, m = (1 - eta_g) * x + eta_g * clients.mean(y), clients.mean(mean_step)
        c_i = c_i_new
        yield np.array([x, clients.p @ c_i, *c_i])


def feddyn(clients, x, *, eta_l, K, alpha):
    """Yield the rows x, h, h_1 ... h_N; h is the weighted mean of all h_i (not a running sum)."""
    h_i = np.zeros_like(clients.b)
    for r, cohort in clients.rounds():
        y, h_i_new = {}, h_i.copy()
        for i in cohort:
            y[i] = x
            for k in range(K):
                pull = alpha * (y[i] - x)
                y[i] = y[i] - eta_l * (clients.batch(i, y[i], r, k) - h_i[i] + pull)
            h_i_new[i] = h_i[i] - alpha * (y[i] - x)
        h_i = h_i_new
        x = clients.mean(y) - clients.p @ h_i / alpha
        yield np.array([x, clients.p @ h_i, *h_i])


def scaffnew(clients, x, *, eta_l, p, numbers):
    """Yield the rows x, c, c_1 ... c_N; numbers: one for each round, which its K is made of."""
    c_i = np.zeros_like(clients.b)
    for r, cohort in clients.rounds():
        K = 1
        while numbers[r] >= 1 - (1 - p) ** K:  # the chance of heads within K tosses
            K += 1
        c = clients.p @ c_i
        y, c_i_new = {}, c_i.copy()
        for i in cohort:
            y[i], raw = x, []
            for k in range(K):
                raw.append(clients.batch(i, y[i], r, k))
                y[i] = y[i] - eta_l * (raw[-1] - c_i[i] + c)
            c_i_new[i] = p * np.sum(raw, axis=0) + (1 - p * K) * (c_i[i] - c)
        x, c_i = clients.mean(y), c_i_new
        yield np.array([x, clients.p @ c_i, *c_i])


def scallion(clients, x, *, eta_l, K, eta_g, alpha):
    """Yield the rows x, c, c_1 ... c_N: SCAFFOLD whose c_i goes a part of its way."""
    c_i = np.zeros_like(clients.b)
    for r, cohort in clients.rounds():
        c = clients.p @ c_i
        y, c_i_new = {}, c_i.copy()
        for i in cohort:
            y[i], raw = x, []
            for k in range(K):
                raw.append(clients.batch(i, y[i], r, k))
                y[i] = y[i] - eta_l * (raw[-1] - c_i[i] + c)
            c_i_new[i] = (1 - alpha) * c_i[i] + alpha * np.mean(raw, axis=0)
        x = (1 - eta_g) * x + eta_g * clients.mean(y)
        c_i = c_i_new
        yield np.array([x, clients.p @ c_i, *c_i])


def fednova(clients, x, *, eta_l, K, eta_g):
    """K has a number for each client; the mean gradient of each is averaged, not its move."""
    for r, cohort in clients.rounds():
        gradient = {}
        for i in cohort:
            y, raw = x, []
            for k in range(K[i]):
                raw.append(clients.batch(i, y, r, k))
                y = y - eta_l * raw[-1]
            gradient[i] = np.mean(raw, axis=0)
        steps = clients.mean({i: np.float64(K[i]) for i in cohort})
        x = x - eta_g * eta_l * steps * clients.mean(gradient)
        yield x


def scaffold_opt(clients, x, *, eta_l, K, base, eta_g):
    """Yield the rows x, c, c_1 ... c_N; the base starts anew at every client in every round."""
    c_i = np.zeros_like(clients.b)
    for r, cohort in clients.rounds():
        c = clients.p @ c_i
        y, c_i_new = {}, c_i.copy()
        for i in cohort:
            y[i], raw, s = x, [], (np.zeros_like(x), np.zeros_like(x))
            for k in range(K):
                raw.append(clients.batch(i, y[i], r, k))
                direction, s = base(raw[-1] - c_i[i] + c, *s, y=y[i])
                y[i] = y[i] - eta_l * direction
            c_i_new[i] = np.mean(raw, axis=0)
        x = (1 - eta_g) * x + eta_g * clients.mean(y)
        c_i = c_i_new
        yield np.array([x, clients.p @ c_i, *c_i])


def variance_reduced(clients, x, cohort, last, a):
    """Return the momentum at x; last: the x and the momentum of the round before, or None."""
    c = clients.mean({i: clients.full(i, x) for i in cohort})
    if last is None:
        return c
    before, m = last
    change = c - clients.mean({i: clients.full(i, before) for i in cohort})
    return a * c + (1 - a) * (m + change)


def server_mvr(clients, x, *, eta, a):
    last = None
    for _, cohort in clients.rounds():
        m = variance_reduced(clients, x, cohort, last, a)
        last = x, m
        x = x - eta * m
        yield x


def mimelite_mvr(clients, x, *, eta, K, a):
    last = None
    for r, cohort in clients.rounds():
        m = variance_reduced(clients, x, cohort, last, a)
        last, y = (x, m), {}
        for i in cohort:
            y[i] = x
            for k in range(K):
                change = clients.batch(i, y[i], r, k) - clients.batch(i, x, r, k)
                y[i] = y[i] - eta * (a * clients.batch(i, y[i], r, k) + (1 - a) * (m + change))
        x = clients.mean(y)
        yield x


def mime_mvr(clients, x, *, eta, K, a):
    last = None
    for r, cohort in clients.rounds():
        m = variance_reduced(clients, x, cohort, last, a)
        last, y = (x, m), {}
        for i in cohort:
            y[i] = x
            for k in range(K):
                change = clients.batch(i, y[i], r, k) - clients.batch(i, x, r, k)
                y[i] = y[i] - eta * (m + change)
        x = clients.mean(y)
        yield x


def dane(clients, x, *, eta_l, K, mu):
    for _, cohort in clients.rounds():
        c = clients.mean({i: clients.full(i, x) for i in cohort})
        y = {}
        for i in cohort:
            y[i] = x
            for _ in range(K):
                change = clients.full(i, y[i]) - clients.full(i, x)
                y[i] = y[i] - eta_l * (c + change + mu * (y[i] - x))
        x = clients.mean(y)
        yield x
