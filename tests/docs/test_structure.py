"""The shape of the code: imports point one way, public names and signatures stay."""

import ast
import inspect
import re
import subprocess
import sys
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

import trimtab
import trimtab_papers
from trimtab import testing
from trimtab.problems import partition
from trimtab.problems.data.emnist import emnist
from trimtab.problems.data.images import cifar10, cifar100, digits
from trimtab.problems.data.shakespeare import shakespeare
from trimtab.problems.data.tables import a9a, concrete, heart_disease

SRC = Path(trimtab.__file__).parent
MODULES = {
    ".".join(("trimtab", *path.relative_to(SRC).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in SRC.rglob("*.py")
}
CONCRETE = {path.stem for path in (SRC / "algorithms").glob("*.py")}
CONCRETE -= {"__init__", "bases", "registry", "scheduled", "through"}

# Each may import itself and what stands above; DESIGN.md, "Imports point one way".
LEVELS = (
    ("_version", "errors", "_importing", "_processes"),
    ("_files",),
    ("core", "commit"),
    ("torch",),
    ("flower",),
    ("compute", "algorithms"),
    ("problems",),
    ("simulation",),
    ("cluster",),
    ("studies",),
    ("diagnosis", "federation"),
    ("report",),
    ("cli",),
    ("__main__",),
)
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
FORBIDDEN = {"problems": {"algorithms"}, "simulation": {"algorithms"}}  # although it stands above
APART = {  # of ours, these only
    "sklearn": {"core", "errors", "algorithms", "compute", "problems", "simulation", "sklearn"},
    "testing": {"core", "errors", "algorithms", "compute", "problems", "simulation", "testing"},
}


@cache
def tree_of(module):
    return ast.parse(MODULES[module].read_text())


@cache
def imports(module):
    """Return the names of the modules that a module imports, those inside functions as well."""
    found = set()
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: write imports in full"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in MODULES else node.module)
    return found


def ours(module):
    return {name for name in imports(module) if name.split(".")[0] == "trimtab"}


def part(module):
    """Return the folder or file right under trimtab."""
    return module.split(".")[1]


def outside(module):
    return {name.split(".")[0] for name in imports(module)} - set(sys.stdlib_module_names)


INNER = sorted(set(MODULES) - {"trimtab"})


@pytest.mark.parametrize("module", INNER)
def test_imports_point_one_way(module):
    here = part(module)
    for name in ours(module):
        assert name != "trimtab", f"{module}: import from the module that defines it"
        there = part(name)
        if there in APART and here == "cli":
            continue
        if here in APART:
            assert there in APART[here], f"{module} imports {name}"
        elif there != here:
            assert LEVEL[there] < LEVEL[here], f"{module} imports {name}"
            assert there not in FORBIDDEN.get(here, ()), f"{module} imports {name}"


def test_every_module_has_its_level():
    assert {part(module) for module in INNER} == set(LEVEL) | set(APART)


def test_only_the_command_line_imports_the_contract():
    for module in INNER:
        if part(module) not in (*APART, "cli"):
            assert not {part(name) for name in ours(module)} & set(APART)


def test_the_package_itself_imports_nothing_of_the_command_line():
    assert {part(name) for name in ours("trimtab")} <= {
        *(
            "_version",
            "errors",
            "core",
            "algorithms",
            "cluster",
            "studies",
            "diagnosis",
            "problems",
            "simulation",
            "testing",
        )
    }


def test_core_imports_torch_and_the_standard_library_only():
    for module in MODULES:
        if module.startswith("trimtab.core"):
            assert outside(module) <= {"torch", "trimtab"}, module


def test_loops_of_ones_own_load_nothing_of_the_simulator():
    for module in MODULES:
        if module.startswith("trimtab.torch"):
            assert {part(name) for name in ours(module)} <= {"commit", "errors", "torch"}, module
            assert outside(module) <= {"torch", "trimtab", "lightning", "transformers"}, module
    code = "import sys, trimtab.torch; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if name.startswith("trimtab.")}
    assert {part(name) for name in loaded} <= {"_files", "_version", "commit", "errors", "torch"}
    assert not {"lightning", "transformers"} & {*done.stdout.split()}


def test_an_app_of_flower_loads_nothing_of_the_simulator_and_public_names_alone():
    public = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}
    for module in MODULES:
        if module.startswith("trimtab.flower"):
            parts = {part(name) for name in ours(module)}
            assert parts <= {"commit", "errors", "flower", "torch"}, module
            assert outside(module) <= {"flwr", "safetensors", "torch", "trimtab"}, module
            assert {name for name in imports(module) if name.startswith("flwr")} <= public, module
        else:
            assert "flower" not in {part(f"{name}.") for name in ours(module)}, module


def test_algorithms_import_torch_core_and_bases_only():
    for name in CONCRETE:
        module = f"trimtab.algorithms.{name}"
        allowed = {"trimtab.core", "trimtab.algorithms.bases"}
        if name == "richardsonromberg":
            allowed.add("trimtab.algorithms.fedavg")
        assert ours(module) <= allowed, module
        assert outside(module) <= {"torch", "trimtab"}, module


def test_the_terminal_and_the_plots_are_imported_where_they_are_shown():
    for module in MODULES:
        if part(f"{module}.") not in ("cli", "report"):
            assert not outside(module) & {"click", "rich"}, module
        assert "matplotlib" not in outside(module), module


def test_trimtab_never_imports_its_papers():
    for module in MODULES:
        assert "trimtab_papers" not in outside(module), module


PAPERS_SRC = Path(trimtab_papers.__file__).parents[1]
PAPERS = {
    ".".join(path.relative_to(PAPERS_SRC).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (PAPERS_SRC / "trimtab_papers").rglob("*.py")
}


@cache
def paper_imports(module):
    """Return what a module of trimtab-papers imports, with the modules of its own by full name."""
    found = set()
    for node in ast.walk(ast.parse(PAPERS[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: write imports in full"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (inner & PAPERS.keys()) or {node.module}
    return found


@pytest.mark.parametrize("module", sorted(PAPERS))
def test_the_papers_use_the_command_line_in_their_commands_only(module):
    if module != "trimtab_papers.commands":
        outer = ("trimtab.cli", "click", "rich")
        assert not [name for name in paper_imports(module) if name.startswith(outer)]


def test_the_papers_import_one_another_without_cycles():
    left = {module: paper_imports(module) & PAPERS.keys() for module in PAPERS}
    while left:
        free = {module for module, wanted in left.items() if not wanted & left.keys()}
        assert free, f"these import one another: {sorted(left)}"
        left = {module: wanted for module, wanted in left.items() if module not in free}


def test_every_algorithm_has_its_own_file_of_fewer_than_60_lines():
    assert set(trimtab.ALGORITHMS) == CONCRETE
    for name in CONCRETE:
        text = (SRC / "algorithms" / f"{name}.py").read_text()
        assert len(text.splitlines()) < 60, name
        kind = trimtab.ALGORITHMS[name]
        assert kind.__module__ == f"trimtab.algorithms.{name}"
        assert kind.__bases__ == (object,), "no inheritance between algorithms"


def sentences(module):
    """Return the texts of a module that are no documentation."""
    tree = tree_of(module)
    kinds = (ast.FunctionDef, ast.ClassDef, ast.Module)
    documentation = {
        ast.get_docstring(n, clean=False) for n in ast.walk(tree) if isinstance(n, kinds)
    }
    found = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return [text for text in found if isinstance(text, str) and text not in documentation]


# Flower has options of its own, and variables of CSS look so.
SHOWN = (
    *("trimtab.cli", "trimtab.federation.transport.flower"),
    *("trimtab.report.charts.svg",),
)


@pytest.mark.parametrize("module", [name for name in INNER if not name.startswith(SHOWN)])
def test_no_sentence_of_the_library_names_an_option(module):
    for text in sentences(module):
        assert not re.search(r"(?<![-\w])--[a-z]", text), text


# -- tests

TESTS = Path(__file__).parents[1]


def test_the_tests_mirror_the_package():
    rooms = {path.name for path in SRC.iterdir() if (path / "__init__.py").exists()}
    folders = {path.name for path in TESTS.iterdir() if (path / "__init__.py").exists()}
    assert folders == rooms | {"docs", "helpers", "mutants", "package", "papers"}
    assert not list(TESTS.glob("test_*.py"))
    for room in rooms:
        assert list((TESTS / room).glob("test_*.py")), room


def test_helpers_hold_no_tests_and_every_folder_of_tests_is_a_package():
    assert not list((TESTS / "helpers").glob("test_*.py"))
    for path in TESTS.rglob("*.py"):
        assert (path.parent / "__init__.py").exists(), path


def test_no_test_changes_where_modules_are_found():
    for path in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert not re.match(r"sys\.path\.(insert|append|extend)", called), path


# -- public names

SIGNATURES = {
    trimtab.Sgd: "(*, eta)",
    trimtab.FedAvg: "(*, eta_l, K, eta_g=1.0)",
    trimtab.FedProx: "(*, eta_l, K, mu=1.0, eta_g=1.0)",
    trimtab.Scaffold: "(*, eta_l, K, eta_g=1.0, option='II', lean=False)",
    trimtab.FedOpt: "(*, eta_l, K, base, eta_g=1.0)",
    trimtab.MimeLite: "(*, eta, K, base)",
    trimtab.Mime: "(*, eta, K, base)",
    trimtab.ServerOnly: "(*, eta, base)",
    trimtab.RichardsonRomberg: "(fedavg)",
    trimtab.ScaffoldM: "(*, eta_l, K, a=0.1, eta_g=1.0)",
    trimtab.FedDyn: "(*, eta_l, K, alpha=0.1)",
    trimtab.Scaffnew: "(*, eta_l, p=0.1)",
    trimtab.Scallion: "(*, eta_l, K, eta_g=1.0, alpha=1.0)",
    trimtab.FedNova: "(*, eta_l, K, eta_g=1.0)",
    trimtab.ScaffoldOpt: "(*, eta_l, K, base, eta_g=1.0)",
    trimtab.ServerMvr: "(*, eta, a=0.1)",
    trimtab.MimeLiteMvr: "(*, eta, K, a=0.1)",
    trimtab.MimeMvr: "(*, eta, K, a=0.1)",
    trimtab.Dane: "(*, eta_l, K, mu=1.0)",
    trimtab.Momentum: "(beta=0.9)",
    trimtab.Adam: "(beta1=0.9, beta2=0.99, eps=0.001)",
    trimtab.Yogi: "(beta1=0.9, beta2=0.99, eps=0.001)",
    trimtab.Adagrad: "(eps=0.001)",
    trimtab.AdamW: "(beta1=0.9, beta2=0.999, eps=1e-08, weight_decay=0.01)",
    trimtab.Clipped: "(base, norm)",
    trimtab.Warmup: "(R, then=None)",
    trimtab.Quadratic: "(A, b, sigma=0.0, weights=None)",
    trimtab.Supervised: (
        "(module, loss, clients, test=None, batch=None, weights=None, sampling='reshuffle', "
        "l2=0.0, metrics=None, autocast=None, *, validation=None, tests=None, groups=None, "
        "collate=None, device=None)"
    ),
    trimtab.simulate: (
        "(algorithm, problem, *, S=None, seed=0, x=None, cohorts=None, lost=0.0, "
        "slow=0.0, executor='auto', memory=None, available=None, arrivals=None)"
    ),
    trimtab.Simulation.load: (
        "(path, algorithm, problem, *, executor=None, memory=None, available=None)"
    ),
    trimtab.load: "(folder, *, algorithm=None, module=None)",
    trimtab.load_problem: "(spec, *, partition=None, **options)",
    trimtab.Tree: "(shards=16, inner='auto')",
    trimtab.Ray: (
        "(address=None, shards=16, actors=None, snapshots=None, *, cpus=1, gpus=0, every=100, "
        "wait=60.0, ship=False)"
    ),
    trimtab.LinearSystem: "(A, b, noise=None, weights=None)",
    trimtab.GarnetTD: ("(N, states, features, gamma, heterogeneity, seed=0, sampling='iid')"),
    trimtab.Simulation.save: "(self, path)",
    trimtab.Simulation.audit: "(self)",
    trimtab.diagnose: (
        "(problem, x=None, *, S=None, eps=None, cross_device=False, seed=0, minutes=5, "
        "algorithms=None, out=None, resume=False)"
    ),
    testing.check_algorithm: "(algorithm)",
    partition.by_similarity: "(labels, N, s, seed=0)",
    partition.by_label: "(labels, N, seed=0)",
    partition.dirichlet: "(labels, N, alpha, seed=0)",
    partition.by_column: "(column)",
    digits: "()",
    emnist: "(split='balanced', data=None, pixels='unit')",
    cifar10: "(data=None, pixels='unit')",
    cifar100: "(data=None, pixels='unit', labels='fine')",
    concrete: "(data=None)",
    heart_disease: "(data=None)",
    a9a: "(data=None)",
    shakespeare: "(data=None, length=80)",
}
PROBLEM = {
    "x0": "(self, seed=0)",
    "oracle": "(self, i, seed, r)",
    "evaluate": "(self, x, client=None)",
}
BESIDES = {
    "loss": "(self, x)",
    "gradient": "(self, x)",
    "client_loss": "(self, i, x)",
    "client_gradient": "(self, i, x)",
    "client_hvp": "(self, i, x, V)",
}


def signature(f):
    """Return the signature of f without its annotations."""
    found = inspect.signature(f)
    empty = inspect.Parameter.empty
    parameters = [p.replace(annotation=empty) for p in found.parameters.values()]
    return str(found.replace(parameters=parameters, return_annotation=empty))


def test_every_public_name_is_there():
    """Which they are, the reference lists by hand: tests/docs/test_reference.py."""
    assert all(hasattr(trimtab, name) for name in trimtab.__all__)
    assert set(trimtab.ALGORITHMS.values()) <= SIGNATURES.keys()


@pytest.mark.parametrize("f", SIGNATURES, ids=lambda f: f.__qualname__)
def test_signatures_do_not_change(f):
    assert signature(f) == SIGNATURES[f]


def test_compare_takes_the_arguments_of_the_design():
    assert signature(trimtab.compare).startswith(
        "(problem, algorithms=None, *, target=None, K=None, S=None,"
    )


def test_a_problem_must_have_six_things():
    assert {name: signature(getattr(trimtab.Problem, name)) for name in PROBLEM} == PROBLEM
    attributes = trimtab.Problem.__annotations__
    assert {name for name in attributes if not hasattr(trimtab.Problem, name)} == {
        *("N", "d", "weights")
    }
    assert trimtab.Problem.__abstractmethods__ == {"x0", "oracle"}  # simulate needs no evaluate


@pytest.mark.parametrize(
    "kind", [trimtab.Quadratic, trimtab.Supervised, trimtab.LinearSystem, trimtab.GarnetTD]
)
def test_our_problems_can_do_more(kind):
    methods = PROBLEM | BESIDES
    assert {name: signature(getattr(kind, name)) for name in methods} == methods


def test_supervised_also_unflattens():
    assert signature(trimtab.Supervised.unflatten) == "(self, x)"


def test_a_round_tells_what_the_design_says():
    assert [field.name for field in fields(trimtab.Round)] == [
        *("r", "x", "server", "cohort", "bytes_down", "bytes_up", "seconds"),
        *("drift", "spread", "cosine", "exchanges", "work", "time"),
    ]
