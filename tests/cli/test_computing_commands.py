"""Every command that computes takes --json, --seed and --out."""

import json

import click
import pytest

from trimtab import Quadratic, Scaffold
from trimtab.algorithms.registry import NAMES, kind, trial_of
from trimtab.cli import cli, main
from trimtab.testing import CHECKS, CONTROL_CHECKS, rests_when_nobody_moves, verdicts

WANTED = {"--json", "--seed", "--out"}

# What commands that compute do without, and why.
COMPUTING = {
    "compare": {},
    "run": {},
    "diagnose": {},
    "check": {},
    "bench": {},
    "reproduce": {},
    "federate demo": {},
    "federate server": {"--out": "it writes into the operator's folder, its argument DIR"},
    "federate resume": {
        "--out": "it goes on in the operator's folder, its argument DIR",
        "--seed": "it goes on with the seed that the server began with",
    },
    "federate audit": {
        "--out": "it tells one number, and leaves nothing",
        "--seed": "nothing is drawn: c is compared with what the sites keep",
    },
}

# What computes nothing, and so needs none of them.
OTHERS = {
    "report": "shows what was computed",
    "export": "writes what was computed in another form",
    "predict": "applies a model that is there",
    "doctor": "looks at the machine",
    "completion": "prints lines for a shell",
    "federate site": "does what the server asks for, with the server's seed",
    "federate model": "writes a model that is there",
    **dict.fromkeys(("federate status", "federate site-log"), "reads a folder"),
    "federate rollback": "goes back to a checkpoint that is there",
    **dict.fromkeys(("federate init", "federate renew"), "makes keys and certificates"),
    **dict.fromkeys(("federate enroll", "federate fingerprint"), "is about a key"),
    **dict.fromkeys(
        (
            *("federate approve", "federate join", "federate leave", "federate readmit"),
            "federate register",
        ),
        "decides who takes part",
    ),
}


def leaves(command, name=""):
    """Go through all commands of a group, by what is typed for them."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for below in command.list_commands(context):
        yield from leaves(command.get_command(context, below), f"{name} {below}".strip())


TREE = dict(leaves(cli))


def test_every_command_is_known_to_compute_or_not_to():
    assert COMPUTING.keys().isdisjoint(OTHERS)
    assert set(TREE) == COMPUTING.keys() | OTHERS.keys()


@pytest.mark.parametrize("name", COMPUTING)
def test_a_command_that_computes_takes_json_seed_and_out(name):
    has = {option for parameter in TREE[name].params for option in parameter.opts}
    assert WANTED - has == set(COMPUTING[name])


# -- what the seed does where nothing else is drawn


@pytest.mark.parametrize("name", NAMES)
def test_our_algorithms_keep_the_contract_whatever_is_drawn(name):
    broken = [v.broken for seed in (1, 2, 3) for v in verdicts(trial_of(kind(name)), seed=seed)]
    assert broken == [""] * len(broken)


# The first rule runs nothing, and in the one about rest there are no gradients.
TRIED = [rule for rule in (*CHECKS[1:], *CONTROL_CHECKS) if rule is not rests_when_nobody_moves]


@pytest.mark.parametrize("rule", TRIED)
def test_every_rule_is_tried_on_what_the_seed_draws(rule, monkeypatch):
    asked, drawn = set(), Quadratic.oracle

    def oracle(self, i, seed, r):
        asked.add((seed, float(self.b[0, 0])))
        return drawn(self, i, seed, r)

    monkeypatch.setattr(Quadratic, "oracle", oracle)
    seen = []
    for seed in (0, 7):
        asked.clear()
        rule(Scaffold(eta_l=0.1, K=3), seed)
        assert {number for number, _ in asked} == {seed}
        seen.append({problem for _, problem in asked})
    assert seen[0].isdisjoint(seen[1])


def test_check_says_which_seed_it_was(capsys, tmp_path):
    for seed in (0, 5):
        path = tmp_path / f"{seed}.json"
        with pytest.raises(SystemExit):
            main(["check", "fedavg", "--seed", str(seed), "--json", "--out", str(path)])
        said = json.loads(capsys.readouterr().out)
        assert said == json.loads(path.read_text())
        assert said["seed"] == seed
