"""A diagnosis that was stopped continues after its last finished stage, with the same result."""

import shutil

import pytest
import torch

from tests.helpers.losses import logistic, quadratics
from trimtab import diagnose
from trimtab.diagnosis import stages

STAGES = ("panel", "curvature", "facts", "optimum", "noise", "hessians", "model", "runs")


def numbers(found):
    return {name: value for name, value in found.to_json().items() if name != "seconds"}


@pytest.fixture(scope="module")
def problem():
    return logistic(N=6, batch=10)


@pytest.fixture(scope="module")
def whole(problem, tmp_path_factory):
    """Return the folder of a whole diagnosis, and its numbers."""
    folder = tmp_path_factory.mktemp("diagnosis") / "stages"
    return folder, numbers(diagnose(problem, S=3, out=folder))


@pytest.mark.parametrize("finished", range(len(STAGES) + 1))
def test_it_continues_after_any_stage_with_the_same_result(problem, whole, tmp_path, finished):
    folder, expected = whole
    stopped = tmp_path / "stages"
    shutil.copytree(folder, stopped)
    for name in STAGES[finished:]:
        (stopped / f"{name}.pt").unlink()
    assert numbers(diagnose(problem, S=3, out=stopped, resume=True)) == expected
    assert {path.stem for path in stopped.glob("*.pt")} == set(STAGES)


def test_finished_stages_do_not_run_again(problem, whole, tmp_path, monkeypatch):
    folder, expected = whole
    shutil.copytree(folder, tmp_path / "stages")

    def again(*_):
        raise AssertionError("this stage was finished")
        yield

    for name in ("first_facts", "best_gradients", "client_hessians", "predictions", "runs"):
        monkeypatch.setattr(stages, name, again)
    found = diagnose(problem, S=3, out=tmp_path / "stages", resume=True)
    assert numbers(found) == expected


def test_other_settings_or_problems_do_not_continue_it(problem, whole, refused):
    folder, _ = whole
    with refused("S=3"):
        diagnose(problem, S=2, out=folder, resume=True)
    with refused("another problem"):
        diagnose(quadratics(), S=3, out=folder, resume=True)
    with refused("resume=True"):
        diagnose(problem, S=3, out=folder)
    with refused("pass out too"):
        diagnose(problem, S=3, resume=True)


class Harmful:
    """It would run code when it is read."""

    def __reduce__(self):
        return print, ("this must not run",)


def test_a_file_of_a_stage_runs_no_code(problem, whole, tmp_path, capsys, refused):
    folder, _ = whole
    shutil.copytree(folder, tmp_path / "stages")
    torch.save(Harmful(), tmp_path / "stages" / "runs.pt")
    with refused("runs.pt cannot be read"):
        diagnose(problem, S=3, out=tmp_path / "stages", resume=True)
    assert "this must not run" not in capsys.readouterr().out
