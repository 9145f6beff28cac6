"""The record of a benchmark: the machine, and a row for each workload."""

from pathlib import Path
from typing import Any

from trimtab._files import read_json, write_json
from trimtab_papers.bench.measurement import Row, machine


class BenchRecord:
    """Rows by workload. With a file they are written as they come; `resume` goes on with it."""

    def __init__(self, path: Path | None = None, *, resume: bool = False) -> None:
        self.path, self.machine = path, machine()
        self._rows: dict[str, dict[str, Any]] = {}
        if resume and path is not None and path.exists():
            before = read_json(path)
            check_same_machine(path, before["machine"], self.machine)
            self._rows = {row["workload"]: row for row in before["rows"]}

    def __contains__(self, workload: str) -> bool:
        return workload in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: Row) -> None:
        """Take up a row, in place of an older one, and write all of them."""
        self._rows[row.workload] = row.to_json()
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.path, self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return what the file and the command's JSON hold."""
        return {"machine": self.machine, "rows": list(self._rows.values())}


def check_same_machine(path: Path, then: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse to mix times of two machines, or of two kernels, in one record."""
    for fact in ("processor", "cores", "kernel"):
        if then[fact] != now[fact]:
            raise ValueError(
                f"{path} was measured on another machine ({fact} {then[fact]!r}, here "
                f"{now[fact]!r}); write to another file."
            )
