"""The notebooks run from top to bottom, without a warning, and show what they are about."""

import json
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="pip install nbclient")
nbclient = pytest.importorskip("nbclient", reason="pip install nbclient ipykernel")

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))
SHOWS = {
    "data_to_advice": ["How sure: ", "diagnose: ", "compare: ", "<table>", "rounds_low"],
    "scaffold_and_mime": ["2 exchanges", "4 of 10, half slow", "Mime", "<b>Round 60</b>"],
}


def test_there_are_two():
    assert {path.stem for path in NOTEBOOKS} == set(SHOWS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_holds_no_outputs(path):
    cells = json.loads(path.read_text("utf-8"))["cells"]
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    strict = nbformat.v4.new_code_cell("import warnings; warnings.simplefilter('error')")
    notebook.cells.insert(0, strict)
    client = nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert not [one for one in outputs if one.output_type == "error"]
    text = json.dumps(outputs, ensure_ascii=False)
    for word in SHOWS[path.stem]:
        assert word in text, word
