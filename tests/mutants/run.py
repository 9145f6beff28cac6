"""Run the tests against every mutant of the algorithms and of the protocol: `make mutants`.

The tests of a selection run once, to learn which of them reach which line; then each mutant gets
those of its lines, until one fails, in a process forked for it after all else is loaded (ways.py).
The record in results/mutants says of each mutant which test rejected it. An interrupted run goes on
where it stopped: what was rejected is tried again when its source changes, a survivor also when
tests do. Edit nothing while it runs, or let it run in a copy.

A survivor is either rejected by a new test, or listed in equivalent.json with the reason why nobody
could tell it from the original.
"""

import argparse
import hashlib
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.mutants.children import in_child
from tests.mutants.operators import Mutant, function_of, mutants
from tests.mutants.ways import DIED, ROOT, Way, imported, run_tests, with_tests_loaded

RECORDS = ROOT / "results" / "mutants"
EQUIVALENT = Path(__file__).with_name("equivalent.json")
PATIENCE = 20  # a mutant that takes > 20 times as long as the original, or
AT_LEAST = 60.0  # > 60 seconds, whichever is more, hangs
MOST = 40  # a mutant gets <= 40 tests at first, and all that reach it only if these pass

ALGORITHMS = (
    "tests/algorithms",
    "tests/core",
    "tests/testing/test_contract.py",
)
REPLIES = (
    "tests/core/test_telemetry.py",
    "tests/algorithms/test_through.py",
    "tests/core/test_replies.py",
)
PROTOCOL = (
    "tests/federation/test_protocol.py",
    "tests/federation/test_coordinator.py",
    "tests/federation/test_controls.py",
    "tests/federation/test_site.py",
    "tests/federation/test_claims.py",
    "tests/federation/test_parity.py",
    "tests/federation/test_writes.py",
    "tests/federation/test_own.py",
    "tests/federation/test_policy.py",
    "tests/federation/test_roster.py",
    "tests/federation/test_ledger.py",
)

LEDGER = (
    "tests/federation/test_seals.py",
    "tests/federation/test_protocol.py",
    "tests/federation/test_writes.py",
    "tests/federation/test_ledger.py",
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
    """Which tests reach a line of a file, and how long each takes."""

    by_line: dict[int, list[str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    rejected: Counter[str] = field(default_factory=Counter)  # how many mutants of the file, by test

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests that reach a mutant, first who rejected most, then the quickest.

        A line that runs when its module is imported is reached by all.
        """
        lines = range(mutant.lines[0], mutant.lines[1] + 1)
        found = {test for line in lines for test in self.by_line.get(line, ())}
        found = set(self.seconds) if "" in found else found
        return sorted(found, key=lambda t: (-self.rejected[t], self.seconds.get(t, 0.0), t))


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
        """Try what is not on record yet, the quick way first; its survivors meet the exact one."""
        tests = digest(files_of(self.tests))
        open_files = [file for file in self.files if self.todo(file, tests)[1]]
        if not open_files:
            return
        looked = in_child(lambda: look(open_files, self.tests))
        if looked is None or looked["failed"]:
            sys.exit(f"{self.tests}: they fail without a mutant ({looked and looked['failed']}).")
        reach = {
            file: Reach({int(line): by for line, by in lines.items()}, looked["seconds"])
            for file, lines in looked["lines"].items()
        }

        def try_all(way: Way) -> None:
            for file in open_files:
                self.judge(file, tests, reach[file], way, until)

        in_child(lambda: with_tests_loaded(self.tests, try_all), silent=False)
        try_all(imported)

    def todo(self, file: str, tests: str) -> tuple[dict[str, Any], list[Mutant]]:
        """Return what the record says already, and the mutants of which it says nothing."""
        known: dict[str, Any] = {}
        if record_of(file).exists():
            old = json.loads(record_of(file).read_text())
            if old["source"] == digest([ROOT / file]):
                known = {e["key"]: e for e in old["mutants"] if e["by"] or old["tests"] == tests}
        wanted = mutants((ROOT / file).read_text())
        return known, [mutant for mutant in wanted if mutant.key not in known]

    def judge(self, file: str, tests: str, reach: Reach, way: Way, until: float) -> None:
        """Try the mutants of one file, and write each verdict down."""
        source = (ROOT / file).read_text()
        known, todo = self.todo(file, tests)
        order = [mutant.key for mutant in mutants(source)]
        if way is not imported:  # which would not end sooner for one that is to survive
            reasons = explained()
            todo = [m for m in todo if function_of(source, m) and (file, m.key) not in reasons]
        for mutant in todo:
            if time.monotonic() > until:
                return
            if mutant.key not in known:
                entry = verdict(file, mutant, reach, way)
                if way is not imported and entry["by"] == DIED:
                    continue  # perhaps of its patch; the exact way will tell
                if not entry["by"] and not (self.whole and way is imported):
                    continue
                known[mutant.key] = entry
            write(
                record_of(file),
                file=file,
                source=digest([ROOT / file]),
                tests=tests,
                total=len(order),
                mutants=[known[key] for key in order if key in known],
            )


def verdict(file: str, mutant: Mutant, reach: Reach, way: Way) -> dict[str, Any]:
    tests, by = reach.tests_of(mutant), ""
    for part in (tests[:MOST], tests[MOST:]):
        if part and not by:
            usual = sum(reach.seconds.get(test, 0.0) for test in part)
            by = way(file, mutant, part, max(AT_LEAST, PATIENCE * usual))
    reach.rejected.update([by] * (by in reach.seconds))
    entry = {"line": mutant.line, "key": mutant.key, "by": by or None, "reached_by": len(tests)}
    print(f"{file}:{mutant.line} {'rejected' if by else 'SURVIVES'}: {mutant.key}", flush=True)
    return entry


def write(record: Path, **whole: Any) -> None:
    record.parent.mkdir(parents=True, exist_ok=True)
    part = record.with_suffix(".part")
    part.write_text(json.dumps(whole, indent=1) + "\n")
    part.replace(record)


def explained() -> set[tuple[str, str]]:
    """Return the mutants that nobody could tell from the original, by their files and keys."""
    return {(entry["file"], entry["key"]) for entry in json.loads(EQUIVALENT.read_text())}


def survivors() -> list[tuple[str, int, str]]:
    """Return the mutants on record that no test rejected and that nobody has explained."""
    found, reasons = [], explained()
    for path in sorted(RECORDS.glob("*.json")):
        record = json.loads(path.read_text())
        for entry in record["mutants"]:
            if entry["by"] is None and (record["file"], entry["key"]) not in reasons:
                found.append((record["file"], entry["line"], entry["key"]))
    return found


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, add_help=True)
    words.add_argument("files", nargs="*", help="source files; all of the selection if none")
    words.add_argument("--tests", nargs="+", help="these alone; survivors meet the others later")
    words.add_argument("--minutes", type=float, default=1e9, help="stop after so many minutes")
    given = words.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("Stopped; the next run goes on here."))
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
