"""What counts after lost replies, restarts and older checkpoints, and what is refused."""

import copy
import logging
import os
from collections import Counter

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod, message_size_mod
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping
from torch import nn

from tests.flower.test_rounds import (
    EQUAL,
    UNEQUAL,
    N,
    app_of,
    audit,
    flat,
    labelled,
    net,
    normal,
    sgd,
    strategy,
)
from tests.helpers.commit_fuzz import FATES, Luck
from tests.helpers.flower_grid import Nodes
from trimtab.commit import Accepted, States, settle
from trimtab.flower import Control, Scaffold, controls


# -- luck


def one_step(i):
    """Return an app whose c_i grows by 1 + i, in whole numbers."""
    model = nn.Linear(3, 1, bias=False).double()
    optimizer = sgd(model.parameters())

    def train(msg, context):
        model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        own = controls(model, optimizer)
        optimizer.zero_grad()
        (model.weight * (own.c_i["weight"] + 1 + i)).sum().backward()
        own.correct()
        optimizer.step()
        content = {"arrays": ArrayRecord(model.state_dict())}
        content["metrics"] = MetricRecord({"num-examples": 1})
        return Message(RecordDict(content), reply_to=msg)

    return train


class Client:
    def __init__(self, folder, i):
        self.folder, self.i = folder, i
        app = ClientApp(mods=[Control(folder, keep=3)])
        app.train()(one_step(i))
        self.nodes = Nodes(app, 4)

    def answer(self, message):
        return self.nodes.answer(copy.deepcopy(message))

    def state(self, accepted):
        for experiment in self.folder.glob("*"):
            states = States(experiment / str(self.i))
            if accepted.tag in states.files():
                return settle(states, accepted)["weight"]
        assert accepted == Accepted()
        return torch.zeros(1, 3, dtype=torch.float64)


class Server:
    def __init__(self, folder, N):
        self.scaffold = Scaffold(
            clients=N, checkpoint=folder / "checkpoint", fraction_evaluate=0.0
        )
        self.scaffold._first, self.N = 0, N  # as after start()
        model = nn.Linear(3, 1, bias=False).double()
        self.arrays = self.scaffold._arrays or ArrayRecord(model.state_dict())
        self.nodes = Nodes(None, N)

    @property
    def c(self):
        return self.scaffold.c.get("weight", torch.zeros(1, 3, dtype=torch.float64))

    @property
    def accepted(self):
        return [self.scaffold.accepted.get(str(i), Accepted()) for i in range(self.N)]

    def requests(self):
        messages = self.scaffold.configure_train(1, self.arrays, ConfigRecord(), self.nodes)
        return {message.metadata.dst_node_id // 10: message for message in messages}

    def commit(self, replies):
        before = copy.deepcopy((self.c, self.accepted))
        try:
            arrays, _ = self.scaffold.aggregate_train(1, [copy.deepcopy(m) for _, m in replies])
        except ValueError:  # none of the replies is to this request
            arrays = None
        if arrays is None:
            assert (self.c == before[0]).all()
            assert self.accepted == before[1]
        self.arrays = arrays or self.arrays


def test_c_is_the_sum_of_the_accepted_states_whatever_happens(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    seen = Counter()
    for seed in range(30):
        luck = Luck(tmp_path / str(seed), Client, Server, 4, seed, monkeypatch)
        (tmp_path / str(seed)).mkdir()
        luck.live(12, "checkpoint")
        seen += luck.seen
    assert all(seen[fate] > 10 for fate in FATES), seen
    assert min(seen[w] for w in ("server killed at a write", "older checkpoint restored")) > 10
