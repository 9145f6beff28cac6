"""Every partition is disjoint and leaves nothing out; what each one is for holds."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trimtab.problems.partition import (
    by_column,
    by_label,
    by_similarity,
    dirichlet,
    parse_partition,
    split,
)

some_labels = st.lists(st.integers(0, 6), min_size=1, max_size=80).map(torch.tensor)
seeds = st.integers(0, 2**40)


@st.composite
def labels_and_N(draw):
    labels = draw(some_labels)
    return labels, draw(st.integers(1, len(labels)))


def is_partition(parts, n):
    return sorted(torch.cat(list(parts)).tolist()) == list(range(n))


@given(labels_and_N(), st.floats(0, 100), seeds)
def test_by_similarity_deals_every_sample_once_in_sizes_that_differ_by_one(case, s, seed):
    labels, N = case
    parts = by_similarity(labels, N, s, seed)
    sizes = [len(rows) for rows in parts]
    assert len(parts) == N
    assert is_partition(parts, len(labels))
    assert max(sizes) - min(sizes) <= 1


@given(labels_and_N(), seeds)
def test_at_0_percent_clients_hold_consecutive_labels(case, seed):
    labels, N = case
    parts = by_similarity(labels, N, 0, seed)
    held = [labels[rows] for rows in parts]
    assert all(a.max() <= b.min() for a, b in pairwise(held))
    kinds = [len(set(h.tolist())) for h in held]
    assert sum(kinds) <= len(set(labels.tolist())) + N - 1  # each cut divides one label at most
    assert all(map(torch.equal, parts, by_label(labels, N, seed)))


def test_at_0_percent_each_client_has_two_labels_at_most_when_classes_are_larger_than_clients():
    labels = torch.arange(600) % 6
    kinds = [len(set(labels[rows].tolist())) for rows in by_similarity(labels, 10, 0)]
    assert max(kinds) == 2
    assert [len(set(labels[rows].tolist())) for rows in by_similarity(labels, 6, 0)] == [1] * 6


def departure(labels, parts):
    """Return the mean distance in variation between the clients' labels and all labels."""
    overall = torch.bincount(labels, minlength=10) / len(labels)
    rows = [torch.bincount(labels[rows], minlength=10) / len(rows) for rows in parts]
    return float(torch.stack([(row - overall).abs().sum() / 2 for row in rows]).mean())


def test_similarity_goes_from_sorted_to_iid():
    labels = torch.arange(20_000) % 10
    found = [departure(labels, by_similarity(labels, 10, s)) for s in (0, 10, 50, 100)]
    assert found == pytest.approx([0.9, 0.81, 0.45, 0], abs=0.04)


def test_10_percent_similarity_gives_each_client_that_share_of_other_labels():
    labels = torch.arange(1000) % 10
    for i, rows in enumerate(by_similarity(labels, 10, 10)):
        assert int((labels[rows] == i).sum()) >= 90 - 18  # 900 sorted samples in cuts of 90
        assert len(set(labels[rows].tolist())) > 4


@given(labels_and_N(), st.floats(1e-3, 1e3), seeds)
def test_dirichlet_deals_every_sample_once_and_leaves_no_client_empty(case, alpha, seed):
    labels, N = case
    parts = dirichlet(labels, N, alpha, seed)
    assert len(parts) == N
    assert is_partition(parts, len(labels))
    assert all(len(rows) for rows in parts)


def test_dirichlet_goes_from_few_classes_to_iid():
    labels = torch.arange(20_000) % 10
    found = [departure(labels, dirichlet(labels, 10, alpha)) for alpha in (0.01, 1.0, 1e4)]
    assert found[0] > 0.7
    assert 0.1 < found[1] < 0.6
    assert found[2] < 0.02


@pytest.mark.usefixtures("same_global_rng")
@pytest.mark.parametrize(
    "cut", [lambda y, s: by_similarity(y, 5, 50, s), lambda y, s: dirichlet(y, 5, 1.0, s)]
)
def test_a_partition_depends_on_its_seed_alone(cut):
    labels = torch.arange(100) % 4
    assert all(map(torch.equal, cut(labels, 3), cut(labels, 3)))
    assert not all(
        sorted(a.tolist()) == sorted(b.tolist())
        for a, b in zip(cut(labels, 3), cut(labels, 4), strict=True)
    )


@given(st.lists(st.sampled_from(["oslo", "rome", "lima"]), max_size=30))
def test_by_column_makes_one_client_of_each_value(column):
    clients = by_column(column)
    assert list(clients) == sorted(set(column))
    for value, rows in clients.items():
        assert rows.tolist() == [j for j, v in enumerate(column) if v == value]


def test_by_column_takes_tensors_and_the_lengths_are_natural():
    clients = by_column(torch.tensor([7, 3, 7, 7]))
    assert {value: rows.tolist() for value, rows in clients.items()} == {3: [1], 7: [0, 2, 3]}


def test_split_hands_out_the_rows():
    X, y = torch.arange(8.0).view(4, 2), torch.arange(4)
    (first, second) = split(X, y, [torch.tensor([2, 0]), torch.tensor([3, 1])])
    assert torch.equal(first[0], X[[2, 0]])
    assert torch.equal(second[1], y[[3, 1]])


LABELS = torch.arange(6) % 2


@pytest.mark.parametrize("s", [-1, 101, float("nan")])
def test_similarity_is_a_percentage(refused, s):
    with refused("similarity", "per cent"):
        by_similarity(LABELS, 2, s)


@pytest.mark.parametrize("alpha", [0, -1.0, float("nan"), float("inf")])
def test_alpha_is_positive(refused, alpha):
    with refused("alpha", "positive"):
        dirichlet(LABELS, 2, alpha)


@pytest.mark.parametrize("N", [0, 7])
@pytest.mark.parametrize(
    "cut", [lambda N: by_similarity(LABELS, N, 0), lambda N: dirichlet(LABELS, N, 1)]
)
def test_there_is_at_least_one_sample_for_each_client(refused, cut, N):
    with refused(f"N={N}", "N <= 6"):
        cut(N)


# -- as users type it


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("dirichlet:0.1", lambda labels, N: dirichlet(labels, N, 0.1)),
        ("similarity:10", lambda labels, N: by_similarity(labels, N, 10)),
        ("similarity:0", by_label),
        ("label", by_label),
    ],
)
def test_a_cut_is_read(spec, expected):
    labels = torch.arange(60) % 4
    pairs = zip(parse_partition(spec).rows(labels, 6), expected(labels, 6), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert str(parse_partition(spec)) == spec


@pytest.mark.parametrize(
    "spec",
    [
        *("", "iid", "dirichlet", "dirichlet:", "dirichlet:0", "dirichlet:-1", "dirichlet:inf"),
        *("dirichlet:nan", "dirichlet:many", "similarity", "similarity:101", "similarity:-1"),
        *("label:3", "Label", "dirichlet:0.1:2"),
    ],
)
def test_a_cut_that_is_none_is_refused(spec, refused):
    with refused(f"partition={spec}" if spec else "partition", "dirichlet:0.1", "label"):
        parse_partition(spec)


def test_numbers_are_not_divided_by_class(refused):
    with refused("partition=dirichlet:0.1", "these targets are numbers", "similarity:10"):
        parse_partition("dirichlet:0.1").rows(torch.rand(9), 3)
