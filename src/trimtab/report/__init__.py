"""Records made readable: tables, plots, one self-contained HTML page."""

from trimtab.report.diagnosis import write_diagnosis
from trimtab.report.page import write_page
from trimtab.report.table import bench_table, reproduction_table, terminal_table

__all__ = ["bench_table", "reproduction_table", "terminal_table", "write_diagnosis", "write_page"]
