"""Sections on a terminal of any width."""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from trimtab import Quadratic, compare
from trimtab.core.sections import Section, Table
from trimtab.report import print_sections
from trimtab.studies.sections import sections

MORE = "elsewhere."


def printed(content, width, terminal=False):
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, no_color=True)
    print_sections(content, console, MORE)
    return out.getvalue()


@pytest.fixture(scope="module")
def result():
    return compare(Quadratic([1.0, 3.0], [1.0, -2.0]), ["fedavg", "mime"], R=8, K=[1, 3], seeds=2)


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120, 200])
def test_a_table_fits_and_breaks_no_word(result, width):
    table = sections(result)[0].table
    text = printed([Section(table=table)], width)
    lines = [line for line in text.splitlines() if line[:1] in "┏┃┡│└"]
    assert all(cell_len(line) <= width for line in lines)
    cells = [
        cell.strip() for line in lines if line[0] in "┃│" for cell in line[1:-1].split(line[0])
    ]
    whole = {cell for row in table.rows for cell in row}
    whole |= {word for head in table.heads for word in (head, *head.split())}
    assert set(cells) <= whole | {""}
    assert ("Columns without room" in text) == (len(lines[-1].split("┴")) < len(table.heads))


def test_the_least_important_columns_are_dropped_and_named():
    table = Table(
        ["name", "a", "b", "c"], [["x", "1" * 9, "2" * 9, "3" * 9]], important=["name", "b"]
    )
    text = printed([Section(table=table)], 34)
    assert "222222222" in text
    assert "111111111" in text
    assert "Columns without room: c; elsewhere." in text
    assert "333333333" not in text
    assert "Columns without room: a, c; elsewhere." in printed([Section(table=table)], 24)
    assert "Columns" not in printed([Section(table=table)], 60)


def test_sentences_are_one_line_in_a_pipe_and_wrapped_on_a_terminal():
    section = Section("Why", ["word " * 40], kind="list")
    assert len(printed([section], 60).splitlines()) == 2
    assert len(printed([section], 60, terminal=True).splitlines()) > 3


def test_figures_and_folded_tables_are_for_pages():
    inside = Section("Inside", ["A sentence."], Table(["a"], [["hidden"]], folded="The numbers"))
    text = printed([Section("Outside", figure="<svg/>", parts=[inside])], 60)
    assert "Outside" in text
    assert "A sentence." in text
    assert "svg" not in text
    assert "hidden" not in text
