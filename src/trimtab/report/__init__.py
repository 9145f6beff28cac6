"""Records made readable: tables, charts, one self-contained HTML page.

May import studies, diagnosis and federation. Names are found on first use; charts are SVG of our
own.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab.report.diagnosis import write_diagnosis
    from trimtab.report.page import write_page, write_pages
    from trimtab.report.sources import read_source
    from trimtab.report.table import terminal_table

_HOMES = {
    "terminal_table": "table",
    "read_source": "sources",
    "write_diagnosis": "diagnosis",
    "write_page": "page",
    "write_pages": "page",
}

__all__ = [
    "read_source",
    "terminal_table",
    "write_diagnosis",
    "write_page",
    "write_pages",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'trimtab.report' has no attribute {name!r}")
    return getattr(import_module(f"trimtab.report.{_HOMES[name]}"), name)
