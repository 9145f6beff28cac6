"""Thresholds are in one place, few, and each says why."""

import ast
import re
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from trimtab.diagnosis import rules
from trimtab.diagnosis.rules import RULES, Rules

MOST = 40


def sentences():
    """Return the text below each field."""
    tree = ast.parse(Path(rules.__file__).read_text("utf-8"))
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef)).body[1:]
    return {
        field.target.id: text.value.value
        for field, text in zip(body[::2], body[1::2], strict=True)
        if isinstance(field, ast.AnnAssign)
    }


def test_there_are_at_most_forty_and_none_changes():
    assert len(fields(Rules)) <= MOST
    with pytest.raises(FrozenInstanceError):
        RULES.eps = 1.0


@pytest.mark.parametrize("name", [field.name for field in fields(Rules)])
def test_each_has_a_whole_sentence_and_is_used(name):
    text = sentences()[name]
    assert text.endswith(".")
    assert len(text.split()) >= 8
    folder = Path(rules.__file__).parent
    used = re.compile(rf"RULES\.{name}\b")
    assert any(used.search(path.read_text("utf-8")) for path in folder.glob("*.py"))
