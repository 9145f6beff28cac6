"""JSON files of ours and of others: which entries they must have, and of which type."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

Fields = Mapping[str, Any]  # by name, what `isinstance` takes: a type, or several with | between
MISSING = object()


def check_fields(path: Path, content: Any, fields: Fields, optional: Fields) -> dict[str, Any]:
    """Return the entries of a JSON object; refuse it if one lacks, is unknown, or of another type.

    >>> check_fields(Path("a.json"), {"port": "1"}, {"port": int}, {})
    Traceback (most recent call last):
    ValueError: a.json cannot be read (its port is a str); restore or remove it.
    """
    why = ""
    if not isinstance(content, dict):
        raise ValueError(f"{path} cannot be read (it is no JSON object); restore or remove it.")
    for name, kind in (*fields.items(), *optional.items()):
        value = content.get(name, MISSING)
        if value is MISSING and name in fields:
            why = f"it has no {name}"
        elif value is not MISSING and not _is(value, kind):
            why = f"its {name} is a {type(value).__name__}"
    for name in content.keys() - fields.keys() - optional.keys():
        why = f"its entry {name[:40]!r} is unknown to this trimtab"
    if why:
        raise ValueError(f"{path} cannot be read ({why}); restore or remove it.")
    return dict(content)


def _is(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and (not isinstance(value, bool) or kind is bool)
