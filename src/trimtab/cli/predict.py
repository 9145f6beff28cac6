"""`trimtab predict`."""

import csv
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trimtab._files import write_file
from trimtab.cli.group import requires
from trimtab.cli.output import users_output
from trimtab.errors import BadArgument

if TYPE_CHECKING:
    from trimtab.problems.trained import TrainedModel


@click.command()
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.argument("data", type=click.Path(path_type=Path), metavar="DATA")
@click.option("--out", type=click.Path(path_type=Path), help="CSV file to write [the terminal].")
@click.option("--algorithm", help="Algorithm of a comparison [the recommended one].")
@click.option("--proba", is_flag=True, help="Write the probability of each class.")
@requires("problems.trained")
def predict(run: Path, data: Path, out: Path | None, algorithm: str | None, proba: bool) -> None:
    """Predict the rows of DATA, a CSV file, with the model of RUN.

    RUN is the folder of a run or a comparison, or what `trimtab federate model` wrote. The columns
    of DATA may have any order, and there may be others. The predictions have the order of its rows.
    """
    from trimtab.problems.trained import load

    if out is not None and out.resolve() == data.resolve():
        raise BadArgument("out", "{out} is DATA itself; pass another {out}.")
    with users_output():
        model = load(run, algorithm=algorithm)
        frame = _read(data, model)
        found = model.predict_proba(frame) if proba else model.predict(frame)
    names = _names(model, 1 if found.ndim == 1 else found.shape[1], proba)
    text: str = type(frame)(found, columns=names).to_csv(index=False)
    if out is None:
        click.echo(text, nl=False)
        return
    write_file(out, text)
    click.echo(f"Predictions of {len(frame):,} rows: {out}")


def _read(path: Path, model: "TrainedModel") -> Any:
    """Return a CSV file as a DataFrame; columns of texts remain texts, even if they look like 7."""
    try:
        pandas: Any = import_module("pandas")
    except ImportError:
        raise ValueError(
            "`trimtab predict` needs pandas; run `pip install 'trimtab[pandas]'`."
        ) from None
    columns = model.description.columns
    categories = {} if columns is None else columns.categories
    _check_header(path, [] if columns is None else columns.taken)
    texts = [name for name, values in categories.items() if all(isinstance(v, str) for v in values)]
    try:
        return pandas.read_csv(path, dtype=dict.fromkeys(texts, str))
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file; pass a CSV file.") from None
    except (ValueError, OSError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"{path} is no CSV file ({reason}); pass one with a header.") from None


def _check_header(path: Path, taken: Iterable[str]) -> None:
    """Raise ValueError for a needed column that is there twice; pandas renames the second."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            header = next(csv.reader(file), [])
    except (OSError, ValueError):
        return  # pandas says what is wrong.
    for name in taken:
        if header.count(str(name)) > 1:
            raise ValueError(
                f"{path} has {header.count(str(name))} columns {name!r}; rename or drop one."
            )


def _names(model: "TrainedModel", count: int, proba: bool) -> list[str]:
    """Return the names of the columns of predictions."""
    columns = model.description.columns
    targets = ["prediction"] if columns is None else columns.targets
    if proba and count != len(targets):
        return [str(name) for name in model.classes or range(count)]
    if len(targets) == count:
        return [str(name) for name in targets]
    return [f"prediction {j}" for j in range(count)]
