"""The reference: every public name, every command with its options, and the fields of the JSON."""

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

import click

from docs.generate.docstrings import described

# The public names of trimtab, by subject. A test compares them with `trimtab.__all__`.
GROUPS = {
    "run": (
        "Rounds and studies",
        ("simulate", "Simulation", "Round", "Speeds", "compare", "Comparison"),
    ),
    "diagnose": ("Diagnosis", ("diagnose", "Diagnosis")),
    "problems": (
        "Problems and data",
        (
            *("Problem", "Supervised", "Columns", "Fields", "OnBatch", "Quadratic"),
            *("LinearSystem", "GarnetTD", "load_problem", "load", "Metric"),
        ),
    ),
    "algorithms": (
        "Algorithms",
        (
            *("Sgd", "FedAvg", "FedProx", "Scaffold", "FedOpt", "MimeLite", "Mime", "ServerOnly"),
            *("RichardsonRomberg", "ScaffoldM", "FedDyn", "Scaffnew", "Scallion", "FedNova"),
            *("ScaffoldOpt", "ServerMvr", "MimeLiteMvr", "MimeMvr", "Dane", "ALGORITHMS"),
            *("register", "Epochs"),
        ),
    ),
    "bases": ("Base optimisers", ("Momentum", "Adam", "AdamW", "Yogi", "Adagrad", "Clipped")),
    "schedules": (
        "Schedules and stages",
        (
            *("Scheduled", "Schedule", "Cosine", "Decay", "Piecewise", "Warmup"),
            *("Through", "Stage", "Rounding"),
        ),
    ),
    "executors": ("Executors", ("Tree", "Ray")),
    "errors": ("Errors", ("BadArgument", "DataError", "Diverged", "InUse")),
}
# Modules of public names beside trimtab itself: what each is for, and its names if it has no
# `__all__`. Those that are not there are left out.
MODULES = {
    "torch": ("trimtab.torch", "SCAFFOLD in a training loop of your own."),
    "sklearn": ("trimtab.sklearn", "Estimators for scikit-learn."),
    "flower": ("trimtab.flower", "SCAFFOLD in an app of Flower."),
    "testing": ("trimtab.testing", "The contract that every algorithm must keep."),
    "partition": (
        "trimtab.problems.partition",
        "Samples into clients.",
        *("by_similarity", "by_label", "dirichlet", "by_column"),
    ),
    "data": (
        "trimtab.problems.data",
        "Data sets.",
        *("images.digits", "emnist.emnist", "images.cifar10", "images.cifar100"),
        *("tables.concrete", "tables.heart_disease", "tables.a9a", "shakespeare.shakespeare"),
    ),
}
NOT_LISTED = ("__version__", "testing")  # a string, and a module with a page of its own
# What each command prints with --json, or writes: the dataclasses that hold its fields.
JSON = {
    "`trimtab compare --json`, and `outcome` in compare.json": (
        ("studies.comparison", "About"),
        ("studies.entry", "Entry"),
        ("studies.entry", "SeedRun"),
    ),
    "`trimtab run --json`, and run.json": (("studies.record", "SelectedModel"),),
    "A line of rounds.jsonl": (("studies.record", "RoundLine"),),
    "`trimtab diagnose --json`, and diagnosis.json": (
        ("diagnosis.diagnosis", "Setting"),
        ("diagnosis.diagnosis", "Scalars"),
        ("diagnosis.diagnosis", "Evidence"),
        ("diagnosis.diagnosis", "Forecast"),
        ("diagnosis.diagnosis", "Recommendation"),
        ("diagnosis.intervals", "Estimate"),
    ),
    "`trimtab doctor --json`": (("cli.doctor", "Finding"),),
}


def pages() -> dict[str, str]:
    """Return the text of each page by its path on the site."""
    api = {f"reference/{stem}.md": _api(title, names) for stem, (title, names) in GROUPS.items()}
    return {
        "reference/index.md": _index(),
        **api,
        **{f"reference/{stem}.md": _module(*MODULES[stem]) for stem in MODULES if _exists(stem)},
        "reference/commands.md": _commands(),
        "reference/json.md": _json(),
    }


def _exists(stem: str) -> bool:
    try:
        import_module(MODULES[stem][0])
    except ImportError:
        return False
    return True


def _api(title: str, names: Iterable[str]) -> str:
    head = {"errors": _ERRORS}.get(title.lower(), "")
    return f"# {title}\n\n{head}" + "\n\n".join(f"::: trimtab.{name}" for name in names) + "\n"


_ERRORS = """An error is one sentence that says what is wrong, where, and what to do. Each is a
`ValueError`, but for `Diverged`, which is an `ArithmeticError`. On the command line it is the last
line of stderr, and the exit code says how the command ended: 0 it finished, 2 an error (of the
words, the data or the problem file), 130 it was stopped. `--debug` shows the traceback.

"""


def _module(name: str, says: str, *names: str) -> str:
    items = "\n\n".join(f"::: {name}.{each}" for each in names or _public(name))
    return f"# {name}\n\n{says}\n\n{items}\n"


def _public(name: str) -> list[str]:
    module = import_module(name)
    return [each for each in module.__all__ if not inspect.ismodule(getattr(module, each))]


def _index() -> str:
    rows = [
        f"| [{title}]({stem}.md) | {', '.join(f'`{name}`' for name in names)} |"
        for stem, (title, names) in GROUPS.items()
    ]
    for stem in filter(_exists, MODULES):
        name, says, *names = MODULES[stem]
        public = ", ".join(f"`{each.rpartition('.')[2]}`" for each in names or _public(name))
        rows.append(f"| [{name}]({stem}.md) | {says} {public} |")
    table = "\n".join(["| page | names |", "|---|---|", *rows])
    said = "Every public name, from the docstrings; their examples are run by the tests."
    more = "[Commands](commands.md) · [JSON fields](json.md)"
    return f"# Reference\n\n{said} {more}\n\n{table}\n"


# -- commands


def _commands() -> str:
    from trimtab.cli import cli

    said = (
        "Generated from the program; `trimtab COMMAND --help` shows the same. Every error is one "
        "sentence; [exit codes](errors.md)."
    )
    parts = [_command(words, command) for words, command in _walk(("trimtab",), cli)]
    return f"# Commands\n\n{said}\n\n" + "\n\n".join(parts) + "\n"


def _walk(
    words: tuple[str, ...], command: click.Command
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        yield words, command
        return
    context = click.Context(command, info_name=words[-1])
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        if found is not None and not found.hidden:
            yield from _walk((*words, name), found)


def _command(words: tuple[str, ...], command: click.Command) -> str:
    context = click.Context(command, info_name=" ".join(words))
    usage = " ".join([" ".join(words), *command.collect_usage_pieces(context)])
    text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    rows = [
        f"| `{', '.join(parameter.opts)}`{_value(parameter, context)} | {_help(parameter)} |"
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
    ]
    table = ["| option | |", "|---|---|", *rows] if rows else []
    parts = [f"## {' '.join(words)}", f"```\n{usage}\n```", _escaped(text), "\n".join(table)]
    return "\n\n".join(part for part in parts if part)


def _value(option: click.Option, context: click.Context) -> str:
    return "" if option.is_flag else f" {_escaped(option.make_metavar(context))}"


def _help(option: click.Option) -> str:
    said = " ".join((option.help or "").split())
    shown = option.default if option.show_default and not callable(option.default) else None
    default = "" if shown in (None, "", ()) else f" Default: {shown}."
    return _escaped(f"{said}{default}").replace("|", "\\|")


def _escaped(text: str) -> str:
    for sign in "\\*_<[":
        text = text.replace(sign, f"\\{sign}" if sign != "<" else "&lt;")
    return text.replace("|", "\\|") if "\n" not in text else text


# -- fields


def _json() -> str:
    said = (
        "Commands with `--json` print one object (`doctor`: a list) and nothing else on standard "
        "output. Fields are added, and neither renamed nor removed within a minor version. A field "
        "that is not listed below says what its name says."
    )
    parts = [f"# JSON fields\n\n{said}"]
    for title, classes in JSON.items():
        parts.append(f"## {title}")
        parts += [_fields(*each) for each in classes]
    return "\n\n".join(parts) + "\n"


def _fields(module: str, name: str) -> str:
    cls = getattr(import_module(f"trimtab.{module}"), name)
    rows = [
        f"| `{field}` | `{kind.replace('|', chr(92) + '|')}` | {_escaped(says)} |"
        for field, kind, says in fields_of(cls)
    ]
    first = (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")
    return "\n".join([f"{_escaped(first)}\n", "| field | type | |", "|---|---|---|", *rows])


def fields_of(cls: type[Any]) -> list[tuple[str, str, str]]:
    """Return the fields of a dataclass: name, type, and the comment or the docstring beside it.

    >>> from trimtab.studies.record import RoundLine
    >>> fields_of(RoundLine)[0][:2]
    ('r', 'int')
    """
    source = textwrap.dedent(inspect.getsource(cls))
    lines = source.splitlines()
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    names = [
        n.target.id
        for n in tree.body
        if isinstance(n, ast.AnnAssign)
        if isinstance(n.target, ast.Name)
    ]
    said = described(ast.get_docstring(tree) or "", names)
    found = []
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            comment = lines[node.lineno - 1].partition("  # ")[2]
            name = node.target.id
            found.append((name, ast.unparse(node.annotation), comment or said.get(name, "")))
    return found
