"""Two ways to run tests on a mutant: `imported` gives it to `import`, `patched` to its function.

Either happens in a process forked for it, and no file is changed. The first way is exact and loads
everything anew. The second has the tests loaded once and replaces the code of the mutant's
function, whoever has imported it: quick, but what ran while the modules were loaded is not mutated,
so a survivor of the second way has to meet the first.
"""

import ast
import gc
import importlib.abc
import importlib.util
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from tests.mutants.children import in_child
from tests.mutants.operators import Mutant, function_of, mutated

ROOT = Path(__file__).parents[2]
DIED = "it hangs or dies"

Way = Callable[[str, Mutant, Sequence[str], float], str]  # returns who rejects the mutant, or ""


class Notes:
    """A plugin of pytest: how long each test took, and which failed first."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = f"{report.nodeid} (collecting)"


def run_tests(tests: Sequence[str], *options: str, plugins: Sequence[Any] = ()) -> Notes:
    """Run pytest; tests of whole federations are not for mutants."""
    import pytest

    os.chdir(ROOT)
    notes = Notes()
    quiet = ("-p", "no:cacheprovider", "-p", "no:terminal", "--override-ini=addopts=")
    marks = ("-m", "not (federation or cluster or package or reproduce or soak)")
    code = pytest.main([*quiet, *marks, *options, *tests], plugins=[notes, *plugins])
    notes.failed = notes.failed or (f"pytest ended with {code!r}" if code else "")
    return notes


# -- by import


class Given(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """What `import` gives for one module instead of its file."""

    def __init__(self, file: str, tree: ast.Module) -> None:
        self.name = ".".join(Path(file).with_suffix("").parts[1:])
        self.path, self.tree = str(ROOT / file), tree

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name == self.name:
            return importlib.util.spec_from_file_location(name, self.path, loader=self)
        return None

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        exec(compile(self.tree, self.path, "exec"), module.__dict__)


def imported(file: str, mutant: Mutant, tests: Sequence[str], seconds: float) -> str:
    """Run tests where `import` gives the mutant; return which rejects it."""

    def work() -> str:
        sys.meta_path.insert(0, Given(file, mutated((ROOT / file).read_text(), mutant)))
        return run_tests(tests, "-x").failed

    found = in_child(work, seconds)
    return DIED if found is None else found


# -- by the function's code


def with_tests_loaded(tests: Sequence[str], work: Callable[[Way], None]) -> None:
    """Call `work` with the quick way of running these tests, which are loaded once."""

    class Loop:
        def pytest_runtestloop(self, session: Any) -> bool:
            items = {item.nodeid: item for item in session.items}
            work(lambda *given: _patched(items, *given))
            return True

    run_tests(tests, plugins=[Loop()])


def _patched(
    items: dict[str, Any], file: str, mutant: Mutant, tests: Sequence[str], seconds: float
) -> str:
    """Run tests that are loaded, with the mutant's function changed; return which rejects it."""

    def work() -> str:
        if not patch(file, mutant):
            return ""
        notes, chosen = Notes(), [items[test] for test in tests]
        for item, following in zip(chosen, [*chosen[1:], None], strict=True):
            item.config.pluginmanager.register(notes, "mutant")
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            item.config.pluginmanager.unregister(notes)
            if notes.failed:
                break
        return notes.failed

    found = in_child(work, seconds)
    return DIED if found is None else found


def patch(file: str, mutant: Mutant) -> bool:
    """Replace the code of the function that holds a mutant; False if there is none to replace."""
    source, path = (ROOT / file).read_text(), str(ROOT / file)
    name = function_of(source, mutant)
    codes = {
        code.co_firstlineno: code
        for code in _codes(compile(mutated(source, mutant), path, "exec"))
        if code.co_qualname == name
    }
    found = False
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename == path:  # asks no __class__
            old = thing.__code__
            new = codes.get(old.co_firstlineno) if old.co_qualname == name else None
            if new is not None and new.co_freevars == old.co_freevars:
                thing.__code__, found = new, True
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
