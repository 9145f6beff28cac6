"""What went wrong, as one sentence: what, where, what to do."""

import click

from trimtab.errors import BadArgument


def of_usage(error: click.UsageError) -> str:
    """Return what click says of wrong words, and where the right ones are.

    >>> of_usage(click.NoSuchOption("--seed1", possibilities=["--seed", "--seeds"]))
    "No such option '--seed1'; close are --seed, --seeds, and `trimtab --help` says what there is."
    """
    said, close = error.format_message().replace(". Choose from:", ", one of"), ""
    if isinstance(error, click.NoSuchOption):
        said, near = error.message, ", ".join(error.possibilities or ())
        close = f"close are {near}, and " if near else ""
    command = "trimtab" if error.ctx is None else error.ctx.command_path
    said = " ".join(said.split()).removesuffix(".")
    return f"{said}; {close}`{command} --help` says what there is."


def of_error(error: Exception) -> str:
    """Return an error of ours as it is; one that comes from elsewhere with its place."""
    from trimtab._importing import source_location

    if isinstance(error, BadArgument):
        return error.spelled(option_of)
    place = source_location(error)
    if place is None and isinstance(error, OSError) and error.filename and error.strerror:
        why = f"{error.strerror[:1].lower()}{error.strerror[1:]}"
        return f"{error.filename}: {why}; pass another path, or fix this one."
    if place is None and isinstance(error, ValueError | ArithmeticError | OSError):
        text = str(error)
        fixable = text.endswith("; fix it.") and error.__cause__ is not None
        return f"{text[:-1]}, or pass --debug for the whole traceback." if fixable else text
    what = f"{type(error).__name__}: {' '.join(str(error).split()) or 'no message'}"
    if place is None:
        return f"{what}; this should not happen: please report it with what --debug shows."
    return f"{place}: {what}; fix it, or pass --debug for the whole traceback."


def option_of(name: str, value: str = "") -> str:
    """Return how the command line spells an argument.

    >>> option_of("round_timeout"), option_of("R"), option_of("resume", "True")
    ('--round-timeout', '-R', '--resume')
    """
    option = "-R" if name == "R" else f"--{name.replace('_', '-')}"
    return option if value in ("", "True") else f"{option} {value}"
