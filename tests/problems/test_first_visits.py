"""Clients that are new: each is checked, but a module is tried once for all data of one kind."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trimtab import Supervised


class Counted(nn.Sequential):
    """Counts its calls."""

    calls = 0

    def forward(self, X):
        type(self).calls += 1
        return super().forward(X)


def first_visits(module, clients, loss=F.cross_entropy):
    """Run two rounds in which all clients are new; return how often the module was called."""
    Counted.calls = 0
    problem = Supervised(module, loss, clients)
    problem.clients.several(range(len(clients) // 2))
    problem.clients.several(range(len(clients)))
    return Counted.calls


def some_clients(count):
    draw = torch.Generator().manual_seed(0)
    return [
        (torch.randn(5, 3, generator=draw), torch.randint(2, (5,), generator=draw))
        for _ in range(count)
    ]


def test_a_module_is_tried_once_for_each_kind_of_data_and_not_for_each_client():
    module = Counted(nn.Linear(3, 2))
    assert first_visits(module, some_clients(4)) == first_visits(module, some_clients(40))


@pytest.mark.parametrize("place", [0, 7, 19])
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda X, y: X[3].fill_(torch.nan), "NaN or infinity in its inputs (first in sample 3)"),
        (lambda X, y: X[1, 2:].fill_(-torch.inf), "infinity in its inputs (first in sample 1)"),
        (lambda X, y: y[4:].fill_(2), "labels from 0 to 2, but the module has 2 outputs"),
        (lambda X, y: y[4:].fill_(-1), "labels from -1 to 1, but the module has 2 outputs"),
    ],
)
def test_a_client_among_others_is_named_by_its_wrong_values(place, spoil, words, refused):
    clients = some_clients(20)
    clients[place][1][:2] = torch.tensor([0, 1])
    spoil(*clients[place])
    with refused(f"client {place} has", words):
        first_visits(nn.Linear(3, 2), clients)


def test_a_client_of_the_same_shape_without_as_many_targets_is_named(refused):
    clients = some_clients(20)
    clients[5] = (clients[5][0], torch.zeros(6, dtype=torch.long))
    clients[6] = (clients[6][0], torch.zeros(4, dtype=torch.long))
    with refused("client 5 has 5 inputs but 6 targets"):
        first_visits(nn.Linear(3, 2), clients)


def test_a_module_is_tried_again_on_indices_beyond_those_it_took(refused):
    net = Counted(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(6, 2))
    clients = [(torch.randint(5, (4, 2)), torch.zeros(4, dtype=torch.long)) for _ in range(12)]
    for X, _ in clients:
        X[0] = torch.tensor([0, 4])
    once = first_visits(net, clients)
    clients[11][0][2, 0] = 8
    assert first_visits(net, clients) == once + 1
    clients[11][0][2, 0] = 9
    with refused("client 11", "numbers from 0 to 9"):
        first_visits(net, clients)
