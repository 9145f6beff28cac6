"""docs/scikit-learn.md: its blocks in order, and what it says they print."""

import re
from pathlib import Path

import pytest
import sklearn

PAGE = (Path(__file__).parents[2] / "docs" / "scikit-learn.md").read_text()


@pytest.fixture
def settings():
    before = sklearn.get_config()
    yield
    sklearn.set_config(**before)


def test_every_block_of_the_page_runs(settings, capsys):
    names = {}
    for source in re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S):
        exec(compile(source, "docs/scikit-learn.md", "exec"), names)
    first, second = capsys.readouterr().out.splitlines()
    assert f"It prints `{first}`." in PAGE
    assert second.startswith("{'K': ")
    assert len(names["steps"][-1].groups_) == len(names["search"].best_estimator_.groups_) == 4


def test_the_page_is_short():
    assert len(PAGE.split()) <= 500
