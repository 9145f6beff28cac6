"""Run the tests against every mutant of the algorithms and of the protocol: `make mutants`.

The tests of a selection run once, to learn which of them reach which line; then each mutant gets
those of its lines, the quickest first, until one fails. A process is forked for each mutant after
torch is loaded, and the mutant is what `import` then gives it: no file is changed. The record in
results/mutants says of each mutant which test rejected it. An interrupted run goes on where it
stopped: what was rejected is tried again when its source changes, a survivor also when tests do.

A survivor is either rejected by a new test, or listed in equivalent.json with the reason why nobody
could tell it from the original.
"""

import argparse
import ast
import hashlib
import importlib.abc
import importlib.util
import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.mutants.operators import Mutant, mutants, mutated

ROOT = Path(__file__).parents[2]

RECORDS = ROOT / "results" / "mutants"
EQUIVALENT = Path(__file__).with_name("equivalent.json")
PATIENCE = 20  # a mutant that takes > 20 times as long as the original, or
AT_LEAST = 60.0  # > 60 seconds, whichever is more, hangs
MOST = 40  # a mutant gets <= 40 tests at first, and all that reach it only if these pass

ALGORITHMS = (
    "tests/algorithms",
    "tests/core",
    "tests/testing/test_contract.py",
    "tests/algorithms/test_registry.py",
    "tests/core/test_hyperparameters.py",
    "tests/mutants/test_survivors_of_algorithms.py",
)
REPLIES = (
    "tests/core/test_telemetry.py",
    "tests/algorithms/test_through.py",
    "tests/mutants/test_survivors_of_replies.py",
)
PROTOCOL = (
    "tests/federation/test_protocol.py",
    "tests/federation/test_claims.py",
    "tests/federation/test_parity.py",
    "tests/federation/test_writes.py",
    "tests/federation/test_own.py",
    "tests/mutants/test_survivors_of_protocol.py",
)

LEDGER = (
    "tests/federation/test_seals.py",
    "tests/federation/test_protocol.py",
    "tests/federation/test_writes.py",
    "tests/mutants/test_survivors_of_protocol.py",
)


def selections() -> dict[str, tuple[str, ...]]:
    """Return the source files, each with the tests that are meant to reject its mutants."""
    algorithms = sorted((ROOT / "src/trimtab/algorithms").glob("*.py"))
    protocol = sorted((ROOT / "src/trimtab/federation/protocol").glob("*.py"))
    found = dict.fromkeys(algorithms, ALGORITHMS)
    found[ROOT / "src/trimtab/core/replies.py"] = REPLIES
    found |= dict.fromkeys(protocol, PROTOCOL)
    storage = ROOT / "src/trimtab/federation/storage"
    found |= dict.fromkeys((storage / "journal.py", storage / "ledger.py"), LEDGER)
    return {
        str(path.relative_to(ROOT)): tuple(test for test in tests if (ROOT / test).exists())
        for path, tests in found.items()
        if path.name != "__init__.py"
    }


@dataclass
class Reach:
    """Which tests reach a line, and how long each takes."""

    by_line: dict[int, list[str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests that reach a mutant, the quickest first.

        A line that runs when its module is imported is reached by all.
        """
        lines = range(mutant.lines[0], mutant.lines[1] + 1)
        found = {test for line in lines for test in self.by_line.get(line, ())}
        found = set(self.seconds) if "" in found else found
        return sorted(found, key=lambda test: (self.seconds.get(test, 0.0), test))


# -- in a child process


def in_child(work: Any, seconds: float | None = None) -> Any:
    """Fork, and return what `work()` returns there, as JSON; None if it took too long or died."""
    with TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        child = os.fork()
        if not child:
            os.setsid()
            silence()
            try:
                answer.write_text(json.dumps(work()))
            finally:
                os._exit(0)
        try:
            wait(child, seconds)
        finally:
            end(child)
        return json.loads(answer.read_text()) if answer.exists() else None


def silence() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


def wait(child: int, seconds: float | None) -> None:
    """Wait until a child has ended, at most so long."""
    until = None if seconds is None else time.monotonic() + seconds
    while until is None or time.monotonic() < until:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return
        time.sleep(0.02)


def end(child: int) -> None:
    """End a child with all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)


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
    import pytest

    os.chdir(ROOT)
    notes = Notes()
    quiet = ("-p", "no:cacheprovider", "-p", "no:terminal", "--override-ini=addopts=")
    code = pytest.main([*quiet, *options, *tests], plugins=[notes, *plugins])
    notes.failed = notes.failed or (f"pytest ended with {code!r}" if code else "")
    return notes


def look(files: Sequence[str], tests: Sequence[str]) -> dict[str, Any]:
    """Run all tests once under coverage; return who reaches which line, and the seconds."""
    import coverage

    wanted = [str(ROOT / file) for file in files]
    watch = coverage.Coverage(data_file=None, config_file=False, include=wanted)

    class Contexts:
        def pytest_runtest_protocol(self, item: Any) -> None:
            watch.switch_context(item.nodeid)

    watch.start()
    notes = run_tests(tests, plugins=[Contexts()])
    watch.stop()
    data = watch.get_data()
    lines = {file: data.contexts_by_lineno(str(ROOT / file)) for file in files}
    return {"lines": lines, "seconds": notes.seconds, "failed": notes.failed}


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


def try_mutant(file: str, source: str, mutant: Mutant, tests: Sequence[str]) -> dict[str, str]:
    sys.meta_path.insert(0, Given(file, mutated(source, mutant)))
    return {"by": run_tests(tests, "-x").failed}


# -- the record


def digest(paths: Iterable[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]


def files_of(tests: Sequence[str]) -> list[Path]:
    paths = [ROOT / test for test in tests]
    return [file for path in paths for file in (sorted(path.rglob("*.py")) or [path])]


def record_of(file: str) -> Path:
    parts = Path(file).relative_to("src/trimtab").with_suffix("").parts
    return RECORDS / f"{'.'.join(parts)}.json"


@dataclass
class Bench:
    """A selection of tests, and what of its source files is still to be tried."""

    tests: tuple[str, ...]
    files: list[str]
    whole: bool = True  # False: these are some of the tests, and a survivor is not written down

    def run(self, until: float) -> None:
        """Try what is not on record yet."""
        tests = digest(files_of(self.tests))
        open_files = [file for file in self.files if self.todo(file, tests)[1]]
        if not open_files:
            return
        looked = in_child(lambda: look(open_files, self.tests))
        if looked is None or looked["failed"]:
            sys.exit(f"{self.tests}: they fail without a mutant ({looked and looked['failed']}).")
        for file in open_files:
            lines = {int(line): names for line, names in looked["lines"][file].items()}
            self.judge(file, tests, Reach(lines, looked["seconds"]), until)

    def todo(self, file: str, tests: str) -> tuple[dict[str, Any], list[Mutant]]:
        """Return what the record says already, and the mutants of which it says nothing."""
        known: dict[str, Any] = {}
        if record_of(file).exists():
            old = json.loads(record_of(file).read_text())
            if old["source"] == digest([ROOT / file]):
                known = {e["key"]: e for e in old["mutants"] if e["by"] or old["tests"] == tests}
        wanted = mutants((ROOT / file).read_text())
        return known, [mutant for mutant in wanted if mutant.key not in known]

    def judge(self, file: str, tests: str, reach: Reach, until: float) -> None:
        """Try the mutants of one file, and write each verdict down."""
        source = (ROOT / file).read_text()
        known, todo = self.todo(file, tests)
        order = [mutant.key for mutant in mutants(source)]
        for mutant in todo:
            if time.monotonic() > until:
                return
            if mutant.key not in known:
                entry = verdict(file, source, mutant, reach)
                if not entry["by"] and not self.whole:
                    continue
                known[mutant.key] = entry
            write(
                record_of(file),
                file=file,
                source=digest([ROOT / file]),
                tests=tests,
                total=len(set(order)),
                mutants=[known[key] for key in dict.fromkeys(order) if key in known],
            )


def verdict(file: str, source: str, mutant: Mutant, reach: Reach) -> dict[str, Any]:
    tests, by = reach.tests_of(mutant), ""
    for part in (tests[:MOST], tests[MOST:]):
        if part and not by:
            usual = sum(reach.seconds.get(test, 0.0) for test in part)
            allowed = max(AT_LEAST, PATIENCE * usual)
            found = in_child(lambda part=part: try_mutant(file, source, mutant, part), allowed)
            by = "it hangs or dies" if found is None else found["by"]
    entry = {"line": mutant.line, "key": mutant.key, "by": by or None, "reached_by": len(tests)}
    print(f"{file}:{mutant.line} {'rejected' if by else 'SURVIVES'}: {mutant.key}", flush=True)
    return entry


def write(record: Path, **whole: Any) -> None:
    record.parent.mkdir(parents=True, exist_ok=True)
    part = record.with_suffix(".part")
    part.write_text(json.dumps(whole, indent=1) + "\n")
    part.replace(record)


def survivors() -> list[tuple[str, int, str]]:
    """Return the mutants on record that no test rejected and that nobody has explained."""
    explained = {(entry["file"], entry["key"]) for entry in json.loads(EQUIVALENT.read_text())}
    found = []
    for path in sorted(RECORDS.glob("*.json")):
        record = json.loads(path.read_text())
        for entry in record["mutants"]:
            if entry["by"] is None and (record["file"], entry["key"]) not in explained:
                found.append((record["file"], entry["line"], entry["key"]))
    return found


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, add_help=True)
    words.add_argument("files", nargs="*", help="source files; all of the selection if none")
    words.add_argument("--tests", nargs="+", help="these alone; survivors meet the others later")
    words.add_argument("--minutes", type=float, default=1e9, help="stop after so many minutes")
    given = words.parse_args()
    until = time.monotonic() + 60 * given.minutes
    chosen = selections()
    if given.tests:
        chosen = dict.fromkeys(chosen, tuple(given.tests))
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import scipy  # noqa: F401
    import torch

    torch.set_num_threads(1)
    for tests in dict.fromkeys(chosen.values()):
        files = [file for file in given.files or chosen if chosen[file] == tests]
        Bench(tests, files, whole=not given.tests).run(until)
    left = survivors()
    total = rejected = 0
    for path in sorted(RECORDS.glob("*.json")):
        entries = json.loads(path.read_text())["mutants"]
        total, rejected = total + len(entries), rejected + sum(bool(e["by"]) for e in entries)
    for file, line, key in left:
        print(f"survives: {file}:{line} {key}")
    print(f"{rejected} of {total} mutants are rejected; {len(left)} survive without a reason.")
    sys.exit(bool(left))


if __name__ == "__main__":
    main()
