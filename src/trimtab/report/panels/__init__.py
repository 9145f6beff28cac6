"""The parts of a page, in order. A panel is a function; PANELS is where it is named.

A panel takes the whole page and returns HTML, escaped, or "" where it has nothing to show.
"""

from collections.abc import Callable

from trimtab.report.panels.answer import answer
from trimtab.report.panels.clients import clients, served
from trimtab.report.panels.curves import curves, telemetry
from trimtab.report.panels.diagnosis import diagnosis
from trimtab.report.panels.search import search
from trimtab.report.panels.settings import data, made, settings
from trimtab.report.panels.sites import sites
from trimtab.report.panels.table import table
from trimtab.report.sources import Page

Panel = Callable[[Page], str]
PANELS: tuple[Panel, ...] = (
    *(answer, curves, table, search, telemetry, sites, clients, served, diagnosis),
    *(made, settings, data),
)
