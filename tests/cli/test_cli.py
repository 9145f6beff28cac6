"""The command line as its users meet it: what it prints, what it leaves, how it fails."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.helpers.command import trimtab
from trimtab import __version__
from trimtab.cli import COMMANDS, cli
from trimtab.problems.data.images import digits

PROBLEMS = """
import torch
from torch.nn import functional as F
from torch import nn
from trimtab import Quadratic, Supervised

def good(batch=None, seed=0):
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(40, 3, generator=g)
    y = (X[:, 0] > 0).long()
    clients = [(X[:20], y[:20]), (X[20:], y[20:])]
    return Supervised(nn.Linear(3, 2), F.cross_entropy, clients, batch=batch)

def regression():
    X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    y = X @ torch.tensor([[1.0], [2.0], [3.0]])
    return Supervised(nn.Linear(3, 1), F.mse_loss, [(X[:20], y[:20]), (X[20:], y[20:])])

def empty():
    return _two((torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)))

def nan():
    X = torch.zeros(5, 3); X[2, 1] = float("nan")
    return _two((X, torch.zeros(5, dtype=torch.long)))

def labels():
    return _two((torch.zeros(5, 3), torch.full((5,), 7)))

def features():
    return _two((torch.zeros(5, 4), torch.zeros(5, dtype=torch.long)))

def instancenorm():
    p = good()
    return p.replace(module=nn.Sequential(nn.Linear(3, 2), nn.InstanceNorm1d(2, 0.1, 0.1, 0, 1)))

def steep():
    return Quadratic(A=[1e4, 2e4], b=[1.0, 2.0])

def nothing():
    return None

def heart():
    return good()

def fails():
    raise KeyError("column")

def loud():
    import os
    print("reading ...")
    os.system("echo done")

    class Loud(nn.Linear):
        def forward(self, X):
            print("forward")
            return super().forward(X)

    return good().replace(module=Loud(3, 2))

def late():
    class Late(nn.Linear):
        calls = 0
        def forward(self, X):
            Late.calls += 1
            if Late.calls > 30:
                raise RuntimeError("out of luck\\nand more")
            return super().forward(X)

    return good().replace(module=Late(3, 2))

def secret():
    lock = __import__("threading").Lock()

    def loss(output, y):
        with lock:
            return F.cross_entropy(output, y)

    return good().replace(loss=loss)

def unpacks():
    a, b = (1, 2, 3)

def leaves():
    raise SystemExit(0)

def _two(second):
    first = (torch.zeros(5, 3), torch.zeros(5, dtype=torch.long))
    return Supervised(nn.Linear(3, 2), F.cross_entropy, [first, second])
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(PROBLEMS)
    Path("broken.py").write_text("import nosuchmodule\n")
    Path("typo.py").write_text("x = 1\nprint(\n")
    return tmp_path


BAD = {
    "compare digits --S 20": "--S 20 clients asked for, but the problem has N=10; pass S <= 10.",
    "compare digits --S 0": "--S 0: pass a whole number S >= 1",
    "compare digits --K 0": "FedAvg: --K 0, but it counts local steps; pass a whole number K >= 1",
    "compare digits --K five": "'five' is not a list of whole numbers such as 1,5,20; `trimtab ",
    "compare digits --target 3": "--target 3.0; pass an accuracy above 0 and at most 1",
    "compare digits --batch 0": "--batch 0; pass a number of samples, or a fraction",
    "compare digits --algorithms scafold": "'scafold' is not an algorithm (did you mean scaffold?)",
    "compare digits -R 0": "-R 0; pass a number of rounds R >= 1.",
    "compare digist": "'digist' is not a problem (did you mean digits?); pass one of digits,",
    "compare emnist --data nosuch": "nosuch: there is no such folder; pass one that holds data",
    "compare nofile.py:good": "nofile.py: there is no such file; pass file.py:function.",
    "compare mine.py": "'mine.py' names no function; pass mine.py:function.",
    "compare mine.py:god": "mine.py has no function 'god'; it has good, regression, empty",
    "compare mine.py:nothing": "mine.py:nothing returned a NoneType; return a Problem",
    "compare mine.py:fails": "mine.py:fails failed (mine.py, line 46 in fails: KeyError: 'column')",
    "compare mine.py:unpacks": "mine.py, line 81 in unpacks: ValueError: too many values to unpack",
    "compare mine.py:leaves": "mine.py:leaves failed (mine.py, line 84 in leaves: SystemExit: 0)",
    "compare mine.py:late": " (mine.py, line 66 in forward: RuntimeError: out of luck)",
    "compare broken.py:good": "broken.py cannot be imported (broken.py, line 1: ModuleNotFoundErr",
    "compare typo.py:good": "typo.py cannot be imported (typo.py, line 2: SyntaxError: '(' was ne",
    "run sgd --eta 1 -R 0": "-R 0; pass a number of rounds R >= 1.",
    "run sgd --eta 1 -R -3": "-R -3; pass a number of rounds R >= 1.",
    "compare mine.py:empty": "client 1 has no samples; leave it out, or give it data.",
    "compare mine.py:nan": "client 1 has NaN or infinity in its inputs (first in sample 2); drop",
    "compare mine.py:labels": "client 1 has labels from 7 to 7, but the module has 2 outputs",
    "compare mine.py:features": "client 1 has inputs of shape (4,), others of (3,); give all",
    "compare mine.py:instancenorm": "layer '1' (InstanceNorm1d) keeps running statistics",
    "compare quadratic --batch 5": "quadratic has no mini-batches; drop --batch.",
    "compare --resume": "runs/compare-digits-1: there is nothing to resume; drop --resume.",
    "run nope": "'nope' is not an algorithm; pass one of sgd, fedavg",
    "run scaffold --K 5": "scaffold needs a step size; pass --eta-l, or let `trimtab compare` find",
    "run sgd": "sgd needs a step size; pass --eta, or let `trimtab compare` find one.",
    "run scaffold --eta-l 0.1": "scaffold needs a number of local steps; pass --K.",
    "run scaffold --eta-l -1 --K 5": "Scaffold: --eta-l -1.0; pass a number that is positive.",
    "run scaffold --eta-l nan --K 5": "Scaffold: --eta-l nan; pass a number that is positive.",
    "run scaffold --eta-l 1 --K 5 --option I --lean": "lean with option 'II' only.",
    "run fedavg --eta-l 1 --K 5 --mu 3": "fedavg takes no --mu; it has --eta-l, --K, --eta-g.",
    "run fedavg --eta-l 1 --K 5 --out nosuch --resume": "nosuch: there is nothing to resume",
    "run fedavg mine.py:steep --eta-l 1 --K 2": "diverged at round 6: x is no longer finite; try",
    "report nosuch": "nosuch does not exist; pass the folder of a run.",
    "reproduce figure3 --quick --out mine.py": ": not a directory; pass another path, or fix",
    "diagnose digist": "'digist' is not a problem (did you mean digits?); pass one of digits,",
    "diagnose quadratic --S 99": "--S 99 clients asked for, but the problem has N=10; pass S",
    "diagnose quadratic --eps 0": "Invalid value for '--eps': 0.0 is not in the range x>0",
    "diagnose quadratic --minutes -1": "'--minutes': -1.0 is not in the range x>0",
    "diagnose quadratic --batch 5": "quadratic has no mini-batches; drop --batch.",
    "diagnose quadratic --out .": ". is not empty; pass another --out.",
    "bench W12": "'W12' is not a workload; pass some of W1, W1x10, any, W2, W3, W4, W4x5, W5, W6,",
    "bench --resume": "--resume continues a record; pass its file as --out.",
    "frobnicate": "No such command 'frobnicate'; `trimtab --help` shows the usage.",
    "compare --nosuch": "No such option '--nosuch'; ",
    "compare --seed1": "No such option '--seed1'; similar are --seed",
    "run": "Missing argument 'ALGORITHM'; `trimtab run --help` shows the usage.",
    "export runs": "Missing option '--to', one of csv, tensorboard, mlflow, onnx; `trimtab export ",
    "compare --target high": "'--target': 'high' is not a valid float; `trimtab compare --help`",
}


@pytest.mark.parametrize("command", BAD)
def test_bad_input_is_one_sentence_and_exit_code_2(capsys, command):
    code, out, err = trimtab(capsys, *command.split())
    assert code == 2
    assert BAD[command] in err
    assert err.count("\n") == 1
    assert out == ""


@pytest.mark.parametrize("group", ["", "federate"])
def test_a_group_without_a_command_shows_its_help_line_by_line(capsys, group):
    code, out, err = trimtab(capsys, *group.split())
    assert (code, out) == (2, "")
    assert err.startswith("Usage: trimtab")
    assert err.count("\n") > 8
    _, helped, _ = trimtab(capsys, *group.split(), "--help")
    assert err == helped


def test_options_are_what_they_were():
    options = {
        name: sorted(o for p in command.params for o in p.opts if o.startswith("-"))
        for name, command in (
            (name, cli.get_command(None, name)) for name in cli.list_commands(None)
        )
    }
    common = ["-R", "--S", "--batch", "--data", "--json", "--out", "--resume", "--seed", "--target"]
    common += ["--metric", "--split", "--weights", "--partition", "--epochs", "--init", "--slow"]
    common += ["--lost", "--available", "--force", "--log", "--live"]
    hyper = "--K --base --beta --beta1 --beta2 --eps --eta --eta-g --eta-l --lean --mu --option"
    hyper += " --a --alpha --clip --p --weight-decay"
    of_compare = (
        "--K --algorithms --base --baselines --budget --diagnosed --eta-g --jobs --minutes "
    )
    of_compare += "--prefer --round-cost --seeds --cluster"
    of_run = "--cluster --patience --save --shards --snapshots"
    assert options == {
        "compare": sorted([*common, *of_compare.split()]),
        "run": sorted([*common, *hyper.split(), *of_run.split()]),
        "diagnose": sorted(
            [
                "--S",
                "--batch",
                "--cross-device",
                "--data",
                "--eps",
                "--json",
                "--minutes",
                "--out",
                "--resume",
                "--seed",
                "--live",
            ]
        ),
        "check": sorted([*hyper.split(), "--json", "--mean-gradient", "--out", "--seed"]),
        "report": ["--json", "--out"],
        "bench": ["--json", "--out", "--quick", "--repeats", "--resume", "--seed"],
        "reproduce": sorted(
            [
                *("--cells", "--cluster", "--data", "--json", "--out"),
                *("--quick", "--seed", "--seeds", "--live"),
            ]
        ),
        "federate": [],  # its commands: tests/federation/test_federate_cli.py
        "export": ["--algorithm", "--json", "--out", "--to"],
        "predict": ["--algorithm", "--out", "--proba"],
        "doctor": ["--data", "--json"],
        "completion": [],
    }


def test_the_helps_of_the_group_are_those_of_the_commands():
    for name, text in COMMANDS.items():
        said = cli.get_command(None, name).help.split("\n")[0]
        assert text.split()[:2] == said.split()[:2], name


def test_debug_shows_the_traceback_before_the_sentence(capsys):
    code, _, err = trimtab(capsys, "compare", "mine.py:fails", "--debug")
    assert code == 2
    assert "Traceback" in err
    assert 'raise KeyError("column")' in err
    assert err.splitlines()[-1].startswith("trimtab: mine.py:fails failed")
    assert trimtab(capsys, "--debug", "compare", "mine.py:fails")[2] == err


def test_debug_says_how_gradients_are_computed(capsys, tmp_path):
    words = ("run", "sgd", "quadratic", "--eta", "0.1", "-R", "1", "--out", str(tmp_path / "r"))
    code, _, err = trimtab(capsys, *words, "--debug")
    assert code == 0
    assert "trimtab: debug: loop (executor loop): this problem is computed one client after" in err
    again = (*words[:-1], str(tmp_path / "again"))
    assert "debug" not in trimtab(capsys, *again)[2]


def test_a_mistake_of_ours_says_so(capsys, monkeypatch):
    def broken(*args, **options):
        raise AssertionError

    monkeypatch.setattr("trimtab.studies.holdout.load_problem_and_target", broken)
    monkeypatch.setattr("trimtab._importing._OURS", (Path(__file__).parents[2],))
    code, _, err = trimtab(capsys, "compare")
    assert (code, err.count("\n")) == (2, 1)
    assert "AssertionError: no message; this should not happen: please report it" in err


@pytest.mark.parametrize(
    "command", ["run sgd mine.py:loud --eta 1 -R 2",
                "compare mine.py:loud --algorithms sgd --seeds 1 -R 2",
                "diagnose mine.py:loud --minutes 0.05"]
)  # fmt: skip
def test_what_the_users_code_prints_goes_to_stderr(command):
    done = subprocess.run(
        [sys.executable, "-m", "trimtab", *command.split(), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert json.loads(done.stdout)
    for word in ("reading ...", "done", "forward"):
        assert word in done.stderr


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks into /proc")
@pytest.mark.parametrize("library", ["libtorch_cpu", "libtorch_python", "_multiarray_umath"])
def test_ctrl_c_while_it_starts_is_one_sentence(library):
    process = start("compare", "--out", "here")
    until = time.monotonic() + 60
    while library not in Path(f"/proc/{process.pid}/maps").read_text():  # as it is being imported
        assert time.monotonic() < until
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.strip() == "trimtab: stopped."
    assert "Traceback" not in err


def test_compare_prints_table_advice_and_page(capsys):
    code, out, _ = trimtab(capsys, "compare", "mine.py:good", "--target", 0.9, "-R", 40)
    assert code == 0
    assert "mine.py:good: rounds to accuracy 0.9" in out
    assert re.search(r"^(Use|No difference found; )\w+.* accuracy 0.9 in \d+ rounds?", out, re.M)
    page = Path(re.search(r"^Page: (.*)$", out, re.M).group(1))
    assert page == Path("runs/compare-mine-good-1/report.html")
    html = page.read_text()
    assert "<svg" in html
    assert "Scaffold" in html
    assert "http-equiv" not in html
    assert 'src="http' not in html


def test_compare_json_has_the_promised_keys(capsys):
    code, out, err = trimtab(
        capsys, "compare", "quadratic", "--algorithms", "sgd,scaffold", "-R", 20, "--json"
    )
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert {"problem", "target", "advice", "page", "algorithms"} <= set(found)
    assert {"metric", "prefer", "split", "seeds", "budget", "complete", "notes"} <= set(found)
    promised = {"name", "settings", "rounds", "bytes", "seconds", "best", "diverged"}
    promised |= {"exchanges", "work", "interval", "reached", "test", "runs", "not_run"}
    assert all(promised <= set(entry) for entry in found["algorithms"])
    assert [entry["name"] for entry in found["algorithms"]] == ["sgd", "scaffold"]


def test_several_K_are_rows_and_curves_of_their_own(capsys):
    command = ("compare", "mine.py:good", "--algorithms", "sgd,fedavg", "--K", "2,4", "-R", 20)
    code, out, _ = trimtab(capsys, *command, "--target", 0.9)
    assert code == 0
    assert out.count("FedAvg") >= 2
    assert "FedAvg, K = 4" in Path("runs/compare-mine-good-1/report.html").read_text()


def test_a_name_is_shown_as_it_is(capsys):
    _, out, _ = trimtab(capsys, "run", "sgd", "mine.py:heart", "--eta", 1, "-R", 2)
    assert "mine.py:heart: rounds to the best accuracy" in out


def test_a_diverging_row_names_the_round_and_the_others_go_on(capsys):
    code, out, _ = trimtab(capsys, "compare", "mine.py:steep", "--algorithms", "sgd,fedavg")
    assert code == 0
    assert "Sgd" in out
    assert "FedAvg" in out


def test_targets_of_regressions_are_losses(capsys):
    code, out, _ = trimtab(
        capsys, "compare", "mine.py:regression", "--algorithms", "sgd", "--target", 0.01
    )
    assert code == 0
    assert "reaches loss 0.01 in" in out


def test_run_leaves_record_and_model(capsys):
    code, out, _ = trimtab(
        capsys, "run", "scaffold", "--eta-l", 1, "--K", 5, "-R", 12, "--out", "here", "--seed", 3
    )
    assert code == 0
    assert "Scaffold with K = 5 and eta_l = 1 ran 12 rounds" in out
    about = json.loads(Path("here/run.json").read_text())
    assert about["versions"]["trimtab"] == __version__
    assert about["settings"]["seed"] == 3
    assert about["settings"]["algorithm"].startswith("Scaffold(eta_l=1.0, K=5")
    lines = [json.loads(line) for line in Path("here/rounds.jsonl").read_text().splitlines()]
    assert [line["r"] for line in lines] == list(range(1, 13))
    assert {"accuracy", "loss", "bytes_down", "bytes_up", "seconds", "drift"} <= set(lines[0])
    module = nn.Linear(64, 10)
    module.load_state_dict(load_file("here/model.safetensors"))
    _, (X, y) = digits()
    assert float((module(X).argmax(1) == y).double().mean()) == pytest.approx(lines[-1]["accuracy"])
    module.load_state_dict(load_file("here/best.safetensors"))
    best = max(line["accuracy"] for line in lines)
    assert float((module(X).argmax(1) == y).double().mean()) == pytest.approx(best)
    assert "Model after the last round: here/model.safetensors" in out
    assert "Model after the best round: here/best.safetensors" in out
    assert "<svg" in Path("here/report.html").read_text()


def test_run_json(capsys):
    code, out, _ = trimtab(capsys, "run", "sgd", "--eta", 1, "-R", 3, "--json", "--target", 0.5)
    found = json.loads(out)
    assert code == 0
    assert found["name"] == "sgd"
    assert Path(found["model"]).exists()


@pytest.mark.parametrize(
    "arguments",
    [
        "mime --eta 0.1 --K 2 --base adam --beta1 0.5",
        "richardsonromberg --eta-l 0.1 --K 2",
        "serveronly --eta 0.1",
        "fedopt --eta-l 0.1 --K 2 --base yogi",
        "fedprox --eta-l 0.1 --K 2",
        "dane --eta-l 0.1 --K 2 --mu 0.5",
        "mimemvr --eta 0.1 --K 2 --a 0.5",
        "mimelitemvr --eta 0.1 --K 2 --a 0.5",
        "servermvr --eta 0.1 --a 0.5",
        "scaffoldopt --eta-l 0.1 --K 2 --base adam",
        "scaffoldopt --eta-l 0.1 --K 2 --base adamw --weight-decay 0.1 --clip 1",
        "fedopt --eta-l 0.1 --K 2 --base adamw --weight-decay 0.1 --clip 1",
        "fednova --eta-l 0.1 --K 2",
        "scallion --eta-l 0.1 --K 2 --alpha 0.5",
        "scaffnew --eta-l 0.1 --p 0.5",
        "feddyn --eta-l 0.1 --K 2 --alpha 0.5",
        "scaffoldm --eta-l 0.1 --K 2 --a 0.5",
    ],
)
def test_every_kind_of_algorithm_runs_by_name(capsys, arguments):
    name, *options = arguments.split()
    code, _, err = trimtab(capsys, "run", name, "quadratic", *options, "-R", 3)
    assert (code, err) == (0, "")


def test_a_longer_run_is_the_shorter_one_resumed(capsys):
    command = ("run", "scaffold", "--eta-l", 1, "--K", 3, "--S", 4)
    trimtab(capsys, *command, "-R", 9, "--out", "whole")
    trimtab(capsys, *command, "-R", 4, "--out", "parts")
    code, _, _ = trimtab(capsys, *command, "-R", 9, "--out", "parts", "--resume")
    assert code == 0
    whole, parts = (load_file(f"{name}/model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert len(Path("parts/rounds.jsonl").read_text().splitlines()) == 9


def test_nothing_written_is_lost(capsys):
    command = ("run", "sgd", "quadratic", "--eta", 0.1, "--out", "here")
    trimtab(capsys, *command, "-R", 3)
    before = Path("here/rounds.jsonl").read_text()
    for wrong in ((), ("--resume", "--seed", 1), ("--resume", "--S", 3)):
        code, _, err = trimtab(capsys, *command, "-R", 3, *wrong)
        assert code == 2
        assert "--out" in err
        assert Path("here/rounds.jsonl").read_text() == before
    about = json.loads(Path("here/run.json").read_text())
    about["versions"]["trimtab"] = "0.0.9"
    Path("here/run.json").write_text(json.dumps(about))  # of another version with the same numbers
    assert trimtab(capsys, *command, "-R", 3, "--resume")[0] == 0
    about["results"] -= 1
    Path("here/run.json").write_text(json.dumps(about))
    code, _, err = trimtab(capsys, *command, "-R", 5, "--resume")
    assert code == 2
    assert f"trimtab 0.0.9, whose numbers are not those of this one, {__version__}; continue" in err
    assert "another --out." in err
    assert Path("here/rounds.jsonl").read_text() == before


@pytest.mark.parametrize("command", ["run sgd mine.py:good --eta 1", "compare mine.py:good"])
def test_a_resume_with_another_batch_says_what_differs(capsys, command):
    given = (*command.split(), "-R", 2, "--out", "here")
    trimtab(capsys, *given, "--batch", 5)
    code, _, err = trimtab(capsys, *given, "--batch", 7, "--resume")
    assert code == 2
    assert "here was made with another problem: batch was 5, is now 7; repeat what it was" in err


def test_what_nobody_can_tell_is_a_note(capsys):
    command = ("run", "sgd", "mine.py:secret", "--eta", 1, "--out", "here")
    trimtab(capsys, *command, "-R", 2)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        code, _, err = trimtab(capsys, *command, "-R", 3, "--resume")
    assert code == 0
    assert err.startswith("trimtab: note: here: nothing can be said of the loss;")
    assert all(line.startswith("trimtab: note: ") for line in err.splitlines())


def test_a_damaged_checkpoint_is_named_and_can_be_deleted(capsys):
    command = ("run", "scaffold", "mine.py:good", "--eta-l", 1, "--K", 2, "--out", "here")
    trimtab(capsys, *command, "-R", 3)
    Path("here/checkpoint.safetensors").write_bytes(b"no")
    code, _, err = trimtab(capsys, *command, "-R", 5, "--resume")
    assert (code, err.count("\n")) == (2, 1)
    assert "here/checkpoint.safetensors is damaged" in err
    assert "delete this file" in err
    Path("here/checkpoint.safetensors").unlink()
    assert trimtab(capsys, *command, "-R", 5, "--resume")[0] == 0
    assert len(Path("here/rounds.jsonl").read_text().splitlines()) == 5


def test_a_run_that_diverged_keeps_its_rounds(capsys):
    command = ("run", "fedavg", "mine.py:steep", "--eta-l", 1, "--K", 2, "--out", "here")
    code, _, _ = trimtab(capsys, *command)
    assert code == 2
    assert len(Path("here/rounds.jsonl").read_text().splitlines()) == 5


def test_report_writes_the_page_anew(capsys):
    trimtab(capsys, "compare", "quadratic", "--algorithms", "sgd", "-R", 8, "--out", "here")
    page = Path("here/report.html").read_text()
    Path("here/report.html").unlink()
    code, out, _ = trimtab(capsys, "report", "here")
    assert code == 0
    assert "Page: here/report.html" in out
    assert Path("here/report.html").read_text() == page


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "trimtab", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        # A suite in the background ignores Ctrl-C, and what it starts would do so too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def wait_for_rounds(folder, n, process):
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        if sum(len(p.read_text().splitlines()) for p in Path(folder).rglob("rounds.jsonl")) >= n:
            return
        time.sleep(0.02)
    raise AssertionError(f"no {n} rounds in time: {process.communicate()}")


@pytest.mark.parametrize(("kill", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 130)])
def test_a_killed_comparison_resumes_to_the_same_end(capsys, kill, code):
    command = ("compare", "--algorithms", "fedavg,scaffold", "--K", "3", "-R", "30", "--json")
    process = start(*command, "--out", "killed")
    wait_for_rounds("killed", 90, process)
    process.send_signal(kill)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    if kill == signal.SIGTERM:
        assert "repeat the command with --resume" in err
    resumed = trimtab(capsys, *command, "--out", "killed", "--resume")
    whole = trimtab(capsys, *command, "--out", "whole")
    assert resumed[0] == whole[0] == 0
    assert outcome(resumed[1]) == outcome(whole[1])


def outcome(text):
    keep = ("name", "settings", "rounds", "bytes", "best")
    return [{k: entry[k] for k in keep} for entry in json.loads(text)["algorithms"]]


@pytest.mark.parametrize(
    "command",
    ["diagnose quadratic --eps 0", "compare quadratic --K 0", "compare quadratic --eta-g nan"],
)
def test_what_is_refused_leaves_no_folder(capsys, command):
    code, _, _ = trimtab(capsys, *command.split())
    assert code == 2
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


def test_a_damaged_diagnosis_is_named(capsys):
    Path("dir").mkdir()
    Path("dir/diagnosis.json").write_text("{")
    code, _, err = trimtab(capsys, "report", "dir")
    assert code == 2
    assert "dir/diagnosis.json cannot be read (" in err
    assert err.endswith("; restore or remove it.\n")


def test_diagnose_prints_advice_and_page(capsys):
    code, out, err = trimtab(capsys, "diagnose", "quadratic")
    assert (code, err) == (0, "")
    assert re.match(r"(Use|No difference found between) (Scaffold|FedAvg|Sgd) ", out)
    page = Path(re.search(r"^Page: (.*)$", out, re.M).group(1))
    assert page == Path("runs/diagnose-quadratic-1/report.html")
    assert "<svg" in page.read_text()
    assert json.loads(Path("runs/diagnose-quadratic-1/diagnosis.json").read_text())["algorithm"]


def test_diagnose_json_has_the_promised_keys(capsys):
    command = ("diagnose", "mine.py:good", "--batch", 5, "--S", 1, "--seed", 2, "--out", "here")
    code, out, err = trimtab(capsys, *command, "--cross-device", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    promised = "G B delta L mu sigma zeta K eta_l eta_g algorithm reasons problem page advice"
    assert set(promised.split()) <= set(found)
    assert (found["algorithm"] in ("mimelite", "fedavg", "sgd"), found["S"]) == (True, 1)


def test_version_and_help(capsys):
    assert trimtab(capsys, "--version")[1] == f"trimtab {__version__}\n"
    code, out, _ = trimtab(capsys, "--help")
    assert code == 0
    assert "compare" in out
