"""The pages of docs/decisions: all are linked, what they name exists, and code holds three."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "decisions").glob("*.md"))
SOURCES = sorted((ROOT / "src" / "trimtab").rglob("*.py"))
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def test_every_decision_is_linked_from_the_design():
    linked = re.findall(r"\]\(decisions/([\w-]+\.md)\)", (ROOT / "docs" / "design.md").read_text())
    assert sorted(linked) == [page.name for page in PAGES]


@every_page
def test_every_path_that_is_named_exists_and_the_tests_are_in_their_files(page):
    text = page.read_text()
    paths = set(re.findall(r"`((?:src|tests|docs|examples|benchmarks|results)/[\w/.-]*)`", text))
    assert paths, "a decision points to the code that holds it"
    for path in paths:
        assert (ROOT / path).exists(), path
    files = [path for path in paths if path.endswith(".py")]
    assert any(path.startswith("tests/") for path in files), "a decision names its test"
    for names, file in re.findall(r"((?:`test_\w+`[,\s]*(?:and\s+)?)+)\(`(tests/[\w/.]+)`", text):
        source = (ROOT / file).read_text()
        for name in re.findall(r"test_\w+", names):
            assert f"def {name}(" in source, f"{name} is not in {file}"


@cache
def calls_and_imports(path: Path) -> set[str]:
    """Return the modules that a file imports, and the names of what it calls, as `module.name`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Call):
            found.add(ast.unparse(node.func))
            found |= {f"{word.arg}=" for word in node.keywords if word.arg}
    return found


def is_run(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "clients.run"


def asked_of_replies(function: ast.FunctionDef) -> set[str]:
    """Return the attributes that a function takes of what `clients.run` returns."""
    names, asked = set(), set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and is_run(node.value):
            names |= {ast.unparse(target) for target in node.targets}
        if isinstance(node, ast.Attribute) and (
            is_run(node.value) or ast.unparse(node.value) in names
        ):
            asked.add(node.attr)
    return asked


def test_algorithms_ask_replies_for_means_and_the_share_alone():
    rounds = [
        node
        for path in SOURCES
        if path.parent.name == "algorithms"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == "round"
    ]
    asked = [asked_of_replies(function) for function in rounds]
    assert asked.count({"mean", "share"}) >= 5  # those with controls
    assert set().union(*asked) == {"mean", "share"}


def test_nothing_is_read_that_could_run():
    """Reading a pickle runs what its writer wanted.

    The contract reads what it has just written, and a shard what its own driver sends by Ray. A
    diagnosis reads its stages with `weights_only`, which builds its own classes alone.
    """
    unsafe = {"pickle.load", "pickle.loads", "pickle.Unpickler", "torch.load", "marshal.loads"}
    unsafe |= {"shelve", "dill", "cloudpickle", "joblib", "allow_pickle="}
    readers = {path.name: calls_and_imports(path) & unsafe for path in SOURCES}
    assert {name: found for name, found in readers.items() if found} == {
        "contract.py": {"pickle.loads"},
        "diagnose.py": {"torch.load"},
        "shard.py": {"pickle.loads"},
    }
    diagnose = next(path for path in SOURCES if path.name == "diagnose.py").read_text()
    assert diagnose.count("torch.load(") == diagnose.count("torch.load(path, weights_only=True)")


def test_no_configuration_language_is_read():
    languages = {"yaml", "tomllib", "tomli", "configparser", "hydra", "omegaconf", "gin"}
    readers = {path.name: calls_and_imports(path) & languages for path in SOURCES}
    found = {name: read for name, read in readers.items() if read}
    assert found == {"policy.py": {"tomllib"}}  # what a site's administrator writes
