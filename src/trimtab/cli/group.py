"""Groups of commands with one-line helps, which import a command when it is used.

Other distributions add commands to the program through the entry-point group `trimtab.commands`.
"""

import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, wraps
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import FrameType
from typing import Any, ParamSpec, TypeVar

import click
from click.shell_completion import CompletionItem

from trimtab.errors import did_you_mean

P = ParamSpec("P")
R = TypeVar("R")


class HelpfulGroup(click.Group):
    """A group that shows its help if no command is given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Show the help and exit with code 2 if no command is given."""
        # Completion parses incomplete lines, and must neither print nor exit.
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            sys.exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; the error about an unknown one proposes a similar one."""
        name = args[0]
        if not (ctx.resilient_parsing or name.startswith("-") or self.get_command(ctx, name)):
            near = did_you_mean(name, self.list_commands(ctx))
            raise click.UsageError(f"No such command '{name}'{near}", ctx)
        return super().resolve_command(ctx, args)


class LazyGroup(HelpfulGroup):
    """A group whose commands are imported when they are used; help and completion need no import.

    helps: one line for each command of this distribution.
    homes: the module of each command; the command is its attribute of the same name.
    sections: titles of the help, and the commands below each; by default one for all.
    examples: command lines for the end of the help, each with an explanation; none by default.
    entry_point_group: the group in which other distributions register commands; none by default.
    extras: the extra NAME of each command that is in the distribution trimtab-NAME.
    """

    def __init__(
        self,
        *args: Any,
        helps: Mapping[str, str],
        homes: Mapping[str, str],
        sections: Mapping[str, Sequence[str]] | None = None,
        examples: Mapping[str, str] | None = None,
        entry_point_group: str | None = None,
        extras: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.helps, self.homes = helps, homes
        self.sections = {"Commands": tuple(helps)} if sections is None else sections
        self.examples = examples or {}
        self.entry_point_group, self.extras = entry_point_group, extras or {}

    @cached_property
    def others(self) -> dict[str, EntryPoint]:
        """The commands of other distributions; none can replace a command of trimtab."""
        if self.entry_point_group is None:
            return {}
        found = {point.name: point for point in entry_points(group=self.entry_point_group)}
        return {name: found[name] for name in sorted(found) if name not in self.helps}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the helps."""
        return [*self.helps, *self.others]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Load a command; raise ValueError if it is in a distribution that is not installed."""
        with deferring_interrupt():
            if name in self.helps:
                command: click.Command = getattr(
                    import_module(self.homes[name]), name.replace("-", "_")
                )
                return command
            if name in self.others:
                command = self.others[name].load()
                return command
        if name in self.extras and not ctx.resilient_parsing:
            extra = self.extras[name]
            raise ValueError(
                f"`trimtab {name}` needs trimtab-{extra}; run `pip install 'trimtab[{extra}]'`."
            )
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the helps in their sections, then examples; import only foreign commands."""
        helps = self._all_helps()
        longest = max(map(len, helps))
        listed = {name for names in self.sections.values() for name in names}
        more = {"More commands": [name for name in helps if name not in listed]}
        for title, names in (*self.sections.items(), *more.items()):
            rows = [(f"{name:<{longest}}", helps[name]) for name in names if name in helps]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        self._write_examples(formatter, helps)

    def _write_examples(self, formatter: click.HelpFormatter, helps: Mapping[str, str]) -> None:
        # An example of a command that is not installed would only give an error.
        examples = {
            words: what for words, what in self.examples.items() if words.split()[1] in helps
        }
        if examples:
            with formatter.section("Examples"):
                for command, what in examples.items():
                    formatter.write_text(command)
                    with formatter.indentation():
                        formatter.write_text(what)

    def _all_helps(self) -> dict[str, str]:
        return {**self.helps, **{name: _help_of(point) for name, point in self.others.items()}}

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer names and options; import only foreign commands."""
        helps = {n: text for n, text in self._all_helps().items() if n.startswith(incomplete)}
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=text) for name, text in helps.items()), *options]


def _help_of(point: EntryPoint) -> str:
    """Return the one-line help of another distribution's command, or why it cannot be loaded."""
    try:
        with deferring_interrupt():
            command: click.Command = point.load()
        return command.get_short_help_str(limit=200)
    except Exception as error:  # One broken distribution must not take away the help of all others.
        return f"Cannot be loaded ({type(error).__name__}: {error})."


# -- slow imports: done when a command runs, and not interrupted by Ctrl-C


def requires(*modules: str, package: str = "trimtab") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Import modules before a command runs, as a decorator; help and completion do not need them.

    modules: names below the package.
    package: "trimtab" by default.
    """

    def decorate(command: Callable[P, R]) -> Callable[P, R]:
        @wraps(command)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with deferring_interrupt():
                for module in modules:
                    import_module(f"{package}.{module}")
            return command(*args, **kwargs)

        return run

    return decorate


@contextmanager
def deferring_interrupt() -> Iterator[None]:
    """Defer the first Ctrl-C to the end: an interrupted import can raise any error."""
    signals: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if signals:
            raise KeyboardInterrupt
        signals.append(number)

    # Another handler belongs to a program that uses the command line, and stays.
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if usual:
        signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if signals:
        raise KeyboardInterrupt
