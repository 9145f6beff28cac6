"""Import users' files, and locate errors in them. No other module imports users' files."""

import importlib.util
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from traceback import extract_tb
from types import ModuleType

_OURS = tuple(  # trimtab-papers is found without being imported; it may not be installed
    Path(spec.origin).resolve().parent
    for name in ("trimtab", "trimtab_papers")
    if (spec := importlib.util.find_spec(name)) is not None and spec.origin is not None
)
_OTHERS = tuple(
    Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")
)


def load(path: Path, text: str | None = None) -> ModuleType:
    """Import a user's file; its folder is on `sys.path` meanwhile.

    Raises ValueError with the location of the error if the file cannot be imported.

    path: the file.
    text: its content as it was checked; then no cached bytecode and no file beside it is used.
    """
    digest = sha256(str(path.resolve()).encode()).hexdigest()
    name = f"users_{path.stem}_{digest[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Dataclasses and pickle find the module there.
    try:
        if text is not None:
            exec(compile(text, str(path), "exec", dont_inherit=True), vars(module))
            return module
        with sibling_imports(path):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{path} cannot be imported ({describe_error(error)}); fix it.") from error
    return module


@contextmanager
def sibling_imports(path: Path) -> Iterator[None]:
    """Put the folder of a file on `sys.path`, as `python file.py` does."""
    folder = str(path.parent.resolve())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with suppress(ValueError):  # The user's code may have removed it.
            sys.path.remove(folder)


def describe_error(error: BaseException) -> str:
    """Return the error and its location in the user's file as part of a sentence.

    >>> describe_error(KeyError("column"))
    "KeyError: 'column'"
    """
    first = (str(error).strip().splitlines() or [""])[0].rstrip(".")
    what = f"{type(error).__name__}: {first}".removesuffix(": ")
    place = source_location(error)
    return what if place is None else f"{place}: {what}"


def source_location(error: BaseException) -> str | None:
    """Return the innermost line of a user's file in the traceback of an error.

    None if trimtab raised the error itself, or if no user's file is in the traceback.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}, line {error.lineno}"
    frames = extract_tb(error.__traceback__)
    if not frames or _belongs(frames[-1].filename, _OURS):
        return None
    for frame in reversed(frames):
        if not _belongs(frame.filename, (*_OURS, *_OTHERS)) and not frame.filename.startswith("<"):
            inside = "" if frame.name == "<module>" else f" in {frame.name}"
            return f"{_short(frame.filename)}, line {frame.lineno}{inside}"
    return None


def _belongs(file: str, folders: tuple[Path, ...]) -> bool:
    path = Path(file).resolve()
    return any(path.is_relative_to(folder) for folder in folders)


def _short(file: str) -> str:
    """Return a path relative to the working directory if it lies below it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
