"""Which model a run leaves, and how good it is on data that had no part in the choice."""

from dataclasses import dataclass
from typing import Any, Literal

from trimtab._files import plain

Stopped = Literal["target", "patience", "rounds"]
"""Why a run ended: it got there, it got no better, or its rounds were over."""

Split = float | Literal["none", "given"]
"""What the choice looked at: a share of the rows, what rounds report, or validation data."""


@dataclass(frozen=True)
class Chosen:
    """The model that was chosen, by validation data if there was a split."""

    metric: str
    stopped: Stopped
    round: int | None = None  # the first of the best, or the last if that one is kept
    split: Split = "none"
    validation: dict[str, float | None] | None = None  # its metrics on those rows
    test: dict[str, float] | None = None  # and on the test data; None if there are none

    def to_json(self) -> dict[str, Any]:
        """Return what run.json keeps and `--json` prints."""
        return {
            "metric": self.metric,
            "stopped": self.stopped,
            "chosen_round": self.round,
            "split": self.split,
            "validation": plain(self.validation),
            "test": plain(self.test),
        }
