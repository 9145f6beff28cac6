"""Results as tables, charts and self-contained HTML pages.

May import studies, diagnosis and federation. Names are found on first use; the charts are SVG
written here.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab.report.diagnosis import write_diagnosis
    from trimtab.report.page import write_page, write_pages
    from trimtab.report.sources import read_source
    from trimtab.report.terminal import print_sections

_HOMES = {
    "print_sections": "terminal",
    "read_source": "sources",
    "write_diagnosis": "diagnosis",
    "write_page": "page",
    "write_pages": "page",
}

__all__ = [
    "print_sections",
    "read_source",
    "write_diagnosis",
    "write_page",
    "write_pages",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'trimtab.report' has no attribute {name!r}")
    return getattr(import_module(f"trimtab.report.{_HOMES[name]}"), name)
