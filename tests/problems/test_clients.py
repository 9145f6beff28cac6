"""Who the clients are: what a record keeps of them."""

import json

import torch
from torch import nn

from trimtab import Quadratic, Supervised
from trimtab.problems import clients as module
from trimtab.problems.clients import ClientSummary, summarise_clients


def problem(**options):
    clients = [
        (torch.zeros(5, 2), torch.tensor([0, 0, 1, 0, 0])),
        (torch.zeros(3, 2), torch.tensor([2, 2, 1])),
    ]
    return Supervised(nn.Linear(2, 3), nn.CrossEntropyLoss(), clients, **options)


def test_sizes_labels_batches_and_weights_are_the_problems():
    found = summarise_clients(problem(batch=2, weights="samples"))
    assert (found.N, found.d) == (2, 9)
    assert found.sizes == (5, 3)
    assert found.batches == (2, 2)
    assert found.labels == ((4, 1, 0), (0, 1, 2))
    assert [sum(row) for row in found.labels] == list(found.sizes)
    assert found.weighing == "samples"
    assert found.weights == (5 / 8, 3 / 8)


def test_it_is_the_same_after_a_journey_through_a_file():
    for one in (problem(), Quadratic(A=[1.0, 2.0], b=[0.0, 1.0])):
        found = summarise_clients(one)
        assert ClientSummary.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_targets_that_are_no_labels_have_no_counts():
    clients = [(torch.zeros(4, 2), torch.rand(4, 1)) for _ in range(2)]
    found = summarise_clients(Supervised(nn.Linear(2, 1), nn.MSELoss(), clients))
    assert found.labels is None
    assert found.sizes == (4, 4)


def test_clients_that_are_read_when_needed_are_not_read_for_their_labels():
    class Lazy:
        def __len__(self):
            return 50

        def __getitem__(self, i):
            return torch.zeros(2, 2), torch.tensor([0, 1])

    found = summarise_clients(Supervised(nn.Linear(2, 2), nn.CrossEntropyLoss(), Lazy()))
    assert found.labels is None
    assert found.sizes == (2,) * 50


def test_of_very_many_clients_or_labels_only_the_numbers_are_kept(monkeypatch):
    monkeypatch.setattr(module, "MAX_COUNTS", 5)
    assert summarise_clients(problem()).labels is None
    monkeypatch.setattr(module, "MAX_CLIENTS", 1)
    found = summarise_clients(problem())
    assert (found.N, found.d, found.sizes, found.weights) == (2, 9, (), ())
