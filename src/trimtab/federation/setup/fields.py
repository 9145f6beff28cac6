"""JSON files of ours and of others: which entries they must have, and of which type."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

Fields = Mapping[str, Any]  # by name, what `isinstance` takes: a type, or several with | between


def check_fields(path: Path, content: Any, fields: Fields, optional: Fields) -> dict[str, Any]:
    """Return the entries of a JSON object; refuse it if one lacks, is unknown, or of another type.

    >>> check_fields(Path("a.json"), {"port": "1"}, {"port": int}, {})
    Traceback (most recent call last):
    ValueError: a.json cannot be read (its port is a str); restore or remove it.
    """
    if not isinstance(content, dict):
        raise _unreadable(path, "it is no JSON object")
    for name, kind in (*fields.items(), *optional.items()):
        if name not in content and name in fields:
            raise _unreadable(path, f"it has no {name!r}")
        if name in content and not _is(content[name], kind):
            raise _unreadable(path, f"its {name} is a {type(content[name]).__name__}")
    for name in content.keys() - fields.keys() - optional.keys():
        raise _unreadable(path, f"its entry {name[:40]!r} is unknown to this trimtab")
    return dict(content)


def _unreadable(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} cannot be read ({why}); restore or remove it.")


def _is(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and (not isinstance(value, bool) or kind is bool)
