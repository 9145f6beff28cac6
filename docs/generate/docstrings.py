"""Docstrings of the house as the reference reads them: with the headings of Google's style.

In the code a public function has a line, then its arguments as `name: what it is`, then an example.
The headings between them are added here, when mkdocstrings reads the code.
"""

import re
from collections.abc import Collection, Iterator

import griffe

_NAMED = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*): (.*)")


class Headings(griffe.Extension):
    """The extension of mkdocstrings' reader of Python."""

    def on_object(
        self, *, obj: griffe.Object, loader: griffe.GriffeLoader, **kwargs: object
    ) -> None:
        """Put headings into the docstring of a function or a class."""
        if obj.docstring is not None and isinstance(obj, griffe.Function | griffe.Class):
            names = {parameter.name.lstrip("*") for parameter in obj.parameters}
            names |= set(obj.members) if isinstance(obj, griffe.Class) else set()
            obj.docstring.value = with_headings(obj.docstring.value, names)


def with_headings(text: str, names: Collection[str]) -> str:
    """Return a docstring with the headings Args and Examples.

    names: the parameters; a paragraph that begins with none of them stays as it is.

    >>> with_headings("Add.\\n\\na, b: numbers.\\n\\n>>> 1 + 2", ["a", "b"]).splitlines()
    ['Add.', '', 'Args:', '    a: numbers.', '    b: numbers.', '', 'Examples:', '    >>> 1 + 2']
    """
    if "\nArgs:\n" in text:
        return text
    out, heading = [], ""
    for paragraph in text.split("\n\n"):
        kind, lines = "", paragraph.split("\n")
        if lines[0].startswith(">>> ") or (heading == "Examples" and lines[0][:3] == ">>>"):
            kind = "Examples"
        elif (found := _NAMED.match(lines[0])) and _all(found[1], names):
            kind, lines = "Args", list(_arguments(lines, names))
        if not kind:
            out.append(paragraph)
        else:
            head = [] if kind == heading else [f"{kind}:"]
            out.append("\n".join([*head, *(f"    {line}".rstrip() for line in lines)]))
        heading = kind
    return "\n\n".join(out)


def described(docstring: str, names: Collection[str]) -> dict[str, str]:
    """Return what a docstring says of each name, in one line.

    >>> described("A fact.\\n\\npart: the title\\n    of its group.", ["part"])
    {'part': 'the title of its group.'}
    """
    found: dict[str, str] = {}
    last: str | None = None
    parts = docstring.split("\n\n")
    for line in (line for part in parts for line in _arguments(part.split("\n"), names)):
        name, colon, says = line.partition(": ")
        if colon and name in names and not line.startswith(" "):
            last, found[name] = name, says
        elif last and line.startswith(" "):
            found[last] += f" {line.strip()}"
        else:
            last = None
    return found


def _all(said: str, names: Collection[str]) -> bool:
    return all(name.lstrip("*") in names for name in said.split(", "))


def _arguments(lines: list[str], names: Collection[str]) -> Iterator[str]:
    """Yield a paragraph of arguments with a line for each name."""
    shared: list[str] = []
    text: list[str] = []
    for line in [*lines, ""]:
        found = _NAMED.match(line)
        if not line or (found and _all(found[1], names)):
            for name in shared:
                yield from (f"{name}: {text[0]}", *text[1:])
            shared, text = (found[1].split(", "), [found[2]]) if found else ([], [])
        elif shared:
            text.append(line if line.startswith(" ") else f"    {line}")
        else:
            yield line
