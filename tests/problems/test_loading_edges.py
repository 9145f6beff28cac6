"""Users' files, tables and clients at their edges."""

import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trimtab import Supervised, load_problem
from trimtab.problems.identity import compare_fingerprints

LAZY = """
def problem():
    import beside_the_file
    from trimtab import Quadratic
    return Quadratic([1.0, 2.0], [0.0, beside_the_file.B])
"""
PATHS = """
import sys
sys.path.insert(0, "a-folder-of-the-users-own")
from trimtab import Quadratic
def problem():
    return Quadratic([1.0], [0.0])
"""


@pytest.fixture
def path(monkeypatch):
    """The path that modules are found on, as it was, after the test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield sys.path
    sys.modules.pop("beside_the_file", None)


def test_a_function_may_import_what_lies_beside_its_file(tmp_path, path):
    (tmp_path / "beside_the_file.py").write_text("B = 3.0\n")
    (tmp_path / "mine.py").write_text(LAZY)
    before = list(path)
    assert load_problem(f"{tmp_path / 'mine.py'}:problem").b[1] == 3.0
    assert sys.path == before


def test_a_folder_that_a_file_puts_on_the_path_stays_there(tmp_path, path):
    (tmp_path / "mine.py").write_text(PATHS)
    load_problem(f"{tmp_path / 'mine.py'}:problem")
    assert "a-folder-of-the-users-own" in sys.path
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize("value", [0.1, 0.3, 1e6 + 0.1])
def test_a_column_of_one_value_is_not_divided_by_its_rounding(value):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"who": [0, 0, 1, 1] * 3, "x": [value] * 12, "y": [0, 1, 1] * 4})
    table.loc[:, "z"] = table.index
    unseen = table.assign(x=value + 1)
    problem = Supervised.from_frame(
        table,
        client="who",
        target="y",
        module=lambda inputs: nn.Linear(inputs, 2),
        loss=F.cross_entropy,
        test=unseen,
    )
    assert problem.clients[0].X[:, 0].abs().max() < 1e-3
    torch.testing.assert_close(problem.test.X[:, 0], torch.ones(12), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("part", ["collate=1f2e", "tests=1f2e"])
def test_a_part_that_few_problems_have_differs_from_having_none(part):
    without = "Supervised/2 N=3 batch=32"
    assert compare_fingerprints(without, f"{without} {part}").differs
    assert compare_fingerprints(f"{without} {part}", without).differs
    assert not compare_fingerprints(f"{without} {part}", f"{without} {part}").differs


def test_clients_without_any_samples_have_no_epochs():
    none = (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))
    some = (torch.zeros(4, 3), torch.zeros(4, dtype=torch.long))
    problem = Supervised(nn.Linear(3, 2), F.cross_entropy, [none, none], some, batch=2)
    with pytest.raises(ValueError, match="client 0 has no samples; leave it out"):
        problem.steps(1)


class Lazy:
    """Test parts that are read when they are asked for, and of which there is none."""

    def __len__(self):
        return 1

    def __getitem__(self, i):
        return None


def test_a_test_set_of_clients_that_all_have_none_is_refused():
    some = (torch.zeros(4, 3), torch.zeros(4, dtype=torch.long))
    problem = Supervised(nn.Linear(3, 2), F.cross_entropy, [some], tests=Lazy())
    with pytest.raises(ValueError, match="the test set has no samples"):
        problem.evaluate(problem.x0())
