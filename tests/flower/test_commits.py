"""What counts after lost replies, restarts and older checkpoints, and what is refused."""

import copy
import logging
import os
import shutil
from collections import Counter

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod, message_size_mod
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
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
        self.scaffold = Scaffold(clients=N, checkpoint=folder / "checkpoint", fraction_evaluate=0.0)
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


# -- restarts


def start(scaffold, nodes, R=3, **options):
    return scaffold.start(nodes, ArrayRecord(net().state_dict()), R, **options)


def test_a_server_that_starts_again_takes_the_same_rounds(tmp_path):
    clients, asked = labelled(EQUAL), []
    path, evaluated = tmp_path / "server", []
    rows = lambda msg, context: asked.append(msg.content["config"]["server-round"]) or 24  # noqa: E731

    def run(folder, R, **options):
        scaffold = strategy(**options)
        nodes = Nodes(app_of(clients, tmp_path / folder, rows=rows), N)
        note = lambda r, _: evaluated.append(r) or MetricRecord({"r": r})  # noqa: E731
        return scaffold, start(scaffold, nodes, R, evaluate_fn=note)

    whole, expected = run("whole", 6)
    run("parts", 3, checkpoint=path)
    asked.clear()
    evaluated.clear()
    again, found = run("parts", 6, checkpoint=path)
    assert sorted(asked) == sorted([4, 5, 6] * N)
    assert evaluated == [3, 4, 5, 6]
    assert list(found.train_metrics_clientapp) == [4, 5, 6]
    assert list(found.evaluate_metrics_serverapp) == [3, 4, 5, 6]
    assert torch.equal(flat(again.c), flat(whole.c))
    for name, value in expected.arrays.to_torch_state_dict().items():
        assert torch.equal(found.arrays.to_torch_state_dict()[name], value)
    assert audit(again, tmp_path / "parts") < 1e-12
    assert all(
        len(list(p.iterdir())) == 2 for p in (tmp_path / "parts" / again.experiment).iterdir()
    )
    _, done = run("parts", 6, checkpoint=path)
    assert flat(done.arrays.to_torch_state_dict()).equal(
        flat(expected.arrays.to_torch_state_dict())
    )


@pytest.mark.parametrize("keep", [0, 2])
def test_an_older_checkpoint_needs_the_states_of_its_round(keep, tmp_path):
    path, folder = tmp_path / "server", tmp_path / "clients"
    app = app_of(labelled(EQUAL), folder, keep=keep)
    start(strategy(checkpoint=path), Nodes(app, N), 2)
    older = path.read_bytes()
    start(strategy(checkpoint=path), Nodes(app, N), 4)
    path.write_bytes(older)
    scaffold, nodes = strategy(checkpoint=path), Nodes(app, N)
    before = flat(scaffold.c)
    start(scaffold, nodes, 3)
    if keep:
        assert nodes.errors == []
        assert audit(scaffold, folder) < 1e-12
        assert not torch.equal(flat(scaffold.c), before)
    else:
        assert len(nodes.errors) == N
        assert all("mismatch: client" in why and "restore" in why for why in nodes.errors)
        assert torch.equal(flat(scaffold.c), before)
        assert scaffold.rounds == 2


def test_a_client_that_lost_its_state_sits_out(tmp_path):
    path, folder = tmp_path / "server", tmp_path / "clients"
    app = app_of(labelled(EQUAL), folder)
    scaffold = strategy(checkpoint=path)
    start(scaffold, Nodes(app, N), 2)
    shutil.rmtree(folder / scaffold.experiment / "4")
    scaffold, nodes = strategy(checkpoint=path), Nodes(app, N)
    accepted = scaffold.accepted["4"]
    start(scaffold, nodes, 4)
    assert nodes.cohorts == [[i for i in range(N) if i != 4]] * 2
    assert [why[:18] for why in nodes.errors] == ["mismatch: client '"] * 2
    assert scaffold.accepted["4"] == accepted


def test_two_experiments_in_one_folder_do_not_meet(tmp_path):
    app = app_of(labelled(EQUAL), tmp_path)
    first, path = strategy(checkpoint=tmp_path / "server"), tmp_path / "server"
    start(first, Nodes(app, N), 2)
    second = strategy()
    start(second, Nodes(app, N), 2)
    nodes = Nodes(app, N)
    again = strategy(checkpoint=path)
    start(again, nodes, 3)
    assert nodes.errors == []
    assert audit(again, tmp_path) < 1e-12
    assert audit(second, tmp_path) < 1e-12


def test_a_checkpoint_of_another_run_is_refused(tmp_path, refused):
    path = tmp_path / "server"
    app = app_of(labelled(EQUAL), tmp_path)
    start(strategy(checkpoint=path), Nodes(app, N), 1)
    with refused("clients=10", "another checkpoint"):
        Scaffold(clients=11, checkpoint=path)
    with refused("weights=None", "another checkpoint"):
        strategy(checkpoint=path, weights=dict(enumerate(EQUAL)))
    weighed = tmp_path / "{weighed}"
    start(strategy(checkpoint=weighed, weights=dict.fromkeys(range(N), 1)), Nodes(app, N), 1)
    with refused(f"{weighed} was saved with weights={{'0': 1.0, '1': 1.0", "pass the same weights"):
        strategy(checkpoint=weighed)
    with refused("another model", str(path)):
        strategy(checkpoint=path).start(Nodes(app, N), ArrayRecord({"w": torch.ones(1)}))
    path.write_bytes(path.read_bytes()[:50])
    with refused("damaged", str(path)):
        strategy(checkpoint=path)


class Slower(Nodes):
    """Nodes of which others are slower in each run."""

    def send_and_receive(self, messages, *, timeout=None):
        return super().send_and_receive(list(messages)[::-1], timeout=timeout)


def test_the_bits_do_not_depend_on_which_client_was_faster(tmp_path):
    found = []
    for kind in (Nodes, Slower):
        scaffold = strategy()
        app = app_of(labelled(UNEQUAL), tmp_path)
        result = start(scaffold, kind(app, N))
        found.append(
            {**result.arrays.to_torch_state_dict(), **{f"c/{n}": v for n, v in scaffold.c.items()}}
        )
    for name, value in found[0].items():
        assert torch.equal(value, found[1][name]), name


# -- what does not fit


def test_unequal_clients_need_weights_or_a_first_round_with_all(tmp_path, refused):
    app = app_of(labelled(UNEQUAL), tmp_path)
    with refused("unequal", "pass weights=", "all clients answer in the first round"):
        start(strategy(S=3), Nodes(app, N))
    with refused("unequal"):
        start(strategy(), Nodes(app, N, lost=lambda r, i: r == 1 and i == 2))
    scaffold = strategy()
    start(scaffold, Nodes(app, N), 1)
    assert scaffold.sizes == {str(i): size for i, size in enumerate(UNEQUAL)}


def test_a_late_client_of_another_size_is_refused(tmp_path, refused):
    """Until it answers, c was made with equal weights."""
    app = app_of(labelled([24] * 9 + [25]), tmp_path)
    nodes = Nodes(app, N, lost=lambda r, i: r < 3 and i == 9)
    scaffold = strategy()
    with refused("unequal"):
        start(scaffold, nodes, 5)
    assert scaffold.rounds == 2


def test_a_size_that_changes_is_refused(tmp_path, refused):
    rows = lambda msg, context: 24 + (msg.content["config"]["server-round"] == 3)  # noqa: E731
    with refused("25 examples after 24", "pass weights="):
        start(strategy(), Nodes(app_of(labelled(EQUAL), tmp_path, rows=rows), N), 4)
    given = strategy(weights=dict(enumerate(EQUAL)))
    start(given, Nodes(app_of(labelled(EQUAL), tmp_path, rows=rows), N), 4)
    assert given.rounds == 4
    with refused("reports 0 as 'num-examples'"):
        start(strategy(), Nodes(app_of(labelled(EQUAL), tmp_path, rows=lambda *_: 0), N))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clients": 0}, ["clients is 0"]),
        ({"clients": "3"}, ["clients is '3'"]),
        ({"clients": 2.5}, ["clients is 2.5"]),
        ({"clients": 3, "weights": {0: 1.0}}, ["weights has 1 entries for 3 clients"]),
        ({"clients": 2, "weights": {0: 1.0, 1: 0.0}}, ["weights is {0: 1.0, 1: 0.0}", "positive"]),
        ({"clients": 2, "weights": {0: "a", 1: 1.0}}, ["positive"]),
        ({"clients": 2, "weights": [1.0, 2.0]}, ["weights is [1.0, 2.0]", "by names"]),
        ({"clients": 2, "checkpoint": "."}, ["checkpoint is '.'", "a file"]),
        ({"clients": 2, "checkpoint": 3}, ["checkpoint is 3", "a file"]),
    ],
)
def test_arguments_that_cannot_be_are_refused(options, words, refused):
    with refused(*words):
        Scaffold(**options)


@pytest.mark.parametrize("wrong", [{"folder": None}, {"name": 3}, {"keep": -1}, {"keep": "a"}])
def test_arguments_of_the_mod_that_cannot_be_are_refused(wrong, refused):
    ((name, value),) = wrong.items()
    with refused(f"{name} is {value!r}"):
        Control(**{"folder": "state/"} | wrong)


class Changed(Nodes):
    """Nodes whose training replies a function changes: `change(reply, round, partition)`."""

    def __init__(self, app, change):
        super().__init__(app, N)
        self.change = change

    def send_and_receive(self, messages, *, timeout=None):
        replies = super().send_and_receive(messages, timeout=timeout)
        for reply in replies:
            if not reply.has_error():
                self.change(reply, self.r, reply.metadata.src_node_id // 10)
        return replies


def no_mod(reply, r, i):
    del reply.content["trimtab"]


def older(reply, r, i):
    reply.content["trimtab"]["tag"] = "abcd"


def from_another_state(reply, r, i):
    reply.content["trimtab"]["base"] = "abcd"


def another_model(reply, r, i):
    del reply.content["trimtab.dc"]["bias"]


def another_shape(reply, r, i):
    reply.content["trimtab.dc"] = ArrayRecord({"weight": torch.ones(3), "bias": torch.ones(3)})


def not_finite(reply, r, i):
    reply.content["arrays"] = ArrayRecord({n: v + torch.nan for n, v in net().state_dict().items()})


def no_metrics(reply, r, i):
    del reply.content["metrics"]


def two_of_a_name(reply, r, i):
    reply.content["trimtab"]["name"] = "2"


def unknown(reply, r, i):
    reply.content["trimtab"]["name"] = "11"


WRONG = {
    no_mod: "mods=[trimtab.flower.Control(folder)]",
    older: "has answered another request",
    from_another_state: "has answered another request",
    another_model: "no parameter 'bias'",
    another_shape: "has shape (3,)",
    not_finite: "is not finite",
    no_metrics: "reports None as 'num-examples'",
    two_of_a_name: "name of its own",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_reply_that_does_not_fit_ends_the_first_round(wrong, tmp_path, refused):
    nodes = Changed(app_of(labelled(EQUAL), tmp_path), lambda *a: wrong(*a) if a[2] == 4 else None)
    with refused(WRONG[wrong]):
        start(strategy(), nodes)


@pytest.mark.parametrize("wrong", [*WRONG, unknown])
def test_later_it_is_left_out_and_the_others_count(wrong, tmp_path, caplog):
    change = lambda *a: wrong(*a) if a[1:] == (2, 4) else None  # noqa: E731
    scaffold = strategy()
    nodes = Changed(app_of(labelled(EQUAL), tmp_path), change)
    with caplog.at_level(logging.WARNING, "flwr.trimtab"):
        start(scaffold, nodes)
    (line,) = [r.message for r in caplog.records if r.name == "flwr.trimtab"]
    assert WRONG.get(wrong, "10 others are known") in line
    assert nodes.errors == []
    assert scaffold.rounds == 3
    assert audit(scaffold, tmp_path) < 1e-12


def test_a_round_of_which_nothing_is_left_ends_the_run(tmp_path, refused):
    change = lambda *a: no_mod(*a) if a[1] == 2 else None  # noqa: E731
    scaffold = strategy()
    with refused("mods="):
        start(scaffold, Changed(app_of(labelled(EQUAL), tmp_path), change))
    assert scaffold.rounds == 1


def test_a_round_without_replies_changes_nothing(tmp_path):
    app = app_of(labelled(EQUAL), tmp_path)
    scaffold = strategy()
    result = start(scaffold, Nodes(app, N, lost=lambda r, i: True))
    assert (scaffold.c, scaffold.rounds) == ({}, 0)
    assert flat(result.arrays.to_torch_state_dict()).equal(flat(net().state_dict()))


def test_a_strategy_is_started_once(tmp_path, refused):
    app = app_of(labelled(EQUAL), tmp_path)
    scaffold = strategy()
    start(scaffold, Nodes(app, N), 1)
    with refused("a new Scaffold"):
        start(scaffold, Nodes(app, N))


# -- at the client


def failing(tmp_path, train, **options):
    """Return the errors of a round with this training function at all clients."""
    app = ClientApp(mods=[Control(tmp_path, **options)])
    app.train()(train)
    nodes = Nodes(app, N)
    start(strategy(), nodes, 1)
    assert len(nodes.errors) == N
    return nodes.errors[0]


def empty(msg):
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": msg.content["arrays"], "metrics": metrics}), reply_to=msg)


def test_a_training_function_that_does_not_begin_is_refused(tmp_path):
    assert "did not call trimtab.flower.controls" in failing(tmp_path, lambda msg, _: empty(msg))


def test_a_training_function_that_begins_twice_is_refused(tmp_path):
    def train(msg, context):
        model = net()
        for _ in range(2):
            controls(model, sgd(model.parameters()))
        return empty(msg)

    assert "called twice" in failing(tmp_path, train)


def test_a_training_function_without_a_step_is_refused(tmp_path):
    def train(msg, context):
        model = net()
        controls(model, sgd(model.parameters()))
        return empty(msg)

    assert "no step of its optimizer" in failing(tmp_path, train)


def test_a_node_without_a_name_is_refused(tmp_path):
    assert "has no 'site'" in failing(tmp_path, lambda msg, _: empty(msg), name="site")


@pytest.mark.parametrize("name", ["..", "a/b", "", "a" * 101, ".hidden"])
def test_a_name_that_is_no_folder_is_refused(name, tmp_path):
    nodes = Nodes(app_of(labelled(EQUAL), tmp_path), N)
    for config in nodes.configs.values():
        config["partition-id"] = name
    start(strategy(), nodes, 1)
    assert len(nodes.errors) == N
    assert all("up to 100 letters" in why for why in nodes.errors)
    assert list(tmp_path.iterdir()) == []


def test_controls_outside_a_message_of_the_strategy_are_refused(tmp_path, refused):
    model = net()
    with refused("outside a training message", "Control(folder)"):
        controls(model, sgd(model.parameters()))
    app = app_of(labelled(EQUAL), tmp_path)
    nodes = Nodes(app, N)
    plain = FedAvg(fraction_evaluate=0.0)
    plain.start(nodes, ArrayRecord(net().state_dict()), 1)
    assert "outside a training message" in nodes.errors[0]


# -- mods and wrappers of Flower


def local_dp():
    return LocalDpMod(clipping_norm=1.0, sensitivity=0.1, epsilon=1.0, delta=0.1)


@pytest.mark.parametrize("place", ["outer", "inner"])
@pytest.mark.parametrize("mod", [local_dp, lambda: fixedclipping_mod], ids=["local", "fixed"])
def test_a_mod_that_changes_x_alone_refuses_and_nothing_counts(mod, place, tmp_path):
    nodes = Nodes(app_of(labelled(EQUAL), tmp_path, **{place: [mod()]}), N)
    scaffold = strategy()
    start(scaffold, nodes, 2)
    assert len(nodes.errors) == 2 * N
    assert all("expects exactly one ArrayRecord" in why for why in nodes.errors)
    assert (scaffold.c, scaffold.rounds) == ({}, 0)


def test_a_mod_that_only_looks_may_be_there(tmp_path):
    app = app_of(labelled(EQUAL), tmp_path, outer=[message_size_mod], inner=[message_size_mod])
    scaffold = strategy()
    start(scaffold, Nodes(app, N), 2)
    assert scaffold.rounds == 2
    assert audit(scaffold, tmp_path) < 1e-12


def test_a_wrapper_for_differential_privacy_is_refused(tmp_path, refused):
    wrapper = DifferentialPrivacyServerSideFixedClipping(
        strategy(), noise_multiplier=1.0, clipping_norm=1.0, num_sampled_clients=N
    )
    with refused("wrapped Scaffold", "differential privacy"):
        start(wrapper, Nodes(app_of(labelled(EQUAL), tmp_path), N), 1)
