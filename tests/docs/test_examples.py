"""Every example runs without a warning, prints what its docstring says, and shows its point."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab import compare
from trimtab.problems.data.files import find
from trimtab.problems.data.tables import HOSPITALS
from trimtab.problems.loading import load_problem, load_problem_and_target

EXAMPLES = Path(__file__).parents[2] / "examples"
README_PICTURE = EXAMPLES.parent / "docs" / "drift.svg"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?")


def run(name: str, folder: Path, *arguments: str) -> list[str]:
    """Run an example in a folder of its own; return the lines it printed."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    expected = [shape(line) for line in docstring(name).splitlines()]
    for line in lines:
        assert any(shape(line).startswith(e.rstrip("…")) for e in expected if e), line
    return lines


def docstring(name: str) -> str:
    return ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text())) or ""


def shape(line: str) -> str:
    """Return a line without its numbers and spaces."""
    return " ".join(NUMBER.sub("#", line).split())


def numbers(line: str) -> list[float]:
    return [float(number) for number in NUMBER.findall(line)]


def test_every_example_is_tested():
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == {name[5:] for name in globals() if name.startswith("test_")} & names


def test_drift(tmp_path):
    fedavg, scaffold = run("drift", tmp_path)
    assert numbers(fedavg)[0] > 1  # |x - x*|
    assert numbers(scaffold)[0] < 1e-5
    drawn, shown = (path.read_text() for path in (tmp_path / "drift.svg", README_PICTURE))
    assert coordinates(drawn) == pytest.approx(coordinates(shown), abs=0.3)
    assert re.findall(">(.*?)</text>", drawn) == re.findall(">(.*?)</text>", shown)


def coordinates(svg: str) -> list[float]:
    return [float(n) for d in re.findall(r' d="([^"]*)"', svg) for n in re.findall(r"-?[\d.]+", d)]


def test_own_data(tmp_path):
    _, fedavg, scaffold = run("own_data", tmp_path)
    assert numbers(scaffold)[0] < numbers(fedavg)[0] / 10  # |gradient|


def test_own_data_serves_the_command_line():
    problem, target = load_problem_and_target(f"{EXAMPLES / 'own_data.py'}:problem", batch=50)
    assert target is None
    assert problem.weights.tolist() == [0.75, 0.25]
    assert problem.batch == 50
    assert set(problem.evaluate(problem.x0())) == {"loss", "accuracy", "sensitivity"}


def test_own_algorithm(tmp_path):
    accepted, refused, scaffold, mine, mistake = run("own_algorithm", tmp_path)
    assert accepted.startswith("accepted: ShrinkingScaffold(")
    assert refused.startswith("refused: ByDisplacement: c_i is not the mean of its raw gradients")
    distances = [numbers(line)[0] for line in (scaffold, mine, mistake)]
    assert max(distances[:2]) < distances[2] / 3


def test_own_loop(tmp_path):
    (line,) = run("own_loop", tmp_path)
    assert numbers(line)[0] > 0.9


def test_lora(tmp_path):
    for package in ("transformers", "peft"):
        pytest.importorskip(package, reason="pip install 'trimtab[lora]'")
    first, fedavg, scaffold = run("lora", tmp_path, "--quick")
    whole, d = numbers(first)
    assert d < whole / 20
    kilobytes = round(4 * d / 1e3, 1)
    *_, down, up, kept = numbers(fedavg)
    assert (down, up, kept) == (kilobytes, kilobytes, 0.0)
    *_, down, up, kept = numbers(scaffold)
    assert (down, up) == pytest.approx((2 * kilobytes, 2 * kilobytes), abs=0.1)
    assert kept == kilobytes


def test_groups(tmp_path):
    fedavg, scaffold = run("groups", tmp_path)
    assert numbers(fedavg)[-1] > 10  # per cent
    assert numbers(scaffold)[-1] < 0.1


def test_td_learning(tmp_path):
    fedavg, scaffold = run("td_learning", tmp_path)
    assert numbers(fedavg)[0] > 1e-3
    assert numbers(scaffold)[0] < 1e-9


def test_hospitals(tmp_path):
    if not all(find(source, source.files[0], None) for source in HOSPITALS.values()):
        pytest.skip("needs the heart disease data: TRIMTAB_DATA")
    _, alone, fedavg, scaffold = (numbers(line) for line in run("hospitals", tmp_path))
    assert min(fedavg) > min(alone)
    assert min(scaffold) > min(alone)


def test_table3_small(tmp_path):
    _, _, *rows = (numbers(line)[-3:] for line in run("table3_small", tmp_path))
    fedavg, more_fedavg, scaffold, more_scaffold = rows
    assert more_fedavg[2] < fedavg[2]  # where clients are alike, epochs help
    assert more_fedavg[0] > 0.8 * fedavg[0]  # where they differ, they do not
    assert max(scaffold[0], more_scaffold[0]) < more_fedavg[0] / 1.5


def test_no_better(tmp_path):
    alike, differ, _, *loops, _, fedavg, scaffold = run("no_better", tmp_path)
    assert alike.endswith("no difference")
    assert differ.endswith("choice")
    plain, displacement, right = (numbers(line)[0] for line in loops)
    assert displacement < 0.5 < right - 0.3
    assert right > plain - 0.02
    first, _, last = (b / a for a, b in zip(numbers(fedavg), numbers(scaffold), strict=True))
    assert first > 0.8
    assert last < 0.1
    page = (EXAMPLES.parent / "docs" / "no-better.md").read_text("utf-8")
    output = docstring("no_better").partition("prints\n\n")[2]
    assert "\n".join(line[4:] for line in output.splitlines()) in page


def test_paper_table():
    """It takes longer than an example may; its problem is what the command line takes."""
    problem = load_problem(f"{EXAMPLES / 'paper_table.py'}:problem")
    found = compare(problem, ["fedavg", "scaffold"], metric="log loss", R=10, budget=2e4, seeds=2)
    assert found.metric == "log loss"
    assert r"\toprule" in found.to_latex()
    page = (EXAMPLES.parent / "docs" / "studies.md").read_text("utf-8")
    source = (EXAMPLES / "paper_table.py").read_text("utf-8")
    body = source[source.index("def problem") : source.index("if __name__")].strip()
    assert body in page
