"""docs/bring-your-own-loop.md: both sides of its diff, and all of its blocks in order."""

import ast
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "bring-your-own-loop.md").read_text()
EXAMPLE = (ROOT / "examples" / "own_loop.py").read_text()
NEEDED = ("lightning", "transformers", "peft")


def block(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)


def side(sign):
    """Return the script of one side of the diff."""
    lines = block("diff")[0].splitlines(keepends=True)
    return "".join(line[1:] for line in lines if line[0] in (" ", sign))


def accuracy(source, names, capsys):
    exec(compile(source, "docs/bring-your-own-loop.md", "exec"), names)
    return float(capsys.readouterr().out.removeprefix("accuracy "))


def test_the_diff_leads_to_the_example():
    documentation = ast.get_docstring(ast.parse(EXAMPLE), clean=False)
    assert EXAMPLE.removeprefix(f'"""{documentation}"""\n\n') == side("+")
    added = [line for line in block("diff")[0].splitlines() if line.startswith("+")]
    assert len(side("+").splitlines()) <= 40
    assert len(added) <= 14


@pytest.mark.skipif(
    not all(map(find_spec, NEEDED)), reason="pip install 'trimtab[lora,lightning]' for this page"
)
@pytest.mark.filterwarnings(
    "ignore:.*does not have many workers",
    "ignore:The number of training batches",
    "ignore:`isinstance.treespec, LeafSpec.`:FutureWarning",
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning",  # peft's call
)
def test_every_block_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before, names = accuracy(side("-"), {}, capsys), {}
    after = accuracy(side("+"), names, capsys)
    assert before == pytest.approx(0.80, abs=0.02)
    assert after == pytest.approx(0.95, abs=0.02)
    assert "prints `accuracy 0.80` without the change and `accuracy 0.95` with it" in PAGE
    for source in block("python"):
        exec(compile(source, "docs/bring-your-own-loop.md", "exec"), names)
    assert names["K"] == 3
    assert names["mine"].tag != "start"


def test_the_page_is_short():
    assert len(PAGE.split()) <= 1200
