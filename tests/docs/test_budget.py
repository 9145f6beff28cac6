"""How large the code may be: lines and files per folder, and modules without import cycles.

A number here may fall at any time. It rises only in a commit whose message says why.
"""

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import trimtab

SRC = Path(trimtab.__file__).parent
ROOT = Path(__file__).parents[2]
LONGEST = 430  # lines of a module; the usual size is 100 to 350

# Lines and files of each folder, its subfolders included; "." is the top folder without them.
BUDGET = {
    ".": (977, 7),
    "algorithms": (2118, 24),
    "cli": (3119, 20),
    "cluster": (1635, 9),
    "commit": (250, 3),
    "compute": (2212, 11),
    "core": (1493, 11),
    "diagnosis": (5137, 18),
    "federation": (9662, 49),
    "flower": (512, 3),
    "problems": (9984, 45),
    "report": (2715, 17),
    "simulation": (2690, 15),
    "sklearn": (222, 1),
    "studies": (5276, 20),
    "testing": (858, 4),
    "torch": (648, 5),
}
PAPERS = (9525, 36)
TESTS = 53_146  # lines


def files_of(folder):
    return sorted(SRC.glob("*.py") if folder == "." else (SRC / folder).rglob("*.py"))


def lines_of(path):
    return len(path.read_text().splitlines())


def test_every_folder_has_a_budget():
    assert {path.name for path in SRC.iterdir() if (path / "__init__.py").exists()} == {*BUDGET} - {
        "."
    }


@pytest.mark.parametrize("folder", BUDGET)
def test_a_folder_stays_within_its_budget(folder):
    lines, files = BUDGET[folder]
    found = files_of(folder)
    assert len(found) <= files
    assert sum(map(lines_of, found)) <= lines


def test_the_papers_and_the_tests_stay_within_their_budgets():
    papers = sorted((ROOT / "papers" / "src").rglob("*.py"))
    assert len(papers) <= PAPERS[1]
    assert sum(map(lines_of, papers)) <= PAPERS[0]
    assert max(map(lines_of, papers)) <= LONGEST
    assert sum(map(lines_of, (ROOT / "tests").rglob("*.py"))) <= TESTS


@pytest.mark.parametrize("folder", BUDGET)
def test_no_module_is_too_long(folder):
    assert [path.name for path in files_of(folder) if lines_of(path) > LONGEST] == []


# -- cycles

MODULES = {
    ".".join(("trimtab", *path.relative_to(SRC).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in SRC.rglob("*.py")
}


@cache
def imported_when_loaded(module):
    """Return our modules that a module imports at its top level, outside of TYPE_CHECKING."""
    found = set()
    pending = list(ast.parse(MODULES[module].read_text()).body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending += node.orelse
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in MODULES else node.module)
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            pending += [
                child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)
            ]
    return found & MODULES.keys()


def test_no_modules_import_each_other_in_a_cycle():
    order = TopologicalSorter({module: imported_when_loaded(module) for module in MODULES})
    try:
        order.prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


# -- modules that are worth opening

WORTH_A_FILE = 150  # lines; a shorter module needs two importers
# Folders whose modules were merged; the others follow with their redesigns.
DONE = (
    *("cluster", "compute", "core", "diagnosis", "problems", "report", "simulation", "studies"),
    "testing",
)
SHORT = {  # with the reason
    "trimtab.cluster.actor": "an actor must not load torch before it has chosen instruction sets",
    "trimtab.compute.lazy_rows": "lazy.py would be too long with it",
    "trimtab.problems.supervised.arguments": "problem.py would be too long with it",
    "trimtab.problems.supervised.fingerprint": "problem.py would be too long with it",
    "trimtab.simulation.executors.loop": "the readable reference",
    "trimtab.testing.controls": "a second contract, for algorithms with control variates",
}


def importers():
    found = {module: set() for module in MODULES}
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    found.get(inner if inner in MODULES else node.module, set()).add(module)
    return found


def test_a_short_module_has_two_importers():
    short = {
        module
        for module, found in importers().items()
        if module.startswith(tuple(f"trimtab.{folder}." for folder in DONE))
        and MODULES[module].name != "__init__.py"
        and lines_of(MODULES[module]) < WORTH_A_FILE
        and len(found) < 2
    }
    assert short <= SHORT.keys()
