"""What stands between client and server: a client keeps what it sent, and randomness replays."""

import json
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import pytest
import torch

from trimtab import FedAvg, Mime, Momentum, Scaffold, Simulation, simulate
from trimtab.algorithms.registry import decode, encode
from trimtab.algorithms.through import STAGES, Rounding, Through
from trimtab.core import map_leaves
from trimtab.core.tree import control, with_control
from trimtab.problems.catalogue import quadratic_problem
from trimtab.simulation.executors import EXECUTORS
from trimtab.testing import check_algorithm, check_controls

SCAFFOLDS = [
    Scaffold(eta_l=0.1, K=5),
    Scaffold(eta_l=0.1, K=5, option="I"),
    Scaffold(eta_l=0.1, K=5, lean=True),
]


@dataclass(frozen=True)
class Noise:
    """Normal numbers are added at the client, and others at the server."""

    sigma: float

    def init(self, x):
        return ()

    def send(self, upload, state, g):
        return map_leaves(lambda leaf: leaf + self.sigma * g.normal(leaf), upload), ()

    def receive(self, mean, count, clients):
        return map_leaves(lambda leaf: leaf + self.sigma * clients.normal(leaf), mean)

    def size(self, upload):
        return 0


@dataclass(frozen=True)
class Remembers:
    """What rounding takes away is added to the next upload (error feedback)."""

    step: float

    def init(self, x):
        return torch.zeros_like(x)

    def send(self, upload: Any, state: Any, g: Any) -> Any:
        wanted = upload.dx + state
        sent = (wanted / self.step).round() * self.step
        return upload._replace(dx=sent), wanted - sent

    def receive(self, mean, count, clients):
        return mean

    def size(self, upload):
        return 1


def last(algorithm, R=30, **options):
    sim = simulate(algorithm, quadratic_problem(), S=4, **options)
    for _ in range(R):
        done = next(sim)
    return sim, done


@pytest.mark.parametrize("stage", [*STAGES, Rounding(0.05)], ids=repr)
@pytest.mark.parametrize("algorithm", SCAFFOLDS, ids=repr)
def test_the_controls_average_to_c_whatever_stands_between(algorithm, stage):
    sim, _ = last(Through(algorithm, (stage,)))
    assert sim.audit() < 1e-12
    assert float(sim.server.c.norm()) > 0.01


def test_keeping_what_was_computed_breaks_the_average():
    class Computed(Scaffold):
        def local(self, g, c_i, x, c):
            upload, _ = Scaffold.local(self, g, c_i, x, c)
            return upload, Scaffold.local(self, _unsent(g), c_i, x, c)[1]

    wrong, _ = last(Through(Computed(eta_l=0.1, K=5), (Rounding(0.05),)), R=60)
    right, _ = last(Through(SCAFFOLDS[0], (Rounding(0.05),)), R=60)
    assert wrong.audit() > 1000 * right.audit()


def _unsent(g):
    return replace(g, send=lambda upload: upload)


def test_without_effect_it_changes_nothing():
    _, plain = last(FedAvg(eta_l=0.1, K=5))
    _, through = last(Through(FedAvg(eta_l=0.1, K=5), (Rounding(1e-12),)))
    torch.testing.assert_close(through.x, plain.x, rtol=0, atol=1e-6)


def test_bytes_are_those_that_travel():
    _, plain = last(FedAvg(eta_l=0.1, K=5), R=1)
    _, through = last(Through(FedAvg(eta_l=0.1, K=5), (Rounding(0.01),)), R=1)
    assert through.bytes_down == plain.bytes_down
    assert 4 * through.bytes_up == plain.bytes_up  # float64 as 16-bit integers


def test_a_hyper_parameter_called_size_is_no_size_of_uploads():
    @dataclass(frozen=True, kw_only=True)
    class Sized(FedAvg):
        size: int = 3

    _, done = last(Sized(eta_l=0.1, K=2), R=1)
    assert done.bytes_up == done.bytes_down


def test_stages_apply_in_order_and_wrappers_from_the_inside_out():
    fine, coarse = Rounding(0.1), Rounding(0.25)
    _, together = last(Through(SCAFFOLDS[0], (fine, coarse)), R=5)
    _, nested = last(Through(Through(SCAFFOLDS[0], (fine,)), (coarse,)), R=5)
    assert torch.equal(together.x, nested.x)
    _, other = last(Through(SCAFFOLDS[0], (coarse, fine)), R=5)
    assert not torch.equal(other.x, together.x)


def test_a_stage_may_remember():
    sim, _ = last(Through(SCAFFOLDS[0], (Remembers(0.02),)), R=200)
    assert all(leaf.shape == (20,) for i in sim.states for leaf in sim.states[i].stages)
    assert float(sim.problem.evaluate(sim.server.x)["distance"]) < 0.1


@pytest.mark.parametrize("algorithm", SCAFFOLDS, ids=repr)
def test_the_audit_finds_the_controls_behind_stages_that_remember(algorithm):
    nested = Through(Through(algorithm, (Remembers(0.02),)), (Remembers(0.01),))
    sim, _ = last(nested, R=30)
    assert sim.audit() < 1e-12
    sim.states[0] = with_control(sim.states[0], 1 + control(sim.states[0]))
    assert sim.audit() > 0.01


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("algorithm", [FedAvg(eta_l=0.1, K=3), Mime(eta=0.1, K=3, base=Momentum())])
def test_noise_is_the_same_in_every_executor(algorithm, executor):
    noisy = Through(algorithm, (Noise(0.1),))
    _, loop = last(noisy, R=4, executor="loop")
    _, other = last(noisy, R=4, executor=executor)
    torch.testing.assert_close(other.x, loop.x, rtol=1e-5, atol=1e-6)
    _, seeded = last(noisy, R=4, executor=executor, seed=1)
    assert not torch.allclose(seeded.x, loop.x, atol=1e-3)


def test_the_exchanges_of_a_round_draw_other_numbers():
    class Twice(FedAvg):
        def first(self, g, state, x):
            return (g.normal(x),), ()

        def round(self, server, clients):
            (a,), (b,) = (clients.run(self.first, server.x).mean() for _ in range(2))
            assert not torch.allclose(a, b)
            c, d = clients.normal(server.x), clients.uniform(server.x)
            assert not torch.equal(c, d)
            assert not torch.equal(clients.normal(server.x), c)
            return server

    next(simulate(Twice(eta_l=0.1, K=1), quadratic_problem()))


def test_a_run_with_noise_goes_on_bit_for_bit(tmp_path):
    noisy = Through(SCAFFOLDS[0], (Noise(0.01),))
    sim, _ = last(noisy, R=3)
    sim.save(tmp_path / "sim")
    loaded = Simulation.load(tmp_path / "sim", noisy, quadratic_problem())
    for ours, theirs in zip(islice(sim, 3), islice(loaded, 3), strict=True):
        assert torch.equal(ours.x, theirs.x)


@pytest.mark.parametrize("stage", STAGES, ids=repr)
def test_every_stage_can_be_described_and_counts_its_bytes(stage):
    algorithm = Through(FedAvg(eta_l=0.1, K=3), (stage,))
    assert decode(json.loads(json.dumps(encode(algorithm)))) == algorithm
    _, done = last(algorithm, R=1)
    assert done.bytes_up > 0


def test_the_contract_holds_behind_stages():
    check_algorithm(Through(FedAvg(eta_l=0.1, K=3), (Rounding(1e-6),)))
    check_controls(Scaffold(eta_l=0.1, K=3, lean=True))


def test_it_is_described_by_names_alone():
    algorithm = Through(Mime(eta=0.1, K=3, base=Momentum()), (Rounding(0.01),))
    assert decode(encode(algorithm)) == algorithm
    assert encode(algorithm)["stages"] == [{"kind": "rounding", "step": 0.01}]


@pytest.mark.parametrize("stages", [(), None, Rounding(0.1), ("rounding",)])
def test_stages_are_a_tuple_of_stages(refused, stages):
    with refused("Through", "pass a tuple of them"):
        Through(FedAvg(eta_l=0.1, K=3), stages)


def test_a_program_sends_once_in_an_exchange(refused):
    @dataclass(frozen=True)
    class Twice(FedAvg):
        def local(self, g, _, x):
            return g.sent(g.sent(-self.eta_l * g(x, 0))), ()

    with refused("called g.sent twice"):
        next(simulate(Through(Twice(eta_l=0.1, K=1), (Rounding(0.1),)), quadratic_problem()))


def test_an_algorithm_behind_stages_draws_what_it_draws_without():
    @dataclass(frozen=True)
    class Noisy(FedAvg):
        def round(self, server, clients):
            x = super().round(server, clients).x
            return server._replace(x=x + clients.normal(x) + clients.uniform(x))

    noisy = Noisy(eta_l=0.1, K=1)
    _, plain = last(noisy, R=2)
    _, through = last(Through(noisy, (Rounding(1e-12),)), R=2)
    torch.testing.assert_close(through.x, plain.x, rtol=0, atol=1e-6)
    assert float((plain.x - last(FedAvg(eta_l=0.1, K=1), R=2)[1].x).norm()) > 0.1


@pytest.mark.parametrize("step", [0.0, -0.1])
def test_the_step_of_a_rounding_is_positive(refused, step):
    with refused("Rounding", f"step={step}"):
        Rounding(step)
