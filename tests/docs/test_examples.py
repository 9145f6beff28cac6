"""Every example runs without a warning, prints what its docstring says, and shows its point."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab import compare
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


def test_quickstart(tmp_path):
    fedavg, scaffold = run("quickstart", tmp_path)
    target, rounds, megabytes = numbers(scaffold)
    assert target == 0.9
    assert rounds < numbers(fedavg)[1] / 2
    assert megabytes < numbers(fedavg)[2]


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


def test_fine_tuning(tmp_path):
    full, adapters, kept = run("fine_tuning", tmp_path)
    d, kilobytes, before, after, _ = numbers(adapters)
    assert d == 4 * (64 + 128) + 4 * (128 + 10)
    assert kilobytes < numbers(full)[1] / 7
    assert after > before + 0.3
    assert numbers(kept) == [d + numbers(full)[0]]


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


def test_schedule(tmp_path):
    lines = run("schedule", tmp_path)
    *_, constant, halved = numbers(lines[-2])
    assert halved < constant / 2
    assert lines[-1].endswith("bit for bit: True")


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
