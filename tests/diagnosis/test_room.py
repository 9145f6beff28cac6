"""The shape of the room: what is said once stays said once."""

import ast
from dataclasses import fields, is_dataclass, replace
from inspect import signature
from pathlib import Path

import pytest

import trimtab
from tests.helpers.losses import quadratics
from trimtab.core.task import Progress
from trimtab.diagnosis.diagnosis import KEYS
from trimtab.diagnosis.differences import FirstFacts

ROOM = Path(trimtab.__file__).parent / "diagnosis"
MODULES = sorted(path.stem for path in ROOM.glob("*.py"))
ALGORITHMS = {"sgd", "fedavg", "scaffold", "mimelite"}
PROBLEMS = {"Quadratic", "Supervised"}


def nodes(module):
    return list(ast.walk(ast.parse((ROOM / f"{module}.py").read_text("utf-8"))))


@pytest.fixture(scope="module")
def found():
    return trimtab.diagnose(quadratics(G=3.0, delta=0.1))


@pytest.mark.parametrize("module", sorted(set(MODULES) - {"rules"}))
def test_algorithms_are_named_by_rules_alone(module):
    constants = {node.value for node in nodes(module) if isinstance(node, ast.Constant)}
    assert not constants & ALGORITHMS


@pytest.mark.parametrize("module", sorted(set(MODULES) - {"panel"}))
def test_problems_of_a_class_are_looked_for_by_panel_alone(module):
    for node in nodes(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            names = {
                n.id
                for argument in node.args
                for n in ast.walk(argument)
                if isinstance(n, ast.Name)
            }
            assert node.func.id != "hasattr"
            assert not (node.func.id == "getattr" and len(node.args) == 3)
            assert not (node.func.id == "isinstance" and names & PROBLEMS)


def test_every_field_of_a_part_is_read_as_if_it_were_the_diagnosis_own(found):
    for part in (getattr(found, field.name) for field in fields(found)):
        if is_dataclass(part):
            for field in fields(part):
                assert getattr(found, field.name) is getattr(part, field.name)


def test_the_json_has_its_keys_in_their_order(found):
    assert list(found.to_json()) == [*KEYS]


def test_the_work_can_be_watched_and_has_a_name_of_its_own(found):
    work = trimtab.diagnose.start(quadratics(G=3.0, delta=0.1))
    assert {type(event) for event in work} == {Progress, FirstFacts}
    assert work.result().algorithm == found.algorithm
    assert replace(found, name="mine").to_json()["name"] == "mine"
    assert signature(trimtab.diagnose).return_annotation is trimtab.Diagnosis
