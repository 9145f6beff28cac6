"""Racing and comparing: who wins, what is written, and that resuming changes nothing."""

import json
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file

import trimtab
from tests.helpers.quadratics_pair import pair
from trimtab import Epochs, FedAvg, Quadratic, Scaffold, Sgd, compare
from trimtab.core.hyper import settings_of
from trimtab.problems import digits_problem
from trimtab.problems.loading import load_problem, load_problem_and_target
from trimtab.problems.metrics import ACCURACY, LOSS
from trimtab.report import write_page
from trimtab.studies.advice import advise
from trimtab.studies.comparison import Comparison
from trimtab.studies.entry import Entry
from trimtab.studies.fragility import judge
from trimtab.studies.goal import Goal, goal_of
from trimtab.studies.record import RoundLine, model_round
from trimtab.studies.run import run as run_task


def test_the_step_size_is_found_however_far_it_is_from_1():
    problem = Quadratic(
        A=[1e6, 2e6], b=[1.0, 2.0]
    )  # L = 2e6: every step of the usual grid diverges
    found = compare(problem, ["fedavg"], K=3, R=50)
    assert not found.entries[0].diverged
    assert found.entries[0].settings["eta_l"] < 1e-5


def line(r, **metrics):
    return RoundLine(r, metrics=metrics)


def curve(*accuracies):
    return [line(r, accuracy=a) for r, a in enumerate(accuracies, 1)]


@pytest.mark.parametrize(
    ("again", "fragile"),
    [
        (curve(0.1, 0.3, 0.5, 0.6), False),
        (curve(0.1, 0.3, 0.4, 0.604), False),  # one round later
        (curve(0.1, 0.3, 0.4, 0.4, 0.6), True),  # two rounds later
        (curve(0.1, 0.3, 0.5, 0.62), True),  # another best
        (curve(0.1, 0.3, 0.4, 0.4), True),  # never
    ],
)
def test_a_run_is_fragile_if_it_does_not_come_out_again(again, fragile):
    goal = Goal(ACCURACY, 0.5)
    assert judge(curve(0.1, 0.3, 0.5, 0.6), again, goal).fragile is fragile
    assert judge(curve(0.1, 0.3, 0.5, 0.6), again, goal, diverged=True).fragile


def test_a_loss_is_judged_by_how_far_it_fell():
    first, near, far = ([line(1, loss=100.0), line(2, loss=end)] for end in (2.0, 2.9, 3.1))
    assert not judge(first, near, Goal(LOSS)).fragile
    assert judge(first, far, Goal(LOSS)).fragile


class Chaos(Quadratic):
    """Its accuracy hangs on the seventh digit of x: whatever moves the start decides it."""

    def evaluate(self, x, client=None):
        e = float((x - self.x_star).abs().sum())
        return {"accuracy": 0.5 + 0.4 * ((1e7 * e) % 1.0), "loss": e}


def test_a_winner_that_rounding_decides_is_marked(tmp_path):
    A, b = (torch.tensor(values, dtype=torch.float64) for values in ([1.0, 0.5], [1.0, 2.0]))
    fixed = [FedAvg(eta_l=0.05, K=3)]
    found = compare(Chaos(A, b), fixed, target=0.8, R=200, out=tmp_path / "c")
    assert found.entries[0].fragile
    assert "fragile" in found.advice
    assert found.to_json()["algorithms"][0]["fragile"] is True
    again = Comparison.load(tmp_path / "c")
    assert again.entries[0].again == found.entries[0].again
    assert "fragile" in write_page(again, tmp_path / "page.html").read_text()
    steady = compare(Quadratic(A, b), ["fedavg"], K=3, target=-2.0, R=30)
    assert steady.entries[0].fragile is False
    assert "fragile" not in steady.advice


def test_metrics_that_nobody_can_win_by_are_refused(refused):
    class Bare(Quadratic):
        def evaluate(self, x, client=None):
            return {"gap": 1.0}

    A, b = torch.tensor([1.0, 0.5]), torch.tensor([1.0, 2.0])
    with refused("Bare.evaluate returns 'gap'", "return 'accuracy' or 'loss' too"):
        compare(Bare(A, b), ["sgd"])


def test_a_metric_that_is_never_finite_is_no_divergence():
    class Blind(Quadratic):
        def evaluate(self, x, client=None):
            return {"loss": float("nan")}

    A, b = torch.tensor([1.0, 0.5]), torch.tensor([1.0, 2.0])
    found = compare(Blind(A, b), ["sgd"], R=3)
    assert found.advice.startswith("No run that did not diverge has a finite loss")


def test_scaffold_wins_where_fedavg_drifts():
    how = {"K": 10, "eta_g": 1.0, "target": -0.4999, "R": 40}  # with eta_g free FedAvg becomes SGD
    found = compare(pair(G=10.0), ["fedavg", "scaffold"], **how)
    by_name = {entry.name: entry for entry in found.entries}
    assert by_name["scaffold"].rounds is not None
    assert "Scaffold" in found.advice.split(":")[0]
    assert by_name["fedavg"].rounds is None or by_name["fedavg"].rounds > by_name["scaffold"].rounds


def test_fedavg_suffices_where_clients_are_alike():
    alike = Quadratic(A=torch.ones(4, 3), b=torch.ones(4, 3))
    found = compare(alike, ["fedavg", "scaffold"], K=5, target=alike.f_star + 1e-3, R=40)
    assert found.advice.startswith("No difference found; FedAvg keeps no client state.")


def test_without_a_target_one_is_chosen_that_the_best_reaches():
    found = compare(pair(G=1.0), ["sgd", "scaffold"], K=5, R=30)
    assert any(entry.rounds for entry in found.entries)


def test_a_diverging_run_is_reported_and_the_others_go_on():
    wild = FedAvg(eta_l=1e30, K=5)
    found = compare(pair(G=1.0), [wild, "scaffold"], K=5, target=-0.49, R=30)
    assert found.entries[0].diverged
    assert found.entries[0].diverged_at == 3
    assert found.entries[0].settings["eta_l"] == 1e30
    assert found.entries[1].rounds is not None


def test_when_everything_diverges_the_advice_says_so():
    found = compare(pair(G=1.0), [FedAvg(eta_l=1e30, K=5)], target=-0.49, R=10)
    assert "diverged" in found.advice


def test_a_run_that_diverges_after_the_target_is_not_advised():
    fast, slow = (
        Entry(name, name, {"eta": 1.0}, rounds=r, shown=shown, step="eta")
        for name, shown, r in (("mime", "Mime", 2), ("sgd", "Sgd", 9))
    )
    fast.diverged_at = 5
    assert advise([fast, slow], Goal(LOSS, 0.1)).startswith("Use Sgd")


def test_instances_keep_their_step_size_and_may_come_twice():
    found = compare(pair(1.0), [FedAvg(eta_l=0.1, K=2), FedAvg(eta_l=0.2, K=2)], target=-0.4, R=9)
    assert [entry.settings["eta_l"] for entry in found.entries] == [0.1, 0.2]
    assert [entry.label for entry in found.entries] == ["fedavg-K2", "fedavg#2-K2"]


def test_an_instance_may_count_epochs(tmp_path):
    problem = digits_problem()
    algorithms = [Scaffold(eta_l=0.3, K=Epochs(count)) for count in (1, 0.5)]
    result = compare(problem, algorithms, R=3, out=tmp_path / "epochs")
    assert [entry.label for entry in result.entries] == ["scaffold-1epochs", "scaffold#2-0.5epochs"]
    assert result.entries[0].settings["K"] == "Epochs(1)"
    assert "K = Epochs(" in result.advice


def test_an_algorithm_of_ones_own_is_compared_as_an_instance():
    found = compare(pair(1.0), [Stays(), "sgd"], target=-0.4, R=9)
    assert [entry.name for entry in found.entries] == ["stays", "sgd"]
    assert found.entries[0].rounds is None


@dataclass(frozen=True)
class Stays:
    """An algorithm that does nothing."""

    def init_server(self, x):
        return FedAvg(eta_l=1, K=1).init_server(x)

    def init_client(self, x):
        return ()

    def round(self, server, clients):
        return server


def test_several_K_give_several_rows():
    found = compare(pair(1.0), ["sgd", "fedavg"], K=[2, 5], target=-0.4, R=20)
    assert [entry.label for entry in found.entries] == ["sgd", "fedavg-K2", "fedavg-K5"]


@pytest.mark.parametrize("name", trimtab.ALGORITHMS)
def test_every_algorithm_can_be_compared_by_name(name):
    found = compare(pair(1.0), [name], K=3, target=-0.3, R=40)
    assert found.entries[0].best is not None


def test_the_folder_holds_all_that_was_found(tmp_path):
    problem = load_problem("quadratic")
    found = compare(problem, ["sgd", "scaffold"], K=5, R=12, out=tmp_path / "c", name="quadratic")
    again = Comparison.load(tmp_path / "c")
    assert again.to_json() == found.to_json()
    assert [e.curve for e in again.entries] == [e.curve for e in found.entries]
    content = json.loads((tmp_path / "c" / "compare.json").read_text())
    assert set(content["executors"].values()) <= {"loop", "batched", "threads", "fused"}
    assert content["executors"]
    assert content["paths"].keys() == content["executors"].keys()
    assert content["versions"]["trimtab"] == trimtab.__version__
    assert (tmp_path / "c" / "scaffold-K5" / "model.safetensors").exists()
    assert not list((tmp_path / "c").rglob("checkpoint.safetensors"))


@pytest.mark.parametrize("rounds", [1, 7, 23, 60])
def test_an_interrupted_comparison_resumes_to_the_same_result(tmp_path, rounds):
    problem = load_problem("quadratic", sigma=0.1)
    options = {"K": 4, "R": 20, "S": 4, "name": "quadratic", "budget": 1e9, "seeds": 2}
    whole = compare(problem, ["fedavg", "scaffold"], **options)
    steps = compare.start(problem, ["fedavg", "scaffold"], out=tmp_path / "c", **options)
    for _ in range(rounds):
        next(steps)
    steps.close()
    cut = next((tmp_path / "c").rglob("rounds.jsonl"))
    cut.write_text(cut.read_text() + '{"r": 99, "lo')  # a line that a crash has cut off
    resumed = compare(problem, ["fedavg", "scaffold"], out=tmp_path / "c", resume=True, **options)
    assert without_seconds(resumed) == without_seconds(whole)


def test_resuming_a_finished_comparison_computes_nothing(tmp_path):
    problem = load_problem("quadratic")
    options = {"K": 4, "R": 10, "target": -0.1, "out": tmp_path / "c", "name": "quadratic"}
    first = compare(problem, ["sgd"], **options)
    lines = {p: p.read_text() for p in (tmp_path / "c").rglob("rounds.jsonl")}
    again = compare(problem, ["sgd"], resume=True, **options)
    assert again.to_json() == first.to_json()
    assert {p: p.read_text() for p in (tmp_path / "c").rglob("rounds.jsonl")} == lines


def test_the_record_says_when_bits_depend_on_threads(tmp_path, monkeypatch):
    monkeypatch.setattr("trimtab.problems.paths.WORTH_A_THREAD", 1)
    monkeypatch.setattr("trimtab.problems.paths.KEEPS_CORES_BUSY", 1)

    class Wide(Quadratic):
        threads = True

    ones = torch.ones(2)
    for kind, threads in ((Wide, torch.get_num_threads()), (Quadratic, None)):
        out = tmp_path / kind.__name__
        finish(run_task.start(Sgd(eta=0.1), kind(ones, ones), R=2, name="q", out=out))
        content = json.loads((out / "run.json").read_text())
        assert content.get("threads") == threads
        assert ("bits" in content) is (kind is Wide)
        assert content["path"] == content["executor"] == ("fused" if kind is Wide else "loop")


def test_a_folder_that_another_process_writes_is_refused(tmp_path, held, refused):
    problem = load_problem("quadratic")
    with held(tmp_path / "c"), refused("c is in use by another process", "end it first"):
        compare(problem, ["sgd"], R=4, out=tmp_path / "c")
    compare(problem, ["sgd"], R=4, out=tmp_path / "c")


def test_a_file_is_no_folder(tmp_path, refused):
    (tmp_path / "f").touch()
    with refused("f is a file; pass another out"):
        compare(load_problem("quadratic"), ["sgd"], R=4, out=tmp_path / "f")


def test_a_run_that_another_process_writes_is_refused(tmp_path, held, refused):
    problem = load_problem("quadratic")
    run = partial(run_task.start, Sgd(eta=0.1), problem, R=4, name="q", out=tmp_path / "r")
    with held(tmp_path / "r"), refused("r is in use by another process"):
        list(run())
    assert len(list(run())) == 4


class Peaks(Quadratic):
    """Best in round 4 of SGD, whatever comes after."""

    def evaluate(self, x, client=None):
        return {"loss": abs(float(x[0]) - 0.8)}


def peaks():
    ones = torch.ones(2, dtype=torch.float64)
    return Peaks(A=ones, b=ones)  # SGD with 0.3: 0.3, 0.51, 0.657, 0.7599, 0.832, ...


@pytest.mark.parametrize("cut", [None, 2, 5, 9])
def test_the_best_model_is_kept_beside_the_last(tmp_path, cut):
    run = partial(run_task.start, Sgd(eta=0.3), peaks(), name="q", out=tmp_path / "r")
    if cut is not None:
        steps = run(R=12)
        for _ in range(cut):
            next(steps)
        steps.close()
    result = finish(run(R=12, resume=cut is not None))
    last, best = (load_file(tmp_path / "r" / f"{n}.safetensors")["x"] for n in ("model", "best"))
    assert float(last[0]) == pytest.approx(1 - 0.7**12)
    assert float(best[0]) == pytest.approx(1 - 0.7**5)
    assert model_round(tmp_path / "r" / "best.safetensors") == 5
    assert result.advice.endswith("its best loss is 0.03193, after round 5.")


def test_the_best_model_survives_a_kill_before_it_was_written(tmp_path):
    run = partial(run_task.start, Sgd(eta=0.3), peaks(), name="q", out=tmp_path / "r")
    finish(run(R=3))
    finish(run(R=9, resume=True))
    (tmp_path / "r" / "best.safetensors").unlink()
    finish(run(R=12, resume=True))
    best = load_file(tmp_path / "r" / "best.safetensors")["x"]
    assert float(best[0]) == pytest.approx(1 - 0.7**5)


def test_a_comparison_leaves_the_best_model_of_each_winner(tmp_path):
    compare(peaks(), [Sgd(eta=0.3)], target=-1.0, R=12, out=tmp_path / "c")
    best = load_file(tmp_path / "c" / "sgd" / "best.safetensors")["x"]
    assert float(best[0]) == pytest.approx(1 - 0.7**5)
    assert len(list((tmp_path / "c").rglob("best.safetensors"))) == 1


def test_the_best_model_is_never_that_of_an_earlier_winner(tmp_path):
    """Both are best in round 5; the file of the first must not pass for that of the second."""
    folder = tmp_path / "c"
    compare(peaks(), [Sgd(eta=0.3)], target=-1.0, R=12, out=folder)
    old = folder / "sgd" / "best.safetensors"
    save_file({"x": torch.zeros(1)}, old, metadata={"r": "5"})  # of another step size
    compare(peaks(), [Sgd(eta=0.3)], target=-1.0, R=14, out=folder, resume=True)
    assert float(load_file(old)["x"][0]) == pytest.approx(1 - 0.7**5)


def test_a_folder_is_never_overwritten(tmp_path):
    problem = load_problem("quadratic")
    compare(problem, ["sgd"], R=4, out=tmp_path / "c")
    with pytest.raises(ValueError, match="holds a comparison already; pass resume=True"):
        compare(problem, ["sgd"], R=4, out=tmp_path / "c")
    with pytest.raises(ValueError, match="was made with seed=0, not 1; repeat its settings"):
        compare(problem, ["sgd"], R=4, seed=1, out=tmp_path / "c", resume=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("mine")
    with pytest.raises(ValueError, match="is not empty; pass another out"):
        compare(problem, ["sgd"], R=4, out=tmp_path / "other")


def test_goals_are_accuracy_or_loss():
    digits, target = load_problem_and_target("digits")
    assert goal_of(digits, target) == Goal(ACCURACY, 0.95)
    assert goal_of(pair(1.0), -0.4) == Goal(LOSS, -0.4)
    with pytest.raises(ValueError, match="target=3; pass an accuracy above 0 and at most 1"):
        goal_of(digits, 3)


def test_bad_arguments_get_one_sentence():
    with pytest.raises(
        ValueError,
        match=r"'scafold' is not an algorithm \(did you mean scaffold\?\); pass one",
    ):
        compare(pair(1.0), ["scafold"])
    for R in (0, -1, 2.5, None, True):
        with pytest.raises(ValueError, match=f"R={R}; pass a number of rounds R >= 1"):
            compare(pair(1.0), R=R)


def test_a_problem_may_be_named():
    found = compare("digits", ["sgd"], R=3)
    assert (found.problem, found.metric, found.target) == ("digits", "accuracy", 0.95)
    with pytest.raises(
        ValueError, match=r"'digist' is not a problem \(did you mean digits\?\); pass one of digits"
    ):
        compare("digist")


def test_settings_of_a_wrapper_are_those_of_what_it_wraps():
    assert settings_of(trimtab.RichardsonRomberg(FedAvg(eta_l=0.1, K=2)))["eta_l"] == 0.1


def finish(steps):
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


def without_seconds(found):
    curves = [
        [{k: v for k, v in done.to_json().items() if k != "seconds"} for done in entry.curve]
        for entry in found.entries
    ]
    return curves, [(e.label, e.settings, e.rounds, e.bytes, e.best) for e in found.entries]
