"""Rounds as TensorBoard reads them: a folder for each run, a scalar for each number of a round."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trimtab.report.sources import Source
from trimtab.report.tools.runs import file_name, runs_of, scalars
from trimtab.studies.record import RoundDone, RoundLine

FLUSH = 5  # seconds after which a round can be seen, at most


def write_tensorboard(sources: Sequence[Source], folder: Path) -> list[Path]:
    """Write the runs of some results; return the folder that `tensorboard --logdir` takes."""
    writer = _writer()
    for source in sources:
        home = folder / file_name(source) if len(sources) > 1 else folder
        for run in runs_of(source):
            with writer(str(home / run.name), flush_secs=FLUSH) as out:
                for line in run.rounds:
                    _add(out, line)
    return [folder]


class RoundLog:
    """Writes rounds as they come; nothing is there before the first.

    A lane has one open file at a time: what it runs next to another has a folder of its own.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._writer = folder, _writer()
        self._open: dict[str, tuple[str, Any]] = {}  # by lane: which of its runs, and its file

    def __enter__(self) -> "RoundLog":
        return self

    def __exit__(self, *error: object) -> None:
        for _, out in self._open.values():
            out.close()

    def add(self, event: RoundDone) -> None:
        """Write a round; those that are run to see how long they take have no name."""
        if not event.label:
            return
        known = self._open.get(event.label)
        if known is None or known[0] != event.run:
            if known is not None:
                known[1].close()
            home = self._folder / event.label / event.run
            known = event.run, self._writer(str(home), flush_secs=FLUSH)
            self._open[event.label] = known
        _add(known[1], event.line)


def _add(out: Any, line: RoundLine) -> None:
    for name, value in scalars(line).items():
        out.add_scalar(name, value, line.r)


def _writer() -> Any:
    """Return what writes the files of TensorBoard, or say how to get it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError(
            "TensorBoard is not installed; run `pip install 'trimtab[tensorboard]'`."
        ) from None
    return SummaryWriter
