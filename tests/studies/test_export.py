"""Results in other people's tools: what TensorBoard, MLflow and a spreadsheet find there."""

import csv
import json
import shutil
import warnings

import pytest

from trimtab import Quadratic, Scaffold, compare
from trimtab.cli import main
from trimtab.studies.run import run

R = 6


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A comparison with two seeds, and a run."""
    home = tmp_path_factory.mktemp("results")
    pair = Quadratic([1.0, 3.0], [1.0, -2.0])
    words = {"R": R, "K": 2, "seeds": 2, "target": -5.0}
    compare(pair, ["sgd", "fedavg"], **words, out=home / "compared")
    run(Scaffold(eta_l=0.1, K=2), pair, R=R, name="pair", out=home / "alone")
    return home


def exported(capsys, *words):
    main(["export", *map(str, words), "--json"])
    return json.loads(capsys.readouterr().out)["paths"]


def rounds_of(folder):
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def test_csv_has_every_round_of_every_seed_in_full(home, tmp_path, capsys):
    paths = exported(capsys, home / "compared", home / "alone", "--to", "csv", "--out", tmp_path)
    names = ["rounds.csv", "table-compared.csv", "table-alone.csv"]
    assert paths == [str(tmp_path / name) for name in names]
    with open(paths[0], newline="") as file:
        rows = list(csv.DictReader(file))
    runs = {(row["folder"], row["run"]) for row in rows}
    seeds = {("compared", f"{name}/seed={s}") for name in ("sgd", "fedavg-K2") for s in (19, 20)}
    assert runs == seeds | {("alone", "scaffold")}
    mine = [row for row in rows if row["folder"] == "alone"]
    written = rounds_of(home / "alone")
    assert [float(row["loss"]) for row in mine] == [line["loss"] for line in written]
    assert [row["bytes_up"] for row in mine] == [str(line["bytes_up"]) for line in written]


def test_a_seed_whose_folder_is_gone_does_not_give_its_number_to_the_next(home, tmp_path, capsys):
    shutil.copytree(home / "compared", tmp_path / "compared")
    (gone,) = (tmp_path / "compared" / "sgd").glob("*seed=19")
    shutil.rmtree(gone)
    rounds, _ = exported(capsys, tmp_path / "compared", "--to", "csv")
    with open(rounds, newline="") as file:
        runs = {(row["run"], row["seed"]) for row in csv.DictReader(file)}
    assert {run for run in runs if run[0].startswith("sgd")} == {("sgd/seed=20", "20")}


def test_one_folder_is_exported_into_itself(home, capsys):
    (rounds, table) = exported(capsys, home / "alone", "--to", "csv")
    assert rounds == str(home / "alone" / "rounds.csv")
    assert table == str(home / "alone" / "table.csv")


def scalars_of(folder):
    """Return what TensorBoard reads in a folder: the rounds and values of each scalar."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own
        read = EventAccumulator(str(folder)).Reload()
        names = read.Tags()["scalars"]
        return {name: [(one.step, one.value) for one in read.Scalars(name)] for name in names}


def test_tensorboard_reads_what_was_written(home, tmp_path, capsys):
    pytest.importorskip("tensorboard", reason="pip install 'trimtab[tensorboard]'")
    words = (home / "compared", "--to", "tensorboard", "--out", tmp_path)
    (folder,) = exported(capsys, *words)
    assert folder == str(tmp_path / "tensorboard")
    found = scalars_of(tmp_path / "tensorboard" / "fedavg-K2" / "seed=20")
    assert [step for step, _ in found["loss"]] == list(range(1, len(found["loss"]) + 1))
    (own,) = (home / "compared" / "fedavg-K2").glob("*-seed=20")
    written = [(line["r"], line["loss"]) for line in rounds_of(own)]
    assert found["loss"] == [(r, pytest.approx(loss, rel=1e-6)) for r, loss in written]
    assert {"loss", "drift", "bytes_up", "work"} <= set(found)


def test_rounds_are_written_for_tensorboard_while_they_run(tmp_path, capsys, monkeypatch):
    pytest.importorskip("tensorboard", reason="pip install 'trimtab[tensorboard]'")
    monkeypatch.chdir(tmp_path)
    common = ("--log", "tensorboard", "--out", "here")
    main(["compare", "quadratic", "--algorithms", "fedavg", "-R", "6", "--budget", "3000", *common])
    runs = {path.parent.name: path.parent for path in tmp_path.rglob("rounds.jsonl")}
    logged = {path.parent.name: path.parent for path in tmp_path.rglob("events.out.*")}
    assert set(logged) == set(runs)
    assert any("seed=" in name for name in runs)
    for name, folder in runs.items():
        # A run that goes on after another one has several files, which have no order of their own.
        assert sorted(step for step, _ in scalars_of(logged[name])["loss"]) == [
            line["r"] for line in rounds_of(folder)
        ]


def test_mlflow_reads_what_was_written(home, tmp_path, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own
        mlflow = pytest.importorskip("mlflow", reason="pip install 'trimtab[mlflow]'")
    words = (home / "compared", home / "alone", "--to", "mlflow", "--out", tmp_path)
    (store,) = exported(capsys, *words)
    warnings.simplefilter("ignore")  # of its own
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{store}")
    (alone,) = client.search_runs([client.get_experiment_by_name("alone").experiment_id])
    assert alone.data.params["algorithm"] == "scaffold"
    assert alone.data.params["eta_l"] == "0.1"
    assert alone.info.status == "FINISHED"
    history = client.get_metric_history(alone.info.run_id, "loss")
    written = [(line["r"], line["loss"]) for line in rounds_of(home / "alone")]
    assert sorted((one.step, one.value) for one in history) == written
    compared = client.search_runs([client.get_experiment_by_name("compared").experiment_id])
    assert sorted(one.info.run_name for one in compared) == [
        *("fedavg-K2/seed=19", "fedavg-K2/seed=20", "sgd/seed=19", "sgd/seed=20"),
    ]


@pytest.mark.parametrize(
    ("package", "kind"), [("torch.utils.tensorboard", "tensorboard"), ("mlflow", "mlflow")]
)
def test_without_its_package_one_sentence_says_how_to_get_it(
    home, capsys, monkeypatch, package, kind
):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(SystemExit):
        main(["export", str(home / "alone"), "--to", kind])
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"pip install 'trimtab[{kind}]'" in said


def test_what_is_not_finished_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["export", str(tmp_path), "--to", "csv"])
    assert "holds no run" in capsys.readouterr().err
