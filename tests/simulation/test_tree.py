"""Virtual shards, added in a fixed tree: bits depend on V alone."""

import itertools
from itertools import islice

import pytest
import torch

from trimtab import FedAvg, FedDyn, Mime, Momentum, Scaffnew, Scaffold, Simulation, Tree, simulate
from trimtab.core import leaves
from trimtab.core.replies import Tally
from trimtab.errors import BadArgument
from trimtab.problems.loading import load_problem
from trimtab.simulation.executors import EXECUTORS
from trimtab.simulation.executors.tree import added, clients_by_shard, parts, subtrees


def numbers(count, seed=0):
    """Return numbers of very different sizes, so that each order of sums has its own bits."""
    draw = torch.Generator().manual_seed(seed)
    sizes = 10.0 ** torch.randint(-6, 7, (count,), generator=draw)
    return torch.randn(count, generator=draw) * sizes


def tally_of(value, weight=1.0):
    tally = Tally()
    tally.add(weight, (torch.tensor([value]),))
    return tally


def sums_of(values):
    return {(v, 1): tally_of(float(value)) for v, value in enumerate(values)}


def pairwise(values):
    """Add neighbours, then neighbours of these: the definition, for a power of two."""
    values = [torch.tensor([float(value)]) * 1.0 for value in values]
    while len(values) > 1:
        values = [a + b for a, b in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def test_shards_are_added_pairwise():
    values = [2.0**24, 1.0, *[1.0] * 14]  # In order, each 1 is lost beside the large one.
    tally = added(sums_of(values), 16)
    assert len(tally) == 16
    assert torch.equal(tally._uploads[0], pairwise(values))
    in_order = Tally()
    for value in values:
        in_order.add(1.0, (torch.tensor([float(value)]),))
    assert not torch.equal(tally._uploads[0], in_order._uploads[0]), "the test would show nothing"


@pytest.mark.parametrize("V", [1, 2, 5, 6, 8, 13, 16])
@pytest.mark.parametrize("actors", [1, 2, 3, 4, 5])
def test_whoever_owns_which_shards_the_bits_are_the_same(V, actors):
    values = numbers(V, seed=V)
    expected = added(sums_of(values), V)
    cuts = sorted({a * V // actors for a in range(actors + 1)})
    found = {}
    for begin, end in itertools.pairwise(cuts):
        own = {node: tally for node, tally in sums_of(values).items() if begin <= node[0] < end}
        found |= parts(own, begin, end)
    tally = added(found, V)
    assert torch.equal(tally._uploads[0], expected._uploads[0])
    assert vars(tally._moves) == vars(expected._moves)


def test_the_subtrees_of_a_range_cover_it_and_are_aligned():
    for begin in range(17):
        for end in range(begin, 17):
            nodes = list(subtrees(begin, end))
            assert [v for v, n in nodes for v in range(v, v + n)] == list(range(begin, end))
            assert all(v % n == 0 and n & (n - 1) == 0 for v, n in nodes)


def test_shards_without_clients_are_left_out():
    values = numbers(16)
    some = {(v, 1): tally_of(float(values[v])) for v in (3, 9)}
    assert torch.equal(added(some, 16)._uploads[0], values[3:4] + values[9:10])
    assert added({}, 16) is None


def test_neighbours_are_in_different_shards():
    assert clients_by_shard(range(8), 4) == {v: [v, v + 4] for v in range(4)}


# -- as an executor


def digits():
    return load_problem("digits", N=20, batch=16)


def after(executor, algorithm, problem=None, rounds=4, **options):
    sim = simulate(
        algorithm, problem or digits(), S=11, lost=0.1, seed=3, executor=executor, **options
    )
    for _ in islice(sim, rounds):
        pass
    return sim


def bits(sim):
    return [leaf for tree in (sim.server, *map(sim.states.__getitem__, sim.states))
            for leaf in leaves(tree)]  # fmt: skip


def same(one, other):
    return len(bits(one)) == len(bits(other)) and all(
        torch.equal(a, b) for a, b in zip(bits(one), bits(other), strict=True)
    )


ALGORITHMS = [
    FedAvg(eta_l=0.1, K=3),
    Scaffold(eta_l=0.1, K=3),
    FedDyn(eta_l=0.1, K=3),
    Scaffnew(eta_l=0.1, p=0.3),
    Mime(eta=0.05, K=3, base=Momentum()),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
def test_it_agrees_with_the_other_executors_up_to_rounding(algorithm):
    tree, loop = after(Tree(5), algorithm), after("loop", algorithm)
    assert torch.allclose(tree.server.x, loop.server.x, atol=1e-4)
    assert (tree.executor, loop.executor) == ("tree-5", "loop")


def test_other_numbers_of_shards_give_other_bits():
    x = [after(Tree(V), Scaffold(eta_l=0.1, K=3)).server.x for V in (1, 4, 16)]
    assert not torch.equal(x[0], x[1])
    assert torch.allclose(x[0], x[1], atol=1e-4)
    assert not torch.equal(x[1], x[2])


def test_the_executor_inside_may_be_chosen():
    for inner in EXECUTORS:
        sim = after(Tree(4, inner), Scaffold(eta_l=0.1, K=3), rounds=2)
        assert sim.runs_on.inner is EXECUTORS[inner]


def test_a_run_is_saved_with_its_number_of_shards(tmp_path):
    algorithm = Scaffold(eta_l=0.1, K=3)
    sim, whole = after(Tree(5), algorithm, rounds=2), after(Tree(5), algorithm, rounds=4)
    sim.save(tmp_path / "sim")
    again = Simulation.load(tmp_path / "sim", algorithm, digits())
    assert again.executor == "tree-5"
    assert again.runs_on.facts() == {"shards": 5}
    for _ in islice(again, 2):
        pass
    assert same(again, whole)


@pytest.mark.parametrize("shards", [0, -1, 1.5, True, "4"])
def test_what_is_no_number_of_shards_is_refused(shards):
    with pytest.raises(BadArgument, match=r"shards=.*; pass a whole number >= 1"):
        Tree(shards)


@pytest.mark.parametrize("name", ["tree-0", "tree-x", "tree-", "tree"])
def test_a_name_that_is_no_tree_is_refused(name):
    with pytest.raises(ValueError, match="pass auto, loop"):
        simulate(FedAvg(eta_l=0.1, K=1), digits(), executor=name)
