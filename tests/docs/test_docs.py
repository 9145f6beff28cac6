"""What the documentation says: tables against the code, names against the tests, links."""

import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
import torch

import trimtab
from trimtab import (
    Adam,
    Dane,
    FedAvg,
    FedDyn,
    FedNova,
    FedOpt,
    FedProx,
    Mime,
    MimeLite,
    MimeLiteMvr,
    MimeMvr,
    Momentum,
    Quadratic,
    RichardsonRomberg,
    Scaffnew,
    Scaffold,
    ScaffoldM,
    ScaffoldOpt,
    Scallion,
    ServerMvr,
    ServerOnly,
    Sgd,
    simulate,
    testing,
)
from trimtab.core import nbytes

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
K, D, N = 3, 4, 5


class Counting(Quadratic):
    """Count the gradients that clients compute."""

    mini_batch = full = 0

    def oracle(self, i, seed, r):
        g = super().oracle(i, seed, r)

        def counted(y, k=None):
            self.full += k is None
            self.mini_batch += k is not None
            return g(y, k)

        return counted


def clients(kind=Quadratic, **settings) -> Quadratic:
    """Return N quadratics in R^D whose curvatures and optima differ."""
    draw = torch.Generator().manual_seed(0)
    A = 0.2 + torch.rand(N, D, generator=draw, dtype=torch.float64)
    b = 2 * torch.randn(N, D, generator=draw, dtype=torch.float64)
    return kind(A, b, **settings)


# -- the table of docs/algorithms


def rows() -> Iterator[list[str]]:
    for line in (ROOT / "docs" / "algorithms" / "index.md").read_text().splitlines():
        if line.startswith("| `"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def algorithm(name: str, base):
    local = {"eta_l": 0.1, "K": K}
    made = {
        "`Sgd`": Sgd(eta=0.1),
        "`FedAvg`": FedAvg(**local),
        "`FedProx`": FedProx(**local),
        "`FedOpt`": FedOpt(**local, base=base),
        "`RichardsonRomberg`": RichardsonRomberg(FedAvg(**local)),
        "`Scaffold`, option II": Scaffold(**local),
        "`Scaffold`, option II, lean": Scaffold(**local, lean=True),
        "`Scaffold`, option I": Scaffold(**local, option="I"),
        "`ServerOnly`": ServerOnly(eta=0.1, base=base),
        "`MimeLite`": MimeLite(eta=0.1, K=K, base=base),
        "`Mime`": Mime(eta=0.1, K=K, base=base),
        "`Dane`": Dane(**local, mu=1.0),
        "`MimeMvr`": MimeMvr(eta=0.1, K=K, a=0.5),
        "`MimeLiteMvr`": MimeLiteMvr(eta=0.1, K=K, a=0.5),
        "`ServerMvr`": ServerMvr(eta=0.1, a=0.5),
        "`ScaffoldOpt`": ScaffoldOpt(**local, base=base),
        "`FedNova`": FedNova(**local),
        "`Scallion`": Scallion(**local, alpha=0.5),
        "`Scaffnew`": Scaffnew(eta_l=0.1, p=1.0),
        "`FedDyn`": FedDyn(**local, alpha=1.0),
        "`ScaffoldM`": ScaffoldM(**local, a=0.5),
    }
    return made[name]


@pytest.mark.parametrize("base", [Momentum(), Adam()], ids=lambda base: type(base).__name__)
def test_the_table_of_costs_is_what_a_round_costs(base):
    s = nbytes(base.init(torch.zeros(D))) / nbytes(torch.zeros(D))
    table = list(rows())
    written = {re.findall(r"`(\w+)`", name)[0] for name, *_ in table}
    assert written == {kind.__name__ for kind in trimtab.ALGORITHMS.values()}
    for name, *cells in table:
        problem = clients(Counting)
        sim = simulate(algorithm(name, base), problem, S=2)
        round, vector = next(sim), 2 * 8 * D  # of two clients in float64
        found = (
            nbytes(tuple(sim.states[i] for i in sim.states)) / vector,
            round.bytes_down / vector,
            round.bytes_up / vector,
            problem.mini_batch / 2,
            problem.full / 2,
        )
        symbols = {"K": K, "s": s, "d": D, "p": 1.0}
        said = [eval(cell.replace(" K", " * K"), symbols) for cell in cells[:5]]
        assert list(found) == said, name


@pytest.mark.parametrize(("name", "said"), [(row[0], row[-1]) for row in rows()])
def test_who_reaches_the_optimum_with_two_clients_a_round(name, said):
    problem = clients()
    sim = simulate(algorithm(name, Momentum(0.5)), problem, S=2)
    distances = [problem.evaluate(next(sim).x)["distance"] for _ in range(800)]
    if "reaches x" in said:
        assert distances[-1] < 1e-8
    else:
        assert said == "hovers"
        assert min(distances[-50:]) > 0.01


# -- the section on weights


def test_with_one_client_a_round_the_mean_of_the_replies_does_not_see_the_weights():
    problem = clients(weights=range(1, N + 1))
    for algorithm in (Sgd(eta=0.1), FedAvg(eta_l=0.1, K=K), Mime(eta=0.1, K=K, base=Momentum())):
        for i in range(N):
            weighted = next(simulate(algorithm, problem, cohorts=[[i]])).x
            uniform = next(simulate(algorithm, clients(), cohorts=[[i]])).x
            torch.testing.assert_close(weighted, uniform, rtol=0, atol=1e-12)


@pytest.mark.parametrize("S", range(1, N + 1))
def test_the_mean_of_the_replies_aims_at_the_weighted_optimum_with_all_clients_only(S):
    problem = clients(weights=range(1, N + 1))
    steps = [
        next(simulate(Sgd(eta=1.0), problem, x=problem.x_star, cohorts=[cohort])).x - problem.x_star
        for cohort in combinations(range(N), S)
    ]
    expected = torch.stack(steps).mean(0).norm()  # of a step from the weighted optimum
    assert expected < 1e-12 if S == N else expected > 0.01


# -- names and links


@every_page
def test_every_test_and_check_that_is_named_exists(page):
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    for name in set(re.findall(r"`(test_\w+)`", page.read_text())):
        assert f"def {name}(" in sources, name
    for name in set(re.findall(r"`((?:tests|examples|src|docs)/[\w/.]+)`", page.read_text())):
        assert (ROOT / name).exists(), name
    for name in set(re.findall(r"`(test_\w+\.py)`", page.read_text())):
        assert any((ROOT / "tests").rglob(name)), name


def test_every_check_in_the_table_of_mistakes_exists():
    text = (ROOT / "docs" / "algorithms" / "mistakes.md").read_text()
    folder = ROOT / "tests" / "algorithms"
    mistakes = "".join(path.read_text() for path in folder.glob("test_*_mistakes.py"))
    table = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert table
    for line in table:
        for name in re.findall(r"`(\w+)`", line.split(" | ")[-1]):
            known = f"def {name}(" in mistakes or hasattr(testing, name) or name == "Supervised"
            assert known, name


@every_page
def test_every_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_the_version_is_the_same_everywhere():
    cited = (ROOT / "CITATION.cff").read_text()
    version, released = re.search(
        r"## \[(\d\S+)\] - (\S+)", (ROOT / "CHANGELOG.md").read_text()
    ).groups()
    assert trimtab.__version__ == version or ".dev" in trimtab.__version__
    assert f"\nversion: {version}\n" in cited
    assert f'\ndate-released: "{released}"\n' in cited
