"""Problems that are no modules in a federation: a linear system at each site, and federated TD."""

from itertools import islice
from pathlib import Path

import pytest
import torch

from tests.helpers.federation_in_process import Federation, names, unsynced  # noqa: F401
from trimtab import GarnetTD, LinearSystem, Scaffold, simulate
from trimtab.federation.protocol.site import Site
from trimtab.federation.setup.problem_file import MOST, ProblemFile

OWN = """
import torch
from trimtab import LinearSystem

def problem(data):  # None at the server, where only the start and the metric are asked for
    if data is None:
        return LinearSystem(torch.eye(2).double()[None], torch.zeros(1, 2).double())
    A, b, noise = torch.load(data)
    return LinearSystem(A[None], b[None], noise)
"""
TD = """
from trimtab import GarnetTD

def problem(data):
    return GarnetTD(3, 8, 2, gamma=0.8, heterogeneity=1.0, seed=1, sampling="markov")
"""
ALGORITHM = Scaffold(eta_l=0.2, K=4)


def systems(noise=0.0):
    A = torch.tensor([[[1.0, 1], [-1, 1]], [[0.5, -0.2], [0.4, 1]], [[2.0, 0], [1, 0.7]]]).double()
    return LinearSystem(A, torch.tensor([[1.0, 0], [0, -1], [2, 1]]).double(), noise)


def federation(folder, text, noise=0.0, **options):
    """Return a federation whose sites each read their own file, as `federate site` does."""
    (folder / "problem.py").write_text(text)
    file, problem = ProblemFile(folder / "problem.py"), systems(noise)
    for i, name in enumerate(names(3)):
        torch.save((problem.A[i], problem.b[i], noise), folder / f"{name}.pt")

    class Own(Federation):
        def site(self, name):
            mine = file.site_problem(folder / f"{name}.pt", None)
            return Site(self.folder / name, name, mine)

    server = file.server_problem()
    metric = server.metric
    return Own(folder, ALGORITHM, server, N=3, metric=metric, **options)


def test_sites_that_know_only_their_own_system_solve_the_mean_system(tmp_path):
    run = federation(tmp_path, OWN, R=60)
    rounds, problem = run.run(), systems()
    x = run.server.standing.server.x
    torch.testing.assert_close(x, problem.x_star, atol=1e-6, rtol=0)
    *_, end = islice(simulate(ALGORITHM, problem), 60)
    torch.testing.assert_close(x, end.x, atol=1e-9, rtol=0)
    controls = torch.stack([run.control(name) for name in run.names])
    expected = torch.stack([problem.client_gradient(i, problem.x_star) for i in range(3)])
    torch.testing.assert_close(controls, expected, atol=1e-5, rtol=0)
    assert set(rounds[0].metrics) == {"error", "residual"}
    run.close()


def test_sites_with_the_same_file_draw_noise_of_their_own(tmp_path):
    run = federation(tmp_path, OWN, noise=1.0)
    g = [site.problem.oracle(i, 3, 1) for i, site in enumerate(run.sites.values())]
    zero, problem = torch.zeros(2).double(), systems()
    noise = [g[i](zero, 0) + problem.b[i] for i in range(3)]
    assert not torch.equal(noise[0], noise[1])
    assert torch.equal(noise[0], run.sites["site0"].problem.oracle(0, 3, 1)(zero, 0) + problem.b[0])
    assert run.sites["site0"].problem.N == MOST
    run.close()


def test_federated_td_is_the_simulation_bit_for_bit(tmp_path):
    problem = GarnetTD(3, 8, 2, gamma=0.8, heterogeneity=1.0, seed=1, sampling="markov")
    run = federation(tmp_path, TD, R=5, seed=7)
    done = run.run()
    *_, end = islice(simulate(ALGORITHM, problem, seed=7), 5)
    assert torch.equal(run.server.standing.server.x, end.x)
    assert done[-1].metrics["error"] == pytest.approx(problem.loss(done[-2].x), rel=5e-3)
    run.close()


def test_a_target_is_of_the_problems_own_metric(tmp_path):
    run = federation(tmp_path, TD, R=200, seed=7, target=0.5)
    assert len(run.run()) < 200
    run.close()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def problem(data): return 7\n", ["problem in", "returned a int", "return a Problem"]),
        ("def problem(data): return 1 / 0\n", ["problem in", "ZeroDivisionError", "fix it"]),
        ("problem = 7\n", ["no function model"]),
    ],
)
def test_a_file_without_a_problem_is_one_sentence(refused, tmp_path, text, words):
    (tmp_path / "problem.py").write_text(text)
    with refused(*words):
        ProblemFile(tmp_path / "problem.py").server_problem()


def test_a_batch_for_a_problem_without_mini_batches_is_refused(refused, tmp_path):
    (tmp_path / "problem.py").write_text(TD)
    with refused("no mini-batches", "drop batch"):
        ProblemFile(tmp_path / "problem.py").site_problem(Path(), 8)
