"""The command line. A command is imported when it is used: help and Ctrl-C do not load torch."""

import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from logging import DEBUG, Formatter, StreamHandler, getLogger
from typing import NoReturn

import click

from trimtab._version import __version__
from trimtab.cli.group import LazyGroup

# The titles of `trimtab --help` and the commands below each; others come under More commands.
SECTIONS = {
    "Find out": ("compare", "diagnose", "run"),
    "Use the model": ("predict", "export"),
    "Show": ("report",),
    "Train over real sites": ("federate",),
    "The papers": ("reproduce", "bench"),
    "Set up": ("check", "doctor", "completion"),
}
EXAMPLES = {
    "trimtab compare": "which algorithm is best on scikit-learn's digits, in a few minutes",
    "trimtab compare mine.py:problem --algorithms fedavg,scaffold --seeds 5": "on your own data",
    "trimtab diagnose mine.py:problem": "how your clients differ, and what to use",
    "trimtab run scaffold digits --eta-l 0.1 --K 5 -R 100": "one run, and its model",
    "trimtab predict runs/run-1 patients.csv --out predictions.csv": "use a trained model",
    "trimtab report runs/compare-digits-1 runs/compare-digits-2": "two results on one page",
    "trimtab reproduce figure3 --quick": "a figure of the SCAFFOLD paper",
}
# The short helps are repeated here, so that `trimtab --help` does not import the commands.
COMMANDS = {
    "compare": "Tune algorithms on PROBLEM, run them side by side, and recommend one.",
    "run": "Run one ALGORITHM on PROBLEM and save its model.",
    "diagnose": "Measure how the clients of PROBLEM differ, and advise algorithm, K and steps.",
    "check": "Check an ALGORITHM, such as mine.py:Mine, against the contract, rule by rule.",
    "report": "Write the page of finished results again, or of several side by side.",
    "federate": "Train over real sites: an operator's server, and sites with data, keys and disks.",
    "predict": "Predict the rows of DATA, a CSV file, with the model of RUN.",
    "export": "Write a model as ONNX, or rounds for a spreadsheet, TensorBoard or MLflow.",
    "doctor": "Show versions, cores, kernel, devices and data, and what is missing.",
    "completion": "Print the shell's completion script for commands, names and options.",
}


@click.group(
    cls=LazyGroup,
    helps=COMMANDS,
    homes={name: f"trimtab.cli.{name}" for name in COMMANDS},
    sections=SECTIONS,
    examples=EXAMPLES,
    entry_point_group="trimtab.commands",
    extras=dict.fromkeys(SECTIONS["The papers"], "papers"),
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="trimtab", message="%(prog)s %(version)s")
@click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    help="Show the traceback of an error, and how gradients are computed and why.",
)
def cli() -> None:
    """Federated optimisation that does not drift."""


def main(arguments: list[str] | None = None) -> None:
    """Run the program; an error is one sentence and exit code 2.

    arguments: the words of the command line; by default those of this process. `--debug`, at any
        position, shows the log of the library, and the traceback before the sentence.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    with warnings.catch_warnings(), _debugging("--debug" in words):
        warnings.showwarning = _show_warning
        _main(words)


def _main(words: list[str]) -> None:
    try:
        # `obj` is what `command_again` shows on the page.
        given = [word for word in words if word != "--debug"]
        cli.main(given, prog_name="trimtab", standalone_mode=False, obj=given)
    except (click.Abort, KeyboardInterrupt):
        _end("stopped.", 130)
    except click.UsageError as error:
        # Imported only here, because `output` loads rich.
        from trimtab.cli.output import usage_sentence

        _end(usage_sentence(error), 2)
    except click.ClickException as error:
        _end(error.format_message(), 130)  # Commands raise it when the user stops them.
    except Exception as error:
        if "--debug" in words:
            traceback.print_exc()
        from trimtab.cli.output import error_sentence

        _end(error_sentence(error), 2)


@contextmanager
def _debugging(when: bool) -> Iterator[None]:
    """Show the log of the library on stderr."""
    logger, handler = getLogger("trimtab"), StreamHandler()
    handler.setFormatter(Formatter("trimtab: debug: %(message)s"))
    before = logger.level
    if when:
        logger.addHandler(handler)
        logger.setLevel(DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def _show_warning(message: Warning | str, *where: object, **more: object) -> None:
    # A warning has the form of an error, without the line of code that Python shows.
    click.echo(f"trimtab: note: {' '.join(str(message).split())}", err=True)


def _end(sentence: str, code: int) -> NoReturn:
    click.echo(f"trimtab: {sentence}", err=True)
    sys.exit(code)
