"""The rooms of the federation: who may import whom."""

import ast
from pathlib import Path

import pytest

import trimtab

SRC = Path(trimtab.__file__).parent
ROOT = SRC / "federation"
MODULES = {
    ".".join(path.relative_to(SRC.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in SRC.rglob("*.py")
}
FEDERATION = sorted(name for name in MODULES if name.startswith("trimtab.federation."))

GROUND = {"message", "events", "log"}  # files beside the rooms
MAY_IMPORT = {
    **dict.fromkeys(GROUND, GROUND),
    "storage": GROUND | {"storage"},
    "protocol": GROUND | {"storage", "protocol"},
    "transport": GROUND | {"storage", "protocol", "transport"},
    "setup": GROUND | {"protocol", "storage", "setup"},
    "processes": GROUND | {"storage", "protocol", "transport", "setup", "processes"},
}


def imports(path):
    """Return the modules of ours that a file imports, those inside functions as well."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in MODULES else node.module)
    return {name for name in found if name.startswith("trimtab.")}


def room(module):
    return module.split(".")[2]


@pytest.mark.parametrize("module", FEDERATION)
def test_rooms_import_what_stands_below_them(module):
    inside = [name for name in imports(MODULES[module]) if name.startswith("trimtab.federation")]
    for name in inside:
        assert room(name) in MAY_IMPORT[room(module)], f"{module} imports {name}"


def test_every_room_is_known_and_says_what_it_may_import():
    assert {room(module) for module in FEDERATION} == set(MAY_IMPORT)
    for name in set(MAY_IMPORT) - GROUND:
        assert "mports" in ast.get_docstring(ast.parse((ROOT / name / "__init__.py").read_text()))


def test_only_the_command_line_imports_the_processes():
    for module, path in MODULES.items():
        if not module.startswith(("trimtab.cli", "trimtab.federation.processes")):
            used = [name for name in imports(path) if name.startswith("trimtab.federation.proc")]
            assert not used, f"{module} imports {used}"


def test_flower_is_known_to_its_transport_and_to_the_processes_alone():
    for module in FEDERATION:
        if not module.startswith(("trimtab.federation.transport", "trimtab.federation.processes")):
            assert "flwr" not in MODULES[module].read_text(), module


@pytest.mark.parametrize("module", FEDERATION)
def test_modules_and_names_of_ours_are_used_under_their_own_name(module):
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("trimtab"):
            assert not [alias.name for alias in node.names if alias.asname]
