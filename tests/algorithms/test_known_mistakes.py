"""Mistakes found in other systems, each as a mutant that a named check must reject.

Mutants of an algorithm are subclasses; mutants of the simulator are patches under which the right
algorithm is checked. Tested elsewhere: BatchNorm statistics averaged as parameters
(tests/problems/test_supervised.py), a restarted client counted as a new one (the federation).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from trimtab import (
    FedAvg,
    Mime,
    MimeLite,
    Momentum,
    Quadratic,
    Scaffold,
    ServerOnly,
    core,
    simulate,
)
from trimtab.algorithms import fedavg, mime
from trimtab.algorithms.scaffold import Server, Upload
from trimtab.compute import lazy as vectors
from trimtab.core.oracle import ClientOracle
from trimtab.simulation import checkpoint, client_states
from trimtab.testing import (
    ContractError,
    control_is_the_mean_gradient,
    controls_average_to_c,
    correction_matters,
    includes_late_clients,
    is_pure,
    reaches_the_weighted_optimum,
    rests_when_nobody_moves,
    runs_alike_in_every_executor,
    survives_a_restart,
)
from trimtab.testing import _trials as lab

simulation = import_module("trimtab.simulation.simulate")  # the module, not the function

SCAFFOLD = Scaffold(eta_l=0.1, K=5)
MIME = Mime(eta=0.1, K=3, base=Momentum(0.5))


# -- theorems that the public contract does not hold


def updates_are_averaged(algorithm: Any) -> None:
    """If f_i = |x - b_i|^2/2, one step of length 1 from zero controls goes to the mean b_i."""
    b = lab.quadratic().b
    problem = Quadratic(torch.ones_like(b), b, weights=range(1, lab.N + 1))
    sim = simulate(replace(algorithm, eta_l=1.0, K=1), problem, cohorts=[[1, 2, 4]])
    p = problem.weights[[1, 2, 4], None]
    expect(next(sim).x, (p * b[[1, 2, 4]]).sum(0) / p.sum())


def mime_of_one_step_is_server_only(algorithm: Mime) -> None:
    """Mime with K = 1 is its base optimiser run centrally, for any cohorts and noise."""
    central = ServerOnly(eta=algorithm.eta, base=algorithm.base)
    expect(after(replace(algorithm, K=1), S=3), after(central, S=3))


def mime_of_equal_clients_is_mimelite(algorithm: Mime) -> None:
    """Among equal clients without noise there is nothing to correct."""
    problem = lab.quadratic(equal=True, sigma=0.0)
    lite = MimeLite(eta=algorithm.eta, K=algorithm.K, base=algorithm.base)
    expect(after(algorithm, problem, x=-lab.start()), after(lite, problem, x=-lab.start()))


def mime_cancels_noise(algorithm: Mime) -> None:
    """g(y, k) - g(x, k) is free of noise that depends on k alone: equal k, equal mini-batch."""
    expect(after(algorithm), after(algorithm, lab.quadratic(sigma=0.0)))


def mime_of_all_clients_reaches_the_optimum(algorithm: Mime) -> None:
    """With all clients and no noise x goes to x*."""
    problem = lab.quadratic(sigma=0.0)
    expect(after(algorithm, problem, rounds=200), problem.x_star)


def after(algorithm: Any, problem: Quadratic | None = None, *, rounds: int = 5, **how: Any) -> Any:
    sim = simulate(algorithm, problem or lab.quadratic(), **{"x": lab.start(), **how})
    return lab.advance(sim, rounds).server.x


def expect(x: torch.Tensor, right: torch.Tensor) -> None:
    if not lab.close(x, right):
        raise ContractError(f"{x.tolist()} where {right.tolist()} is right.")


# -- SCAFFOLD, wrong on the client


def reply(dx, c_i, c_i_new):
    return Upload(dx, c_i_new - c_i), c_i_new


class FlippedSign(Scaffold):
    def local(self, g, c_i, x, c):
        (dx, _), _ = super().local(g, c_i, x, c)
        return reply(dx, c_i, c_i - c + dx / (self.K * self.eta_l))


class StartsAsWeights(Scaffold):
    def init_server(self, x):
        return Server(x, c=x.clone())

    def init_client(self, x):
        return x.clone()


class StartsAtRandom(Scaffold):
    def init_server(self, x):
        return Server(x, c=torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x))

    def init_client(self, x):
        return torch.randn(x.shape, generator=torch.Generator().manual_seed(2)).to(x)


class LateClientStartsAtC(Scaffold):
    def local(self, g, c_i, x, c):
        return super().local(g, torch.where(c_i == 0, c, c_i), x, c)


@dataclass(frozen=True, kw_only=True)
class WrongK(Scaffold):
    count: float  # of epochs, batches or samples

    def local(self, g, c_i, x, c):
        (dx, _), _ = super().local(g, c_i, x, c)
        return reply(dx, c_i, c_i - c - dx / (self.count * self.eta_l))


class NominalK(Scaffold):
    """Every client is slow: it makes K - 1 steps and divides by K."""

    def local(self, g, c_i, x, c):
        (dx, _), _ = Scaffold(eta_l=self.eta_l, K=self.K - 1).local(g, c_i, x, c)
        return reply(dx, c_i, c_i - c - dx / (self.K * self.eta_l))


class UploadsControl(Scaffold):
    def local(self, g, c_i, x, c):
        (dx, _), c_i_new = super().local(g, c_i, x, c)
        return Upload(dx, c_i_new), c_i_new


class NeverStored(Scaffold):
    def local(self, g, c_i, x, c):
        return super().local(g, c_i, x, c)[0], c_i


class CorrectionDropped(Scaffold):
    def local(self, g, c_i, x, c):
        y = x
        for k in range(self.K):
            y = y - self.eta_l * g(y, k)
        return reply(y - x, c_i, c_i - c + (x - y) / (self.K * self.eta_l))


class CorrectionOnACopy(Scaffold):
    def local(self, g, c_i, x, c):
        y = x
        for k in range(self.K):
            y = y - self.eta_l * g(y, k)
            y.detach().clone().sub_(self.eta_l * (c - c_i))
        return reply(y - x, c_i, c_i - c + (x - y) / (self.K * self.eta_l))


class PrivateOptimiser(Scaffold):
    """The corrected gradient is overwritten by the clipped one."""

    def local(self, g, c_i, x, c):
        y = x
        for k in range(self.K):
            gradient = g(y, k) - c_i + c
            gradient = g(y, k) / torch.linalg.vector_norm(g(y, k), dim=-1, keepdim=True).clamp(1.0)
            y = y - self.eta_l * gradient
        return reply(y - x, c_i, c_i - c + (x - y) / (self.K * self.eta_l))


class LocalMomentum(Scaffold):
    def local(self, g, c_i, x, c):
        y, m = x, torch.zeros_like(x)
        for k in range(self.K):
            m = 0.9 * m + g(y, k) - c_i + c
            y = y - self.eta_l * m
        return reply(y - x, c_i, c_i - c + (x - y) / (self.K * self.eta_l))


@dataclass(frozen=True, kw_only=True)
class Schedule(Scaffold):
    divisor: int  # whose eta_l divides: -2 is the last step, -1 the one that would be next

    def local(self, g, c_i, x, c):
        y, eta_l = x, [self.eta_l * 0.9**k for k in range(self.K + 1)]
        for k in range(self.K):
            y = y - eta_l[k] * (g(y, k) - c_i + c)
        return reply(y - x, c_i, c_i - c + (x - y) / (self.K * eta_l[self.divisor]))


class OneTensorForAll(Scaffold):
    """All clients write their c_i to the same place."""

    def local(self, g, c_i, x, c):
        upload, c_i_new = super().local(g, c_i, x, c)
        return upload, c_i.copy_(c_i_new)


# -- SCAFFOLD, wrong on the server


class ForgetsShare(Scaffold):
    def round(self, server, clients):
        x, c = server
        dx, dc = clients.run(self.local, x, c).mean()
        return Server(x + self.eta_g * dx, c + dc)


class Equation10(UploadsControl):
    """c <- 1/N times the sum of c_i_new over S: right for S = N only."""

    def round(self, server, clients):
        x, c = server
        replies = clients.run(self.local, x, c)
        dx, c_i_new = replies.mean()
        return Server(x + self.eta_g * dx, replies.share * c_i_new)


class Equation9(Scaffold):
    """x <- eta_g times the mean of y_i."""

    def round(self, server, clients):
        x, c = server
        replies = clients.run(self.local, x, c)
        dx, dc = replies.mean()
        return Server(self.eta_g * (x + dx), c + replies.share * dc)


class Equation3(FedAvg):
    """The same of FedAvg."""

    def round(self, server, clients):
        (x,) = server
        (dx,) = clients.run(self.local, x).mean()
        return fedavg.Server(self.eta_g * (x + dx))


# -- Mime


class GradientAtY(Mime):
    def local(self, g, _, x, s, c):
        y = x
        for k in range(self.K):
            y = y - self.eta * self.base.U(g(y, k) - g(y, k) + c, s, y)
        return mime.Upload(y - x), ()


class MeanGradientAtY(Mime):
    def gradient(self, g, _, x):
        y = x
        for k in range(self.K):
            y = y - self.eta * g(y, k)
        return mime.Gradient(g(y)), ()


class LateServer(NamedTuple):
    x: torch.Tensor
    s: Any
    c: torch.Tensor


class GradientOfLastRound(Mime):
    def init_server(self, x):
        return LateServer(x, self.base.init(x), torch.zeros_like(x))

    def round(self, server, clients):
        x, s, c = server
        (c_new,) = clients.run(self.gradient, x).mean()
        (dx,) = clients.run(self.local, x, s, c).mean()
        return LateServer(x + dx, self.base.V(c, s), c_new)


class SummedGradient(Mime):
    def round(self, server, clients):
        x, s = server
        replies = clients.run(self.gradient, x)
        c = len(replies) * replies.mean().gradient
        (dx,) = clients.run(self.local, x, s, c).mean()
        return mime.Server(x + dx, self.base.V(c, s))


class AnotherMiniBatch(Mime):
    def local(self, g, _, x, s, c):
        y = x
        for k in range(self.K):
            y = y - self.eta * self.base.U(g(y, k) - g(x, self.K + k) + c, s, y)
        return mime.Upload(y - x), ()


# -- the simulator: what it makes of replies


class Cohort(simulation.SimulatedCohort):
    """Clients whose replies are put together in a wrong way."""

    def run(self, program, *broadcast):
        asked, tally = self.responding, super().run(program, *broadcast)
        replies, sim = {}, self.sim
        for i in asked:
            g = ClientOracle(sim.problem.oracle(i, sim.seed, self.r))
            old = sim.states[i] if i in sim.states else sim.algorithm.init_client(sim.server.x)
            replies[i] = program(g, old, *broadcast)
        wrong = self.wrong(replies, tally)
        return SimpleNamespace(**{"mean": tally.mean, "share": tally.share, **wrong})

    def p(self, clients):
        return float(self.sim.problem.weights[list(clients)].sum())

    def evenly(self, name, replies):
        return sum(getattr(replies[i][0], name) for i in self.responding) / len(self.responding)


class Right(Cohort):
    def wrong(self, replies, tally):
        return {}


class LastClientOnly(Cohort):
    def wrong(self, replies, tally):
        return {"mean": lambda: replies[self.responding[-1]][0]}


class PlannedShare(Cohort):
    def wrong(self, replies, tally):
        return {"share": self.p(replies)}


class ShareOfThoseSeen(Cohort):
    def wrong(self, replies, tally):
        return {"share": tally.share / self.p({*self.sim.states, *self.responding})}


class UniformControls(Cohort):
    def wrong(self, replies, tally):
        mean = tally.mean()._replace(dc=self.evenly("dc", replies))
        return {"mean": lambda: mean, "share": len(self.responding) / self.sim.problem.N}


class UniformUpdates(Cohort):
    def wrong(self, replies, tally):
        mean = tally.mean()._replace(dx=self.evenly("dx", replies))
        return {"mean": lambda: mean}


class CommitsLostReplies(Cohort):
    def wrong(self, replies, tally):
        for i, (_, state) in replies.items():
            self.sim.states[i] = state
        return {}


def cohort(kind: type[Cohort]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(simulation, "SimulatedCohort", kind)


def one_state_for_all(patch: pytest.MonkeyPatch) -> None:
    latest = client_states.ClientStates.latest
    first = lambda self, i: latest(self, next(iter(self))) if i in self else None  # noqa: E731
    patch.setattr(client_states.ClientStates, "latest", first)


def restore(change: Callable[[Any], None]) -> Callable[[pytest.MonkeyPatch], None]:
    """Let `change` spoil a simulation that has just been loaded."""
    right = checkpoint.restore

    def wrong(sim, *where):
        right(sim, *where)
        change(sim)

    return lambda patch: patch.setattr(checkpoint, "restore", wrong)


def without_c(sim):
    sim.server = sim.server._replace(c=torch.zeros_like(sim.server.c))


def without_c_i(sim):
    sim.states = client_states.ClientStates()


def with_differences(sim):
    for i in sim.states:
        sim.states[i] = sim.states[i] - sim.server.c


# -- executors


class Signed(FedAvg):
    """Uploads signs; right, as long as `map_leaves` reaches every vector."""

    def local(self, g, state, x):
        upload, state = super().local(g, state, x)
        return core.map_leaves(lambda t: 0.01 * torch.sign(t), upload), state


class ChangesWhatItMadeASumOf(FedAvg):
    """Right, as long as the sum is that of the numbers when it was written."""

    def local(self, g, state, x):
        y = x - self.eta_l * g(x, 0)
        t = y.clone()
        dx = -(x - t)
        t.mul_(2)
        return fedavg.Upload(dx), ()


def skipping_lazy_vectors(monkeypatch):
    whole = core.map_leaves

    def tensors_only(f, *trees):
        return whole(lambda t, *o: f(t, *o) if isinstance(t, torch.Tensor) else t, *trees)

    monkeypatch.setattr(core, "map_leaves", tensors_only)


def blind_to_changes(monkeypatch):
    monkeypatch.setattr(vectors, "_version", lambda tensor: 0)


# -- the table


class Mistake(NamedTuple):
    what: str
    seen: str
    algorithm: Any
    rejected_by: tuple[Callable[[Any], None], ...]
    patch: Callable[[pytest.MonkeyPatch], None] = lambda _: None


def scaffold(kind: type[Scaffold], **more: Any) -> Scaffold:
    return kind(eta_l=SCAFFOLD.eta_l, K=SCAFFOLD.K, **more)


def mimic(kind: type[Mime]) -> Mime:
    return kind(eta=MIME.eta, K=MIME.K, base=MIME.base)


START = "Flower baseline niid_bench, NIID-Bench"
COUNT = "PFLlib, ki-ljl, FL4Health, Plato"
SHARE = "NVFlare, FL4Health, PFLlib, Flower baseline, declearn"
STORE = "FL-bench, FedML, FedLab master"
WEIGHTS = "NIID-Bench, fluke, NVFlare, Flower baseline"
MOMENTUM = "FL4Health, fluke, FLGo, FL-bench, Fed-BioMed when set"
SCHEDULE = "fluke, NVFlare example, PFLlib, SubstraFL"
SAVE = "pfl, fluke, NVFlare, Fed-BioMed"
COMMIT = "Flower baseline, NVFlare, FL4Health, declearn, Plato, PFLlib"
MIMES = "FedML, BalajiAI"

MISTAKES = (
    Mistake(
        "sign of line 12 flipped",
        "pfl 0.6.0",
        scaffold(FlippedSign),
        (control_is_the_mean_gradient, reaches_the_weighted_optimum),
    ),
    Mistake(
        "c, c_i start as model weights",
        START,
        scaffold(StartsAsWeights),
        (controls_average_to_c, reaches_the_weighted_optimum),
    ),
    Mistake(
        "c, c_i start as random numbers",
        START,
        scaffold(StartsAtRandom),
        (controls_average_to_c, reaches_the_weighted_optimum, rests_when_nobody_moves),
    ),
    Mistake(
        "a late client starts with c_i := c",
        "FL4Health",
        scaffold(LateClientStartsAtC),
        (includes_late_clients,),
    ),
    Mistake("K counts epochs", COUNT, scaffold(WrongK, count=1), (control_is_the_mean_gradient,)),
    Mistake(
        "K counts the batches of a pass",
        COUNT,
        scaffold(WrongK, count=4),
        (control_is_the_mean_gradient,),
    ),
    Mistake(
        "K counts samples", COUNT, scaffold(WrongK, count=100), (control_is_the_mean_gradient,)
    ),
    Mistake(
        "nominal K for a slow client", COUNT, scaffold(NominalK), (control_is_the_mean_gradient,)
    ),
    Mistake(
        "uploads c_i instead of its change",
        "Plato before its fix",
        scaffold(UploadsControl),
        (controls_average_to_c,),
    ),
    Mistake("forgets the factor |S|/N", SHARE, scaffold(ForgetsShare), (controls_average_to_c,)),
    Mistake(
        "the planned |S| instead of those that answered",
        SHARE,
        SCAFFOLD,
        (controls_average_to_c,),
        cohort(PlannedShare),
    ),
    Mistake(
        "N = clients seen so far",
        SHARE,
        SCAFFOLD,
        (controls_average_to_c, includes_late_clients),
        cohort(ShareOfThoseSeen),
    ),
    Mistake(
        "c_i computed and never stored",
        STORE,
        scaffold(NeverStored),
        (control_is_the_mean_gradient, reaches_the_weighted_optimum),
    ),
    Mistake(
        "correction dropped",
        STORE,
        scaffold(CorrectionDropped),
        (correction_matters, reaches_the_weighted_optimum),
    ),
    Mistake(
        "correction written to a detached copy",
        STORE,
        scaffold(CorrectionOnACopy),
        (correction_matters,),
    ),
    Mistake(
        "only the last client's update kept",
        "FedML",
        SCAFFOLD,
        (updates_are_averaged,),
        cohort(LastClientOnly),
    ),
    Mistake(
        "eta_g multiplies the averaged model",
        "fluke; equation 9 of a reproduction report",
        scaffold(Equation9),
        (rests_when_nobody_moves,),
    ),
    Mistake(
        "eta_g multiplies the averaged model of FedAvg",
        "equation 3 of a reproduction report",
        Equation3(eta_l=0.1, K=5),
        (rests_when_nobody_moves,),
    ),
    Mistake(
        "c is the sum of c_i_new over S, divided by N",
        "equation 10 of a reproduction report",
        scaffold(Equation10),
        (controls_average_to_c,),
    ),
    Mistake(
        "example weights on x, uniform c",
        WEIGHTS,
        SCAFFOLD,
        (controls_average_to_c, reaches_the_weighted_optimum),
        cohort(UniformControls),
    ),
    Mistake(
        "example weights on c, uniform x",
        WEIGHTS,
        SCAFFOLD,
        (updates_are_averaged,),
        cohort(UniformUpdates),
    ),
    Mistake(
        "momentum in the local optimiser, c_i from the displacement",
        MOMENTUM,
        scaffold(LocalMomentum),
        (control_is_the_mean_gradient, reaches_the_weighted_optimum),
    ),
    Mistake(
        "schedule: the last eta_l divides",
        SCHEDULE,
        scaffold(Schedule, divisor=-2),
        (control_is_the_mean_gradient,),
    ),
    Mistake(
        "schedule: the next eta_l divides",
        SCHEDULE,
        scaffold(Schedule, divisor=-1),
        (control_is_the_mean_gradient,),
    ),
    Mistake(
        "one shared c_i tensor, written in place", "pfl", scaffold(OneTensorForAll), (is_pure,)
    ),
    Mistake(
        "one shared c_i for all clients",
        "pfl",
        SCAFFOLD,
        (controls_average_to_c,),
        one_state_for_all,
    ),
    Mistake(
        "c missing from the checkpoint", SAVE, SCAFFOLD, (survives_a_restart,), restore(without_c)
    ),
    Mistake(
        "c_i missing from the checkpoint",
        SAVE,
        SCAFFOLD,
        (survives_a_restart,),
        restore(without_c_i),
    ),
    Mistake(
        "c_i restored as c_i - c", SAVE, SCAFFOLD, (survives_a_restart,), restore(with_differences)
    ),
    Mistake(
        "the client commits c_i, the server never gets the update",
        COMMIT,
        SCAFFOLD,
        (controls_average_to_c,),
        cohort(CommitsLostReplies),
    ),
    Mistake(
        "the correction is overwritten by the DP optimiser",
        "FL4Health",
        scaffold(PrivateOptimiser),
        (correction_matters,),
    ),
    Mistake(
        "Mime: both gradients of the correction at y",
        MIMES,
        mimic(GradientAtY),
        (mime_of_equal_clients_is_mimelite,),
    ),
    Mistake(
        "Mime: mean gradient at the clients' y",
        MIMES,
        mimic(MeanGradientAtY),
        (mime_of_all_clients_reaches_the_optimum, mime_of_one_step_is_server_only),
    ),
    Mistake(
        "Mime: mean gradient of last round",
        MIMES,
        mimic(GradientOfLastRound),
        (mime_of_one_step_is_server_only,),
    ),
    Mistake(
        "Mime: gradients summed instead of averaged",
        MIMES,
        mimic(SummedGradient),
        (mime_of_one_step_is_server_only,),
    ),
    Mistake(
        "Mime: another mini-batch at x",
        MIMES,
        mimic(AnotherMiniBatch),
        (mime_cancels_noise, mime_of_one_step_is_server_only),
    ),
)
MISTAKES += (
    Mistake(
        "map_leaves skips lazy vectors",
        "trimtab",
        Signed(eta_l=0.1, K=3),
        (runs_alike_in_every_executor,),
        skipping_lazy_vectors,
    ),
    Mistake(
        "a lazy sum of what was changed meanwhile",
        "trimtab",
        ChangesWhatItMadeASumOf(eta_l=0.1, K=3),
        (runs_alike_in_every_executor,),
        blind_to_changes,
    ),
)
CASES = [(mistake, check) for mistake in MISTAKES for check in mistake.rejected_by]


@pytest.mark.parametrize(
    ("mistake", "check"), CASES, ids=[f"{m.what} ({m.seen}): {c.__name__}" for m, c in CASES]
)
def test_mistake_is_rejected(
    mistake: Mistake, check: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake.patch(monkeypatch)
    with pytest.raises(ContractError):
        check(mistake.algorithm)


USED = sorted({check for _, check in CASES}, key=lambda check: check.__name__)
OF_MIME = [check for check in USED if check.__name__.startswith("mime")]
OF_SCAFFOLD = [check for check in USED if check not in OF_MIME]


@pytest.mark.parametrize("check", OF_SCAFFOLD)
@pytest.mark.parametrize("how", [{}, {"option": "I"}, {"lean": True}], ids=str)
def test_right_scaffold_is_accepted(check: Callable[[Any], None], how: dict[str, Any]) -> None:
    check(replace(SCAFFOLD, **how))


@pytest.mark.parametrize("check", OF_MIME)
def test_right_mime_is_accepted(check: Callable[[Any], None]) -> None:
    check(MIME)


@pytest.mark.parametrize("check", [rests_when_nobody_moves, updates_are_averaged])
def test_right_fedavg_is_accepted(check: Callable[[Any], None]) -> None:
    check(FedAvg(eta_l=0.1, K=5))


@pytest.mark.parametrize("check", [controls_average_to_c, updates_are_averaged])
def test_patched_cohort_without_mistake_is_accepted(
    check: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    cohort(Right)(monkeypatch)
    check(SCAFFOLD)


@pytest.mark.parametrize("kind", [Signed, ChangesWhatItMadeASumOf])
def test_right_executors_are_accepted(kind: Any) -> None:
    runs_alike_in_every_executor(kind(eta_l=0.1, K=3))


def test_equation_10_is_right_with_all_clients() -> None:
    sim = simulate(scaffold(Equation10), lab.quadratic(), x=lab.start())
    assert lab.advance(sim, 5).audit() < 1e-12


@pytest.mark.parametrize("kind", [Equation3, Equation9])
def test_equations_3_and_9_are_right_for_eta_g_1(kind: Any) -> None:
    wrong = kind(eta_l=0.1, K=5)
    right = FedAvg(eta_l=0.1, K=5) if kind is Equation3 else SCAFFOLD
    expect(after(wrong, S=3), after(right, S=3))
