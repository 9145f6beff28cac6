"""The core of the commit protocol: states that are tagged, kept and settled."""

import itertools
import json
import os
import stat
from collections import Counter
from dataclasses import asdict
from secrets import token_hex

import pytest
import torch
from safetensors.torch import load_file, save

from tests.helpers.commit_fuzz import FATES, Luck
from trimtab.commit import START, Accepted, Mismatch, Stale, States, digest, durable, settle


@pytest.fixture
def states(tmp_path):
    return States(tmp_path / "states", keep=2)


def vector(value):
    return {"0": torch.full((3,), float(value), dtype=torch.float64)}


def put(states, tag, arrays):
    return states.put(tag, arrays, base=START, clock=1)


def chain(states, count):
    """Accept so many states, one after the other; return their tags."""
    tags = [START]
    for number in range(count):
        tag = f"{number:04x}"
        states.put(tag, vector(number), base=tags[-1], clock=number + 1)
        states.trim(tag)
        tags.append(tag)
    return tags[1:]


def test_a_state_comes_back_as_it_was_with_its_digest(states):
    arrays = {
        "0": torch.randn(3, dtype=torch.float64),
        "b": torch.randn(2, 2).bfloat16().T,
        "n": torch.tensor(2.0),
        "none": torch.zeros(0),
    }
    own = put(states, "ab", arrays)
    kept, there = states.load("ab")
    assert there == own == digest(arrays) == digest(kept)
    assert all(torch.equal(kept[name], value) for name, value in arrays.items())
    assert all(kept[name].dtype == value.dtype for name, value in arrays.items())
    assert stat.S_IMODE(states.folder.stat().st_mode) == 0o700


def test_tensors_that_share_memory_are_kept_apart(states):
    x = torch.ones(4)
    put(states, "ab", {"0": x, "1": x, "2": x[:2]})
    assert torch.equal(states.load("ab")[0]["2"], torch.ones(2))


def test_a_digest_tells_states_apart():
    one = {"0": torch.zeros(4)}
    others = [
        {"1": torch.zeros(4)},
        {"0": torch.zeros(2, 2)},
        {"0": torch.zeros(2, dtype=torch.float64)},
        {"0": torch.tensor([0.0, 0.0, 0.0, -0.0])},
        {"0": torch.zeros(4), "1": torch.zeros(0)},
        {},
    ]
    assert len({digest(one), *map(digest, others)}) == 1 + len(others)


def test_settling_gives_the_accepted_state_or_a_mismatch(states):
    assert settle(states, Accepted()) is None
    own = put(states, "ab", vector(1))
    other = put(states, "cd", vector(2))
    assert torch.equal(settle(states, Accepted("ab", own))["0"], vector(1)["0"])
    assert torch.equal(settle(states, Accepted("cd"))["0"], vector(2)["0"])
    for accepted in (Accepted("ef", own), Accepted("ab", other)):
        with pytest.raises(Mismatch, match=accepted.tag):
            settle(states, accepted)
    assert Accepted(**json.loads(json.dumps(asdict(Accepted("ab", own))))) == Accepted("ab", own)


def test_a_request_that_is_not_newer_than_the_newest_state_is_stale(states):
    states.check_newer(1)
    chain(states, 3)
    states.check_newer(4)
    with pytest.raises(Stale) as error:
        states.check_newer(3)
    assert error.value.seen == 3


def test_the_newest_the_accepted_and_the_states_before_are_kept(states):
    tags = chain(states, 8)
    assert sorted(states.files()) == tags[-4:]  # keep=2, the accepted one, and the newest
    states.put("aa", vector(9), base=tags[-3], clock=20)  # after a rollback
    states.trim("aa")
    assert sorted(states.files()) == [*tags[-4:-2], "aa"]


@pytest.mark.parametrize("tag", ["", "a/b", "..", "A", "start", "a" * 41])
def test_a_tag_that_is_no_word_of_digits_is_refused(states, tag, refused):
    with refused("pass up to 40 hexadecimal digits"):
        put(states, tag, vector(0))


def test_a_bit_that_flips_makes_a_state_lost_and_the_log_says_so(states, caplog):
    own = put(states, "ab", vector(1))
    (path,) = states.folder.iterdir()
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        found = states.load("ab")
        assert found is None or torch.equal(found[0]["0"], vector(1)["0"])
    path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
    caplog.clear()
    with pytest.raises(Mismatch):
        settle(states, Accepted("ab", own))
    assert f"{path} is damaged (its checksum is not that of its content)" in caplog.text
    path.write_bytes(whole[:40])
    assert states.load("ab") is None
    path.write_bytes(save(vector(1)))
    assert states.load("ab") is None  # without a digest


# -- an engine of a few lines: integers, so that means are exact


class Client:
    """It adds one and its own number to its state, by what the server counts on."""

    def __init__(self, folder, number):
        self.states, self.number = States(folder), number

    def state(self, accepted):
        return (settle(self.states, accepted) or vector(0))["0"]

    def answer(self, request):
        tag, accepted, clock = request["tag"], Accepted(**request["accepted"]), request["clock"]
        try:
            self.states.check_newer(clock)
        except Stale:
            return {"tag": None}
        before = self.state(accepted)
        after = before + 1 + self.number
        own = self.states.put(tag, {"0": after}, base=accepted.tag, clock=clock)
        self.states.trim(tag)
        return {"tag": tag, "digest": own, "dc": after - before}


CLOCK = itertools.count(1)


class Server:
    """It counts the first reply of each client to its own attempt."""

    def __init__(self, folder, N):
        self.path, self.N, self.tag = folder / "checkpoint", N, ""
        folder.mkdir(exist_ok=True)
        self.c, self.accepted = vector(0)["0"], [Accepted()] * N
        if self.path.exists():
            self.c = load_file(self.path)["c"]
            with open(self.path, "rb") as file:
                head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            kept = json.loads(head["__metadata__"]["accepted"])
            self.accepted = [Accepted(**one) for one in kept]

    def requests(self):
        self.tag = token_hex(6)
        common = {"tag": self.tag, "clock": next(CLOCK)}
        return {i: common | {"accepted": asdict(one)} for i, one in enumerate(self.accepted)}

    def commit(self, replies):
        c, accepted, counted = self.c, list(self.accepted), set()
        for i, reply in replies:
            if reply["tag"] == self.tag and i not in counted:
                counted.add(i)
                c, accepted[i] = c + reply["dc"] / self.N, Accepted(self.tag, reply["digest"])
        meta = {"accepted": json.dumps([asdict(one) for one in accepted])}
        durable.write_durably(self.path, [save({"c": c}, meta)], "server:checkpoint")
        self.c, self.accepted = c, accepted


def test_the_sum_of_the_accepted_states_is_c_whatever_happens(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    seen = Counter()
    for seed in range(60):
        luck = Luck(tmp_path / str(seed), Client, Server, 4, seed, monkeypatch)
        (tmp_path / str(seed)).mkdir()
        luck.live(12, "checkpoint")
        seen += luck.seen
    assert all(seen[fate] > 20 for fate in FATES), seen
    assert min(seen[w] for w in ("server killed at a write", "older checkpoint restored")) > 20
