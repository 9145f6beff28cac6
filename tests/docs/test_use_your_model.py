"""docs/use-your-model.md: all of its blocks, run in order in one folder."""

import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers.command import trimtab

PAGE = Path(__file__).parents[2] / "docs" / "use-your-model.md"
NEEDED = ("pandas", "onnxscript", "onnxruntime")


@pytest.mark.skipif(
    not all(map(find_spec, NEEDED)), reason="pip install 'trimtab[pandas,onnx]' for this page"
)
def test_every_block_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    names = {}
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", PAGE.read_text(), re.M | re.S):
        file = re.match(r"# (\w+\.py)\n", block)
        if file:
            (tmp_path / file[1]).write_text(block)
        elif language == "python":
            exec(compile(block, PAGE.name, "exec"), names)
        else:
            for line in block.splitlines():
                code, _, err = trimtab(capsys, *shlex.split(line)[1:])
                assert code == 0, err
    sys.modules.pop("tumours")
    assert (names["model"].predict(names["rows"]) == names["kinds"]).all()
    assert names["right"] > 0.9
    assert abs(names["probabilities"] - names["p"]).max() < 1e-5
    assert len(names["numbers"]) == len(names["digits"].test.y)
    written = [(tmp_path / f"{name}.csv").read_text() for name in ("predictions", "probabilities")]
    assert [text.split("\n", 1)[0] for text in written] == ["kind", "benign,malignant"]
    assert written[0].split()[1:] == list(names["kinds"])


def test_the_page_is_short():
    assert len(PAGE.read_text().split()) <= 700
