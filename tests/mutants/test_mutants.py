"""The mutants are what they should be; the tool sees who rejects them; every reason is of one."""

import ast
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.mutants.children import in_child
from tests.mutants.operators import mutants, mutated
from tests.mutants.run import EQUIVALENT, ROOT, explained, record_of, selections
from tests.mutants.ways import patch
from trimtab.core import display

HERE = Path(__file__).parent

SOURCE = '''
"""A docstring with 1 number."""

import logging

log = logging.getLogger("1")


def f(a: int, b: int = 3) -> float:
    """Another."""
    if a < b and not b:
        log.warning("below %d", 1)
        raise ValueError(f"{a} is below {b + 1}.")
    return -a * 0.0
'''


def test_every_kind_of_mistake_is_made_once():
    assert [(mutant.line, mutant.was, mutant.change) for mutant in mutants(SOURCE)] == [
        (9, "3", "4"),
        (11, "a < b and not b", "or for and"),
        (11, "a < b", "<= for <"),
        (11, "not b", "without its sign"),
        (13, 'raise ValueError(f"{a} is below {b + 1}.")', "left out"),
        (14, "return -a * 0.0", "None returned"),
        (14, "-a * 0.0", "/ for *"),
        (14, "-a", "without its sign"),
        (14, "0.0", "1.0"),
    ]


def test_a_mutant_differs_in_one_place_and_compiles():
    original = ast.unparse(ast.parse(SOURCE)).splitlines()
    for mutant in mutants(SOURCE):
        tree = mutated(SOURCE, mutant)
        compile(tree, "f.py", "exec")
        changed = ast.unparse(tree).splitlines()
        assert sum(a != b for a, b in zip(original, changed, strict=True)) == 1, mutant.key


def test_all_sources_have_mutants_and_their_selections_exist():
    chosen = selections()
    assert {"src/trimtab/algorithms/scaffold.py", "src/trimtab/core/replies.py"} <= set(chosen)
    assert "src/trimtab/federation/protocol/coordinator.py" in chosen
    for file, tests in chosen.items():
        keys = [mutant.key for mutant in mutants((ROOT / file).read_text())]
        assert keys, file
        assert len(set(keys)) == len(keys), file
        assert tests, file


def test_each_comparison_of_a_chain_is_changed():
    changed = [ast.unparse(mutated("a <= b < c", mutant)) for mutant in mutants("a <= b < c")]
    assert changed == ["a < b < c", "a <= b <= c"]


def test_a_bool_is_changed_and_not_left_out():
    found = mutants("def f():\n    return False\n\n\ndef g():\n    return False\n    return None")
    assert [(mutant.line, mutant.key) for mutant in found] == [
        (2, "return False | False | True"),
        (6, "return False | False | True | 2"),
    ]


def test_every_reason_is_of_a_mutant_that_there_is():
    for entry in json.loads(EQUIVALENT.read_text()):
        keys = {mutant.key for mutant in mutants((ROOT / entry["file"]).read_text())}
        assert entry["key"] in keys, entry
        assert entry["why"].endswith(".")


def test_every_survivor_on_record_has_its_reason():
    for file in selections():
        if record_of(file).exists():
            entries = json.loads(record_of(file).read_text())["mutants"]
            left = {(file, entry["key"]) for entry in entries if entry["by"] is None}
            assert left <= explained(), left - explained()


def test_a_mutant_is_rejected_by_a_test_that_fails(tmp_path):
    """Run the tool on a project of its own, where the test of `g` cannot tell + from -."""
    package = tmp_path / "src" / "trimtab" / "algorithms"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "sum.py").write_text(
        "def f(a, b):\n    c = a + b\n    return c\n\n\ndef g(a, b):\n    d = a + b\n    return d\n"
    )
    tests = tmp_path / "tests" / "mutants"
    tests.mkdir(parents=True)
    (tests.parent / "__init__.py").touch()
    for name in ("__init__.py", "run.py", "operators.py", "children.py", "ways.py"):
        (tests / name).write_text((HERE / name).read_text())
    (tests / "equivalent.json").write_text("[]")
    subjects = tmp_path / "tests" / "algorithms"
    subjects.mkdir()
    (subjects / "test_sum.py").write_text(
        "from trimtab.algorithms.sum import f, g\n\n\n"
        "def test_f():\n    assert f(1, 2) == 3\n\n\n"
        "def test_g():\n    assert g(1, 0) == 1\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutants.run", "src/trimtab/algorithms/sum.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
    )
    record = json.loads((tmp_path / "results/mutants/algorithms.sum.json").read_text())
    rejected = {entry["line"]: entry["by"] for entry in record["mutants"]}
    place = "tests/algorithms/test_sum.py"
    assert rejected == {
        2: f"{place}::test_f",
        3: f"{place}::test_f",
        7: None,
        8: f"{place}::test_g",
    }
    assert [entry["reached_by"] for entry in record["mutants"]] == [1] * 4
    assert "3 of 4 mutants are rejected; 1 survive without a reason." in done.stdout
    assert done.returncode == 1, done.stderr


def test_what_takes_too_long_says_nothing_even_when_it_is_ended():
    def slow():
        with suppress(SystemExit):
            time.sleep(600)
        return "a test that failed when it was ended"

    def ended(*_):
        raise SystemExit

    before = signal.signal(signal.SIGTERM, ended)
    try:
        assert in_child(slow, 0.2) is None
        assert in_child(lambda: "done", 600.0) == "done"
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_function_is_found_among_objects_that_do_not_like_to_be_looked_at():
    """Warnings are errors here, and some objects warn when they are asked for their class."""

    class Odd:
        @property
        def __class__(self):
            raise FutureWarning("do not look")

    kept = Odd()
    file = str(Path(display.__file__).relative_to(ROOT))
    mutant = next(m for m in mutants((ROOT / file).read_text()) if m.change == "None returned")
    assert in_child(lambda: patch(file, mutant)) is True
    assert type(kept) is Odd
