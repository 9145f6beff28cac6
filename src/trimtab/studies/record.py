"""A run on disk: settings, seed and versions in run.json, one JSON line per round, the model.

run.json                what was run, with what, and at the end what came of it
rounds.jsonl            one line per round
checkpoint.safetensors  where the run goes on; without it, its rounds are run once more
model.safetensors       the model after the last round, as a state_dict
best.safetensors        the model after the best round
"""

import json
import os
import platform
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from trimtab.problems.problem import Problem, fingerprint, same_problem
from trimtab.simulation.executors import bits_depend_on_threads

with suppress(ImportError):  # not on Windows
    import fcntl

FORMAT = 1

_HELD: set[Path] = set()  # folders that this process keeps to itself


class InUseError(ValueError):
    """Another process writes there."""


@contextmanager
def alone(folder: Path | None) -> Iterator[None]:
    """Keep a folder to this process while it writes there; a process that ends lets go of it."""
    if folder is None or "fcntl" not in globals() or folder.resolve() in _HELD:
        yield
        return
    if folder.is_file():
        raise ValueError(f"{folder} is a file; pass another --out.")
    folder.mkdir(parents=True, exist_ok=True)
    key = folder.resolve()
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InUseError(
                f"{folder} is being written by another process; wait for it, or end it first."
            ) from None
        _HELD.add(key)
        yield
    finally:
        _HELD.discard(key)
        os.close(descriptor)


def how_computed(executors: Iterable[str]) -> dict[str, Any]:
    """Return what bits depend on beside the settings: threads, where an executor uses them all."""
    if not any(map(bits_depend_on_threads, executors)):
        return {}
    return {"threads": torch.get_num_threads(), "bits": "depend on the number of threads"}


def versions() -> dict[str, str]:
    """Return the versions that a run depends on."""
    from trimtab import __version__

    return {
        "trimtab": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "platform": platform.platform(),
    }


class Record:
    """The folder of one run; with folder None, the same in memory.

    `settings` say what is run. An existing folder is taken up again only with `resume`, and only
    if it holds the same settings, and the same problem where one is given.
    """

    def __init__(
        self,
        folder: Path | None,
        settings: dict[str, Any],
        *,
        problem: Problem | None = None,
        resume: bool = False,
    ) -> None:
        self.folder, self.settings = folder, settings
        self.rounds: list[dict[str, Any]] = []
        if folder is None:
            return
        if open_folder(folder / "run.json", "run", settings, problem, resume):
            self.rounds = _read_lines(folder / "rounds.jsonl")
            _write(folder / "rounds.jsonl", "".join(json.dumps(r) + "\n" for r in self.rounds))

    @property
    def checkpoint(self) -> Path | None:
        """Where the simulation is saved; None when nothing is written."""
        return None if self.folder is None else self.folder / "checkpoint.safetensors"

    @property
    def best(self) -> Path:
        """Where the model after the best round is kept while there is a folder."""
        assert self.folder is not None
        return self.folder / "best.safetensors"

    def append(self, line: dict[str, Any]) -> None:
        """Add the line of one round."""
        line = plain(line)
        self.rounds.append(line)
        if self.folder is not None:
            with open(self.folder / "rounds.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def note(self, **facts: Any) -> None:
        """Write facts known at the end (the outcome) beside the settings."""
        if self.folder is not None:
            path = self.folder / "run.json"
            write_json(path, read_json(path) | facts)


def open_folder(
    path: Path, kind: str, settings: dict[str, Any], problem: Problem | None, resume: bool
) -> bool:
    """Start the folder of a run at `path`, its JSON file; or, to resume, check that it is the same.

    Return whether it was there already. Nothing is ever overwritten.
    """
    folder, plainly = path.parent, plain(settings)
    if problem is not None:
        plainly["fingerprint"] = fingerprint(problem)
    if not path.exists():
        if folder.is_dir() and any(folder.iterdir()):
            raise ValueError(f"{folder} is not empty; pass another --out.")
        folder.mkdir(parents=True, exist_ok=True)
        started = datetime.now(UTC).isoformat(timespec="seconds")
        about = {"format": FORMAT, "kind": kind, "started": started, "versions": versions()}
        write_json(path, about | {"settings": plainly})
        return False
    if not resume:
        raise ValueError(
            f"{folder} holds a {kind} already; pass --resume to continue it, or another --out."
        )
    found = read_json(path)
    theirs, ours = found.get("versions", {}).get("trimtab", "?"), versions()["trimtab"]
    if theirs != ours or found.get("format") != FORMAT:
        raise ValueError(
            f"{folder} was written by trimtab {theirs}, this is {ours}; continue it with that "
            "version, or start anew with another --out."
        )
    if problem is not None:
        _check_problem(folder, problem, found["settings"].get("fingerprint", ""))
        del plainly["fingerprint"]
    for name, value in plainly.items():
        if found["settings"].get(name) != value:
            raise ValueError(
                f"{folder} was made with {name}={found['settings'].get(name)!r}, not {value!r}; "
                "repeat its settings to resume it, or pass another --out."
            )
    return True


def _check_problem(folder: Path, problem: Problem, stored: str) -> None:
    """Refuse to go on with another problem; warn where nobody can tell."""
    alike = same_problem(problem, stored)
    if alike.differs:
        raise ValueError(
            f"{folder} was made with another problem: {', '.join(alike.differs)}; repeat what it "
            "was made with to resume it, or pass another --out."
        )
    if alike.warning:
        warnings.warn(f"{folder}: {alike.warning}", stacklevel=3)


def plain(value: Any) -> Any:
    """Return value as JSON holds it: no NaN, no tuples, no tensors."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file whole."""
    _write(path, json.dumps(plain(content), indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file of ours."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path.parent} holds no run (there is no {path.name}).") from None
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read ({error}); restore or remove it.") from None
    return content


def write_model(path: Path, tensors: dict[str, torch.Tensor], r: int) -> None:
    """Write the model of a round whole."""
    part = path.with_name(path.name + ".part")
    save_file(tensors, part, metadata={"r": str(r)})
    os.replace(part, path)


def model_round(path: Path) -> int | None:
    """Return the round whose model a file holds; None if there is no such file."""
    try:
        with safe_open(path, framework="pt") as file:
            return int((file.metadata() or {})["r"])
    except (OSError, SafetensorError, KeyError, ValueError):
        return None


def _write(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    with open(part, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the whole lines of a file that a crash may have cut off."""
    if not path.exists():
        return []
    lines: list[dict[str, Any]] = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:
            break
    return lines
