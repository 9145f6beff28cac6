"""The page of a federation's run, from the operator's folder alone."""

import json
import re

import pytest

from tests.helpers.federation_in_process import Federation as Inprocess
from tests.helpers.federation_in_process import quadratic, unsynced  # noqa: F401
from tests.helpers.operator_folder import operator_folder
from trimtab import Scaffold
from trimtab.cli import main
from trimtab.cli.federate.output import page_so_far
from trimtab.federation.protocol.coordinator import Coordinator
from trimtab.federation.setup.job import start_job
from trimtab.federation.setup.operator import Federation
from trimtab.report.federation import read_federation, write_federation

R = 6


class AsOperator(Inprocess):
    """A federation in one process whose server's folder is that of an operator."""

    def __init__(self, operator, folder, algorithm, problem):
        self.operator = operator
        super().__init__(folder, algorithm, problem, R=R, seed=0)

    def start(self, **options):
        self.options |= options
        return Coordinator(self.operator / "state", self.algorithm, self.names, **self.options)


@pytest.fixture
def operator(tmp_path):
    """The folder of an operator after a run of six rounds in which one site was away once."""
    federation = operator_folder(tmp_path / "fed", ["site0", "site1", "site2"])
    algorithm = Scaffold(eta_l=0.1, K=2)
    job = start_job(federation, algorithm, R=R, min_sites=2)
    (tmp_path / "fed" / "state").mkdir()
    run = AsOperator(tmp_path / "fed", tmp_path, algorithm, quadratic())
    run.restart_server(min_sites=2)
    away = run.sites["site2"]
    rounds = run.server.run(run.ask)
    for done in rounds:
        if done.r == 2:
            del run.sites["site2"]
        elif done.r == 3:
            run.sites["site2"] = away
    run.server.close()
    return tmp_path / "fed", job


def test_the_page_has_rounds_sites_and_settings(operator, capsys):
    folder, _ = operator
    text = write_federation(folder, "state").read_text()
    for title in ("Curves", "Sites", "Settings", "Drift and controls"):
        assert f"<h2>{title}</h2>" in text
    for name in ("site0", "site1", "site2"):
        assert re.search(rf'<th scope="row">{name}</th>', text)
    assert "over 3 sites ran 6 rounds" in text
    for key in Federation.read(folder).sites.values():
        assert key not in text


def test_what_a_round_measures_is_shown_at_the_round_that_made_it(operator):
    folder, _ = operator
    source = read_federation(folder)
    (entry,) = source.result.entries
    lines = [
        json.loads(row)
        for row in (folder / "state" / "journal.jsonl").read_text().split("\n")
        if row
    ]
    rounds = [line for line in lines if line["kind"] == "round"]
    (end,) = [line for line in lines if line["kind"] == "end"]
    assert [line.r for line in entry.curve] == list(range(1, R + 1))
    measured = [line.metrics["loss"] for line in entry.curve]
    assert measured[:-1] == [line["metrics"]["loss"] for line in rounds[1:]]
    assert measured[-1] == end["metrics"]["loss"]
    sites = {site.name: site for site in source.sites}
    assert sites["site0"].rounds == R
    assert sites["site2"].rounds == R - sites["site2"].absent
    assert sites["site2"].absent == 1
    assert sites["site2"].why
    assert sites["site0"].bytes_up > 0


def test_before_the_first_round_and_while_it_goes_on(operator, tmp_path):
    folder, job = operator
    assert "How sure: not yet" in page_so_far(folder, job)
    (folder / "state" / "checkpoint.safetensors").unlink()
    assert "fed has nothing to show yet" in page_so_far(folder, job)


def test_report_and_export_take_an_operators_folder(operator, capsys):
    folder, _ = operator
    main(["report", str(folder)])
    assert f"Page: {folder / 'report.html'}" in capsys.readouterr().out
    main(["export", str(folder), "--to", "csv"])
    assert len((folder / "rounds.csv").read_text().splitlines()) == R + 1


def test_a_folder_without_an_experiment_is_one_sentence(tmp_path, capsys):
    operator_folder(tmp_path / "fed", ["a"])
    with pytest.raises(SystemExit):
        main(["report", str(tmp_path / "fed")])
    said = capsys.readouterr().err
    assert "holds no experiment yet; begin with `trimtab federate server`" in said
    assert said.count("\n") == 1
