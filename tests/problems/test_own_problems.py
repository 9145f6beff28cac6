"""Problems of users' own classes: six members suffice, and all others have defaults."""

from itertools import islice

import pytest
import torch

from trimtab import Diverged, FedAvg, Quadratic, Scaffold, Sgd, compare, diagnose, simulate
from trimtab.studies.run import run

D = 3
CENTRES = torch.tensor([[1.0, 0.0, 2.0], [0.0, 2.0, -1.0], [-2.0, 1.0, 1.0]]).double()
SCALES = torch.tensor([1.0, 0.5, 0.25]).double()


class Six:
    """f_i(x) = scale_i / 2 |x - centre_i|^2, with no more than every problem must have."""

    N, d = len(CENTRES), D
    weights = torch.tensor([0.5, 0.3, 0.2]).double()

    def x0(self, seed=0):
        return torch.zeros(D, dtype=torch.float64)

    def oracle(self, i, seed, r):
        return lambda y, k=None: SCALES[i] * (y - CENTRES[i])

    def evaluate(self, x, client=None):
        losses = SCALES / 2 * (x - CENTRES).square().sum(1)
        return {"loss": float(self.weights @ losses if client is None else losses[client])}


class WithClientLoss(Six):
    def client_loss(self, i, x):
        return super().evaluate(x, client=i)["loss"]

    def evaluate(self, x, client=None):
        return {"score": -float(x.norm())}


class Lossless(Six):
    def evaluate(self, x, client=None):
        return {"accuracy": 1 / (1 + float(x.norm()))}


def same():
    """Return the same losses as a Quadratic, which has everything."""
    A = SCALES[:, None, None] * torch.eye(D, dtype=torch.float64)
    return Quadratic(A, SCALES[:, None] * CENTRES, weights=Six.weights)


def test_a_problem_is_asked_for_what_somebody_wants_to_know():
    class Costly(Six):
        def __getattr__(self, name):
            raise AssertionError(name)  # of what a round has no use for

    Costly.chunk_oracle = Costly.play = Costly.kernel = Costly.threads = Costly.samples = None
    Costly.steps_in_a_pass = Costly.sampling = None
    Costly.why_no_kernel = Costly.why_not_vectorised = None
    next(simulate(Scaffold(eta_l=0.2, K=3), Costly(), S=2))


def test_six_things_suffice_to_simulate():
    few, all_of_it = (
        list(islice(simulate(Scaffold(eta_l=0.2, K=3), problem, S=2), 30))
        for problem in (Six(), same())
    )
    torch.testing.assert_close(few[-1].x, all_of_it[-1].x)


class Outlier(Six):
    def oracle(self, i, seed, r):
        g = super().oracle(i, seed, r)
        return lambda y, k=None: g(y, k) * (1e4 if i == 1 else 1.0)


def test_six_things_suffice_to_say_who_made_a_run_diverge():
    with pytest.raises(Diverged, match="client 1 moves nearly alone"):
        list(islice(simulate(FedAvg(eta_l=0.2, K=2), Outlier()), 200))


def test_six_things_suffice_to_compare():
    few, all_of_it = (
        compare(problem, [Sgd(eta=0.5), Sgd(eta=0.1)], R=20) for problem in (Six(), same())
    )
    assert few.metric == "loss"
    for entry, expected in zip(few.entries, all_of_it.entries, strict=True):
        falls, expected_falls = (
            [later.metrics["loss"] - e.curve[0].metrics["loss"] for later in e.curve]
            for e in (entry, expected)
        )
        assert falls == pytest.approx(expected_falls)


def test_six_things_suffice_for_a_recorded_run(tmp_path):
    done = run(Sgd(eta=0.5), Six(), R=5, name="six", out=tmp_path / "run")
    assert len(done.entries[0].curve) == 5


GRADIENTS = 12_000  # of all clients; they suffice to try K = 128 with two algorithms on the problem


@pytest.fixture
def counting(monkeypatch):
    """Return a kind of problem whose gradients count, by a clock on which each takes a second."""
    seconds = 0

    def kind_of(kind):
        class Counting(kind):
            def oracle(self, i, seed, r):
                g = super().oracle(i, seed, r)

                def counted(y, k=None):
                    nonlocal seconds
                    seconds += 1
                    return g(y, k)

                return counted

        return Counting

    monkeypatch.setattr("trimtab.diagnosis.budget.perf_counter", lambda: seconds)
    return kind_of


@pytest.mark.parametrize("kind", [Six, WithClientLoss])
def test_six_things_and_some_loss_suffice_for_a_diagnosis(kind, counting):
    few = diagnose(counting(kind)(), minutes=GRADIENTS * Six.N / 60)
    assert few.algorithm is not None
    assert not any("no time" in sentence for sentence in few.cut)
    assert few.points[0].zeta == pytest.approx(diagnose(same()).points[0].zeta)


def test_a_diagnosis_without_any_loss_is_refused(refused):
    with refused("a diagnosis needs f itself", "Lossless has no loss", "client_loss(i, x)"):
        diagnose(Lossless(), minutes=0.05)
