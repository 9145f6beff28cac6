"""Exceptions that users may catch. Each message is one sentence: what, where, what to do."""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any


class BadArgument(ValueError):
    """An argument that cannot be used.

    argument: the name of the argument.
    sentence: the message. It names arguments in braces, `{out}`, or with the value to pass,
        `{resume:True}`. Python shows them as keyword arguments, the command line as options.
    facts: values for all other braces.

    >>> error = BadArgument("out", "{folder} is not empty; pass another {out}.", folder="runs/a")
    >>> str(error)
    'runs/a is not empty; pass another out.'
    >>> error.spelled(lambda name, value: f"--{name}")
    'runs/a is not empty; pass another --out.'
    """

    def __init__(self, argument: str, sentence: str, **facts: object) -> None:
        self.argument, self.sentence = argument, sentence
        self.facts = facts
        super().__init__(self.spelled(lambda name, value: f"{name}={value}" if value else name))

    def spelled(self, spell: Callable[[str, str], str]) -> str:
        """Return the sentence with each argument as `spell(name, value)` writes it."""
        return self.sentence.format_map(_Braces(self.facts, spell))

    # Pickle would call the class with `args`, the finished message; worker processes send errors.
    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.argument, self.sentence, self.facts)


def _rebuild(kind: type[BadArgument], argument: str, sentence: str, facts: dict[str, Any]) -> Any:
    return kind(argument, sentence, **facts)


class _Braces(dict[str, Any]):
    """Facts by name; a name that is not among them is an argument."""

    def __init__(self, facts: dict[str, Any], spell: Callable[[str, str], str]) -> None:
        super().__init__(facts)
        self.spell = spell

    def __missing__(self, name: str) -> "_Argument":
        return _Argument(name, self.spell)


class _Argument:
    def __init__(self, name: str, spell: Callable[[str, str], str]) -> None:
        self.name, self.spell = name, spell

    def __format__(self, value: str) -> str:
        return self.spell(self.name, value)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the most similar of the known names as a question in parentheses, or "".

    >>> did_you_mean("scafold", ["sgd", "scaffold"]), did_you_mean("x", ["sgd"])
    (' (did you mean scaffold?)', '')
    """
    near = get_close_matches(name.lower(), list(known), n=1, cutoff=0.7)
    return f" (did you mean {near[0]}?)" if near else ""


class InUse(ValueError):
    """Another process holds the folder."""


class DataError(ValueError):
    """Data files are missing, or their content is not as expected."""


class Diverged(ArithmeticError):
    """x, or a state, is no longer finite. The simulation stays at its last finite round.

    algorithm: the algorithm as it was in that round.
    r: the round that diverged; the first round is 1.
    why: the advice at the end of the message, "try a smaller step size" by default.
    """

    def __init__(self, algorithm: Any, r: int, why: str = "try a smaller step size") -> None:
        super().__init__(f"{algorithm} diverged at round {r}: x is no longer finite; {why}.")
        self.algorithm, self.r, self.why = algorithm, r, why

    # As above: the arguments, not the message.
    def __reduce__(self) -> tuple[Any, ...]:
        return Diverged, (self.algorithm, self.r, self.why)
