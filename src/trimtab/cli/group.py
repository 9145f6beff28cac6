"""Groups of commands that know their one-line helps, and import a command when it is used."""

import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from types import FrameType
from typing import Any, ParamSpec, TypeVar

import click
from click.shell_completion import CompletionItem

P = ParamSpec("P")
R = TypeVar("R")


class HelpfulGroup(click.Group):
    """Commands of which one must be named: without any word, their help is shown."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Show the help where no command is named."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            sys.exit(2)
        return super().parse_args(ctx, args)


class LazyGroup(HelpfulGroup):
    """Commands by name: their helps, the module that each is in, and how help orders them."""

    def __init__(
        self,
        *args: Any,
        helps: Mapping[str, str],
        homes: Mapping[str, str],
        sections: Mapping[str, Sequence[str]] | None = None,
        examples: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.helps, self.homes = helps, homes
        self.sections = {"Commands": tuple(helps)} if sections is None else sections
        self.examples = examples or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the helps."""
        return list(self.helps)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Load a command."""
        if name not in self.helps:
            return None
        with deferring_interrupt():
            command: click.Command = getattr(import_module(self.homes[name]), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the helps in their sections, then examples, and load nothing."""
        longest = max(map(len, self.helps))
        for title, names in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{longest}}", self.helps[name]) for name in names])
        if self.examples:
            with formatter.section("Examples"):
                for command, what in self.examples.items():
                    formatter.write_text(command)
                    with formatter.indentation():
                        formatter.write_text(what)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer names and options, and load nothing."""
        names = [name for name in self.helps if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=self.helps[name]) for name in names), *options]


# -- slow imports: done when a command runs, and not interrupted by Ctrl-C


def requires(*modules: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Import modules before a command runs; help and completion do not need them."""

    def decorate(command: Callable[P, R]) -> Callable[P, R]:
        @wraps(command)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with deferring_interrupt():
                for module in modules:
                    import_module(f"trimtab.{module}")
            return command(*args, **kwargs)

        return run

    return decorate


@contextmanager
def deferring_interrupt() -> Iterator[None]:
    """Defer the first Ctrl-C to the end: an interrupted import can raise any error."""
    asked: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if usual:
        signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if asked:
        raise KeyboardInterrupt
