"""Scripts and notebooks find every name of ours that they use, and do nothing when imported."""

import ast
import importlib
import json
import re
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(
    path
    for folder in ("benchmarks", "examples")
    for path in (ROOT / folder).rglob("*.py")
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
)
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
BESIDE = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
# It puts an empty torchvision into sys.modules, which transformers then takes for a real one.
BESIDE -= {"without_torchvision"}
# Peers run in environments of their own, with other packages; some need a torchvision of nothing.
# own_loop.py is one script from top to bottom, as a user's own is.
IMPORTED = [
    path
    for path in SCRIPTS
    if path.parent.name != "peers" and path.name not in ("without_torchvision.py", "own_loop.py")
]


def name(path):
    return str(path.relative_to(ROOT))


def code_of(path):
    if path.suffix == ".py":
        return path.read_text("utf-8")
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def is_ours(module):
    top = module.partition(".")[0]
    return top in {"trimtab", "trimtab_papers", "tests"} or top in BESIDE


def can_be_imported(module):
    """Return whether a script of benchmarks has the packages that it needs, such as JAX."""
    tree = ast.parse((ROOT / "benchmarks" / f"{module}.py").read_text())
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    needed = {getattr(node, "module", None) or node.names[0].name for node in imports}
    return all(find_spec(needs.partition(".")[0]) for needs in needed)


def bound(tree):
    """Resolve each import of ours; return the modules by the names that the code gives them."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in filter(lambda alias: is_ours(alias.name), node.names):
                module = importlib.import_module(alias.name)
                found[alias.asname or alias.name.partition(".")[0]] = (
                    module if alias.asname else importlib.import_module(alias.name.split(".")[0])
                )
        elif isinstance(node, ast.ImportFrom) and is_ours(node.module or ""):
            if node.module in BESIDE and not can_be_imported(node.module):
                continue
            module = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")
                found[alias.asname or alias.name] = getattr(module, alias.name)
    return {name: thing for name, thing in found.items() if isinstance(thing, ModuleType)}


@pytest.mark.parametrize("path", [*SCRIPTS, *NOTEBOOKS], ids=name)
def test_every_name_of_ours_is_there(path):
    tree = ast.parse(code_of(path), str(path))
    modules = bound(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            assert module is None or hasattr(module, node.attr), ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            for module in re.findall(r"(?<=-m )trimtab[\w.]+", node.value):
                assert find_spec(module), module


@pytest.mark.parametrize("path", IMPORTED, ids=name)
def test_a_script_does_nothing_when_it_is_imported(path, capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    spec = spec_from_file_location(f"imported_{path.stem}", path)
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        if is_ours(error.name):
            raise
        pytest.skip(f"needs {error.name}")
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr().out == ""
