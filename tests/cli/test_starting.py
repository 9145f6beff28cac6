"""Help, version and completion answer at once: they load no torch and no plotting library."""

import os
import subprocess
import sys

import pytest

from trimtab_papers import commands
from trimtab_papers.items import REPRODUCTIONS

MOST = 400  # an answer loads <= 400 modules: 290 are needed, any library for numbers has hundreds
CODE = """
import sys
from trimtab.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert not end.code, end.code
heavy = ("torch", "matplotlib", "numpy", "sklearn", "safetensors", "flwr", "cryptography")
print(len(sys.modules), *(name for name in heavy if name in sys.modules), file=sys.stderr)
"""


def heavy_modules(*words, **environment):
    """Run the program; return what it printed, and the heavy modules that it loaded."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, *words],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    modules, *loaded = done.stderr.split()
    assert int(modules) <= MOST
    return done.stdout, loaded


@pytest.mark.parametrize(
    "command",
    [
        *("--help", "--version", "compare --help", "run --help", "diagnose --help"),
        *("check --help", "report --help", "bench --help", "reproduce --help"),
        *("federate --help", "federate server --help", "federate site --help"),
    ],
)
def test_help_loads_nothing_heavy(command):
    out, loaded = heavy_modules(*command.split())
    assert out
    assert not loaded


@pytest.mark.parametrize(
    ("typed", "offers"),
    [
        ("trimtab ", {"compare", "run", "diagnose", "check", "federate"}),
        ("trimtab run --et", {"--eta-l", "--eta", "--eta-g"}),
        ("trimtab run --save ", {"best", "last", "both"}),
        ("trimtab compare --al", {"--algorithms"}),
        ("trimtab federate ", {"server", "site", "status"}),
        ("trimtab run sca", {"scaffold"}),
        ("trimtab run sgd dig", {"digits"}),
        ("trimtab compare --algorithms sgd,sca", {"sgd,scaffold"}),
        ("trimtab reproduce table", {"table3", "table4", "table5"}),
    ],
)
def test_completion_loads_nothing_heavy(typed, offers):
    words = typed.split(" ")
    out, loaded = heavy_modules(
        _TRIMTAB_COMPLETE="bash_complete", COMP_WORDS=typed, COMP_CWORD=str(len(words) - 1)
    )
    assert offers <= {line.partition(",")[2] for line in out.splitlines()}
    assert not loaded


def test_the_reproductions_that_are_offered_are_those_there_are():
    assert tuple(REPRODUCTIONS) == commands.NAMES


LOADED = """
import sys, torch, numpy, click, safetensors.torch, rich.console, rich.table
packages = lambda: {name.partition(".")[0] for name in sys.modules if name[0] != "_"}
before = packages()
from trimtab.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert not end.code, end.code
print(*(packages() - before - sys.stdlib_module_names), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "command",
    [
        "run scaffold digits --eta-l 1 --K 2 -R 1",
        "compare digits --algorithms sgd,scaffold -R 3 --budget 1000 --seeds 1",
    ],
)
def test_a_command_on_digits_loads_no_other_library(command, tmp_path):
    """scikit-learn has the digits; importing it, SciPy and pandas took most of the start."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *command.split(), "--out", "out"],
        **{"capture_output": True, "text": True, "cwd": tmp_path},
    )
    assert done.stderr.split() == ["trimtab"], done.stderr


def test_import_trimtab_loads_nothing_heavy():
    code = "import sys, trimtab; assert not {'torch', 'numpy', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
