"""Results as CSV: a line for each round of each run, and the table."""

import csv
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from trimtab._files import write_file
from trimtab.report.sources import Source
from trimtab.report.tools.runs import file_name, runs_of, scalars


def write_csv(sources: Sequence[Source], folder: Path) -> list[Path]:
    """Write rounds.csv, and table.csv for each result; return where they are."""
    rows = [
        {"folder": source.name, "run": run.name, "seed": run.seed, "round": line.r} | scalars(line)
        for source in sources
        for run in runs_of(source)
        for line in run.rounds
    ]
    heads = list(dict.fromkeys(name for row in rows for name in row))
    text = StringIO()
    writer = csv.DictWriter(text, heads, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    paths = [folder / "rounds.csv"]
    write_file(paths[0], text.getvalue())
    for source in sources:
        alone = len(sources) == 1
        paths.append(folder / ("table.csv" if alone else f"table-{file_name(source)}.csv"))
        write_file(paths[-1], source.result.to_csv())
    return paths
