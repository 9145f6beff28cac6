"""`trimtab.torch.ServerControls`: lost, late and doubled replies, restarts, and its errors."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.torch.test_controls import counted, difference, far, normal, sgd
from trimtab.torch import Controls, ServerControls


class Federation:
    """Three clients with a linear map."""

    def __init__(self, weights=None):
        self.model = nn.Linear(3, 2).double()
        self.server = ServerControls(self.model, N=3, weights=weights)
        self.controls = [Controls(self.model) for _ in range(3)]

    def reply(self, i):
        x, c, accepted = self.server.send(i)
        self.model.load_state_dict(x)
        optimizer = sgd(self.model.parameters())
        self.controls[i].begin(c, optimizer, accepted=accepted)
        for _ in range(3):
            optimizer.zero_grad()
            (self.model(normal(4, 3, seed=i)) - i).square().mean().backward()
            self.controls[i].correct()
            optimizer.step()
        dc, _ = self.controls[i].end()
        return i, difference(self.model, x), dc, self.controls[i].tag

    def round(self, lost=()):
        for i in range(3):
            reply = self.reply(i)
            if i not in lost:
                self.server.receive(*reply)
        self.server.step()

    def exact(self):
        return far(self.server.c, counted(self.server, self.controls)) < 1e-13


@pytest.fixture
def three():
    return Federation()


def test_a_round_without_replies_changes_nothing(three):
    three.round()
    before = three.server.state_dict()
    three.round(lost=range(3))
    assert three.server.state_dict() == before
    three.round()
    assert three.exact()


def test_a_late_reply_is_refused_and_changes_nothing(three, refused):
    late = three.reply(0)
    again = three.reply(0)
    with refused("not to the last send(0)", "accepted="):
        three.server.receive(*late)
    three.server.receive(*again)
    three.server.step()
    with refused("not to the last send(0)"):
        three.server.receive(*again)
    three.round()
    assert three.exact()


def test_a_client_replies_once_in_a_round(three, refused):
    reply = three.reply(0)
    three.server.receive(*reply)
    with refused("client 0 has replied in this round"):
        three.server.receive(*reply)
    with refused("client 0 has replied in this round"):
        three.server.send(0)


def test_replies_may_come_in_any_order():
    found = []
    for order in ((0, 1, 2), (2, 0, 1)):
        torch.manual_seed(0)
        three = Federation(weights=[1, 2, 4])
        for _ in range(2):
            for reply in [three.reply(i) for i in order]:
                three.server.receive(*reply)
            three.server.step()
        found.append(three.server.state_dict())
    for part in ("x", "c"):
        for name in found[0][part]:
            assert torch.equal(found[0][part][name], found[1][part][name])


def test_a_restart_of_all_continues_where_it_was(three, tmp_path):
    """Everything is saved after step(), while the clients' new states are still pending."""
    three.round()
    three.round(lost=[1])
    states = [three.server.state_dict(), *(c.state_dict() for c in three.controls)]
    torch.save(states, tmp_path / "states.pt")
    other = Federation()
    for part, state in zip(
        [other.server, *other.controls], torch.load(tmp_path / "states.pt"), strict=True
    ):
        part.load_state_dict(state)
    for federation in (three, other):
        federation.round()
        assert federation.exact()
    assert far(three.server.x, other.server.x) == far(three.server.c, other.server.c) == 0


def test_a_client_without_the_accepted_state_is_refused(three, refused):
    three.round()
    fresh = three.controls[1] = Controls(three.model)
    with refused("which this client does not have", "load the state_dict()"):
        three.reply(1)
    assert not fresh.c_i["weight"].any()


def test_a_client_that_missed_two_rounds_keeps_its_state(three):
    three.round()
    for _ in range(2):
        three.round(lost=[2])
    assert three.exact()
    three.round()
    assert three.exact()


def test_a_state_that_the_server_does_not_have_is_dropped_at_once(three, refused):
    three.round()
    three.round(lost=[1])
    client, (_, c, accepted) = three.controls[1], three.server.send(1)
    lost = client.tag
    client.begin(c, sgd(three.model.parameters()), accepted=accepted)
    assert client.tag != lost
    assert client.state_dict()["pending"] is None
    with refused("commit() finds no finished round"):
        client.commit()


def test_x_belongs_to_the_receiver(three):
    x, _, _ = three.server.send(0)
    x["weight"].zero_()
    assert three.server.x["weight"].any()


def test_weights_are_divided_by_their_sum():
    assert Federation(weights=[1, 2, 5]).server.p == [0.125, 0.25, 0.625]


def test_wrong_arguments_are_refused(three, refused):
    model, server = three.model, three.server
    with refused("N is 3 for 2 weights"):
        ServerControls(model, N=3, weights=[1, 2])
    for N in (0, "3", 2.5, None):
        with refused(f"N is {N!r}"):
            ServerControls(model, N=N)
    for weights in ([1, 0], "ab", 3, {0: 1, 1: 2}, [1, None], [1, float("nan")]):
        with refused(f"weights is {weights!r}; pass a list of positive numbers"):
            ServerControls(model, N=2, weights=weights)
    for i in (3, -1, "0", 0.0, None):
        with refused(f"i is {i!r}; pass a number from 0 to 2"):
            server.send(i)
    for eta_g in ("1", -1, float("nan"), float("inf"), None):
        with refused(f"eta_g is {eta_g!r}"):
            server.step(eta_g)
    with refused("the state is of 3 clients"):
        ServerControls(model, N=4).load_state_dict(server.state_dict())
    with refused("c of the state has no parameter 'bias'"):
        server.load_state_dict({**server.state_dict(), "c": {"weight": server.c["weight"]}})
    with refused("the state is not one of ServerControls"):
        server.load_state_dict(three.controls[0].state_dict())


def test_clients_may_be_numbers_of_torch_or_numpy(three, refused):
    three.server.send(torch.tensor(1))
    _, *reply = three.reply(1)
    three.server.receive(np.int64(1), *reply)
    with refused("client 1 has replied in this round"):
        three.server.send(torch.tensor(1))
    three.server.step()
    assert three.exact()


def test_wrong_replies_are_refused(three, refused):
    i, dx, dc, tag = three.reply(1)
    with refused("dx of client 1 has no parameter 'weight'"):
        three.server.receive(i, {"bias": dx["bias"]}, dc, tag)
    for wrong in (None, list(dx), {**dx, "bias": 1.0}, {**dx, "bias": dx["bias"].numpy()}):
        with refused("dx of client 1 is not a dict of tensors"):
            three.server.receive(i, wrong, dc, tag)
    for client, other in ((2, None), (2, tag), (1, None)):
        with refused(f"the reply of client {client} is not to the last send({client})"):
            three.server.receive(client, dx, dc, other)
    with refused("dc of client 1 is not finite"):
        three.server.receive(i, dx, {**dc, "bias": dc["bias"] / 0}, tag)
    three.server.receive(i, dx, dc, tag)
