"""A run on disk, and its parts: a line per round, the event of a round, the selected model.

run.json                settings, seed, versions and, at the end, the outcome
rounds.jsonl            one line per round
checkpoint.safetensors  where the run continues; without it, its rounds are computed again
model.safetensors       the model after the last round, as a state_dict
best.safetensors        the model after the best round
"""

import json
import warnings
from collections import deque
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from trimtab._files import (
    LOCK,
    Lock,
    append_line,
    atomic_write,
    plain,
    read_json,
    read_lines,
    write_file,
    write_json,
)
from trimtab._version import RESULTS, __version__, environment
from trimtab.core import Algorithm
from trimtab.core.hyper import step_size
from trimtab.errors import BadArgument
from trimtab.problems.identity import matches_fingerprint
from trimtab.problems.problem import Problem
from trimtab.simulation.executors import Executor

FORMAT = 1

Stopped = Literal["target", "patience", "rounds"]
"""Why a run ended: it held the target, stopped improving, or completed its rounds."""

Split = float | Literal["none", "given"]
"""The held-out rows: a share of each client's, none, or validation data of the problem's own."""

SelectedOn = Literal["validation", "test", "training", "evaluate"]
SELECTION: dict[SelectedOn, str] = {
    "validation": "chosen on validation data",
    "test": "chosen on the test data, so that its test metrics flatter it; a split avoids that",
    "training": "chosen on the training data, since there are no others; a split avoids that",
    "evaluate": "chosen by what evaluate returns",
}


def execution_facts(executors: Iterable[Executor]) -> dict[str, Any]:
    """Return what results depend on besides the settings, and the facts of each executor."""
    used = list(executors)
    facts: dict[str, Any] = {}
    for executor in used:
        facts |= executor.facts()
    if not any(executor.threads == "all" for executor in used):
        return facts
    return facts | {"threads": torch.get_num_threads(), "bits": "depend on the number of threads"}


@dataclass(frozen=True)
class RoundLine:
    """One round in the record; on disk its metrics stand beside the other numbers.

    >>> line = RoundLine.from_json({"r": 3, "clients": 20, "accuracy": 0.9})
    >>> line.r, line.metrics
    (3, {'accuracy': 0.9})
    """

    r: int
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: float = 0.0
    drift: float | None = None
    spread: float | None = None
    cosine: float | None = None
    clients: int = 0
    exchanges: int = 0
    work: int = 0  # the sample gradients at clients
    metrics: dict[str, float | None] = field(default_factory=dict)

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> "RoundLine":
        """Read a line of rounds.jsonl."""
        own = {f.name for f in fields(cls)} - {"metrics"}
        metrics = {name: value for name, value in line.items() if name not in own}
        return cls(**{name: line[name] for name in own if name in line}, metrics=metrics)

    def to_json(self) -> dict[str, Any]:
        """Return the line as rounds.jsonl holds it."""
        facts = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "metrics"}
        line: dict[str, Any] = plain(facts | self.metrics)
        return line


@dataclass(frozen=True)
class RoundDone:
    """A completed round.

    label: the entry of the comparison that it belongs to.
    run: the folder of the trial within the entry; empty where nothing is written.
    """

    label: str
    algorithm: Algorithm
    line: RoundLine
    run: str = ""

    def __str__(self) -> str:
        step, value = step_size(self.algorithm)
        parts = [f"{step} = {value:.3g}"] if step else []
        parts.append(f"round {self.line.r}")
        parts += [f"{name} {v:.4g}" for name, v in self.line.metrics.items() if v is not None]
        parts += [] if self.line.drift is None else [f"drift {self.line.drift:.3g}"]
        return f"{self.label}: {', '.join(parts)}"


@dataclass(frozen=True)
class SelectedModel:
    """The model that a run leaves, and the data that selected it.

    selected_on: the data on which its round was the best; "evaluate" for a problem that does not
        say which data `evaluate` uses, and None if the last round is kept.
    """

    metric: str
    stopped: Stopped
    round: int | None = None  # the best round, or the last one if that is kept
    split: Split = "none"
    selected_on: SelectedOn | None = None
    validation: dict[str, float | None] | None = None  # its metrics on the held-out rows
    test: dict[str, float | None] | None = None  # None without test data

    @property
    def selection(self) -> str:
        """The data that selected it, in words; "" if the last round is kept."""
        return "" if self.selected_on is None else SELECTION[self.selected_on]

    def to_json(self) -> dict[str, Any]:
        """Return the fields that run.json holds and `--json` prints."""
        return {
            "metric": self.metric,
            "stopped": self.stopped,
            "chosen_round": self.round,
            "split": self.split,
            "selected_on": self.selected_on,
            "validation": plain(self.validation),
            "test": plain(self.test),
        }

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "SelectedModel":
        """Read the fields that `to_json` wrote among those of run.json."""
        names = ("metric", "stopped", "split", "selected_on", "validation", "test")
        return cls(round=record["chosen_round"], **{name: record[name] for name in names})


class Record:
    """The folder of one run; with folder None, the same in memory.

    An existing folder is opened only with `resume`, and only if it holds the same settings and,
    where `problem` is given, the same problem. `repeat` then replays its rounds one by one, so that
    early stopping and successive halving decide as they did in the first process.
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
        self.rounds: list[RoundLine] = []
        self.diverged: dict[str, Any] | None = None  # the fact that `note` wrote
        self._written = deque[RoundLine]()  # by an earlier process, not yet replayed
        if folder is None:
            return
        if open_folder(folder / "run.json", "run", settings, problem, resume):
            path = folder / "rounds.jsonl"
            lines = read_lines(path)
            kept = "".join(json.dumps(line) + "\n" for line in lines)
            if path.exists() and path.read_text(encoding="utf-8") != kept:
                write_file(path, kept)  # without the line that a crash has cut off
            self.reload()

    @property
    def checkpoint(self) -> Path | None:
        """Where the simulation is saved; None when nothing is written."""
        return None if self.folder is None else self.folder / "checkpoint.safetensors"

    @property
    def best(self) -> Path:
        """Where the model after the best round is kept while there is a folder."""
        assert self.folder is not None
        return self.folder / "best.safetensors"

    def reload(self) -> bool:
        """Read rounds that another process has added; return whether there are any."""
        if self.folder is None:
            return False
        lines = read_lines(self.folder / "rounds.jsonl")
        new = lines[len(self.rounds) + len(self._written) :]
        self._written.extend(RoundLine.from_json(line) for line in new)
        self.diverged = read_json(self.folder / "run.json").get("diverged")
        return bool(new)

    @property
    def pending(self) -> bool:
        """Whether an earlier process has written a round that was not repeated yet."""
        return bool(self._written)

    def repeat(self) -> bool:
        """Replay a round that an earlier process has written; return False if there is none."""
        if self._written:
            self.rounds.append(self._written.popleft())
            return True
        return False

    def append(self, line: RoundLine) -> None:
        """Add the line of one round."""
        assert not self._written
        written = line.to_json()
        self.rounds.append(RoundLine.from_json(written))
        if self.folder is not None:
            append_line(self.folder / "rounds.jsonl", written)

    def note(self, **facts: Any) -> None:
        """Add facts, such as the outcome, to run.json."""
        if self.folder is not None:
            path = self.folder / "run.json"
            write_json(path, read_json(path) | facts)


def open_folder(
    path: Path, kind: str, settings: dict[str, Any], problem: Problem | None, resume: bool
) -> bool:
    """Create the folder of `path`, its JSON file, or check an existing one before it is resumed.

    Return whether it existed.
    """
    folder, plainly = path.parent, plain(settings)
    if not path.exists():
        if resume and any((folder / name).exists() for name in ("run.json", "compare.json")):
            sentence = "{folder} holds no {what}; drop {resume:True}, or pass another {out}."
            raise BadArgument("resume", sentence, folder=folder, what=kind)
        marked = {} if problem is None else {"fingerprint": problem.fingerprint}
        _start_folder(path, kind, plainly | marked)
        return False
    if not resume:
        raise BadArgument(
            "resume",
            "{folder} holds a {what} already; pass {resume:True} to continue it, or another {out}.",
            folder=folder,
            what=kind,
        )
    saved = read_json(path)
    _check_version(folder, saved)
    theirs = saved.get("settings")
    if not isinstance(theirs, dict):
        raise ValueError(f"{path} holds no settings; restore it, or remove the folder.")
    if problem is not None:
        _check_problem(folder, problem, theirs.get("fingerprint", ""))
    _check_settings(folder, plainly, theirs)
    return True


def _start_folder(path: Path, kind: str, settings: dict[str, Any]) -> None:
    folder = path.parent
    ours = (LOCK, f"{path.name}.part")  # the second is left by a process killed here
    if folder.is_dir() and any(file.name not in ours for file in folder.iterdir()):
        raise BadArgument("out", "{folder} is not empty; pass another {out}.", folder=folder)
    folder.mkdir(parents=True, exist_ok=True)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    about = {"format": FORMAT, "results": RESULTS, "kind": kind, "started": started}
    write_json(path, about | {"versions": environment(), "settings": settings})


def _check_version(folder: Path, saved: dict[str, Any]) -> None:
    """Raise BadArgument if another version of the results wrote the folder."""
    if saved.get("results") != RESULTS or saved.get("format") != FORMAT:
        raise BadArgument(
            "out",
            "{folder} was written by trimtab {theirs}, whose numbers are not those of this one, "
            "{ours}; continue it with that version, or pass another {out}.",
            folder=folder,
            theirs=saved.get("versions", {}).get("trimtab", "?"),
            ours=__version__,
        )


def _check_settings(folder: Path, ours: dict[str, Any], saved: dict[str, Any]) -> None:
    """Raise BadArgument if a setting differs; `_check_problem` compares the fingerprint."""
    theirs = {name: value for name, value in saved.items() if name != "fingerprint"}
    for name in ours | theirs:  # A setting with its default now may have had another value.
        if theirs.get(name) != ours.get(name):
            raise BadArgument(
                name,
                "{folder} was made with {setting}={theirs!r}, not {ours!r}; repeat its settings to "
                "resume it, or pass another {out}.",
                folder=folder,
                setting=name,
                theirs=theirs.get(name),
                ours=ours.get(name),
            )


def move_aside(folder: Path, resume: bool = False) -> None:
    """Rename an existing folder to NAME.old-1, or the next free number, and warn about it."""
    if resume:
        sentence = "{force:True} starts again and {resume:True} continues; pass one of them."
        raise BadArgument("force", sentence)
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if Path.cwd().is_relative_to(folder.resolve()):
        raise BadArgument(
            "out", "{_folder} holds the folder you are in; pass another {out}.", _folder=folder
        )
    number = 1
    while (aside := folder.with_name(f"{folder.name}.old-{number}")).exists():
        number += 1
    with Lock(folder) if folder.is_dir() else nullcontext():  # no other process writes to it
        folder.rename(aside)
    warnings.warn(f"{folder} was moved to {aside}.", stacklevel=3)


def _check_problem(folder: Path, problem: Problem, stored: str) -> None:
    """Raise BadArgument if the problem differs; warn where its fingerprint cannot say."""
    alike = matches_fingerprint(problem, stored)
    if alike.differs:
        raise BadArgument(
            "problem",
            "{folder} was made with another problem: {differences}; repeat what it was made with "
            "to resume it, or pass another {out}.",
            folder=folder,
            differences=", ".join(alike.differs),
        )
    if alike.warning:
        warnings.warn(f"{folder}: {alike.warning}", stacklevel=3)


def write_model(path: Path, tensors: dict[str, torch.Tensor], r: int) -> None:
    """Write the model of a round atomically."""
    with atomic_write(path) as part:
        save_file(tensors, part, metadata={"r": str(r)})


def model_round(path: Path) -> int | None:
    """Return the round whose model a file holds; None if there is no such file."""
    try:
        with safe_open(path, framework="pt") as file:
            return int((file.metadata() or {})["r"])
    except (OSError, SafetensorError, KeyError, ValueError):
        return None
