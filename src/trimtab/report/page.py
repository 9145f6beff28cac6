"""One self-contained HTML page for a comparison or a run."""

from pathlib import Path

from trimtab._files import write_whole
from trimtab.report.panels import PANELS
from trimtab.report.style import document
from trimtab.report.table import wanted
from trimtab.studies.comparison import Comparison


def write_page(result: Comparison, path: Path) -> Path:
    """Write the page, and return where it is."""
    alone = len(result.entries) == 1
    who = result.entries[0].shown if alone else f"{len(result.entries)} algorithms"
    title = f"{result.problem}: {who} to {wanted(result)}"
    parts = (panel(result) for panel in PANELS)
    write_whole(path, document(title, "\n".join(part for part in parts if part)))
    return path
