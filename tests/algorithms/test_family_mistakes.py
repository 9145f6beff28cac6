"""The mistakes one would most easily make in the rest of the family, each rejected by a check.

The right algorithm passes the check that rejects its mutant. Mistakes that were seen in other
systems are in test_known_mistakes.py.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch

from tests.helpers.quadratics import WEIGHTS, Unequal, path, quadratic
from trimtab import (
    Dane,
    FedAvg,
    FedDyn,
    FedNova,
    MimeLiteMvr,
    MimeMvr,
    Momentum,
    Quadratic,
    Scaffnew,
    ScaffoldM,
    ScaffoldOpt,
    Scallion,
    ServerMvr,
    simulate,
)
from trimtab.algorithms import dane, feddyn, fednova, mimelitemvr, mimemvr, scallion
from trimtab.testing import (
    ContractError,
    control_is_the_mean_gradient,
    controls_average_to_c,
    keeps_what_it_sent,
    reaches_the_weighted_optimum,
)

# -- theorems that the public contract does not hold


def expect(x: torch.Tensor, right: torch.Tensor) -> None:
    if not torch.allclose(x, right, rtol=0, atol=1e-9):
        raise ContractError(f"{x.tolist()} where {right.tolist()} is right.")


class Watched(Quadratic):
    """Note the most steps that a client makes in each round."""

    def oracle(self, i, seed, r):
        g = super().oracle(i, seed, r)

        def noting(y, k=None):
            self.steps[r] = max(k + 1, self.steps.get(r, 0))
            return g(y, k)

        return noting


def scaffnew_is_proxskip(algorithm: Any) -> None:
    """With all clients it is the paper's algorithm: x_hat, h_i and one coin for all."""
    some = quadratic(weights=WEIGHTS)
    problem = Watched(some.A, some.b, weights=WEIGHTS)
    problem.steps = {}
    xs = path(algorithm, problem, 20)
    gamma, p = algorithm.eta_l, algorithm.p
    x, h = torch.ones(6, 3, dtype=torch.float64), torch.zeros(6, 3, dtype=torch.float64)
    for r in range(1, 21):
        for _ in range(problem.steps[r]):  # only the last of them communicates
            gradients = torch.stack([problem.client_gradient(i, x[i]) for i in range(6)])
            x_hat = x - gamma * (gradients - h)
            x = x_hat
        x = (problem.weights @ x_hat).expand(6, 3)
        h = h + p / gamma * (x - x_hat)
        expect(xs[r - 1], x[0])


def updates_are_averaged_in_part(algorithm: Any) -> None:
    """From zero controls a round is FedAvg's, whatever alpha, S, weights and noise."""
    problem = quadratic(sigma=1.0, weights=WEIGHTS)
    fedavg = FedAvg(eta_l=algorithm.eta_l, K=algorithm.K, eta_g=algorithm.eta_g)
    expect(path(algorithm, problem, 1, S=3), path(fedavg, problem, 1, S=3))


def fednova_is_consistent(algorithm: Any) -> None:
    """With small steps it stops nearer to x* than to the optimum of sum p_i K_i f_i."""
    problem, executor = quadratic(weights=WEIGHTS), Unequal([9, 6, 4, 3, 2, 1])
    p_K = problem.weights * torch.tensor(executor.steps)
    wrong = Quadratic(problem.A, problem.b, weights=p_K).x_star
    x = path(replace(algorithm, eta_l=0.01), problem, 500, executor=executor)[-1]
    if (x - problem.x_star).norm() > 0.2 * (wrong - problem.x_star).norm():
        raise ContractError(f"{x.tolist()} is not near {problem.x_star.tolist()}.")


def fednova_of_one_client_is_fedavg(algorithm: Any) -> None:
    """What one client does alone is neither shortened nor lengthened."""
    problem, executor = quadratic(sigma=1.0), Unequal([9, 6, 4, 3, 2, 1])
    fedavg = FedAvg(eta_l=algorithm.eta_l, K=algorithm.K, eta_g=algorithm.eta_g)
    how = {"cohorts": [[i] for i in range(6)], "executor": executor}
    expect(path(algorithm, problem, 6, **how), path(fedavg, problem, 6, **how))


def momentum_is_the_gradient_of_all_clients(algorithm: Any) -> None:
    """With all clients and no noise m = grad f(x), in the first round and in the later ones."""
    problem = quadratic(weights=WEIGHTS)
    sim = simulate(algorithm, problem, x=torch.ones(3, dtype=torch.float64))
    for _ in range(5):
        x = sim.server.x
        expect(next(sim).server.m, problem.gradient(x))


def mimelite_mvr_without_momentum_is_fedavg(algorithm: Any) -> None:
    """a = 1, any cohort, weights and noise."""
    problem = quadratic(sigma=1.0, weights=WEIGHTS)
    fedavg = FedAvg(eta_l=algorithm.eta, K=algorithm.K)
    expect(path(replace(algorithm, a=1.0), problem, 10, S=3), path(fedavg, problem, 10, S=3))


def mime_mvr_of_one_step_is_central(algorithm: Any) -> None:
    """K = 1, any cohort, weights and noise."""
    problem = quadratic(sigma=1.0, weights=WEIGHTS)
    central = ServerMvr(eta=algorithm.eta, a=algorithm.a)
    expect(path(replace(algorithm, K=1), problem, 10, S=3), path(central, problem, 10, S=3))


def dane_solves_the_local_problem(algorithm: Any) -> None:
    """With many steps on quadratics y = x - (A_i + mu I)^-1 c."""
    problem = quadratic(weights=WEIGHTS)
    A = problem.A + algorithm.mu * torch.eye(3, dtype=torch.float64)
    x = torch.ones(3, dtype=torch.float64)
    moves = torch.linalg.solve(A, problem.gradient(x).expand(6, 3))
    found = path(replace(algorithm, K=400), problem, 1)[-1]
    expect(found, x - problem.weights @ moves)


# -- SCAFFOLD-M


class FromTheDisplacement(ScaffoldM):
    """c_i as line 12 of SCAFFOLD has it, though there is momentum in the displacement."""

    def local(self, g, c_i, x, c, m):
        (dx, _), _ = super().local(g, c_i, x, c, m)
        c_i_new = c_i - c - dx / (self.K * self.eta_l)
        return (dx, c_i_new - c_i), c_i_new


# -- FedDyn


class WithoutShare(FedDyn):
    def round(self, server, clients):
        x, h = server
        (dx,) = clients.run(self.local, x).mean()
        h_new = h - self.alpha * dx
        return feddyn.Server(x + dx - h_new / self.alpha, h_new)


class AddsH(FedDyn):
    def round(self, server, clients):
        x, h = super().round(server, clients)
        return feddyn.Server(x + 2 * h / self.alpha, h)


# -- Scaffnew


class DrawnKDivides(Scaffnew):
    def local(self, g, c_i, x, c, K):
        (dx, _), _ = super().local(g, c_i, x, c, K)
        c_i_new = c_i - c - dx / (int(K) * self.eta_l)
        return (dx, c_i_new - c_i), c_i_new


class OwnCoin(Scaffnew):
    def local(self, g, c_i, x, c, K):
        own = 1 + torch.floor(10 * g.uniform(x[:1]).sum())
        return super().local(g, c_i, x, c, own)


# -- SCALLION


class WithoutAlpha(Scallion):
    def round(self, server, clients):
        x, c = server
        replies = clients.run(self.local, x, c)
        (delta,) = replies.mean()
        x_new = x - self.eta_g * self.K * self.eta_l * (delta + c)
        return scallion.Server(x_new, c + replies.share * delta)


class KeepsWhatItComputed(Scallion):
    def local(self, g, c_i, x, c):
        (delta,), c_i_new = super().local(replace(g, send=lambda upload: upload), c_i, x, c)
        return g.sent(scallion.Upload(delta)), c_i_new


# -- FedNova


class NominalKDivides(FedNova):
    def local(self, g, state, x):
        (d, K), _ = super().local(g, state, x)
        return fednova.Upload(d * K / self.K, torch.full_like(K, self.K)), ()


class NominalKMultiplies(FedNova):
    def round(self, server, clients):
        d, _ = clients.run(self.local, server.x).mean()
        return fednova.Server(server.x + self.eta_g * self.K * d)


# -- ScaffoldOpt


class DisplacementOfAnOptimiser(ScaffoldOpt):
    def local(self, g, c_i, x, c):
        (dx, _), _ = super().local(g, c_i, x, c)
        c_i_new = c_i - c - dx / (self.K * self.eta_l)
        return (dx, c_i_new - c_i), c_i_new


# -- MVR


class StartsAtZero(ServerMvr):
    """The first round is not told from the later ones."""

    def init_server(self, x):
        return super().init_server(x)._replace(w=x.new_ones(()))


class GradientBeforeAtX(ServerMvr):
    def local(self, g, state, x, xp):
        return super().local(g, state, x, x)


class ChangedPlaces(MimeLiteMvr):
    def local(self, g, state, x, m):
        y = x
        for k in range(self.K):
            y = y - self.eta * (g(y, k) + self.a * (m - g(x, k)))
        return mimelitemvr.Upload(y - x), ()


class WithoutMomentum(MimeMvr):
    def round(self, server, clients):
        x, xp, m, w = server
        c, cp = clients.run(self.gradients, x, xp).mean()
        (dx,) = clients.run(self.local, x, c).mean()
        m = c + w * (1 - self.a) * (m - cp)
        return mimemvr.Server(x + dx, x, m, torch.ones_like(w))


class AnotherMiniBatch(MimeMvr):
    def local(self, g, state, x, m):
        y = x
        for k in range(self.K):
            y = y - self.eta * (m + g(y, k) - g(x, self.K + k))
        return mimemvr.Upload(y - x), ()


# -- DANE


class WithoutTilt(Dane):
    def local(self, g, state, x, c):
        return super().local(g, state, x, g(x))


class WrongTilt(Dane):
    def local(self, g, state, x, c):
        return super().local(g, state, x, 2 * g(x) - c)


class FirstGradientOnly(Dane):
    """The local loss is taken for linear."""

    def local(self, g, state, x, c):
        y = x
        for _ in range(self.K):
            y = y - self.eta_l * (c + self.mu * (y - x))
        return dane.Upload(y - x), ()


# -- the table


class Mistake(NamedTuple):
    what: str
    wrong: type[Any]
    right: Any
    check: Callable[[Any], None]


MISTAKES = (
    Mistake(
        "ScaffoldM: c_i from the displacement",
        FromTheDisplacement,
        ScaffoldM(eta_l=0.1, K=5, a=0.5),
        control_is_the_mean_gradient,
    ),
    Mistake(
        "FedDyn: the share is forgotten in h",
        WithoutShare,
        FedDyn(eta_l=0.1, K=5, alpha=1.0),
        controls_average_to_c,
    ),
    Mistake(
        "FedDyn: h is added to x",
        AddsH,
        FedDyn(eta_l=0.1, K=5, alpha=1.0),
        reaches_the_weighted_optimum,
    ),
    Mistake(
        "Scaffnew: the K that was drawn divides",
        DrawnKDivides,
        Scaffnew(eta_l=0.1, p=0.3),
        scaffnew_is_proxskip,
    ),
    Mistake(
        "Scaffnew: every client draws its own K",
        OwnCoin,
        Scaffnew(eta_l=0.1, p=0.3),
        scaffnew_is_proxskip,
    ),
    Mistake(
        "Scallion: the server forgets to divide by alpha",
        WithoutAlpha,
        Scallion(eta_l=0.1, K=5, alpha=0.5),
        updates_are_averaged_in_part,
    ),
    Mistake(
        "Scallion: the client keeps what it computed",
        KeepsWhatItComputed,
        Scallion(eta_l=0.1, K=5, alpha=0.5),
        keeps_what_it_sent,
    ),
    Mistake(
        "FedNova: the nominal K divides",
        NominalKDivides,
        FedNova(eta_l=0.1, K=5),
        fednova_is_consistent,
    ),
    Mistake(
        "FedNova: the nominal K multiplies",
        NominalKMultiplies,
        FedNova(eta_l=0.1, K=5),
        fednova_of_one_client_is_fedavg,
    ),
    Mistake(
        "ScaffoldOpt: c_i from the displacement",
        DisplacementOfAnOptimiser,
        ScaffoldOpt(eta_l=0.1, K=5, base=Momentum(0.5)),
        control_is_the_mean_gradient,
    ),
    Mistake(
        "MVR: the momentum starts at zero",
        StartsAtZero,
        ServerMvr(eta=0.1, a=0.3),
        momentum_is_the_gradient_of_all_clients,
    ),
    Mistake(
        "MVR: the gradients before are those at x",
        GradientBeforeAtX,
        ServerMvr(eta=0.1, a=0.3),
        momentum_is_the_gradient_of_all_clients,
    ),
    Mistake(
        "MimeLiteMvr: a and 1 - a change places",
        ChangedPlaces,
        MimeLiteMvr(eta=0.05, K=5, a=0.3),
        mimelite_mvr_without_momentum_is_fedavg,
    ),
    Mistake(
        "MimeMvr: the cohort's gradient instead of the momentum",
        WithoutMomentum,
        MimeMvr(eta=0.05, K=5, a=0.3),
        mime_mvr_of_one_step_is_central,
    ),
    Mistake(
        "MimeMvr: another mini-batch at x",
        AnotherMiniBatch,
        MimeMvr(eta=0.05, K=5, a=0.3),
        mime_mvr_of_one_step_is_central,
    ),
    *(
        Mistake(f"Dane: {what}", wrong, Dane(eta_l=0.2, K=5, mu=0.7), dane_solves_the_local_problem)
        for what, wrong in (
            ("the tilt is left out", WithoutTilt),
            ("the tilt has the wrong sign", WrongTilt),
            ("the gradient does not follow y", FirstGradientOnly),
        )
    ),
)
every_mistake = pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.what)


@every_mistake
def test_mistake_is_rejected(mistake: Mistake) -> None:
    settings = {name: getattr(mistake.right, name) for name in mistake.right.__dataclass_fields__}
    with pytest.raises(ContractError):
        mistake.check(mistake.wrong(**settings))


@every_mistake
def test_right_one_is_accepted(mistake: Mistake) -> None:
    mistake.check(replace(mistake.right))
